"""Boxes: the part of a result within a range of each axis, computed by itself; and a part as boxes."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from fractions import Fraction
from itertools import pairwise, product

import numpy as np
from numpy.typing import NDArray

from superopt.ir.graph import REDUCTIONS, Graph, Step, StepWriter, value_axes
from superopt.ir.windows.place import Place

__all__ = ["Box", "boxes_of", "on_box"]

Box = Mapping[str, range]
"""Which positions of some axes; all positions of others."""


def boxes_of(axes: Sequence[str], where: NDArray[np.bool_]) -> list[dict[str, range]]:
    """Return the positions at which something is true as few boxes that share none.

    Each axis is cut where its neighbouring slices differ, so that each cell is true or false as a whole; then
    neighbours that differ along one axis are joined.
    """
    cuts: list[list[range]] = []
    for dim, size in enumerate(where.shape):
        slices = np.moveaxis(where, dim, 0).reshape(size, -1)
        changes = np.flatnonzero((slices[1:] != slices[:-1]).any(axis=1)) + 1
        ends = [0, *map(int, changes), size]
        cuts.append([range(a, b) for a, b in pairwise(ends) if a < b])
    cells = [cell for cell in product(*cuts) if where[tuple(one.start for one in cell)]]
    for dim in range(where.ndim):
        cells = _joined_along(dim, cells)
    return [dict(zip(axes, cell, strict=True)) for cell in cells]


def _joined_along(dim: int, cells: list[tuple[range, ...]]) -> list[tuple[range, ...]]:
    def order(cell: tuple[range, ...]) -> tuple[object, ...]:
        others = [(one.start, one.stop) for at, one in enumerate(cell) if at != dim]
        return *others, cell[dim].start

    found: list[tuple[range, ...]] = []
    for cell in sorted(cells, key=order):
        last = found[-1] if found else None
        beside = last is not None and all(
            one == other or (at == dim and one.stop == other.start)
            for at, (one, other) in enumerate(zip(last, cell, strict=True))
        )
        if last is not None and beside:
            found[-1] = (*last[:dim], range(last[dim].start, cell[dim].stop), *last[dim + 1 :])
        else:
            found.append(cell)
    return found


def on_box(written: StepWriter, graph: Graph, value: int, to: Mapping[str, tuple[str, int]]) -> int | None:
    """Write a value of a graph on a box, along a new axis for each old one: old -> (new, first position).

    `written` has the inputs and steps of the graph under their own numbers. None where some step cannot be
    computed on a part.
    """
    first, axes = len(graph.inputs), value_axes(graph)
    known: dict[tuple[int, tuple[tuple[str, tuple[str, int]], ...]], int | None] = {}

    def move(one: int, moved: Mapping[str, tuple[str, int]]) -> int | None:
        needed = {axis: to for axis, to in moved.items() if axis in axes[one]}
        if not needed:
            return one
        key = one, tuple(sorted(needed.items()))
        if key not in known:
            known[key] = moved_step(one, needed)
        return known[key]

    def moved_step(one: int, moved: dict[str, tuple[str, int]]) -> int | None:
        if one < first:
            read = tuple(Place((axis,), ((new, 1),), low) for axis, (new, low) in moved.items())
            return written.add(Step("window", (one,), places=read))
        step = graph.step_at(one)
        if step.op == "index":
            [(new, low)] = moved.values()
            index = written.add(Step("index", axes=(new,)))
            by = written.add(Step("const", value=Fraction(low)))
            return written.add(Step("add", (index, by)))
        places: tuple[Place, ...] = ()
        if step.op == "window":
            places = tuple(_moved_place(place, moved) for place in step.places)
            if moved.keys() & {axis for place in places for axis in place.axes}:
                return None
        elif step.op in REDUCTIONS:
            if {*step.axes} & moved.keys():
                return None
        elif step.mapping:
            return None
        operands = [move(i, moved) for i in step.inputs]
        if any(i is None for i in operands):
            return None
        return written.add(replace(step, inputs=tuple(i for i in operands if i is not None), places=places))

    return move(value, to)


def _moved_place(place: Place, moved: Mapping[str, tuple[str, int]]) -> Place:
    offset = place.offset
    terms = []
    for axis, factor in place.terms:
        new, low = moved.get(axis, (axis, 0))
        terms.append((new, factor))
        offset += factor * low
    return replace(place, terms=tuple(terms), offset=offset)
