"""Floors: the least time that a region or a program can take, by which a time too good to be true is told."""

from collections.abc import Iterable, Mapping
from dataclasses import replace

from superopt.candidates.candidate import RegionCandidates
from superopt.ir import Graph, Program, Region
from superopt.targets import Target

__all__ = ["SURELY", "add_floors", "is_too_fast", "least_us", "program_floor_us"]

SURELY = 0.95
"""A time below this share of its floor cannot be right."""


def least_us(
    target: Target, graphs: Iterable[Graph], *, cold: bool = True, kept: bool = False
) -> float | None:
    """Return the floor of the cheapest of several equal graphs, where that is known.

    A candidate may do less than the program as written: the floor of one equal graph is none of another.
    `cold` and `kept` are those of `Target.floor_us`.
    """
    known = [target.floor_us(one, cold=cold, kept=kept) for one in graphs]
    return min((us for us in known if us is not None), default=None)


def add_floors(
    target: Target, regions: Iterable[RegionCandidates], *, cold: bool
) -> tuple[RegionCandidates, ...]:
    """Return regions with the floor of the cheapest graph that was found for each."""

    def floor(region: RegionCandidates) -> float | None:
        graphs = dict.fromkeys([region.goal, *(one.run for one in region.candidates)])
        return least_us(target, graphs, cold=cold)

    return tuple(replace(one, floor_us=floor(one)) for one in regions)


def program_floor_us(program: Program, floors: Mapping[str, float | None]) -> float | None:
    """Return the floor of a program from those of its regions, by the names of their goals.

    A region that reads what was made before it may find that in the cache: only the others count.
    """
    seen: set[str] = set()
    counted = []
    for node in program.nodes:
        if isinstance(node, Region) and node.graph.name in floors and seen.isdisjoint(node.inputs):
            counted.append(floors[node.graph.name])
        seen.update(node.inputs, node.outputs)
    known = [us for us in counted if us is not None]
    return sum(known) if known else None


def is_too_fast(us: float, floor_us: float | None) -> bool:
    """Whether a time is below the floor by more than the floor's own uncertainty, and so cannot be right."""
    return floor_us is not None and us < SURELY * floor_us
