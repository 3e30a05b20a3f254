"""Integers: which numbers tensors of integers hold in random tests.

An integer that is only compared with indices and constants matters by what it is equal to, greater than or
less than. So it is drawn from few numbers: all positions that are evaluated, all constants that anything is
compared with, their neighbours, and one number out of range of everything. In turn each of these numbers
is a position that is evaluated, where an axis has it. An integer that anything else is done with is a number
like others, and then half of the elements are drawn from the whole field.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from itertools import permutations
from math import ceil, floor, prod

import numpy as np

from superopt.dtypes import INTEGERS
from superopt.ir import Graph, tensorless_values, value_axes
from superopt.ops import OPS
from superopt.verify.evaluation.tensorless import constants_of, tensorless_numbers

__all__ = [
    "LookUp",
    "as_numbers",
    "computed_integers",
    "drawn_integers",
    "integer_values",
    "integers_of",
    "look_ups",
    "plain_integers",
    "reads_integers",
]

_LARGEST = 1 << 30  # a larger constant is drawn as an integer only where one is compared with it
_ORDERS = frozenset({"lt", "le", "gt", "ge"})
_MOST_NUMBERS = 128
_MOST_WHOLE = 64  # the longest axis all of whose numbers are drawn


def integer_values(graph: Graph) -> tuple[bool, ...]:
    """Return for each value whether it is an input of integers, or a view of one."""
    found = [port.dtype in INTEGERS for port in graph.inputs]
    for step in graph.steps:
        found.append(step.op in ("rename", "select") and found[step.inputs[0]])
    return tuple(found)


def reads_integers(*graphs: Graph) -> bool:
    """Return whether anything is done with integers but to compare them with indices and constants."""
    return any(map(computed_integers, graphs))


def computed_integers(graph: Graph) -> frozenset[str]:
    """Return the inputs of integers with which more is done than to compare them with known numbers."""
    ports, tensorless = _ports_of_integers(graph), tensorless_values(graph)
    found: set[str] = set()
    for at, step in graph.numbered:
        compares = step.op in OPS and OPS[step.op].mask and len(step.inputs) == 2
        if not ports[at] and not (compares and any(tensorless[i] for i in step.inputs)):
            found.update(*(ports[i] for i in step.inputs))
    return frozenset(found)


def plain_integers(*graphs: Graph) -> frozenset[str]:
    """Return the inputs of integers of which nothing is made that is compared.

    What is equal for all numbers is equal for these.
    """
    found: set[str] = set()
    compared: set[str] = set()
    for graph in graphs:
        made = [frozenset({port.name} if port.dtype in INTEGERS else ()) for port in graph.inputs]
        found.update(*made)
        for step in graph.steps:
            read = frozenset[str]().union(*(made[i] for i in step.inputs))
            made.append(read)
            if step.op in OPS and OPS[step.op].mask:
                compared |= read
    return frozenset(found - compared)


def as_numbers(graph: Graph, names: frozenset[str]) -> Graph:
    """Return a graph that reads any numbers where these inputs were integers."""
    ports = (replace(port, dtype="f64") if port.name in names else port for port in graph.inputs)
    return replace(graph, inputs=tuple(ports))


def _ports_of_integers(graph: Graph) -> list[frozenset[str]]:
    """Return for each value the input of integers that it is, or is a view of."""
    whole = integer_values(graph)
    found = [frozenset({port.name} if own else ()) for port, own in zip(graph.inputs, whole, strict=False)]
    for at, step in graph.numbered:
        found.append(found[step.inputs[0]] if whole[at] else frozenset())
    return found


@dataclass(frozen=True, slots=True)
class LookUp:
    """Numbers made of indices that integers are compared with."""

    graph: Graph
    value: int
    axes: tuple[str, ...]
    ports: frozenset[str]  # the inputs that are looked up there

    def at(
        self, places: Mapping[str, Sequence[int]], extents: Mapping[str, int]
    ) -> dict[int, tuple[int, ...]] | None:
        """Return whole numbers with their places, and those next to other numbers; None if unknown."""
        order = {axis: i for i, axis in enumerate(self.axes)}
        own = {axis: places[axis] for axis in self.axes}
        found = tensorless_numbers(self.graph, order, own, extents)[self.value]
        if found is None:
            return None
        shape = tuple(len(own[axis]) for axis in self.axes)
        numbers = np.broadcast_to(found[0, 0], shape)
        if not np.isfinite(numbers).all():
            return None
        made: dict[int, tuple[int, ...]] = {}
        for at in np.ndindex(shape):
            place = tuple(own[axis][i] for axis, i in zip(self.axes, at, strict=True))
            for number in {floor(numbers[at]), ceil(numbers[at])}:
                made.setdefault(number, place)
        return made


def look_ups(*graphs: Graph) -> list[LookUp]:
    """Return what integers are compared with, apart from constants."""
    found = []
    for graph in graphs:
        ports, tensorless, axes = _ports_of_integers(graph), tensorless_values(graph), value_axes(graph)
        names = [axis.name for axis in graph.axes]
        values: dict[int, frozenset[str]] = {}
        for step in graph.steps:
            if step.op in OPS and OPS[step.op].mask:
                own = frozenset[str]().union(*(ports[i] for i in step.inputs))
                for i in step.inputs:
                    if own and tensorless[i] and axes[i]:
                        values[i] = values.get(i, own) | own
        found += [
            LookUp(graph, i, tuple(name for name in names if name in axes[i]), own)
            for i, own in values.items()
        ]
    return found


def _compared_with(graph: Graph) -> set[Fraction]:
    """Return the constants that inputs of integers are themselves compared with."""
    whole, known = integer_values(graph), constants_of(graph, narrow=False)[2]
    pairs = [step.inputs for step in graph.steps if step.op in OPS and OPS[step.op].mask]
    return {known[j] for pair in pairs for i, j in permutations(pair, 2) if whole[i] and j in known}


def integers_of(graphs: Sequence[Graph], constants: Iterable[Fraction]) -> set[int]:
    """Return the numbers that integers are compared with, and for orders also their neighbours."""
    found = {0, 1}
    met = {c for c in constants if abs(c) <= _LARGEST}.union(*map(_compared_with, graphs))
    near = {one for c in met for one in (floor(c), ceil(c))}
    found |= near
    for graph in graphs:
        whole = integer_values(graph)
        if any(step.op in _ORDERS and any(whole[i] for i in step.inputs) for step in graph.steps):
            found |= {number + step for number in near for step in (-1, 1)}
    return found


def drawn_integers(
    graphs: Sequence[Graph],
    constants: Iterable[Fraction],
    places: dict[str, tuple[int, ...]],
    groups: Mapping[str, str],
    extents: Mapping[str, int],
    *,
    grow: bool = True,
) -> tuple[tuple[int, ...], str]:
    """Return what integers are drawn from, as many as some power of two, and what stands in the way.

    Adds to the places of axes those that integers name, unless told not to let them grow: then two
    programs may seem equal that treat one of those places apart. What is computed from an integer that
    is looked up may treat any place apart, as (i - 7).abs() < 1 does: such axes are evaluated whole.
    """
    if not any(port.dtype in INTEGERS for graph in graphs for port in graph.inputs):
        return (0, 1, 2, 3), ""
    numbers = integers_of(graphs, constants)
    found = look_ups(*graphs)
    if not grow:
        for one in found:
            own = {axis: places[groups[axis]] for axis in one.axes}
            numbers |= (one.at(own, _evaluated(one, places, groups)) or {}).keys()
        return _drawn(numbers, [*numbers, *extents.values()]), ""
    whole = [_everywhere(one, extents) for one in found]
    computed = frozenset[str]().union(*map(computed_integers, graphs))
    for one, known in zip(found, whole, strict=True):
        if known is not None and one.ports & computed:
            if len(known) > _MOST_WHOLE:
                return (0,), "integers that name positions of a long axis are computed with"
            numbers |= known.keys()
    while True:
        before = len(numbers), sum(map(len, places.values()))
        for one, known in zip(found, whole, strict=True):
            made = one.at({axis: places[groups[axis]] for axis in one.axes}, _evaluated(one, places, groups))
            if known is None or made is None:
                return (0,), "integers are compared with positions of axes that are too long"
            numbers |= made.keys()
            for number in numbers & known.keys():
                for axis, place in zip(one.axes, known[number], strict=True):
                    group = groups[axis]
                    places[group] = tuple(sorted({*places[group], place}))
        if len(numbers) > _MOST_NUMBERS:
            return (0,), f"integers are compared with more than {_MOST_NUMBERS} numbers"
        if before == (len(numbers), sum(map(len, places.values()))):
            break
    for one, known in zip(found, whole, strict=True):
        made = one.at({axis: places[groups[axis]] for axis in one.axes}, _evaluated(one, places, groups))
        if known is None or made is None or not numbers & known.keys() <= made.keys() <= known.keys():
            return (0,), "integers are compared with positions of axes that are too long"
    return _drawn(numbers, [*numbers, *extents.values(), *(n for known in whole if known for n in known)]), ""


def _drawn(numbers: set[int], met: Sequence[int]) -> tuple[int, ...]:
    """Return the numbers, and one below and one above all met; some twice, to make a power of two."""
    drawn = [*sorted(numbers), max(met) + 1, min(met) - 1]
    while len(drawn) & (len(drawn) - 1):
        drawn.append(drawn[len(drawn) % (len(numbers) + 2)])
    return tuple(drawn)


def _evaluated(
    one: LookUp, places: Mapping[str, tuple[int, ...]], groups: Mapping[str, str]
) -> dict[str, int]:
    """Return the extents that a program sees when its axes are evaluated on these places only."""
    return {axis.name: len(places[groups[axis.name]]) for axis in one.graph.axes}


def _everywhere(one: LookUp, extents: Mapping[str, int]) -> dict[int, tuple[int, ...]] | None:
    """Return each number that a look-up has on the whole of its axes, and where."""
    if prod(extents[axis] for axis in one.axes) > 1 << 18:
        return None
    return one.at({axis: range(extents[axis]) for axis in one.axes}, extents)
