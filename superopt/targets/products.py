"""Products: which operators of PyTorch may round products of fp32 on a CPU, where they then are faster."""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from typing import Any

import torch

__all__ = ["ROUNDINGS", "rounded_products", "rounding_products"]

ROUNDINGS = ("bf16", "tf32")
"""What products of fp32 may be rounded to."""

_OPERATORS = ("conv", "matmul", "rnn")


def rounded_products() -> dict[str, str]:
    """Return the operators of PyTorch that may round products of fp32 on a CPU, and to what."""
    return {name: told for name, told in _told().items() if told in ROUNDINGS}


@contextmanager
def rounding_products(wanted: Mapping[str, str]) -> Iterator[None]:
    """Let these operators round products of fp32 on a CPU for a while, and no others."""
    before = _told()
    changed = {
        name: wanted.get(name, "ieee") for name in before if rounded_products().get(name) != wanted.get(name)
    }
    try:
        for name, precision in changed.items():
            _operator(name).fp32_precision = precision
        yield
    finally:
        for name in changed:
            _operator(name).fp32_precision = before[name]


def _told() -> dict[str, str]:
    """Return the precision that PyTorch was told for each operator, where it is new enough to have one."""
    found = {}
    for name in _OPERATORS:
        with suppress(AttributeError):
            found[name] = str(_operator(name).fp32_precision)
    return found


def _operator(name: str) -> Any:
    return getattr(torch.backends.mkldnn, name)
