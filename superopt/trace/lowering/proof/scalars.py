"""Lowerings of elementwise operators for proofs: what they are by definition, whatever that costs."""

from collections.abc import Callable
from dataclasses import replace
from fractions import Fraction
from math import exp as exp_of
from math import isfinite
from typing import Any

import torch

from superopt.trace.builder import Builder, Sym, UnsupportedError
from superopt.trace.lowering.masks import add, exp, pointwise, scale, sub
from superopt.trace.lowering.pointwise import inverts_integers
from superopt.trace.lowering.table import LOWERINGS, lower, lower_all

__all__: list[str] = []

_LONGEST_POWER = 64
_SQUARE_ROOTS = {1: 0, 2: 1, 4: 2, 8: 3}  # how many square roots in turn make the root of each degree


@lower("softplus", for_proof=True)
def _softplus(b: Builder, x: Sym, beta: float = 1, threshold: float = 20) -> Sym:
    """Return log(1 + exp(x)), which PyTorch takes for x above a threshold, where rounding loses the rest."""
    if not x.dtype.is_floating_point:
        raise UnsupportedError("PyTorch has no softplus of integers")
    if threshold <= 0 or exp_of(-threshold) > torch.finfo(x.dtype).eps * threshold / 4:
        found: Sym = LOWERINGS["softplus"](b, x, beta, threshold)  # type: ignore[assignment]
        return found
    factor = b.scalar(beta, x.dtype)
    grown = exp(b, scale(b, "mul", b.settle(x), factor))
    return scale(b, "div", pointwise(b, "log1p", grown), factor)


@lower("pow", for_proof=True)
def _pow(b: Builder, x: Any, y: Any) -> Sym:
    """Return a power with a number as products and square roots, of two as exp2, and others as unknown."""
    exponent = b.constant(y.value) if isinstance(y, Sym) else y
    base = b.constant(x.value) if isinstance(x, Sym) else x
    number = exponent if isinstance(exponent, int | float | Fraction) and isfinite(exponent) else None
    if number is not None and isinstance(x, Sym) and not inverts_integers(x, y, number):
        power = _rational_power(b, b.settle(x), Fraction(number))
        if power is not None:
            return replace(power, dims=b.broadcast(x, y)[1]) if isinstance(y, Sym) else power
    if isinstance(y, Sym) and base == 2 and y.dtype.is_floating_point:
        power = pointwise(b, "exp2", y)
        return replace(power, dims=b.broadcast(x, y)[1]) if isinstance(x, Sym) else power
    found: Sym = LOWERINGS["pow"](b, x, y)  # type: ignore[assignment]
    return found


def _rational_power(b: Builder, x: Sym, exponent: Fraction) -> Sym | None:
    """Return a power whose exponent is a multiple of an eighth, and None for any other."""
    roots = _SQUARE_ROOTS.get(exponent.denominator)
    if roots is None or not 0 < abs(exponent.numerator) <= _LONGEST_POWER:
        return None
    if exponent < 0:
        power = _rational_power(b, x, -exponent)
        return None if power is None else pointwise(b, "reciprocal", power)
    if roots and not x.dtype.is_floating_point:
        return None
    root = x.value
    for _ in range(roots):
        root = b.apply("sqrt", root)
    value = b.const(1)
    for bit in f"{exponent.numerator:b}":
        value = b.apply("square", value) if b.constant(value) is None else value
        value = b.apply("mul", value, root) if bit == "1" else value
    return replace(x, value=value)


def _hyperbolic(b: Builder, x: Sym, combined: Callable[[Builder, Sym, Sym], Sym]) -> Sym:
    x = b.settle(x)
    both = combined(b, exp(b, x), exp(b, pointwise(b, "neg", x)))
    return scale(b, "div", both, b.scalar(2, x.dtype))


lower_all(
    {
        "erfc": lambda b, x: sub(b, b.scalar(1, x.dtype), pointwise(b, "erf", x)),
        "logaddexp": lambda b, x, y: pointwise(b, "log", add(b, exp(b, x), exp(b, y))),
        "logaddexp2": lambda b, x, y: pointwise(
            b, "log2", add(b, pointwise(b, "exp2", x), pointwise(b, "exp2", y))
        ),
        "log_sigmoid_forward": lambda b, x: (pointwise(b, "log", pointwise(b, "sigmoid", x)), None),
        "hypot": lambda b, x, y: pointwise(
            b, "sqrt", add(b, pointwise(b, "square", x), pointwise(b, "square", y))
        ),
        "sinh": lambda b, x: _hyperbolic(b, x, sub),
        "cosh": lambda b, x: _hyperbolic(b, x, add),
    },
    for_proof=True,
)
