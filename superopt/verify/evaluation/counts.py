"""Counts: sums of outcomes along an axis of which only some positions are evaluated.

Along such an axis a count of masks is at most as large as the positions are many. So `count > 10` is never
true there, and a polynomial that is zero for small counts is zero. A program that compares a count with
other numbers than 1, or multiplies more than two, is not compared on fewer positions than there are.
"""

from collections.abc import Mapping
from fractions import Fraction

from superopt.dtypes import INTEGERS
from superopt.ir import Graph
from superopt.ops import OPS

__all__ = ["misread_counts"]

_SUMS = frozenset({"sum", "contract"})
_PRODUCTS = frozenset({"mul", "div", "contract"})
_ORDERS = frozenset({"max", "maximum", "minimum", "relu", "abs"})
_MOST_FACTORS = 2


def misread_counts(graph: Graph, partial: frozenset[str], known: Mapping[int, Fraction]) -> bool:
    """Return whether counts along some partly evaluated axes are used where their size matters.

    `known` has the steps that are rational constants.
    """
    outcomes = [port.dtype == "bool" or port.dtype in INTEGERS for port in graph.inputs]  # has few values
    factors = [0] * len(graph.inputs)  # how many counts are multiplied
    single = _single_places(graph, known)
    for step in graph.steps:
        compares = step.op in _ORDERS or (step.op in OPS and OPS[step.op].mask)
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
