"""Tables: which element a window reads at each of its positions, and what windows of windows read."""

from collections.abc import Iterable, Mapping, Sequence
from math import prod

import numpy as np
from numpy.typing import NDArray

from superopt.ir.windows.place import Place

__all__ = ["composed", "reads_of", "reads_the_same"]

_MOST = 1 << 21  # positions of the largest table

_OUTSIDE = -1

Reads = NDArray[np.int64]
"""What is read at each position of some axes: a place in what is read, or -1 outside."""


def reads_of(place: Place, axes: Sequence[str], sizes: Mapping[str, int]) -> Reads | None:
    """Return what a window reads along some axes, which are all that it makes; None where it is too much."""
    if prod(sizes[axis] for axis in axes) > _MOST:
        return None
    found = np.asarray(place.offset, dtype=np.int64)
    for axis, factor in place.terms:
        found = found + factor * _indices(axis, axes, sizes)
    inside = (found >= 0) & (found < prod(sizes[axis] for axis in place.axes))
    return np.broadcast_to(np.where(inside, found, _OUTSIDE), [sizes[axis] for axis in axes])


def composed(outer: Place, inner: Place, sizes: Mapping[str, int]) -> Place | None:
    """Return a window of a window as one window, or None where it is not one.

    The outer window must read axes that the inner one makes. Both must read the same at every position,
    those outside included: the answer rests on no rule, but on a comparison of the whole tables. The window
    found may make an axis of the name of one that it reads, which no step can.
    """
    factors = dict(inner.terms)
    if any(axis not in factors for axis in outer.axes):
        return None
    names = dict.fromkeys(axis for axis in factors if axis not in outer.axes)
    axes = tuple(names | dict.fromkeys(axis for axis, _ in outer.terms))
    if set(axes) & set(outer.axes):
        return None
    first = reads_of(outer, axes, sizes)
    if first is None:
        return None
    rest, at = first, np.asarray(inner.offset, dtype=np.int64)
    for axis in reversed(outer.axes):
        at, rest = at + factors[axis] * (rest % sizes[axis]), rest // sizes[axis]
    for axis in names:
        at = at + factors[axis] * _indices(axis, axes, sizes)
    inside = (first >= 0) & (at >= 0) & (at < prod(sizes[axis] for axis in inner.axes))
    reads = np.broadcast_to(np.where(inside, at, _OUTSIDE), first.shape)
    terms = {axis: factors.get(axis, 0) for axis in names}
    guess: Place | None
    if len(outer.axes) == 1:
        [axis] = outer.axes
        for name, factor in outer.terms:
            terms[name] = terms.get(name, 0) + factor * factors[axis]
        guess = Place(inner.axes, tuple(terms.items()), inner.offset + factors[axis] * outer.offset)
    else:
        guess = _fitted(inner.axes, axes, reads)
    if guess is None or any(not factor for _, factor in guess.terms):
        return None
    return guess if np.array_equal(reads, _known(reads_of(guess, axes, sizes))) else None


def reads_the_same(
    chains: Iterable[Sequence[Place]],
    axes: Sequence[str],
    sizes: Mapping[str, int],
    where: Place | None = None,
) -> bool:
    """Return whether chains of windows, each of which reads the next one, read the same along some axes.

    With `where` they need to only where that window reads inside.
    """
    tables = [_chained(chain, axes, sizes) for chain in chains]
    there = None if where is None else reads_of(where, axes, sizes)
    if where is not None and there is None:
        return False
    outside = np.asarray(False) if there is None else there < 0
    first = tables[0]
    return first is not None and all(
        one is not None and bool(np.all((one == first) | outside)) for one in tables
    )


def _chained(chain: Sequence[Place], axes: Sequence[str], sizes: Mapping[str, int]) -> Reads | None:
    """Return what a chain of windows reads of the axes of its last place."""
    if prod(sizes[axis] for axis in axes) > _MOST:
        return None
    shape = tuple(sizes[axis] for axis in axes)
    known = {axis: _indices(axis, axes, sizes) for axis in axes}
    inside = np.ones(shape, dtype=bool)
    at = np.zeros(shape, dtype=np.int64)
    for place in chain:
        at = np.asarray(place.offset, dtype=np.int64)
        for axis, factor in place.terms:
            if axis not in known:
                return None
            at = at + factor * known[axis]
        inside = inside & (at >= 0) & (at < prod(sizes[axis] for axis in place.axes))
        rest = np.where(inside, at, 0)
        for axis in reversed(place.axes):
            known[axis], rest = rest % sizes[axis], rest // sizes[axis]
    return np.broadcast_to(np.where(inside, at, _OUTSIDE), shape)


def _known(reads: Reads | None) -> Reads:
    assert reads is not None
    return reads


def _indices(axis: str, axes: Sequence[str], sizes: Mapping[str, int]) -> Reads:
    """Return the position on an axis, at each position of some axes."""
    shape = [sizes[axis] if one == axis else 1 for one in axes]
    return np.arange(sizes[axis], dtype=np.int64).reshape(shape)


def _fitted(read: tuple[str, ...], axes: tuple[str, ...], reads: Reads) -> Place | None:
    """Return the only place that may read this, by the first neighbours on each axis that lie inside."""
    inside = np.argwhere(reads >= 0)
    if not len(inside):
        return None
    terms: list[tuple[str, int]] = []
    for dim, axis in enumerate(axes):
        low, high = (np.moveaxis(reads, dim, 0)[at] for at in (slice(None, -1), slice(1, None)))
        both = np.argwhere((low >= 0) & (high >= 0))
        if reads.shape[dim] > 1 and not len(both):
            return None
        terms.append((axis, int((high - low)[tuple(both[0])]) if len(both) else 1))
    first = inside[0]
    moved = sum(factor * int(at) for (_, factor), at in zip(terms, first, strict=True))
    return Place(read, tuple(terms), int(reads[tuple(first)]) - moved)
