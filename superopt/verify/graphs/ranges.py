"""Ranges: between which numbers each value of a graph lies, whatever numbers its inputs are."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from fractions import Fraction
from math import inf, prod
from typing import TypeAlias

from superopt.dtypes import INTEGERS
from superopt.ir import Graph, Step

__all__ = ["ANYTHING", "Range", "ranges_of"]

Bound: TypeAlias = Fraction | float
"""A rational number or an infinity."""

_ZERO, _ONE, _HALF = Fraction(0), Fraction(1), Fraction(1, 2)


@dataclass(frozen=True, slots=True)
class Range:
    """An interval; `total` says that there is a number in it whatever the inputs are."""

    low: Bound = -inf
    high: Bound = inf
    above: bool = False  # whether the value is always above `low`, and never equal to it
    below: bool = False
    total: bool = True

    def __neg__(self) -> "Range":
        return Range(-self.high, -self.low, self.below, self.above, self.total)

    def __add__(self, other: "Range") -> "Range":
        total = self.total and other.total
        above, below = self.above or other.above, self.below or other.below
        return Range(self.low + other.low, self.high + other.high, above, below, total)

    def __mul__(self, other: "Range") -> "Range":
        total = self.total and other.total
        ends = [_product(a, b) for a in (self.low, self.high) for b in (other.low, other.high)]
        above = self.positive and other.positive and min(ends) == 0
        return Range(min(ends), max(ends), above=above, total=total)

    def __or__(self, other: "Range") -> "Range":
        """Return the range of what is one of two values."""
        low, high = min(self.low, other.low), max(self.high, other.high)
        above = all(one.above or one.low > low for one in (self, other))
        below = all(one.below or one.high < high for one in (self, other))
        return Range(low, high, above, below, self.total and other.total)

    @property
    def positive(self) -> bool:
        """Whether all its numbers are greater than 0."""
        return self.low > 0 or (self.low == 0 and self.above)

    @property
    def not_negative(self) -> bool:
        """Whether none of its numbers is less than 0."""
        return self.low >= 0

    def larger(self, other: "Range") -> "Range":
        """Return the range of the maximum of two values."""
        low = max(self.low, other.low)
        above = any(one.low == low and one.above for one in (self, other))
        high = max(self.high, other.high)
        below = all(one.below or one.high < high for one in (self, other))
        return Range(low, high, above, below, self.total and other.total)

    def magnitude(self) -> "Range":
        """Return the range of the absolute value."""
        if self.low >= 0:
            return self
        if self.high <= 0:
            return -self
        return Range(_ZERO, max(-self.low, self.high), total=self.total)


ANYTHING = Range(total=False)


def _product(a: Bound, b: Bound) -> Bound:
    return _ZERO if a == 0 or b == 0 else a * b


def ranges_of(graph: Graph, known: Mapping[int, Fraction]) -> list[Range]:
    """Return the range of every value; `known` are the rational constants."""
    found = [
        Range(_ZERO, _ONE) if port.dtype == "bool" else ANYTHING if port.dtype in INTEGERS else Range()
        for port in graph.inputs
    ]
    sizes = graph.sizes
    for at, step in graph.numbered:
        if at in known:
            found.append(Range(known[at], known[at]))
        else:
            found.append(_range(graph, step, [found[i] for i in step.inputs], sizes))
    return found


def _range(graph: Graph, step: Step, args: list[Range], sizes: Mapping[str, int]) -> Range:
    """Return what a step makes of numbers in these ranges."""
    match step.op, args:
        case "size" | "index", []:
            size = Fraction(sizes[step.axes[0]])
            return Range(size, size) if step.op == "size" else Range(_ZERO, size - 1)
        case "rename" | "select" | "max", [x]:
            return x
        case "sum", [x]:
            count = Fraction(prod(sizes[axis] for axis in step.axes))
            return x * Range(count, count)
        case "mul" | "contract", [x, y]:
            made = x.magnitude() * y.magnitude() if step.inputs[0] == step.inputs[1] else x * y
            count = Fraction(prod(sizes[axis] for axis in step.axes))
            return made * Range(count, count)
        case "square", [x]:
            return x.magnitude() * x.magnitude()
        case "neg", [x]:
            return -x
        case "add", [x, y]:
            return x + y
        case "sub", [x, y]:
            return x + -y
        case "div", [x, y]:
            return _quotient(graph, step, x, y)
        case "reciprocal", [x]:
            return _inverse(x)
        case "abs", [x]:
            return x.magnitude()
        case "relu", [x]:
            return x.larger(Range(_ZERO, _ZERO))
        case "maximum", [x, y]:
            return x.larger(y)
        case "minimum", [x, y]:
            return -(-x).larger(-y)
        case "where", [_, x, y]:
            return replace(x | y, total=all(one.total for one in args))
        case _:
            return _function(step.op, args)


def _function(op: str, args: list[Range]) -> Range:
    """Return the range of a function, or of a mask."""
    total = all(one.total for one in args)
    match op, args:
        case "lt" | "gt" | "le" | "ge" | "eq" | "ne" | "and" | "or" | "not", _:
            return Range(_ZERO, _ONE, total=total)
        case "exp" | "exp2", [x]:
            low, high = _ONE if x.low >= 0 else _ZERO, _ONE if x.high <= 0 else inf
            return Range(low, high, above=low == 0, total=total)
        case "sigmoid", [x]:
            low, high = _HALF if x.low >= 0 else _ZERO, _HALF if x.high <= 0 else _ONE
            return Range(low, high, above=low == 0, below=high == 1, total=total)
        case "tanh" | "erf", [x]:
            low, high = _ZERO if x.low >= 0 else -_ONE, _ZERO if x.high <= 0 else _ONE
            return Range(low, high, above=low == -1, below=high == 1, total=total)
        case "sin" | "cos", [_]:
            return Range(-_ONE, _ONE, total=total)
        case "sqrt", [x]:
            low = _ONE if x.low >= 1 else _ZERO
            return Range(low, above=x.positive and low == 0, total=total and x.not_negative)
        case "rsqrt", [x]:
            return Range(_ZERO, above=True, total=total and x.positive)
        case "log" | "log2", [x] if x.low >= 1:
            return Range(_ZERO, total=total)
        case "log1p", [x] if x.not_negative:
            return Range(_ZERO, above=x.positive, total=total)
        case "log" | "log2", [x]:
            return Range(total=total and x.positive)
    return ANYTHING


def _inverse(x: Range) -> Range:
    if x.positive:
        low = _ZERO if x.high == inf else 1 / x.high
        return Range(low, 1 / x.low if x.low else inf, above=low == 0, total=x.total)
    return -_inverse(-x) if (-x).positive else ANYTHING


def _quotient(graph: Graph, step: Step, x: Range, y: Range) -> Range:
    made = x * _inverse(y)
    below = graph.step_of(step.inputs[1])
    if y.positive and x.not_negative and below is not None and below.op == "sum":
        part = below.inputs[0] == step.inputs[0]  # a share of a sum of what is not negative
        return replace(made, high=min(made.high, _ONE)) if part else made
    return made
