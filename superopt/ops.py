"""The scalar operators, each defined once and interpreted many times.

An operator is a function over an abstract arithmetic `Scalars[T]`. A finite field, float64, an
abstract term, and later Triton and C++ text are each one implementation of that arithmetic.
To add an operator, add one record to `OPS`; the tests run every record through every arithmetic.
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from fractions import Fraction
from functools import cache
from math import log, pi, sqrt
from typing import Any, Protocol, TypeVar

__all__ = ["OPS", "Op", "Scalars", "uses_of"]

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


@dataclass(frozen=True, slots=True, kw_only=True)
class Op:
    """All that is true of one scalar operator; the tests hold each property against numbers."""

    name: str = field(kw_only=False)
    arity: int = field(kw_only=False)
    scalar: Callable[..., Any] = field(kw_only=False)  # (Scalars[T], *T) -> T: its meaning in any arithmetic
    flops: int = field(kw_only=False)  # about what one application costs

    mask: bool = False  # its value is always 0 or 1
    keeps_mask: bool = False  # its value is 0 or 1 where all its operands are
    keeps_zero: bool = False  # its value is 0 where all its operands are
    absorbs_zero: bool = False  # its value is 0 where one of its several operands is, and all are finite
    finite: bool = False  # its value is finite where all its operands are, short of an overflow of a product
    bounded: bool = False  # its value is never below -1 or above 1
    commutes: bool = False  # its two operands may be exchanged
    powers: tuple[Fraction, ...] = ()  # operand i times t > 0 makes its value t ** powers[i] times as large
    scales: bool = False  # its operands, none a condition, times t > 0 make its value t times as large
    opposite: str = ""  # the comparison that holds where this one does not

    sign: str = ""  # the sign of a comparison, the same in every language
    torch: str = ""  # its text in Python with torch; empty for a method of one operand, `{}.name()`
    triton: str = ""  # its text in a Triton kernel, where it is not written as its definition says
    cpp: str = ""  # the function or sign in a C++ kernel, where it is not written as its definition says

    def makes_mask(self, operands: Iterable[bool]) -> bool:
        """Return whether its value is always 0 or 1, given which of its operands are."""
        return self.mask or (self.keeps_mask and all(operands))


def _div(s: Scalars[T], a: T, b: T) -> T:
    return s.mul(a, s.inv(b))


def _const(s: Scalars[T], value: float) -> T:
    return s.const(Fraction(value))


def _one_minus(s: Scalars[T], a: T) -> T:
    return s.add(_const(s, 1), s.neg(a))


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


def _function(name: str, arity: int, flops: int, **facts: Any) -> Op:
    """Return an operator that the algebra treats as a random oracle; floats compute it."""

    def scalar(s: Scalars[T], *args: T) -> T:
        return s.function(name, *args)

    return Op(name, arity, scalar, flops, **facts)


def _compare(name: str, sign: str, opposite: str, scalar: Callable[..., Any], **facts: Any) -> Op:
    return Op(name, 2, scalar, 1, mask=True, finite=True, sign=sign, opposite=opposite, **facts)


def _powers(*powers: float) -> tuple[Fraction, ...]:
    return tuple(map(Fraction, powers))


_LINEAR = _powers(1)
_RECORDS = (
    Op(
        "add", 2, lambda s, a, b: s.add(a, b), 1,
        keeps_zero=True, finite=True, commutes=True, scales=True, torch="{} + {}",
    ),
    Op(
        "sub", 2, lambda s, a, b: s.add(a, s.neg(b)), 1,
        keeps_zero=True, finite=True, scales=True, torch="{} - {}", cpp="-",
    ),
    Op(
        "mul", 2, lambda s, a, b: s.mul(a, b), 1,
        keeps_mask=True, keeps_zero=True, absorbs_zero=True, finite=True, commutes=True,
        powers=_powers(1, 1), torch="{} * {}",
    ),
    Op("div", 2, _div, 4, powers=_powers(1, -1), torch="{} / {}", cpp="/"),
    Op("neg", 1, lambda s, a: s.neg(a), 1, keeps_zero=True, finite=True, powers=_LINEAR, torch="-{}"),
    Op(
        "square", 1, lambda s, a: s.mul(a, a), 1,
        keeps_mask=True, keeps_zero=True, finite=True, powers=_powers(2),
    ),
    Op("reciprocal", 1, lambda s, a: s.inv(a), 4, powers=_powers(-1), torch="1 / {}"),
    Op("sqrt", 1, lambda s, a: s.sqrt(a), 4, keeps_mask=True, keeps_zero=True, powers=_powers(0.5)),
    Op("rsqrt", 1, lambda s, a: s.inv(s.sqrt(a)), 4, powers=_powers(-0.5)),
    Op("exp", 1, lambda s, a: s.exp(a), 8),
    Op("exp2", 1, lambda s, a: s.exp(s.mul(a, _const(s, log(2)))), 8, triton="tl.exp2({})", cpp="exp2"),
    Op(
        "expm1", 1, lambda s, a: s.add(s.exp(a), _const(s, -1)), 10,
        keeps_zero=True, triton="expm1({})", cpp="expm1",
    ),
    Op("sigmoid", 1, _sigmoid, 12, finite=True, bounded=True, triton="tl.sigmoid({})"),
    Op(
        "silu", 1, lambda s, x: s.mul(x, _sigmoid(s, x)), 13,
        keeps_zero=True, finite=True, torch="F.silu({})",
    ),
    Op(
        "tanh", 1, _tanh, 14,
        keeps_zero=True, finite=True, bounded=True, triton="tanh({})", cpp="tanh",
    ),
    Op("gelu", 1, _gelu, 20, keeps_zero=True, finite=True, torch="F.gelu({})"),
    Op("gelu_tanh", 1, _gelu_tanh, 20, keeps_zero=True, finite=True, torch='F.gelu({}, approximate="tanh")'),
    Op(
        "maximum", 2, lambda s, a, b: s.maximum(a, b), 1,
        keeps_mask=True, keeps_zero=True, finite=True, commutes=True, scales=True,
        torch="torch.maximum({}, {})",
    ),
    Op(
        "minimum", 2, lambda s, a, b: s.neg(s.maximum(s.neg(a), s.neg(b))), 1,
        keeps_mask=True, keeps_zero=True, finite=True, commutes=True, scales=True,
        torch="torch.minimum({}, {})", cpp="minimum",
        triton="tl.minimum({}, {}, propagate_nan=tl.PropagateNan.ALL)",
    ),
    Op(
        "relu", 1, lambda s, x: s.maximum(x, _const(s, 0)), 1,
        keeps_mask=True, keeps_zero=True, finite=True, powers=_LINEAR,
    ),
    Op(
        "abs", 1, _abs, 1,
        keeps_mask=True, keeps_zero=True, finite=True, powers=_LINEAR,
        triton="tl.abs({})", cpp="absolute",
    ),
    Op(
        "where", 3, lambda s, m, a, b: s.where(m, a, b), 1,
        keeps_mask=True, keeps_zero=True, finite=True,
    ),
    _compare("lt", "<", "ge", lambda s, a, b: s.less(a, b), keeps_zero=True),
    _compare("gt", ">", "le", lambda s, a, b: s.less(b, a), keeps_zero=True),
    _compare("le", "<=", "gt", lambda s, a, b: _one_minus(s, s.less(b, a))),
    _compare("ge", ">=", "lt", lambda s, a, b: _one_minus(s, s.less(a, b))),
    _compare("eq", "==", "ne", lambda s, a, b: s.equal(a, b), commutes=True),
    _compare("ne", "!=", "eq", lambda s, a, b: _one_minus(s, s.equal(a, b)), commutes=True, keeps_zero=True),
    Op(
        "and", 2, lambda s, a, b: s.mul(a, b), 1,
        mask=True, keeps_zero=True, absorbs_zero=True, finite=True, commutes=True, torch="{} & {}",
    ),
    Op(
        "or", 2, lambda s, a, b: _one_minus(s, s.mul(_one_minus(s, a), _one_minus(s, b))), 1,
        mask=True, keeps_zero=True, finite=True, commutes=True, torch="{} | {}",
    ),
    Op("not", 1, lambda s, a: _one_minus(s, a), 1, mask=True, finite=True, torch="~{}"),
    _function("log", 1, 8, triton="tl.log({})"),
    _function("log2", 1, 8, triton="tl.log2({})"),
    _function("log1p", 1, 8, keeps_zero=True, triton="log1p({})"),
    _function("erf", 1, 12, keeps_zero=True, finite=True, bounded=True, triton="tl.erf({})"),
    _function("sin", 1, 12, keeps_zero=True, finite=True, bounded=True, triton="tl.sin({})"),
    _function("cos", 1, 12, finite=True, bounded=True, triton="tl.cos({})"),
    _function("floor", 1, 1, keeps_mask=True, keeps_zero=True, finite=True, triton="tl.floor({})"),
    _function("pow", 2, 20, keeps_mask=True, torch="{} ** {}", triton="power({}, {})"),
    # guard(m, x) is x where m, else 0, even where x is 0 / 0. The algebra, in which an undefined x may be
    # anything, knows nothing of it: it would conclude that it is x.
    _function(
        "guard", 2, 1,
        keeps_mask=True, keeps_zero=True, absorbs_zero=True, finite=True, powers=_powers(0, 1),
    ),
)  # fmt: skip

OPS: dict[str, Op] = {op.name: op for op in _RECORDS}
"""Every scalar operator by name."""


class _Noted:
    """Scalars that only note which operations are called, and the named functions among them."""

    def __init__(self) -> None:
        self.primitives: set[str] = set()
        self.functions: set[str] = set()

    def __getattr__(self, name: str) -> Callable[..., None]:
        self.primitives.add(name)
        return lambda *args: None

    def function(self, name: str, *args: None) -> None:
        self.functions.add(name)


@cache
def uses_of(op: str) -> tuple[frozenset[str], frozenset[str]]:
    """Return the operations of `Scalars` that define an operator, and the functions that it calls by name."""
    noted = _Noted()
    OPS[op].scalar(noted, *[None] * OPS[op].arity)
    return frozenset(noted.primitives), frozenset(noted.functions)
