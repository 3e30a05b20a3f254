"""Ranges: between which numbers a value of a graph surely lies, whatever its inputs hold.

A comparison whose two sides lie apart is decided before the program runs: `exp(x) > -1` is always true,
and no test has to see it false.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from math import erf, exp, inf, isnan, log, log1p, prod, sqrt, tanh

from superopt.ir import Graph, Step

__all__ = ["ANYTHING", "TRUTH", "Range", "range_of_dtype", "range_of_step"]


@dataclass(frozen=True, slots=True)
class Range:
    """All numbers between two ends; an open end is not reached itself."""

    low: float = -inf
    high: float = inf
    low_open: bool = False
    high_open: bool = False

    def outcomes(self, other: "Range") -> frozenset[int]:
        """Return which of -1 (less), 0 (equal) and 1 (greater) a number here may be to one there."""
        found = set()
        if self.low < other.high:
            found.add(-1)
        if self.high > other.low:
            found.add(1)
        low, high = max(self.low, other.low), min(self.high, other.high)
        reached = not any(
            (one.low == low and one.low_open) or (one.high == high and one.high_open) for one in (self, other)
        )
        if low < high or (low == high and reached):
            found.add(0)
        return frozenset(found)

    def join(self, other: "Range") -> "Range":
        """Return the range of numbers that lie in one of two ranges."""
        low, high = min(self.low, other.low), max(self.high, other.high)
        return Range(
            low,
            high,
            all(one.low_open for one in (self, other) if one.low == low),
            all(one.high_open for one in (self, other) if one.high == high),
        )


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
    sizes = graph.sizes
    given = [ranges[i] for i in step.inputs]
    match step.op:
        case "const":
            assert step.value is not None
            return Range(float(step.value), float(step.value))
        case "infinity":
            return Range(inf, inf)
        case "size":
            return Range(sizes[step.axes[0]], sizes[step.axes[0]])
        case "index":
            return Range(0, max(sizes[step.axes[0]] - 1, 0))
        case "rename" | "select" | "max":
            return given[0]
        case "sum":
            return _times(given[0], prod(sizes[axis] for axis in step.axes))
        case "contract":
            product = _square(given[0]) if step.inputs[0] == step.inputs[1] else _mul(*given)
            return _times(product, prod(sizes[axis] for axis in step.axes))
        case "mul" if step.inputs[0] == step.inputs[1]:
            return _square(given[0])
    return _RULES[step.op](*given) if step.op in _RULES else ANYTHING


def _times(one: Range, count: int) -> Range:
    """Return the range of a sum of so many numbers."""
    return replace(one, low=_product(one.low, count), high=_product(one.high, count))


def _product(a: float, b: float) -> float:
    return 0.0 if 0 in (a, b) else a * b


def _add(a: Range, b: Range) -> Range:
    low, high = a.low + b.low, a.high + b.high
    return Range(
        -inf if isnan(low) else low,
        inf if isnan(high) else high,
        a.low_open or b.low_open,
        a.high_open or b.high_open,
    )


def _neg(a: Range) -> Range:
    return Range(-a.high, -a.low, a.high_open, a.low_open)


def _mul(a: Range, b: Range) -> Range:
    if a.low >= 0 and b.low >= 0:
        zero_a, zero_b = a.low == 0 and not a.low_open, b.low == 0 and not b.low_open
        low_open = (a.low_open or b.low_open) and not (zero_a or zero_b)
        return Range(_product(a.low, b.low), _product(a.high, b.high), low_open)
    corners = [_product(x, y) for x in (a.low, a.high) for y in (b.low, b.high)]
    return Range(min(corners), max(corners))


def _square(a: Range) -> Range:
    ends = sorted((a.low * a.low, a.high * a.high))
    if a.low > 0 or (a.low == 0 and a.low_open):
        return Range(ends[0], ends[1], a.low_open)
    return Range(0 if a.low <= 0 <= a.high else ends[0], ends[1])


def _inverse(a: Range) -> Range:
    if a.low > 0 or (a.low == 0 and a.low_open):
        return Range(0.0 if a.high == inf else 1 / a.high, inf if a.low == 0 else 1 / a.low, a.high == inf)
    if a.high < 0 or (a.high == 0 and a.high_open):
        return _neg(_inverse(_neg(a)))
    return ANYTHING


def _abs(a: Range) -> Range:
    return a if a.low >= 0 else Range(max(0.0, -a.high), max(-a.low, a.high))


def _maximum(a: Range, b: Range) -> Range:
    first = max((a, b), key=lambda one: (one.low, one.low_open))
    high = max((a, b), key=lambda one: (one.high, not one.high_open))
    return Range(first.low, high.high, first.low_open, high.high_open)


def _minimum(a: Range, b: Range) -> Range:
    return _neg(_maximum(_neg(a), _neg(b)))


def _growing(function: Callable[[float], float], floor: float = -inf) -> Callable[[Range], Range]:
    """Return the rule of a function that grows; below its floor it is not defined."""

    def at(end: float) -> float:
        try:
            return function(max(end, floor))
        except OverflowError:
            return inf
        except ValueError:  # a logarithm of 0
            return -inf

    return lambda a: Range(at(a.low), at(a.high), a.low_open, a.high_open)


def _within(low: float, high: float, *, is_open: bool = False) -> Callable[..., Range]:
    return lambda *_: Range(low, high, is_open, is_open)


def _exponential(a: Range) -> Range:
    found = _growing(exp)(a)
    return replace(found, low_open=found.low_open or a.low == -inf)


_GELU, _SILU = -0.17005, -0.27847  # below the least values of both functions

_RULES: dict[str, Callable[..., Range]] = {
    "add": _add,
    "sub": lambda a, b: _add(a, _neg(b)),
    "mul": _mul,
    "div": lambda a, b: _mul(a, _inverse(b)),
    "neg": _neg,
    "square": _square,
    "reciprocal": _inverse,
    "sqrt": _growing(sqrt, 0.0),
    "rsqrt": lambda a: _inverse(_growing(sqrt, 0.0)(a)) if a.low > 0 else _POSITIVE,
    "exp": _exponential,
    "exp2": lambda a: _exponential(_mul(a, Range(log(2), log(2)))),
    "sigmoid": _within(0, 1, is_open=True),
    "silu": _within(_SILU, inf),
    "tanh": lambda a: _growing(tanh)(a) if a != ANYTHING else Range(-1, 1, True, True),
    "gelu": _within(_GELU, inf),
    "gelu_tanh": _within(_GELU - 1e-3, inf),
    "maximum": _maximum,
    "minimum": _minimum,
    "relu": lambda a: _maximum(a, Range(0, 0)),
    "abs": _abs,
    "where": lambda m, a, b: a.join(b),
    "guard": lambda m, a: a.join(Range(0, 0)),
    "log": _growing(log, 0.0),
    "log1p": _growing(log1p, -1.0),
    "erf": _growing(erf),
    "sin": _within(-1, 1),
    "cos": _within(-1, 1),
    **dict.fromkeys(("lt", "gt", "le", "ge", "eq", "ne", "and", "or", "not"), _within(0, 1)),
}
