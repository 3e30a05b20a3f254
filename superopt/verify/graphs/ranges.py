"""Ranges: between which exact numbers each value of a graph lies, whatever numbers its inputs are."""

from collections.abc import Mapping, Sequence
from fractions import Fraction
from math import inf

from superopt.dtypes import INTEGERS
from superopt.ir import Graph
from superopt.verify.ranges import ANYTHING, Range, range_by_arithmetic

__all__ = ["ranges_of"]

_ZERO, _ONE, _HALF = Fraction(0), Fraction(1), Fraction(1, 2)


def ranges_of(graph: Graph, known: Mapping[int, Fraction]) -> list[Range]:
    """Return the range of every value; `known` are the rational constants."""
    found = [
        Range(_ZERO, _ONE) if port.dtype == "bool" else ANYTHING if port.dtype in INTEGERS else Range()
        for port in graph.inputs
    ]
    for at, step in graph.numbered:
        args = [found[i] for i in step.inputs]
        if at in known:
            found.append(Range(known[at], known[at]))
        else:
            found.append(range_by_arithmetic(graph, step, args) or _function(step.op, args))
    return found


def _function(op: str, args: Sequence[Range]) -> Range:
    """Return the range of a function."""
    total = all(one.total for one in args)
    match op, args:
        case "exp" | "exp2", [x]:
            low, high = _ONE if x.low >= 0 else _ZERO, _ONE if x.high <= 0 else inf
            return Range(low, high, low_open=low == 0, total=total)
        case "expm1", [x]:
            low, high = _ZERO if x.low >= 0 else -_ONE, _ZERO if x.high <= 0 else inf
            return Range(low, high, low_open=low == -1, total=total)
        case "sigmoid", [x]:
            low, high = _HALF if x.low >= 0 else _ZERO, _HALF if x.high <= 0 else _ONE
            return Range(low, high, low_open=low == 0, high_open=high == 1, total=total)
        case "tanh" | "erf", [x]:
            low, high = _ZERO if x.low >= 0 else -_ONE, _ZERO if x.high <= 0 else _ONE
            return Range(low, high, low_open=low == -1, high_open=high == 1, total=total)
        case "sin" | "cos", [_]:
            return Range(-_ONE, _ONE, total=total)
        case "sqrt", [x]:
            low = _ONE if x.low >= 1 else _ZERO
            return Range(low, low_open=x.positive and low == 0, total=total and x.not_negative)
        case "rsqrt", [x]:
            return Range(_ZERO, low_open=True, total=total and x.positive)
        case "log" | "log2", [x] if x.low >= 1:
            return Range(_ZERO, total=total)
        case "log1p", [x] if x.not_negative:
            return Range(_ZERO, low_open=x.positive, total=total)
        case "log" | "log2", [x]:
            return Range(total=total and x.positive)
    return ANYTHING
