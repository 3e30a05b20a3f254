"""Constants: read a rounded number as the exact one that was meant.

0.1 and 1/sqrt(128) reach a graph as the nearest float64, or as its neighbour where they were
computed another way, or rounded to float32 on the way; an exact comparison would tell those apart.
Here a constant within a few units of float64 of a simple rational, or of the square root of one, is
that number, and so is one that float32 rounds a short decimal to.
"""

from fractions import Fraction
from functools import lru_cache
from math import isfinite

import numpy as np

__all__ = ["exact_constant"]

_CLOSE = Fraction(1, 2**50)
_DENOMINATOR = 10_000
_DIGITS = 12  # of a short decimal in float64
_DIGITS_32 = 4


@lru_cache(maxsize=4096)
def exact_constant(value: Fraction, primes: tuple[int, ...]) -> tuple[Fraction, bool]:
    """Return the number a constant stands for, and whether it is the root of that number instead.

    A root is meant only where its radicand is a square modulo every prime, as 2, 3 and 5 are.
    """
    found = _simple(abs(value))
    if found is not None:
        return (found if value >= 0 else -found), False
    radicand = _simple(value * value)
    if value > 0 and radicand is not None and _is_square(radicand, primes):
        return radicand, True
    return value, False


def _simple(value: Fraction) -> Fraction | None:
    """Return the simple rational nearest to a non-negative number, or None where none is near."""
    if value.denominator <= _DENOMINATOR:
        return value
    number = float(value)
    if not isfinite(number) or number == 0:
        return None
    candidates = [value.limit_denominator(_DENOMINATOR), Fraction(f"{number:.{_DIGITS - 1}e}")]
    if value < 1:
        candidates.append(1 / Fraction(round(1 / value)))
    for candidate in candidates:
        if abs(candidate - value) <= _CLOSE * value:
            return candidate
    if 1e-37 < number < 1e38 and Fraction(float(np.float32(number))) == value:
        for candidate in (Fraction(f"{number:.{_DIGITS_32 - 1}e}"), value.limit_denominator(128)):
            if Fraction(float(np.float32(float(candidate)))) == value:
                return candidate
    return None


def _is_square(value: Fraction, primes: tuple[int, ...]) -> bool:
    number = value.numerator * value.denominator
    return all(pow(number, (prime - 1) // 2, prime) == 1 for prime in primes)
