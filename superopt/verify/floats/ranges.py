"""Ranges: between which floats a value of a graph surely lies, whatever its inputs hold.

A comparison whose two sides lie apart is decided before the program runs: `exp(x) > -1` is always true,
and no test has to see it false.
"""

from collections.abc import Callable, Sequence
from dataclasses import replace
from math import erf, exp, exp2, expm1, inf, log, log1p, sqrt, tanh

from superopt.ir import Graph, Step
from superopt.verify.ranges import Bound, Range, range_by_arithmetic

__all__ = ["ANYTHING", "TRUTH", "range_of_dtype", "range_of_step"]

ANYTHING = Range()
TRUTH = Range(0, 1)
_POSITIVE = Range(0, inf, low_open=True)


def range_of_dtype(dtype: str) -> Range:
    """Return the range of an input of a dtype of the IR."""
    if dtype == "bool":
        return TRUTH
    return Range(0, 255) if dtype == "u8" else ANYTHING


def range_of_step(graph: Graph, step: Step, ranges: Sequence[Range]) -> Range:
    """Return the range of a step's value, given the ranges of all values before it."""
    if step.value is not None:
        return Range(float(step.value), float(step.value))
    if step.op == "infinity":
        return Range(inf, inf)
    args = [ranges[i] for i in step.inputs]
    found = range_by_arithmetic(graph, step, args) or _FUNCTIONS.get(step.op, _within(-inf, inf))(*args)
    return replace(found, low=float(found.low), high=float(found.high), total=True)


def _growing(function: Callable[[float], float], floor: float = -inf) -> Callable[[Range], Range]:
    """Return the rule of a function that grows; below its floor it is not defined."""

    def at(end: Bound) -> float:
        try:
            return function(max(float(end), floor))
        except OverflowError:
            return inf
        except ValueError:  # a logarithm of 0
            return -inf

    return lambda a: Range(at(a.low), at(a.high), a.low_open, a.high_open)


def _within(low: float, high: float, *, is_open: bool = False) -> Callable[..., Range]:
    return lambda *_: Range(low, high, is_open, is_open)


def _exponential(function: Callable[[float], float]) -> Callable[[Range], Range]:
    return lambda a: replace(_growing(function)(a), low_open=a.low_open or a.low == -inf)


_GELU, _SILU = -0.17005, -0.27847  # below the least values of both functions

_FUNCTIONS: dict[str, Callable[..., Range]] = {
    "sqrt": _growing(sqrt, 0.0),
    "rsqrt": lambda a: _growing(sqrt, 0.0)(a).inverse() if a.low > 0 else _POSITIVE,
    "exp": _exponential(exp),
    "exp2": _exponential(exp2),
    "expm1": _growing(expm1),
    "sigmoid": _within(0, 1, is_open=True),
    "silu": _within(_SILU, inf),
    "tanh": lambda a: _growing(tanh)(a) if a != ANYTHING else Range(-1, 1, True, True),
    "gelu": _within(_GELU, inf),
    "gelu_tanh": _within(_GELU - 1e-3, inf),
    "log": _growing(log, 0.0),
    "log1p": _growing(log1p, -1.0),
    "erf": _growing(erf),
    "sin": _within(-1, 1),
    "cos": _within(-1, 1),
}
