"""The cases that are measured on a GPU: named workloads at the sizes of a model of 7-8B parameters.

Decode is few rows, each on a cache of 4096 or 8192 positions; prefill is 2048 positions at once. Peers
are what a user of PyTorch would write by hand instead.
"""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from itertools import zip_longest
from math import sqrt
from pathlib import Path
from typing import TYPE_CHECKING, Any

from superopt.workloads import WORKLOADS

if TYPE_CHECKING:
    from torch import Tensor

__all__ = ["CASES", "DTYPES", "PEERS", "SUITES", "Case", "case_named", "hand_written"]

PEERS = ("eager", "torch.compile", "torch.compile max-autotune-no-cudagraphs")
"""What each case is raced against, besides what is written by hand; all of them run as CUDA graphs."""

SUITES = ("all", "decode", "prefill")
DTYPES = ("f16", "bf16", "f32")


@dataclass(frozen=True, slots=True)
class Case:
    """A workload at some sizes."""

    workload: str
    case: str
    sizes: Mapping[str, int] = field(hash=False)

    @property
    def name(self) -> str:
        """Its name in tables and files."""
        return f"{self.workload}/{self.case}"

    @property
    def suite(self) -> str:
        """Decode or prefill."""
        return self.case.partition("-")[0]

    @property
    def function(self) -> Callable[..., Any]:
        """What it computes."""
        return WORKLOADS[self.workload].function

    @property
    def small_sizes(self) -> dict[str, int]:
        """Sizes at which an interpreter is fast: those that a graph holds as numbers are kept."""
        sizes = {**WORKLOADS[self.workload].sizes, **self.sizes}
        wanted = dict(_SMALL)
        if self.workload in ("mha", "mha-decode", "mqa", "mqa-decode", "qknorm-attention"):
            wanted["H"] = 2
        if self.workload in ("softmax", "matmul-rowsum"):
            wanted.pop("N")
        return {size: min(value, wanted.get(size, value)) for size, value in sizes.items()}

    def inputs(self, dtype: str, device: str = "meta") -> "tuple[Tensor, ...]":
        """Return example inputs."""
        return WORKLOADS[self.workload].inputs(dtype=dtype, device=device, **self.sizes)

    def plan(self, folder: Path, dtype: str) -> Path:
        """Return the place of its plan."""
        suffix = "" if dtype == "f16" else f".{dtype}"
        return folder / f"{self.workload}.{self.case}{suffix}.json"


_SMALL = {"M": 3, "N": 80, "V": 112, "B": 2, "S": 20, "T": 512, "H": 8, "G": 2}

# The most telling come first: a run that is short of time measures those.
_ROWS = (
    *("rmsnorm-linear", "gated-mlp", "rmsnorm-mlp", "lora", "layernorm-linear-gelu", "ntrans", "rmsnorm"),
    *("linear-cross-entropy", "softmax", "matmul-rowsum", "matmul-matmul", "matmul"),
)
_CACHES = ("gqa-decode", "mla", "qknorm-attention", "mqa-decode", "mha-decode")
_PREFILLS = ("gqa", "mha", "mqa")
_RANKS = (
    *("rmsnorm-linear", "gated-mlp", "gqa-decode", "gqa", "mla", "qknorm-attention", "rmsnorm-mlp", "lora"),
    *("mha", "mqa-decode", "layernorm-linear-gelu", "linear-cross-entropy", "ntrans", "rmsnorm", "mqa"),
    *("mha-decode", "softmax", "matmul-rowsum", "matmul-matmul", "matmul", "llama-layer"),
)
_TOKENS = 2048
_ROUNDS = {"decode-8": 0, f"prefill-{_TOKENS}": 0, "decode-1": 1, "decode-16": 2}
_A_ROUND = 8  # places that a case loses where its workload was measured before


def _cached(name: str, rows: int, cache: int) -> dict[str, int]:
    """Return the sizes of attention on a cache: rows are sequences, or new positions of one."""
    if name == "qknorm-attention":
        return {"B": 1, "S": rows, "T": cache}
    return {"B": rows, "T": cache}


def _all_cases() -> tuple[Case, ...]:
    found = [Case(name, f"decode-{rows}", {"M": rows}) for name in _ROWS for rows in (1, 8, 16)]
    for cache, suffix in ((4096, ""), (8192, "-t8192")):
        found += [
            Case(name, f"decode-{rows}{suffix}", _cached(name, rows, cache))
            for name in _CACHES
            for rows in (1, 8, 16)
        ]
    found += [Case(name, f"prefill-{_TOKENS}", {"M": _TOKENS}) for name in _ROWS]
    found += [Case(name, f"prefill-{_TOKENS}", {"S": _TOKENS}) for name in (*_PREFILLS, "llama-layer")]
    found.append(Case("qknorm-attention", f"prefill-{_TOKENS}", {"S": _TOKENS, "T": _TOKENS}))

    def place(one: Case) -> tuple[int, str, str]:
        return _RANKS.index(one.workload) + _A_ROUND * _ROUNDS.get(one.case, 3), one.workload, one.case

    found.sort(key=place)
    return tuple(_in_turns(*([one for one in found if one.suite == suite] for suite in SUITES[1:])))


def _in_turns(first: list[Case], second: list[Case]) -> Iterator[Case]:
    """Yield one of each in turns, so that a run that is short of time has some of both; then the rest."""
    for pair in zip_longest(first, second):
        yield from (one for one in pair if one is not None)


CASES = _all_cases()
"""Every case, the most telling first, of decode and prefill in turns."""


def case_named(workload: str, case: str) -> Case | None:
    """Return a case by its two names."""
    return next((one for one in CASES if (one.workload, one.case) == (workload, case)), None)


# -- what is written by hand: attention by scaled_dot_product_attention


def hand_written(workload: str) -> dict[str, Callable[..., Any]]:
    """Return the peers of a workload that a person would write with PyTorch's fused functions."""
    return dict(_HAND_WRITTEN.get(workload, {}))


def _sdpa(q: "Tensor", k: "Tensor", v: "Tensor", **options: Any) -> "Tensor":
    from torch.nn import functional as F

    return F.scaled_dot_product_attention(q, k, v, **options)


def _mha(q: "Tensor", k: "Tensor", v: "Tensor") -> "Tensor":
    return _sdpa(q, k, v, is_causal=True)


def _gqa(q: "Tensor", k: "Tensor", v: "Tensor") -> "Tensor":
    return _sdpa(q, k, v, is_causal=True, enable_gqa=True)


def _mqa(q: "Tensor", k: "Tensor", v: "Tensor") -> "Tensor":
    return _sdpa(q, k.unsqueeze(1), v.unsqueeze(1), is_causal=True, enable_gqa=True)


def _gqa_decode(q: "Tensor", k: "Tensor", v: "Tensor") -> "Tensor":
    return _sdpa(q, k, v, enable_gqa=True)


def _gqa_folded(q: "Tensor", k: "Tensor", v: "Tensor") -> "Tensor":
    """Take the heads that share keys as rows: the keys are read once."""
    batch, heads, rows, size = q.shape
    folded = q.reshape(batch, k.shape[1], -1, size)
    return _sdpa(folded, k, v).reshape(batch, heads, rows, size)


def _mqa_decode(q: "Tensor", k: "Tensor", v: "Tensor") -> "Tensor":
    return _sdpa(q, k.unsqueeze(1), v.unsqueeze(1), enable_gqa=True)


def _mqa_folded(q: "Tensor", k: "Tensor", v: "Tensor") -> "Tensor":
    return _gqa_folded(q, k.unsqueeze(1), v.unsqueeze(1))


def _qknorm(q: "Tensor", k: "Tensor", v: "Tensor", gq: "Tensor", gk: "Tensor") -> "Tensor":
    from torch.nn import functional as F

    size = (q.shape[-1],)
    return _sdpa(F.rms_norm(q, size, gq, 1e-6), F.rms_norm(k, size, gk, 1e-6), v)


def _mla(q: "Tensor", qr: "Tensor", c: "Tensor", kr: "Tensor") -> "Tensor":
    import torch

    rows, keys = torch.cat([q, qr], -1), torch.cat([c, kr], -1)
    scale = 1 / sqrt(128 + qr.shape[-1])
    return _sdpa(rows.unsqueeze(1), keys.unsqueeze(1), c.unsqueeze(1), scale=scale).squeeze(1)


def _llama(
    x: "Tensor", cos: "Tensor", sin: "Tensor", g1: "Tensor", wq: "Tensor", wk: "Tensor", wv: "Tensor",
    wo: "Tensor", g2: "Tensor", w1: "Tensor", w2: "Tensor", w3: "Tensor",
) -> "Tensor":  # fmt: skip
    import torch
    from torch.nn import functional as F

    def rotate(one: "Tensor") -> "Tensor":
        left, right = one.chunk(2, -1)
        return one * cos + torch.cat([-right, left], -1) * sin

    size = cos.shape[-1]
    h = F.rms_norm(x, x.shape[-1:], g1, 1e-6)
    q, k, v = ((h @ w).view(*h.shape[:2], -1, size).transpose(1, 2) for w in (wq, wk, wv))
    out = _sdpa(rotate(q), rotate(k), v, is_causal=True, enable_gqa=True)
    x = x + out.transpose(1, 2).flatten(2) @ wo
    h = F.rms_norm(x, x.shape[-1:], g2, 1e-6)
    return x + (F.silu(h @ w1) * (h @ w2)) @ w3


_HAND_WRITTEN: dict[str, dict[str, Callable[..., Any]]] = {
    "mha": {"sdpa": _mha},
    "gqa": {"sdpa": _gqa},
    "mqa": {"sdpa": _mqa},
    "mha-decode": {"sdpa": _sdpa},
    "gqa-decode": {"sdpa": _gqa_decode, "sdpa, heads as rows": _gqa_folded},
    "mqa-decode": {"sdpa": _mqa_decode, "sdpa, heads as rows": _mqa_folded},
    "qknorm-attention": {"sdpa": _qknorm},
    "mla": {"sdpa": _mla},
    "llama-layer": {"sdpa": _llama},
}
