"""Proof lowerings of places of extrema: where the first of the largest or smallest numbers is."""

from collections.abc import Collection
from dataclasses import replace
from typing import Any

import torch

from superopt.trace.axes import Dim
from superopt.trace.builder import Builder, Sym, UnsupportedError
from superopt.trace.lowering.masks import pointwise
from superopt.trace.lowering.proof.moves import WHOLE
from superopt.trace.lowering.reduce import largest, smallest, total
from superopt.trace.lowering.table import LOWERINGS, flat, lower

__all__ = ["extremum_at"]

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
