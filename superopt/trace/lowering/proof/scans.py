"""Proof lowerings of running totals, products and maxima along an axis, and of products of short ones."""

from collections.abc import Callable
from dataclasses import replace
from functools import reduce
from math import inf

import torch

from superopt.trace.builder import Builder, Sym, UnsupportedError
from superopt.trace.lowering.layout import select
from superopt.trace.lowering.masks import choose, exp, pointwise
from superopt.trace.lowering.reduce import earlier, largest, running_total
from superopt.trace.lowering.table import check_rounds, flat, lower, lower_all, normal_dims

__all__: list[str] = []

_MOST_FACTORS = 16  # factors of a product that is written out


def _running(b: Builder, x: Sym, dim: int, sign: Callable[[Sym], Sym]) -> tuple[Sym, None]:
    """Return the running maximum of what a sign makes of a tensor, with the sign taken back."""
    if not x.dims:
        return x, None
    x = sign(b.settle(x))
    at, made, visible = earlier(b, x, dim)
    old = b.dims(x)[at]
    wide = replace(x, dims=(*x.dims[:at], (), old, *x.dims[at + 1 :]))
    mask = Sym(visible, (made, old, *[()] * (len(x.dims) - at - 1)), torch.bool)
    seen = choose(b, mask, wide, b.scalar(-inf, x.dtype))
    return sign(largest(b, seen, at + 1)), None


def _factors(b: Builder, x: Sym, at: int) -> list[Sym]:
    """Return the slices of a tensor along a dimension that is short enough to be written out."""
    size = b.shape(x)[at]
    if size > _MOST_FACTORS:
        raise UnsupportedError(f"a product of {size} numbers")
    return [select(b, x, at, i) for i in range(size)]


@lower("prod", for_proof=True)
def _prod(
    b: Builder, x: Sym, dim: int | None = None, keepdim: bool = False, dtype: torch.dtype | None = None
) -> Sym:
    check_rounds(x, dtype)
    x = b.settle(x)
    if dim is None:
        x, dim = replace(x, dims=(flat(x.dims),)), 0
    if not x.dims:
        return x
    (at,) = normal_dims(dim, len(x.dims))
    if not b.shape(x)[at]:
        raise UnsupportedError("a product of no numbers")
    made = reduce(lambda one, other: pointwise(b, "mul", one, other), _factors(b, x, at))
    return replace(made, dims=(*made.dims[:at], (), *made.dims[at:])) if keepdim else made


@lower("cumprod", for_proof=True)
def _cumprod(b: Builder, x: Sym, dim: int, dtype: torch.dtype | None = None) -> Sym:
    check_rounds(x, dtype)
    if not x.dims:
        return x
    x = b.settle(x)
    at = dim % len(x.dims)
    parts = _factors(b, x, at)
    made = b.axes.dim(len(parts))
    one = b.scalar(1, x.dtype)
    found = one
    for number, part in enumerate(parts):
        wide = replace(part, dims=(*part.dims[:at], (), *part.dims[at:]))
        here = b.apply("ge", b.index(made), b.const(number))
        mask = Sym(here, (made, *[()] * (len(x.dims) - at - 1)), torch.bool)
        found = pointwise(b, "mul", found, choose(b, mask, wide, one))
    return found


lower_all(
    {
        "cumsum": running_total,
        "logcumsumexp": lambda b, x, dim: pointwise(b, "log", running_total(b, exp(b, x), dim)),
        "cummax": lambda b, x, dim: _running(b, x, dim, lambda one: one),
        "cummin": lambda b, x, dim: _running(b, x, dim, lambda one: pointwise(b, "neg", one)),
    },
    for_proof=True,
)
