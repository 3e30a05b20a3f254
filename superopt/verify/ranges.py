"""Ranges: between which numbers a value lies, through the steps whose arithmetic is exact.

The rules hold for rational ends, which are never rounded, and for floats. Functions such as exp have other
bounds in exact algebra than in floats: `graphs/ranges.py` and `floats/ranges.py` add them.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from math import inf, isnan, prod
from typing import TypeAlias

from superopt.ir import COMPARISONS, Graph, Step

__all__ = ["ANYTHING", "Bound", "Range", "range_by_arithmetic"]

Bound: TypeAlias = Fraction | float
"""A rational number, a float or an infinity."""


@dataclass(frozen=True, slots=True)
class Range:
    """All numbers between two ends; `total` says that there is a number in it whatever the inputs are."""

    low: Bound = -inf
    high: Bound = inf
    low_open: bool = False  # whether the value is always above `low`, and never equal to it
    high_open: bool = False
    total: bool = True

    def __neg__(self) -> "Range":
        return Range(-self.high, -self.low, self.high_open, self.low_open, self.total)

    def __add__(self, other: "Range") -> "Range":
        low, high = self.low + other.low, self.high + other.high
        return Range(
            -inf if isnan(low) else low,
            inf if isnan(high) else high,
            self.low_open or other.low_open,
            self.high_open or other.high_open,
            self.total and other.total,
        )

    def __mul__(self, other: "Range") -> "Range":
        ends = [_product(a, b) for a in (self.low, self.high) for b in (other.low, other.high)]
        low_open = False
        if self.not_negative and other.not_negative:
            reaches_zero = any(one.low == 0 and not one.low_open for one in (self, other))
            low_open = (self.low_open or other.low_open) and not reaches_zero
        return Range(min(ends), max(ends), low_open, total=self.total and other.total)

    def __or__(self, other: "Range") -> "Range":
        """Return the range of what is one of two values."""
        low, high = min(self.low, other.low), max(self.high, other.high)
        low_open = all(one.low_open or one.low > low for one in (self, other))
        high_open = all(one.high_open or one.high < high for one in (self, other))
        return Range(low, high, low_open, high_open, self.total and other.total)

    @property
    def number(self) -> float | None:
        """Its only number; None where it has several."""
        return float(self.low) if self.low == self.high else None

    @property
    def positive(self) -> bool:
        """Whether all its numbers are greater than 0."""
        return self.low > 0 or (self.low == 0 and self.low_open)

    @property
    def not_negative(self) -> bool:
        """Whether none of its numbers is less than 0."""
        return self.low >= 0

    def times(self, count: int) -> "Range":
        """Return the range of a sum of so many of its numbers."""
        if not count:
            return Range(Fraction(0), Fraction(0), total=self.total)
        return replace(self, low=_product(self.low, count), high=_product(self.high, count))

    def inverse(self) -> "Range":
        """Return the range of the reciprocal."""
        if self.positive:
            low = Fraction(0) if self.high == inf else 1 / self.high
            return Range(low, 1 / self.low if self.low else inf, low_open=low == 0, total=self.total)
        return -(-self).inverse() if (-self).positive else ANYTHING

    def larger(self, other: "Range") -> "Range":
        """Return the range of the maximum of two values."""
        low, high = max(self.low, other.low), max(self.high, other.high)
        low_open = any(one.low == low and one.low_open for one in (self, other))
        high_open = all(one.high_open or one.high < high for one in (self, other))
        return Range(low, high, low_open, high_open, self.total and other.total)

    def magnitude(self) -> "Range":
        """Return the range of the absolute value."""
        if self.low >= 0:
            return self
        if self.high <= 0:
            return -self
        return Range(Fraction(0), max(-self.low, self.high), total=self.total)

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


ANYTHING = Range(total=False)


def _product(a: Bound, b: Bound) -> Bound:
    return Fraction(0) if a == 0 or b == 0 else a * b


def range_by_arithmetic(graph: Graph, step: Step, args: Sequence[Range]) -> Range | None:
    """Return what a step makes of numbers in these ranges; None where it is a function or a constant."""
    sizes, total = graph.sizes, all(one.total for one in args)
    count = prod(sizes[axis] for axis in step.axes)
    match step.op, args:
        case "size" | "index", []:
            size = Fraction(sizes[step.axes[0]])
            return Range(size, size) if step.op == "size" else Range(Fraction(0), max(size - 1, Fraction(0)))
        case "max", [x]:
            return x if count else ANYTHING  # the largest of no numbers is minus infinity
        case "rename" | "select", [x]:
            return x
        case "window", [x]:
            return replace(x | Range(Fraction(0), Fraction(0)), total=total)
        case "sum", [x]:
            return x.times(count)
        case "mul" | "contract", [x, y]:
            made = x.magnitude() * y.magnitude() if step.inputs[0] == step.inputs[1] else x * y
            return made.times(count)
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
            return x.inverse()
        case "abs", [x]:
            return x.magnitude()
        case "relu", [x]:
            return x.larger(Range(Fraction(0), Fraction(0)))
        case "maximum", [x, y]:
            return x.larger(y)
        case "minimum", [x, y]:
            return -(-x).larger(-y)
        case "where", [_, x, y]:
            return replace(x | y, total=total)
        case "guard", [_, x]:
            return replace(x | Range(Fraction(0), Fraction(0)), total=total)
        case op, _ if op in COMPARISONS or op in ("and", "or", "not"):
            return Range(Fraction(0), Fraction(1), total=total)
    return None


def _quotient(graph: Graph, step: Step, x: Range, y: Range) -> Range:
    made = x * y.inverse()
    below = graph.step_of(step.inputs[1])
    if y.positive and x.not_negative and below is not None and below.op == "sum":
        part = below.inputs[0] == step.inputs[0]  # a share of a sum of numbers that are not negative
        return replace(made, high=min(made.high, Fraction(1))) if part else made
    return made
