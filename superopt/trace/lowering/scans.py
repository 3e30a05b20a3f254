"""Lowerings of running totals: each is a product with a triangle of ones, which short axes can afford."""

from dataclasses import replace

import torch

from superopt.trace.axes import Dim
from superopt.trace.builder import Builder, Sym, UnsupportedError
from superopt.trace.lowering.layout import picked
from superopt.trace.lowering.table import check_rounds, lower

__all__ = ["earlier", "running_total"]

_SHORT = 64  # positions up to which a triangle costs about as much as what is around it


def earlier(b: Builder, x: Sym, dim: int) -> tuple[int, Dim, int]:
    """Return a dimension, one like it for the results, and the mask of what each result reads."""
    at = dim % len(x.dims)
    old = b.dims(x)[at]
    made = b.axes.dim(b.axes.extent(old))
    b.axes.meet(old + made)
    return at, made, b.apply("le", b.index(old), b.index(made))


def running_total(b: Builder, x: Sym, dim: int, dtype: torch.dtype | None = None) -> Sym:
    """Return the sums of all elements up to each along a dimension."""
    check_rounds(x, dtype)
    if not x.dims:
        return x
    x = b.settle(x)
    at, made, mask = earlier(b, x, dim)
    value = picked(b, x.value, b.dims(x)[at], mask)
    return replace(x, value=value, dims=(*x.dims[:at], made, *x.dims[at + 1 :]))


@lower("cumsum")
def _cumsum(b: Builder, x: Sym, dim: int, dtype: torch.dtype | None = None) -> Sym:
    if x.dims and b.shape(x)[dim] > _SHORT:
        raise UnsupportedError(f"a running total along more than {_SHORT} positions")
    return running_total(b, x, dim, dtype)
