"""Inversion: what an operand must be for an operator's value to be some number."""

from collections.abc import Callable
from math import exp, inf, log, log1p
from typing import TypeAlias

__all__ = ["Invert", "inversion_of"]

Invert: TypeAlias = Callable[[float], tuple[float, ...]]
"""From a value to the operands that make it, as far as they are known."""


def inversion_of(op: str, at: int, other: float | None, count: int) -> Invert | None:
    """Return how an operand is found from the value of an operator; `other` is the other operand."""
    c, counts = other, {1, max(count, 1)}
    match op:
        case "rename" | "select" | "window" | "max" | "maximum" | "minimum" | "relu":
            return lambda y: (y,)
        case "where" | "guard":
            return (lambda y: (y,)) if at else None
        case "neg":
            return lambda y: (-y,)
        case "add":
            return lambda y: (y - (c or 0.0),)
        case "sub":
            return (lambda y: ((c or 0.0) - y,)) if at else (lambda y: (y + (c or 0.0),))
        case "mul" | "contract":
            return lambda y: tuple(y / n / (c or 1.0) for n in counts)
        case "div":
            if at:
                return lambda y: ((c or 1.0) / y,) if y else ()
            return lambda y: (y * (1.0 if c is None else c),)
        case "sum":
            return lambda y: tuple(y / n for n in counts)
    return _UNARY.get(op)


def _kept(function: Callable[[float], float]) -> Invert:
    def invert(y: float) -> tuple[float, ...]:
        try:
            return (function(y),)
        except (ValueError, OverflowError, ZeroDivisionError):
            return ()

    return invert


_UNARY: dict[str, Invert] = {
    "abs": lambda y: (y, -y) if y >= 0 else (),
    "square": lambda y: (y**0.5, -(y**0.5)) if 0 <= y < inf else (),
    "sqrt": _kept(lambda y: y * y),
    "rsqrt": _kept(lambda y: 1 / (y * y)),
    "reciprocal": _kept(lambda y: 1 / y),
    "exp": _kept(log),
    "exp2": _kept(lambda y: log(y) / log(2)),
    "expm1": _kept(log1p),
    "log": _kept(exp),
    "log1p": _kept(lambda y: exp(y) - 1),
    "sigmoid": _kept(lambda y: log(y / (1 - y))),
    "tanh": _kept(lambda y: (log1p(y) - log1p(-y)) / 2),
    **dict.fromkeys(("silu", "gelu", "gelu_tanh", "erf", "sin"), lambda y: (y,)),
}
