"""The scalar operators, each defined once and interpreted many times.

An operator is a function over an abstract arithmetic `Scalars[T]`. A finite field, float64, an
abstract term, and later Triton and C++ text are each one implementation of that arithmetic.
To add an operator, add one record to `OPS`; the tests run every record through every arithmetic.
"""

from collections.abc import Callable
from dataclasses import dataclass
from fractions import Fraction
from math import log, pi, sqrt
from typing import Any, Protocol, TypeVar

__all__ = ["OPS", "Op", "Scalars"]

T = TypeVar("T")


class Scalars(Protocol[T]):
    """The arithmetic that an interpreter supplies; all operators are written in it."""

    def const(self, value: Fraction) -> T:
        """Return an exact rational constant."""

    def infinity(self) -> T:
        """Return plus infinity, as masks use it."""

    def add(self, a: T, b: T) -> T:
        """Return a + b."""

    def mul(self, a: T, b: T) -> T:
        """Return a * b."""

    def neg(self, a: T) -> T:
        """Return -a."""

    def inv(self, a: T) -> T:
        """Return 1 / a."""

    def exp(self, a: T) -> T:
        """Return e to the a."""

    def sqrt(self, a: T) -> T:
        """Return the non-negative square root of a."""

    def maximum(self, a: T, b: T) -> T:
        """Return the larger of a and b."""

    def less(self, a: T, b: T) -> T:
        """Return 1 where a < b, else 0."""

    def equal(self, a: T, b: T) -> T:
        """Return 1 where a = b, else 0."""

    def where(self, mask: T, a: T, b: T) -> T:
        """Return a where mask is 1 and b where it is 0."""

    def function(self, name: str, *args: T) -> T:
        """Return a named function that the algebra knows nothing about."""


@dataclass(frozen=True, slots=True)
class Op:
    """One scalar operator: its meaning in any arithmetic, and what one application costs."""

    name: str
    arity: int
    scalar: Callable[..., Any]  # (Scalars[T], *T) -> T
    flops: int
    mask: bool = False  # its value is always 0 or 1


def _sub(s: Scalars[T], a: T, b: T) -> T:
    return s.add(a, s.neg(b))


def _div(s: Scalars[T], a: T, b: T) -> T:
    return s.mul(a, s.inv(b))


def _const(s: Scalars[T], value: float) -> T:
    return s.const(Fraction(value))


def _one_minus(s: Scalars[T], a: T) -> T:
    return s.add(_const(s, 1), s.neg(a))


def _minimum(s: Scalars[T], a: T, b: T) -> T:
    return s.neg(s.maximum(s.neg(a), s.neg(b)))


def _sigmoid(s: Scalars[T], x: T) -> T:
    return s.inv(s.add(_const(s, 1), s.exp(s.neg(x))))


def _tanh(s: Scalars[T], x: T) -> T:
    # 1 - 2 / (1 + exp(2x)): right at both ends, where exp goes to 0 or to infinity.
    grown = s.exp(s.mul(_const(s, 2), x))
    return s.add(_const(s, 1), s.neg(_div(s, _const(s, 2), s.add(_const(s, 1), grown))))


def _gelu_tanh(s: Scalars[T], x: T) -> T:
    cubed = s.mul(_const(s, 0.044715), s.mul(x, s.mul(x, x)))
    inner = s.mul(_const(s, sqrt(2 / pi)), s.add(x, cubed))
    return s.mul(s.mul(_const(s, 0.5), x), s.add(_const(s, 1), _tanh(s, inner)))


def _gelu(s: Scalars[T], x: T) -> T:
    shifted = s.add(_const(s, 1), s.function("erf", s.mul(x, _const(s, sqrt(0.5)))))
    return s.mul(s.mul(_const(s, 0.5), x), shifted)


def _abs(s: Scalars[T], x: T) -> T:
    return s.maximum(x, s.neg(x))


def _unknown(name: str, arity: int, flops: int) -> Op:
    """Return an operator that the algebra treats as a random oracle; floats compute it."""

    def scalar(s: Scalars[T], *args: T) -> T:
        return s.function(name, *args)

    return Op(name, arity, scalar, flops)


_RECORDS = (
    Op("add", 2, lambda s, a, b: s.add(a, b), 1),
    Op("sub", 2, _sub, 1),
    Op("mul", 2, lambda s, a, b: s.mul(a, b), 1),
    Op("div", 2, _div, 4),
    Op("neg", 1, lambda s, a: s.neg(a), 1),
    Op("square", 1, lambda s, a: s.mul(a, a), 1),
    Op("reciprocal", 1, lambda s, a: s.inv(a), 4),
    Op("sqrt", 1, lambda s, a: s.sqrt(a), 4),
    Op("rsqrt", 1, lambda s, a: s.inv(s.sqrt(a)), 4),
    Op("exp", 1, lambda s, a: s.exp(a), 8),
    Op("exp2", 1, lambda s, a: s.exp(s.mul(a, _const(s, log(2)))), 8),
    Op("sigmoid", 1, _sigmoid, 12),
    Op("silu", 1, lambda s, x: s.mul(x, _sigmoid(s, x)), 13),
    Op("tanh", 1, _tanh, 14),
    Op("gelu", 1, _gelu, 20),
    Op("gelu_tanh", 1, _gelu_tanh, 20),
    Op("maximum", 2, lambda s, a, b: s.maximum(a, b), 1),
    Op("minimum", 2, _minimum, 1),
    Op("relu", 1, lambda s, x: s.maximum(x, _const(s, 0)), 1),
    Op("abs", 1, _abs, 1),
    Op("where", 3, lambda s, m, a, b: s.where(m, a, b), 1),
    Op("lt", 2, lambda s, a, b: s.less(a, b), 1, mask=True),
    Op("gt", 2, lambda s, a, b: s.less(b, a), 1, mask=True),
    Op("le", 2, lambda s, a, b: _one_minus(s, s.less(b, a)), 1, mask=True),
    Op("ge", 2, lambda s, a, b: _one_minus(s, s.less(a, b)), 1, mask=True),
    Op("eq", 2, lambda s, a, b: s.equal(a, b), 1, mask=True),
    Op("ne", 2, lambda s, a, b: _one_minus(s, s.equal(a, b)), 1, mask=True),
    Op("and", 2, lambda s, a, b: s.mul(a, b), 1, mask=True),
    Op("or", 2, lambda s, a, b: _one_minus(s, s.mul(_one_minus(s, a), _one_minus(s, b))), 1, mask=True),
    Op("not", 1, lambda s, a: _one_minus(s, a), 1, mask=True),
    _unknown("log", 1, 8),
    _unknown("log2", 1, 8),
    _unknown("log1p", 1, 8),
    _unknown("erf", 1, 12),
    _unknown("sin", 1, 12),
    _unknown("cos", 1, 12),
    _unknown("pow", 2, 20),
    # guard(m, x) is x where m, else 0, even where x is 0 / 0. The algebra, in which an undefined x may be
    # anything, knows nothing of it: it would conclude that it is x.
    _unknown("guard", 2, 1),
)

OPS: dict[str, Op] = {op.name: op for op in _RECORDS}
"""Every scalar operator by name."""
