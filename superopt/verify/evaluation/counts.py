"""Counts: sums of outcomes along an axis of which only some positions are evaluated.

Along such an axis a count of masks is at most as large as the positions are many. So `count > 10` is never
true there, and a polynomial that is zero for small counts is zero. A program that compares a count with
other numbers than 1, or multiplies more than two, is not compared on fewer positions than there are.
"""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from fractions import Fraction

from superopt.dtypes import INTEGERS
from superopt.ir import Graph, Step, tensorless_values
from superopt.ops import OPS

__all__ = ["CHOICES", "chooses", "misread_counts", "multiplied_sums"]

_SUMS = frozenset({"sum", "contract"})
_PRODUCTS = frozenset({"mul", "div", "contract"})
CHOICES = frozenset({"maximum", "minimum", "relu", "abs"})
"""Operators that give one of two numbers, by their order."""
_NARROWING = frozenset({"and", "mul", "contract", "rename", "select"})  # what picks still does after these
_MOST_FACTORS = 2
_TOO_MANY_SUMS = 1 << 16


def misread_counts(graph: Graph, partial: frozenset[str], known: Mapping[int, Fraction]) -> bool:
    """Return whether counts along some partly evaluated axes are used where their size matters.

    `known` has the steps that are rational constants.
    """
    outcomes = [port.dtype == "bool" or port.dtype in INTEGERS for port in graph.inputs]  # has few values
    factors = [0] * len(graph.inputs)  # how many counts are multiplied
    single = _single_places(graph, known)
    for step in graph.steps:
        compares = step.op == "max" or chooses(step)
        few = all(outcomes[i] for i in step.inputs)
        counts = [i for i in step.inputs if factors[i]]
        others = [known.get(i, Fraction(2)) for i in step.inputs if not factors[i]]
        near = bool(others) and all(abs(number) <= 1 for number in others)
        if compares and few and counts and not near:
            return True
        own = [factors[i] for i in step.inputs]
        found = sum(own) if step.op in _PRODUCTS else max(own, default=0)
        found = 2 * found if step.op == "square" else found
        picked = all(i in single for i in step.inputs)  # at most one position has a value that is not 0
        found += step.op in _SUMS and few and not picked and not partial.isdisjoint(step.axes)
        if found > _MOST_FACTORS:
            return True
        masked = step.op in OPS and OPS[step.op].mask
        outcomes.append(few or masked)
        factors.append(0 if masked else found)
    return False


def _single_places(graph: Graph, known: Mapping[int, Fraction]) -> frozenset[int]:
    """Return the masks that are 1 at no more than one position of an axis, or at two for two indices."""
    places: set[int] = set()
    single: set[int] = set()
    for at, step in graph.numbered:
        if step.op == "index" or (
            step.op in ("add", "sub")
            and len(places & {*step.inputs}) == 1
            and len(known.keys() & {*step.inputs}) == 1
        ):
            places.add(at)
        elif (step.op == "eq" and len(places & {*step.inputs}) == 1) or (
            step.op == "or" and single >= {*step.inputs}
        ):
            single.add(at)
    return frozenset(single)


def multiplied_sums(graphs: Iterable[Graph], groups: Mapping[str, str]) -> dict[str, int]:
    """Return for each group of axes how many sums over it are multiplied in one term of some value, at most.

    On k positions a matrix of scalar products has rank k, so that the determinant of a larger one is 0. What
    multiplies r sums is 0 for any number of positions if it is 0 for r of them: it is a polynomial in the
    weights of the positions, and the terms with r different ones tell it. A root, an outcome of a comparison
    and what the algebra opens no further are numbers of their own.
    """
    found: dict[str, int] = {}
    for graph in graphs:
        tensorless, picking = tensorless_values(graph), _picking_masks(graph)
        values: list[_Sums] = [{}] * len(graph.inputs)
        for at, step in graph.numbered:
            made = {} if tensorless[at] else _sums_of(step, values, picking, groups)
            found = _larger(found, made)
            values.append(made)
    return found


_Sums = Mapping[str, int]


def _sums_of(
    step: Step, values: Sequence[_Sums], picking: frozenset[int], groups: Mapping[str, str]
) -> _Sums:
    args = [values[i] for i in step.inputs]
    if step.op in OPS:
        made: _Sums = OPS[step.op].scalar(_MultipliedSums(), *args)
        return made
    if step.op not in _SUMS:
        return args[0] if args else {}
    product = args[0] if step.op == "sum" else _together(*args)
    if not picking.isdisjoint(step.inputs):
        return product
    return _together(product, Counter(groups[axis] for axis in step.axes))


def _picking_masks(graph: Graph) -> frozenset[int]:
    """Return the masks of indices that pick elements, as equal indices do; those of orders leave sums."""
    tensorless = tensorless_values(graph)
    found: set[int] = set()
    for at, step in graph.numbered:
        if not tensorless[at]:
            continue
        picks = [i in found for i in step.inputs]
        if step.op == "eq" or (any(picks) and step.op in _NARROWING) or (all(picks) and step.op == "or"):
            found.add(at)
    return frozenset(found)


def _larger(a: _Sums, b: _Sums) -> dict[str, int]:
    return {group: max(a.get(group, 0), b.get(group, 0)) for group in {**a, **b}}


def _together(a: _Sums, b: _Sums) -> dict[str, int]:
    return {group: min(a.get(group, 0) + b.get(group, 0), _TOO_MANY_SUMS) for group in {**a, **b}}


class _MultipliedSums:
    """Scalars[_Sums]."""

    def const(self, *args: object) -> _Sums:
        return {}

    infinity = exp = sqrt = less = equal = const

    def neg(self, a: _Sums) -> _Sums:
        return a

    inv = neg

    def add(self, a: _Sums, b: _Sums) -> _Sums:
        return _larger(a, b) if a and b else a or b

    maximum = add

    def mul(self, a: _Sums, b: _Sums) -> _Sums:
        return _together(a, b) if a and b else a or b

    def where(self, mask: _Sums, a: _Sums, b: _Sums) -> _Sums:
        return self.add(a, b)

    def function(self, name: str, *args: _Sums) -> _Sums:
        return self.mul(*args) if name == "guard" else {}


def chooses(step: Step) -> bool:
    """Whether a step makes a mask, or gives one of two numbers."""
    return step.op in OPS and (OPS[step.op].mask or step.op in CHOICES)
