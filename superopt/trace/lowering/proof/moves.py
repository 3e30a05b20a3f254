"""Proof lowerings that only move elements: each element is picked out of its axis by a one-hot mask.

Such a sum tells a proof what a flip or a padding does; as a way to run one it would be absurd.
"""

from collections.abc import Sequence
from dataclasses import replace
from itertools import accumulate, pairwise
from math import prod
from typing import Any

import torch

from superopt.trace.axes import Dim
from superopt.trace.builder import Builder, Sym, UnsupportedError
from superopt.trace.lowering.masks import choose, picked
from superopt.trace.lowering.readings import lower_borders
from superopt.trace.lowering.reduce import total
from superopt.trace.lowering.table import LOWERINGS, Lowering, flat, held, lower, takes_integers

__all__ = ["WHOLE", "inside", "moved", "read_at"]

WHOLE = 64
"""The longest axis that a proof evaluates at all of its positions."""

_MOST_PAIRS = 1 << 16  # elements of one mask

_MOVES = (
    "cat",
    "constant_pad_nd",
    "diag_embed",
    "diagonal",
    "diagonal_copy",
    "flip",
    "roll",
    "rot90",
    "slice",
    "split",
    "split_with_sizes",
    "trace",
    "unfold",
)
takes_integers(*_MOVES, for_proof=True)


def inside(b: Builder, place: int, size: int) -> int:
    """Return the mask of the places that an axis of this size has."""
    return b.apply("and", b.apply("ge", place, b.const(0)), b.apply("lt", place, b.const(size)))


def moved(b: Builder, x: Sym, at: int, dims: Sequence[Dim], place: int) -> Sym:
    """Return a tensor whose dimension `at` is read at a place made of the indices of new dimensions.

    The new dimensions replace the old one. Where there is no such place, the result is 0.
    """
    x = b.settle(x)
    old = b.dims(x)[at]
    made = (*x.dims[:at], *dims, *x.dims[at + 1 :])
    size = b.axes.extent(old)
    if not b.covers(x.value) & set(old):
        return replace(x, value=b.apply("mul", inside(b, place, size), x.value), dims=made)
    check_affordable(b, old, flat(dims))
    hot = b.apply("eq", b.index(old), place)
    return replace(x, value=picked(b, x.value, old, hot), dims=made)


def check_affordable(b: Builder, old: Dim, new: Dim) -> None:
    """Refuse axes that a proof could not evaluate whole, and masks that are too large."""
    longest = max((b.axes.sizes[axis] for axis in b.axes.leaves((*old, *new))), default=1)
    if longest > WHOLE or b.axes.extent(old) * b.axes.extent(new) > _MOST_PAIRS:
        raise UnsupportedError(f"moves elements along an axis of {longest}")


def read_at(b: Builder, x: Sym, at: int, numbers: Sequence[int]) -> Sym:
    """Return a tensor with these places of a dimension, one after the other; 0 where there is none."""
    old = b.dims(x)[at]
    size = b.axes.extent(old)
    if list(numbers) == list(range(size)):
        return x
    made = b.axes.dim(len(numbers))
    if not numbers:
        return replace(x, value=b.const(0), mask=None, dims=(*x.dims[:at], made, *x.dims[at + 1 :]))
    seen = b.covers(x.value) & set(old) or (x.mask is not None and b.covers(x.mask) & set(old))
    if not seen and all(0 <= number < size for number in numbers):
        return replace(x, dims=(*x.dims[:at], made, *x.dims[at + 1 :]))
    return moved(b, x, at, (made,), b.table(made, numbers))


def otherwise(name: str, general: Lowering) -> Lowering:
    """Return the usual lowering of an operator, and a general one where that refuses."""
    usual = LOWERINGS[name]

    def lowering(b: Builder, *args: Any, **options: Any) -> Any:
        try:
            return usual(b, *args, **options)
        except UnsupportedError:
            return general(b, *args, **options)

    return lowering


@lower("flip", for_proof=True)
def _flip(b: Builder, x: Sym, dims: Sequence[int]) -> Sym:
    for dim in dims:
        x = read_at(b, x, dim % len(x.dims), range(b.shape(x)[dim])[::-1])
    return x


@lower("roll", for_proof=True)
def _roll(b: Builder, x: Sym, shifts: int | Sequence[int], dims: int | Sequence[int] = ()) -> Sym:
    shifts = (shifts,) if isinstance(shifts, int) else shifts
    dims = (dims,) if isinstance(dims, int) else dims
    if not dims:
        sizes = b.shape(x)
        count = prod(sizes)
        if count == 0 or shifts[0] % count == 0:
            return x
        made = tuple(b.axes.dim(size) for size in sizes)
        places = [(i - shifts[0]) % count for i in range(count)]
        place = b.table(flat(made), places)
        line = replace(x, dims=(flat(x.dims),))
        return replace(moved(b, line, 0, (flat(made),), place), dims=made)
    for shift, dim in zip(shifts, dims, strict=True):
        size = b.shape(x)[dim]
        x = read_at(b, x, dim % len(x.dims), [(i - shift) % size for i in range(size)])
    return x


@lower("rot90", for_proof=True)
def _rot90(b: Builder, x: Sym, times: int = 1, dims: Sequence[int] = (0, 1)) -> Sym:
    turned = {0: (), 1: (dims[1],), 2: tuple(dims), 3: (dims[0],)}[times % 4]
    x = _flip(b, x, turned)
    if times % 2 == 0:
        return x
    order = list(x.dims)
    i, j = (dim % len(order) for dim in dims)
    order[i], order[j] = order[j], order[i]
    return replace(x, dims=tuple(order))


def _slice(
    b: Builder, x: Sym, dim: int = 0, start: int | None = None, end: int | None = None, step: int = 1
) -> Sym:
    at = dim % len(x.dims)
    return read_at(b, x, at, range(b.shape(x)[at])[slice(start, end, step)])


def _split(b: Builder, x: Sym, length: int | Sequence[int], dim: int = 0) -> tuple[Sym, ...]:
    at = dim % len(x.dims)
    size = b.shape(x)[at]
    ends = [*range(0, size, length), size] if isinstance(length, int) else [0, *accumulate(length)]
    return tuple(_slice(b, x, at, start, end) for start, end in pairwise(ends))


def _cat(b: Builder, parts: Sequence[Sym], dim: int = 0) -> Sym:
    parts = [part for part in parts if b.shape(part) != (0,)]
    at = dim % len(parts[0].dims)
    sizes = [b.shape(part)[at] for part in parts]
    made = b.axes.dim(sum(sizes))
    operands = []
    for number, part in enumerate(parts):
        labels: list[object] = list(range(len(part.dims)))
        labels[at] = ("part", number)
        operands.append((b.settle(part), labels))
    joined, placed = b.join(operands)
    b.axes.meet(axis for dim in (*placed.values(), made) for axis in dim)
    value = b.const(0)
    for part, (_, labels), offset in zip(joined, operands, accumulate(sizes, initial=0), strict=False):
        place = b.apply("sub", b.index(made), b.const(offset))
        own = replace(part, dims=tuple(placed.get(label, ()) for label in labels))
        value = b.apply("add", value, moved(b, own, at, (made,), place).value)
    dims = [placed.get(i, ()) for i in range(len(parts[0].dims))]
    dims[at] = made
    return Sym(value, tuple(dims), parts[0].dtype)


for _name, _general in (("slice", _slice), ("cat", _cat), ("concat", _cat), ("split", _split)):
    lower(_name, for_proof=True)(otherwise(_name, _general))
lower("split_with_sizes", for_proof=True)(otherwise("split_with_sizes", _split))


@lower("constant_pad_nd", for_proof=True)
def _pad(b: Builder, x: Sym, pad: Sequence[int], value: float = 0) -> Sym:
    rank = len(x.dims)
    for number in range(len(pad) // 2):
        at = rank - 1 - number
        before, after = pad[2 * number : 2 * number + 2]
        size = b.shape(x)[at]
        places = range(-before, size + after)
        x = read_at(b, x, at, places)
        if value != 0 and (before > 0 or after > 0):
            dim = b.dims(x)[at]
            kept = Sym(inside(b, b.table(dim, places), size), (dim, *[()] * number), torch.bool)
            x = choose(b, kept, x, held(b, value, x.dtype))
    return x


@lower("diagonal", "diagonal_copy", for_proof=True)
def _diagonal(b: Builder, x: Sym, offset: int = 0, dim1: int = 0, dim2: int = 1) -> Sym:
    i, j = dim1 % len(x.dims), dim2 % len(x.dims)
    x = b.settle(x)
    rows, columns = b.dims(x)[i], b.dims(x)[j]
    first, second = max(-offset, 0), max(offset, 0)
    count = max(0, min(b.axes.extent(rows) - first, b.axes.extent(columns) - second))
    made = b.axes.dim(count)
    rest = tuple(dim for at, dim in enumerate(x.dims) if at not in (i, j))
    if count == 0:
        return replace(x, value=b.const(0), dims=(*rest, made))
    value = x.value
    for old, start in ((rows, first), (columns, second)):
        place = b.apply("add", b.index(made), b.const(start))
        value = moved(b, replace(x, value=value, dims=(old,)), 0, (made,), place).value
    return replace(x, value=value, dims=(*rest, made))


@lower("trace", for_proof=True)
def _trace(b: Builder, x: Sym) -> Sym:
    return total(b, _diagonal(b, x), 0)


@lower("diag_embed", for_proof=True)
def _diag_embed(b: Builder, x: Sym, offset: int = 0, dim1: int = -2, dim2: int = -1) -> Sym:
    rank = len(x.dims) + 1
    size = b.shape(x)[-1]
    rows, columns = (b.axes.dim(size + abs(offset)) for _ in range(2))
    b.axes.meet(rows + columns)
    down = b.apply("sub", b.index(rows), b.const(max(-offset, 0)))
    right = b.apply("sub", b.index(columns), b.const(max(offset, 0)))
    along = moved(b, x, rank - 2, (rows,), down)
    value = b.apply("mul", b.apply("eq", down, right), along.value)
    dims = {dim1 % rank: rows, dim2 % rank: columns}
    rest = iter(x.dims[:-1])
    return replace(along, value=value, dims=tuple(dims[i] if i in dims else next(rest) for i in range(rank)))


@lower("unfold", for_proof=True)
def _unfold(b: Builder, x: Sym, dim: int, size: int, step: int) -> Sym:
    if not x.dims:
        return replace(x, dims=(b.axes.dim(size),))
    at = dim % len(x.dims)
    windows, within = b.axes.dim((b.shape(x)[at] - size) // step + 1), b.axes.dim(size)
    b.axes.meet(windows + within)
    start = b.apply("mul", b.index(windows), b.const(step))
    made = moved(b, x, at, (windows, within), b.apply("add", start, b.index(within)))
    dims = (*made.dims[: at + 1], *made.dims[at + 2 :], within)
    return replace(made, dims=dims)


def _view(b: Builder, x: Sym, shape: Sequence[int], *strides: Any) -> Sym:
    """Return a view that cuts across axes: the stretches where it does are read by their flat places."""
    if isinstance(shape, torch.dtype):
        raise UnsupportedError("reinterprets the bits of another dtype")
    count = prod(b.shape(x))
    known = prod(size for size in shape if size != -1)
    sizes = [count // known if size == -1 else size for size in shape]
    dims: list[Dim] = []
    for old, new in _stretches(b, b.axes.leaves(flat(x.dims)), sizes):
        cut = b.axes.cut(old, tuple(new))
        if cut is not None:
            dims += cut
            continue
        made = [b.axes.dim(size) for size in new]
        b.axes.meet(flat(made))
        line = replace(x, dims=(old,))
        x = replace(moved(b, line, 0, (flat(made),), b.index(flat(made))), dims=x.dims)
        dims += made
    return replace(x, dims=tuple(dims))


def _stretches(b: Builder, axes: Dim, sizes: Sequence[int]) -> list[tuple[Dim, list[int]]]:
    """Return the shortest stretches of axes that are as long as stretches of a new shape."""
    found: list[tuple[Dim, list[int]]] = []
    rest, waiting = list(axes), list(sizes)
    while waiting:
        old: list[int] = []
        new = [waiting.pop(0)]
        while b.axes.extent(old) != prod(new):
            if b.axes.extent(old) < prod(new):
                old.append(rest.pop(0))
            else:
                new.append(waiting.pop(0))
        found.append((tuple(old), new))
    return found


for _name in ("view", "_unsafe_view", "reshape", "_reshape_alias"):
    lower(_name, for_proof=True)(otherwise(_name, _view))


lower_borders(read_at, for_proof=True)
