"""Integers: whether chunks, which compute in float32, make of integers what PyTorch makes of them.

A float32 holds whole numbers below 2^24 exactly, and integers that enter may be larger. They are rounded
where they enter, as PyTorch rounds them where it makes floats of them. Rounding changes no order. So integers
may be compared with whole numbers below 2^24, as labels are with positions; masks may choose among them; and
they may multiply floats. But they are not added to other integers, nor are two large ones compared:

    eq(label, index[n])       16777217 becomes 16777216, which no position of n is either
    sub(id, 16777216)         16777217 becomes 16777216 first: 0 in place of 1
    eq(id, other)             16777217 equals 16777216
"""

from collections.abc import Sequence
from math import inf, prod

from superopt.dtypes import INTEGERS
from superopt.ir import Graph, Step
from superopt.ops import OPS

__all__ = ["holds_integers"]

_HELD = 2.0**24  # below this, float32 holds all whole numbers
_COMPARISONS = frozenset({"lt", "gt", "le", "ge", "eq", "ne"})
_CHOOSING = frozenset({"neg", "abs", "relu", "maximum", "minimum", "max", "rename", "select", "window"})
_COUNTING = frozenset({"add", "sub", "square", "sum", "contract", "div", "floor", "pow"})

_Bound = float | None
"""The largest magnitude of whole numbers, infinite for integers that enter; None for floats."""


class _RoundedError(Exception):
    """A step computes with integers what float32 does not hold."""


def holds_integers(graph: Graph) -> bool:
    """Whether float32 holds what a graph makes of the integers that enter it."""
    bounds: list[_Bound] = [
        inf if port.dtype in INTEGERS else 1.0 if port.dtype == "bool" else None for port in graph.inputs
    ]
    try:
        for step in graph.steps:
            bounds.append(_bound(graph, step, [bounds[one] for one in step.inputs]))
    except _RoundedError:
        return False
    return True


def _bound(graph: Graph, step: Step, read: Sequence[_Bound]) -> _Bound:
    """Return the bound of what a step makes."""
    match step.op:
        case "const":
            assert step.value is not None
            return float(abs(step.value)) if step.value.denominator == 1 else None
        case "size" | "index":
            return float(graph.sizes[step.axes[0]])
        case "where":
            return _of_either(read[1:])
        case "guard":
            return read[1]
        case "mul":
            return _of_product(*read)
        case op if op in _COMPARISONS:
            return _of_comparison(*read)
        case op if op in _CHOOSING:
            return _of_either(read)
        case op if op in _COUNTING and None not in read:
            return _counted(graph, step, [one for one in read if one is not None])
        case op if op in OPS and OPS[op].makes_mask(one == 1 for one in read):
            return 1.0
    return None  # PyTorch makes floats of integers there, too


def _of_either(read: Sequence[_Bound]) -> _Bound:
    known = [one for one in read if one is not None]
    return max(known) if len(known) == len(read) else None


def _of_product(a: _Bound, b: _Bound) -> _Bound:
    if a is None or b is None:
        return None
    least, most = sorted((a, b))
    if most == inf and least > 1:
        raise _RoundedError
    return most if least <= 1 else a * b


def _of_comparison(a: _Bound, b: _Bound) -> _Bound:
    large = [one for one in (a, b) if one is not None and one >= _HELD]
    # One that enters, or is chosen among such, is rounded once; what is computed may be off by more.
    if None not in (a, b) and large and large != [inf]:
        raise _RoundedError
    return 1.0


def _counted(graph: Graph, step: Step, read: Sequence[float]) -> _Bound:
    """Return the bound of what arithmetic makes of whole numbers."""
    if inf in read:
        raise _RoundedError
    count = prod(graph.sizes[axis] for axis in step.axes)
    match step.op:
        case "add" | "sub":
            return sum(read)
        case "sum":
            return read[0] * count
        case "square":
            return read[0] * read[0]
        case "contract":
            return read[0] * read[1] * count
        case "floor":
            return read[0]
    return None
