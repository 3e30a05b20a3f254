"""Proof lowerings of running totals, products and maxima along an axis, and of products of short ones."""

from collections.abc import Callable
from dataclasses import replace
from functools import reduce
from math import inf

import torch

from superopt.trace.builder import Builder, Sym, UnsupportedError
from superopt.trace.lowering.masks import choose, exp, pointwise
from superopt.trace.lowering.reduce import earlier, running_total
from superopt.trace.lowering.table import LOWERINGS, check_rounds, flat, lower, normal_dims

__all__: list[str] = []

_MOST_FACTORS = 16  # factors of a product that is written out


lower("cumsum", for_proof=True)(running_total)


@lower("logcumsumexp", for_proof=True)
def _logcumsumexp(b: Builder, x: Sym, dim: int) -> Sym:
    return pointwise(b, "log", running_total(b, exp(b, x), dim))


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
    largest = LOWERINGS["amax"](b, seen, at + 1)
    assert isinstance(largest, Sym)
    return sign(largest), None


@lower("cummax", for_proof=True)
def _cummax(b: Builder, x: Sym, dim: int) -> tuple[Sym, None]:
    return _running(b, x, dim, lambda one: one)


@lower("cummin", for_proof=True)
def _cummin(b: Builder, x: Sym, dim: int) -> tuple[Sym, None]:
    return _running(b, x, dim, lambda one: pointwise(b, "neg", one))


def _factors(b: Builder, x: Sym, at: int) -> list[Sym]:
    """Return the slices of a tensor along a dimension that is short enough to be written out."""
    size = b.shape(x)[at]
    if size > _MOST_FACTORS:
        raise UnsupportedError(f"a product of {size} numbers")
    found = [LOWERINGS["select"](b, x, at, i) for i in range(size)]
    return [one for one in found if isinstance(one, Sym)]


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
