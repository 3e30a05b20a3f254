"""What keeps tests quick: small sizes of the named workloads, and tests of which a few cases are quick."""

from collections.abc import Iterable
from typing import Any

import pytest

__all__ = ["SIZES", "few"]


def few(cases: Iterable[Any], *quick: Any) -> list[Any]:
    """Return cases of which only a few are quick, as parameters of a test: the others are slow."""
    every = list(cases)
    assert all(one in every for one in quick), quick
    told = [one if isinstance(one, tuple) else (one,) for one in every]
    return [
        one if one in quick else pytest.param(*values, marks=pytest.mark.slow)
        for one, values in zip(every, told, strict=True)
    ]


# Kernels of these sizes, all of them odd, are compiled and run in an instant.
SIZES = {
    "softmax": {"M": 5, "N": 129},
    "rmsnorm": {"M": 7, "K": 33},
    "rmsnorm-linear": {"M": 7, "K": 129, "N": 33},
    "layernorm-linear-gelu": {"M": 7, "K": 65, "N": 33},
    "gated-mlp": {"M": 7, "K": 129, "N": 65},
    "rmsnorm-mlp": {"M": 7, "K": 33, "N": 65},
    "lora": {"M": 17, "K": 129, "N": 33, "R": 5},
    "mha": {"B": 1, "H": 3, "S": 17, "D": 9},
    "gqa": {"B": 1, "H": 4, "G": 2, "S": 17, "D": 9},
    "mqa": {"B": 1, "H": 3, "S": 17, "D": 9},
    "mha-decode": {"B": 2, "H": 3, "S": 1, "T": 129, "D": 17},
    "gqa-decode": {"B": 2, "H": 6, "G": 2, "S": 1, "T": 129, "D": 17},
    "mqa-decode": {"B": 2, "H": 3, "S": 1, "T": 129, "D": 17},
    "qknorm-attention": {"B": 1, "H": 2, "S": 5, "T": 33, "D": 17},
    "mla": {"B": 2, "H": 5, "T": 33, "L": 17, "R": 9},
    "ntrans": {"M": 5, "K": 129},
    "matmul": {"M": 17, "K": 129, "N": 33},
    "matmul-matmul": {"M": 7, "K": 33, "R": 65, "N": 17},
    "matmul-rowsum": {"M": 7, "K": 33, "N": 129},
    "linear-cross-entropy": {"M": 5, "K": 33, "V": 129},
    "llama-layer": {"B": 1, "S": 17, "E": 33, "D": 8, "Q": 32, "P": 16, "N": 65},
}
