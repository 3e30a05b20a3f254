"""Placements: all ways to map parallel axes, such as data and tensor, onto the levels of a machine.

A placement is a matrix of factors with a row for each axis and a column for each level: the factors of a row
multiply to the size of the axis, those of a column to the number of parts of the level.
"""

from dataclasses import dataclass
from math import prod

import numpy as np
from numpy.typing import NDArray

from superopt.errors import InputError
from superopt.shard.machine import Machine

__all__ = ["Grid", "Placement", "grid_of", "parse_axes", "placements"]


@dataclass(frozen=True, slots=True)
class Placement:
    """A matrix of factors: `factors[axis][level]`."""

    axes: tuple[str, ...]
    factors: tuple[tuple[int, ...], ...]

    def __str__(self) -> str:
        return "; ".join(
            f"{axis} {'x'.join(map(str, row))}" for axis, row in zip(self.axes, self.factors, strict=True)
        )


@dataclass(frozen=True, slots=True)
class Grid:
    """The devices of a machine numbered by finer levels, and which of these belong to each parallel axis.

    Devices keep their numbers, as the parts of a level stay next to each other.
    """

    machine: Machine
    counts: tuple[int, ...]
    own: dict[str, tuple[int, ...]]

    @property
    def places(self) -> NDArray[np.int64]:
        """The place of each device at each finer level: int[devices, levels]."""
        if not self.counts:
            return np.zeros((1, 0), dtype=np.int64)
        found = np.unravel_index(np.arange(prod(self.counts)), self.counts)
        return np.stack(found, axis=1).astype(np.int64)


def parse_axes(text: str) -> dict[str, int]:
    """Return the parallel axes that a text such as `data=4, tensor=2` names."""
    found: dict[str, int] = {}
    for part in filter(None, (part.strip() for part in text.split(","))):
        name, _, size = (word.strip() for word in part.partition("="))
        if not name.isidentifier() or not size.isdecimal() or int(size) < 1:
            raise InputError(f"axes: cannot read {part!r}; write for example 'data=4, tensor=2'")
        if name in found:
            raise InputError(f"axes: {name!r} is given twice")
        found[name] = int(size)
    if not found:
        raise InputError("axes: there is none; write for example 'data=4, tensor=2'")
    return found


def placements(axes: dict[str, int], machine: Machine) -> tuple[Placement, ...]:
    """Return all placements, or raise InputError where sizes and counts do not multiply to the same."""
    have = machine.devices
    if prod(axes.values()) != have:
        last, size = list(axes.items())[-1]
        others = prod(axes.values()) // size
        choice = f"{last}={have // others}" if have % others == 0 else f"axes whose product is {have}"
        listed = " x ".join(f"{name}={one}" for name, one in axes.items())
        raise InputError(
            f"axes: {listed} are {prod(axes.values())} devices and the machine has {have}; "
            f"the nearest choice that works: {choice}"
        )
    found = _matrices(tuple(axes.values()), machine.counts)
    return tuple(Placement(tuple(axes), matrix) for matrix in found)


def _matrices(sizes: tuple[int, ...], counts: tuple[int, ...]) -> list[tuple[tuple[int, ...], ...]]:
    """Return all matrices with these products of rows and of columns."""
    if not sizes:
        return [()] if all(count == 1 for count in counts) else []
    return [
        (row, *rest)
        for row in _rows(sizes[0], counts)
        for rest in _matrices(
            sizes[1:], tuple(count // factor for count, factor in zip(counts, row, strict=True))
        )
    ]


def _rows(size: int, counts: tuple[int, ...]) -> list[tuple[int, ...]]:
    if not counts:
        return [()] if size == 1 else []
    factors = [one for one in range(1, size + 1) if size % one == 0 and counts[0] % one == 0]
    return [(one, *rest) for one in factors for rest in _rows(size // one, counts[1:])]


def grid_of(machine: Machine, placement: Placement | None = None) -> Grid:
    """Return the grid in which each level is divided among the axes, or the levels themselves."""
    if placement is None:
        names = tuple(level.name for level in machine.levels)
        return Grid(machine, machine.counts, {name: (at,) for at, name in enumerate(names)})
    counts: list[int] = []
    own: dict[str, list[int]] = {axis: [] for axis in placement.axes}
    for at in range(len(machine.levels)):
        for axis, row in zip(placement.axes, placement.factors, strict=True):
            if row[at] > 1:
                own[axis].append(len(counts))
                counts.append(row[at])
    return Grid(machine, tuple(counts), {axis: tuple(found) for axis, found in own.items()})
