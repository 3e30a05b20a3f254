"""Lowerings for proofs of look-ups by integers that come as data: sums over one-hot masks.

w[i] is the sum over positions n of (n == i) w[n]. Where no position is met, PyTorch raises, and so the sum
is multiplied by `guard(met, met)`, which no other lowering makes: what is compared is a program that raises
there (`superopt/verify/evaluation/interpret.py`).
"""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import torch

from superopt.trace.axes import Dim
from superopt.trace.builder import Builder, Sym, UnsupportedError
from superopt.trace.lowering.masks import add, pointwise, scale
from superopt.trace.lowering.proof.extrema import extremum_at
from superopt.trace.lowering.reduce import NO_REDUCTION, SUM, product, total
from superopt.trace.lowering.table import as_sym, lower, takes_integers

__all__ = ["one_hot", "required"]

takes_integers("embedding", "index_select", "index", "gather", "one_hot", for_proof=True)

_LETTERS = "abcdefghijklmnopqrstuvwxyz"


def _positions(b: Builder, dim: Dim) -> Sym:
    """Return the index along a dimension, as a tensor of that one dimension."""
    found = b.const(0)
    for axis, inner in b.axes.grid(dim):
        stride = b.const(b.axes.extent(inner))
        found = b.apply("add", found, b.apply("mul", b.index((axis,)), stride))
    return Sym(found, (dim,), torch.int64)


def one_hot(b: Builder, index: Sym, dim: Dim, *, wraps: bool = False) -> Sym:
    """Return whether each position along a new last dimension is the one that an index names.

    Where indices wrap, -1 names the last position.
    """
    _check_integer(index)
    positions, column = _positions(b, dim), replace(index, dims=(*index.dims, ()))
    hit = pointwise(b, "eq", positions, column)
    if wraps:
        below = pointwise(b, "sub", positions, b.scalar(b.axes.extent(dim), torch.int64))
        hit = pointwise(b, "or", hit, pointwise(b, "eq", below, column))
    return hit


def _check_integer(index: Sym) -> None:
    if index.dtype == torch.bool or index.dtype.is_floating_point:
        raise UnsupportedError("the number of elements that a mask leaves depends on the data")


def required(b: Builder, met: Sym) -> Sym:
    """Return a number that is 1 for all numbers for which the program does not raise."""
    return pointwise(b, "guard", met, met)


def _looked_up(b: Builder, x: Sym, hit: Sym, x_labels: str, hit_labels: str, out: str) -> Sym:
    """Return the sum of a tensor over the position that is met, which has to be there."""
    found = product(b, hit, hit_labels, x, x_labels, out)
    place = required(b, total(b, hit, -1))
    spread = [place.dims[hit_labels.index(label)] if label in hit_labels else () for label in out]
    made = scale(b, "mul", found, replace(place, dims=tuple(spread)))
    if x.dtype == torch.bool:
        b.spans[made.value] = 0, 1
    return replace(made, dtype=x.dtype)


def _taken(b: Builder, x: Sym, dim: int, index: Sym, *, wraps: bool = False) -> Sym:
    """Return a tensor with the dimensions of an index in the place of one of its own."""
    x = b.settle(x)
    labels, new = _LETTERS[: len(x.dims)], _LETTERS[len(x.dims) : len(x.dims) + len(index.dims)]
    hit = one_hot(b, index, x.dims[dim], wraps=wraps)
    return _looked_up(b, x, hit, labels, new + labels[dim], labels[:dim] + new + labels[dim + 1 :])


@lower("embedding", for_proof=True)
def _embedding(b: Builder, weight: Sym, index: Sym, *options: Any) -> Sym:
    return _taken(b, weight, 0, index)


@lower("one_hot", for_proof=True)
def _one_hot(b: Builder, index: Sym, num_classes: int = -1) -> Sym:
    """Return 1 at each index along a new last dimension, and 0 elsewhere; an index beyond it raises."""
    if num_classes < 1:
        raise UnsupportedError("the number of classes depends on the data")
    hit = one_hot(b, index, b.axes.dim(num_classes))
    met = required(b, total(b, hit, -1))
    return replace(scale(b, "mul", replace(met, dims=(*met.dims, ())), hit), dtype=torch.int64)


@lower("index_select", for_proof=True)
def _index_select(b: Builder, x: Sym, dim: int, index: Sym) -> Sym:
    if not x.dims or len(index.dims) != 1:
        raise UnsupportedError("selects from a tensor without dimensions")
    return _taken(b, x, dim % len(x.dims), index)


@lower("index", for_proof=True)
def _index(b: Builder, x: Sym, indices: Sequence[Sym | None]) -> Sym:
    """Return the elements that one index tensor names, or several that broadcast, side by side."""
    given = [i for i, index in enumerate(indices) if index is not None]
    if len(given) == 1:
        [dim] = given
        index = indices[dim]
        assert index is not None
        return _taken(b, x, dim, index, wraps=True)
    if given != list(range(given[0], given[-1] + 1)):
        raise UnsupportedError("index tensors for dimensions that are not side by side")
    x = b.settle(x)
    rank = max(len(index.dims) for index in indices if index is not None)
    labels, new = _LETTERS[: len(x.dims)], _LETTERS[len(x.dims) : len(x.dims) + rank]
    found, left = x, labels
    for dim in given[::-1]:
        index = indices[dim]
        assert index is not None
        hit = one_hot(b, index, x.dims[dim], wraps=True)
        own = new[rank - len(index.dims) :]
        out = left.replace(labels[dim], "")
        out += "".join(label for label in own if label not in out)
        found = _looked_up(b, found, hit, left, own + labels[dim], out)
        left = out
    rest = [label for label in labels if label in left]
    order = "".join([*rest[: given[0]], *new, *rest[given[0] :]])
    return replace(found, dims=tuple(found.dims[left.index(label)] for label in order))


@lower("gather", for_proof=True)
def _gather(b: Builder, x: Sym, dim: int, index: Sym, *, sparse_grad: bool = False) -> Sym:
    """Return for each place of an index the element that it names along one dimension."""
    if not x.dims:
        raise UnsupportedError("gathers from a tensor without dimensions")
    x, dim = b.settle(x), dim % len(x.dims)
    shape, wanted = b.shape(x), b.shape(index)
    if any(i != dim and size != wanted[i] for i, size in enumerate(shape)):
        raise UnsupportedError("gathers from a part of a tensor")
    found = extremum_at(b, x, dim, index)
    if found is not None:
        return found
    labels, new = _LETTERS[: len(x.dims)], _LETTERS[len(x.dims)]
    own = labels.replace(labels[dim], new)
    return _looked_up(b, x, one_hot(b, index, x.dims[dim]), labels, own + labels[dim], own)


@lower("index_add", for_proof=True)
def _index_add(b: Builder, x: Sym, dim: int, index: Sym, source: Sym, alpha: float = 1) -> Sym:
    """Return a tensor; to each slice that an index names, a slice of another tensor is added."""
    if not x.dims or len(index.dims) != 1:
        raise UnsupportedError("adds to a tensor without dimensions")
    x, source, dim = b.settle(x), b.settle(source), dim % len(x.dims)
    labels, new = _LETTERS[: len(x.dims)], _LETTERS[len(x.dims)]
    hit = one_hot(b, index, x.dims[dim])
    met = required(b, total(b, hit, -1))
    source = scale(b, "mul", source, replace(met, dims=(*met.dims, *((),) * (len(x.dims) - dim - 1))))
    added = product(b, hit, new + labels[dim], source, labels.replace(labels[dim], new), labels)
    return add(b, x, scale(b, "mul", added, b.scalar(alpha, x.dtype)))


@lower("nll_loss_forward", for_proof=True)
def _nll_loss(
    b: Builder, x: Sym, target: Sym, weight: Sym | None, reduction: int, ignore_index: int
) -> tuple[Sym, Sym]:
    """Return the negative logarithms at the targets; one that is neither a class nor ignored raises."""
    x = b.settle(x)
    hit = one_hot(b, target, x.dims[-1])
    counted = pointwise(b, "ne", target, as_sym(b, ignore_index, target))
    met = pointwise(b, "or", total(b, hit, -1), pointwise(b, "not", counted))
    weights = required(b, met)
    weights = replace(scale(b, "mul", weights, counted), dtype=x.dtype)
    if weight is not None:
        own = product(b, hit, "nc"[2 - len(hit.dims) :], b.settle(weight), "c", "n"[2 - len(hit.dims) :])
        weights = scale(b, "mul", weights, own)
    rows = pointwise(b, "neg", total(b, scale(b, "mul", x, hit), -1))
    rows = scale(b, "mul", rows, weights)
    count = total(b, weights)
    if reduction == NO_REDUCTION:
        return rows, count
    whole = total(b, rows)
    return (whole if reduction == SUM else scale(b, "div", whole, count)), count


@lower("nll_loss_backward", for_proof=True)
def _nll_loss_backward(
    b: Builder,
    grad: Sym,
    x: Sym,
    target: Sym,
    weight: Sym | None,
    reduction: int,
    ignore_index: int,
    total_weight: Sym,
) -> Sym:
    """Return the gradient at the targets; one that is neither a class nor ignored raises."""
    hit = one_hot(b, target, x.dims[-1])
    counted = pointwise(b, "ne", target, as_sym(b, ignore_index, target))
    weights = required(b, pointwise(b, "or", total(b, hit, -1), pointwise(b, "not", counted)))
    weights = replace(scale(b, "mul", weights, counted), dtype=x.dtype)
    if weight is not None:
        own = product(b, hit, "nc"[2 - len(hit.dims) :], b.settle(weight), "c", "n"[2 - len(hit.dims) :])
        weights = scale(b, "mul", weights, own)
    if reduction not in (NO_REDUCTION, SUM):
        grad = scale(b, "div", grad, total_weight)
    weights = pointwise(b, "neg", scale(b, "mul", weights, grad))
    return scale(b, "mul", replace(weights, dims=(*weights.dims, ())), hit)
