"""Proof lowerings of places of extrema, of running totals, products and maxima, and of short products."""

from collections.abc import Callable, Collection
from dataclasses import replace
from functools import reduce
from math import inf
from typing import Any

import torch

from superopt.trace.axes import Dim
from superopt.trace.builder import Builder, Sym, UnsupportedError
from superopt.trace.lowering.layout import select
from superopt.trace.lowering.masks import choose, exp, pointwise
from superopt.trace.lowering.proof_moves import WHOLE
from superopt.trace.lowering.reduce import earlier, largest, running_total, smallest, total
from superopt.trace.lowering.table import LOWERINGS, check_rounds, flat, lower, lower_all, normal_dims

__all__ = ["extremum_at"]

_MOST_FACTORS = 16  # factors of a product that is written out
_RISING = frozenset({"exp", "exp2", "sigmoid", "tanh"})
_POSITIVE = frozenset({"exp", "exp2", "sigmoid", "size"})
_KEEP_POSITIVE = frozenset({"sum", "max", "contract", "add", "mul", "div", "rename", "select"})
_TOTAL = _POSITIVE | frozenset(
    {"input", "const", "sum", "max", "contract", "add", "sub", "mul", "neg", "square", "abs", "relu", "tanh"}
)


@lower("argmax", for_proof=True)
def _argmax(b: Builder, x: Sym, dim: int | None = None, keepdim: bool = False) -> Sym:
    """Return the sum of each place times whether it holds the maximum, and no earlier place does."""
    x = b.settle(x)
    if dim is None or not x.dims:
        line = replace(x, dims=(flat(x.dims),))
        return replace(_first_along(b, line, 0), dims=((),) * (len(x.dims) * keepdim))
    at = dim % len(x.dims)
    made = _first_along(b, x, at)
    return replace(made, dims=(*made.dims[:at], *((),) * keepdim, *made.dims[at:]))


@lower("argmin", for_proof=True)
def _argmin(b: Builder, x: Sym, dim: int | None = None, keepdim: bool = False) -> Sym:
    return _argmax(b, pointwise(b, "neg", x), dim, keepdim)


def _first_along(b: Builder, x: Sym, at: int) -> Sym:
    """Return the first places of maxima along a dimension, which is gone in the result."""
    old = b.dims(x)[at]
    size = b.axes.extent(old)
    if size > WHOLE:
        raise UnsupportedError(f"the place of an extremum among {size} numbers")
    ranked, x = x.value, replace(x, value=_without_rise(b, x.value, old))
    hit = pointwise(b, "eq", x, largest(b, x, at, True))
    rest = ((),) * (len(x.dims) - at - 1)
    later = b.axes.dim(size)
    b.axes.meet(old + later)
    # Equal indices make a proof look at every place, as the sum of places needs.
    here = b.apply("eq", b.index(old), b.index(later))
    upto = b.apply("le", b.index(old), b.index(later))
    earlier = Sym(b.apply("and", upto, b.apply("not", here)), (later, old, *rest), torch.bool)
    before = total(b, pointwise(b, "mul", replace(hit, dims=_wide(hit, at)), earlier), at + 1)
    first = pointwise(b, "mul", hit, pointwise(b, "eq", before, b.scalar(0, torch.int64)))
    place = Sym(b.index(old), (old, *rest), torch.int64)
    made = replace(total(b, pointwise(b, "mul", first, place), at), dtype=torch.int64)
    b.first_places[made.value] = ranked
    return made


def _without_rise(b: Builder, value: int, along: Dim) -> int:
    """Return a value whose numbers along a dimension have the same order, and the same ties."""
    axes = set(b.axes.leaves(along))
    while True:
        node = b.nodes[value]
        left, right = (*node.inputs, value, value)[:2]
        shift = right if _is_fixed(b, right, axes) and _is_total(b, right) else left
        factor = right if _is_fixed(b, right, axes) and _is_positive(b, right) else left
        if node.op in _RISING or (node.op in ("add", "sub") and shift == right != left):
            value = left
        elif node.op == "add" and _is_fixed(b, left, axes) and _is_total(b, left):
            value = right
        elif node.op in ("mul", "div") and factor == right != left:
            value = left
        elif node.op == "mul" and _is_fixed(b, left, axes) and _is_positive(b, left):
            value = right
        else:
            return value


def _is_fixed(b: Builder, value: int, axes: set[int]) -> bool:
    """Return whether a value is the same all along some axes."""
    return not b.covers(value) & axes


def _is_positive(b: Builder, value: int) -> bool:
    """Return whether a value is surely a number greater than 0, as sums of exponentials are."""
    return all(
        b.nodes[i].op in _POSITIVE if b.nodes[i].value is None else (b.nodes[i].value or 0) > 0
        for i in _behind(b, value, stop=_POSITIVE)
        if b.nodes[i].op not in _KEEP_POSITIVE
    )


def _is_total(b: Builder, value: int) -> bool:
    """Return whether a value is a number whatever the inputs are."""
    return all(b.nodes[i].op in _TOTAL for i in _behind(b, value))


def _behind(b: Builder, value: int, stop: Collection[str] = ()) -> set[int]:
    """Return a value and all that it is made of, up to some operators."""
    found: set[int] = set()
    waiting = [value]
    while waiting:
        one = waiting.pop()
        if one not in found:
            found.add(one)
            waiting += b.nodes[one].inputs if b.nodes[one].op not in stop else ()
    return found


def _wide(x: Sym, at: int) -> tuple[Dim, ...]:
    """Return the dimensions of a tensor with a new one before one of them."""
    return (*x.dims[:at], (), *x.dims[at:])


def extremum_at(b: Builder, x: Sym, dim: int, index: Sym) -> Sym | None:
    """Return what an index names along a dimension, where it is the place of an extremum there."""
    kept = list(b.dims(x))
    kept[dim] = ()
    if list(b.dims(index)) != kept:
        return None
    ranked = b.first_places.get(index.value)
    if ranked == x.value:
        return largest(b, x, dim, True)
    return smallest(b, x, dim, True) if ranked == b.apply("neg", x.value) else None


@lower("topk", for_proof=True)
def _topk(
    b: Builder, x: Sym, count: int, dim: int = -1, largest: bool = True, sorted: bool = True
) -> tuple[Any, None]:
    if count != 1 or not x.dims:
        raise UnsupportedError("the order depends on the data")
    return LOWERINGS["amax" if largest else "amin"](b, x, dim % len(x.dims), True), None


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
