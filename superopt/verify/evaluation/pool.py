"""Pool: the numbers that inputs hold in trials with ties, so that numbers which are compared are equal.

An input that is compared with a constant takes that constant; inputs that are compared with each other take
one of a few shared numbers. Several comparisons may have to be equal at once, each of other numbers, so there
are as many shared ones as that takes. Where x is compared with y + 3, what is 3 more or less than any of
these numbers is in the pool as well: for one such distance, between inputs that are compared one by one.

An input that is compared with a constant, or with another input, is equal to it on a plane of its own. Draws
reach that plane, whatever else depends on the comparison, and two such planes at once. A comparison of
computed numbers may be equal for several reasons, as x * y = x is for x = 0 and for y = 1, of which draws may
never meet the one that matters.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from fractions import Fraction

import numpy as np

from superopt.ir import Graph, mask_values, tensorless_values, value_axes
from superopt.ops import OPS
from superopt.verify.evaluation.forms import Form, differences, linear_forms
from superopt.verify.evaluation.integers import integer_values
from superopt.verify.field.source import Pool

__all__ = ["Direct", "direct_sites", "independent", "pool_of"]

_MOST_SHARED = 4


def pool_of(graphs: Sequence[Graph], constants: Iterable[Fraction], *, narrow: bool) -> Pool:
    """Return the pool of some graphs, given the constants that they compare numbers with."""
    roots: dict[Fraction, None] = {}
    distances: dict[tuple[frozenset[object], Fraction], bool] = {}
    meetings: set[frozenset[object]] = set()
    several = False  # whether elements of one input are compared with each other
    for graph in graphs:
        places = {(port.name,): axes for port, axes in zip(graph.inputs, value_axes(graph), strict=False)}
        for way in _ways(graph, narrow):
            names = frozenset(name for name, _ in way.terms)
            if way.root is not None:
                roots[way.root] = None
            elif way.shift:
                own = {places.get(name) for name in names}  # type: ignore[call-overload]
                distances[names, way.shift] = len(own) == 1 and None not in own
            elif way.shift == 0:
                meetings.add(names)
                several |= any(name not in places for name in names)
    shifts = [shift for _, shift in distances] if list(distances.values()) == [True] else []
    first = Pool(tuple(dict.fromkeys([*constants, *roots, *shifts])))
    apart = [number + way * shift for number in first.numbers for shift in shifts for way in (1, -1)]
    shared = _MOST_SHARED if several else min(len(meetings) + 1, _MOST_SHARED)
    return Pool(tuple(dict.fromkeys([*first.own, *apart])), tuple(shifts), shared)


def _holds(pool: Pool, form: Form) -> bool:
    """Whether inputs that hold numbers of a pool make a form zero."""
    if not form.terms:
        return True
    if form.root is not None:
        return form.root in pool.numbers
    return form.shift is not None and (form.shift == 0 or form.shift in pool.shifts)


def _ways(graph: Graph, narrow: bool) -> Iterator[Form]:
    """Yield what the differences of numbers that are compared may be."""
    forms = linear_forms(graph, narrow=narrow)
    for step in graph.steps:
        compares = step.op in OPS and (OPS[step.op].mask or step.op in ("maximum", "minimum"))
        if compares and len(step.inputs) == 2:
            ways = differences(*(forms[i] for i in step.inputs)) or frozenset[Form]()
            yield from sorted(ways, key=repr)


@dataclass(frozen=True, slots=True)
class Direct:
    """A comparison whose ties can be drawn: the ways in which its sides are equal, each up to its sign."""

    ways: frozenset[Form] = frozenset()

    @property
    def count(self) -> int:
        """How many ways there are, each to be met."""
        return max(len(self.ways), 1)


def direct_sites(graph: Graph, pool: Pool, *, narrow: bool = False) -> dict[int, Direct]:
    """Return the comparisons of a graph whose ties a pool draws."""
    whole = integer_values(graph)
    tensorless, masks, forms = (
        tensorless_values(graph),
        mask_values(graph),
        linear_forms(graph, narrow=narrow),
    )
    found: dict[int, Direct] = {}
    for at, step in graph.numbered:
        if step.op not in OPS or not OPS[step.op].mask or len(step.inputs) != 2:
            continue
        one, other = step.inputs
        ways = differences(forms[one], forms[other])
        if masks[one] and masks[other]:  # random zeros and ones are often equal anyway
            found[at] = Direct()
        elif ways is not None and all(_holds(pool, way) for way in ways):
            found[at] = Direct(frozenset(way.unsigned for way in ways if way.terms))
        # Integers are drawn from the positions and constants that they are compared with.
        elif (whole[one] or whole[other]) and (tensorless[one] or tensorless[other]):
            found[at] = Direct()
    return found


def independent(ways: Iterable[Form]) -> int:
    """Return how many ways of being equal can hold at once without one following from the others."""
    rows = [dict(way.terms) for way in ways]
    names = {name: at for at, name in enumerate(dict.fromkeys(name for row in rows for name in row))}
    matrix = np.zeros((len(rows), len(names)))
    for at, row in enumerate(rows):
        for name, factor in row.items():
            matrix[at, names[name]] = float(factor)
    return int(np.linalg.matrix_rank(matrix)) if names else 0
