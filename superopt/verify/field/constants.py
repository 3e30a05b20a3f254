"""Constants: read a rounded number as the exact one that was meant.

0.1, 1/sqrt(128) and ln 2 reach a graph as the nearest float64, or as its neighbour where they were
computed another way; an exact comparison would tell those apart. Here a constant within a few units of
float64 of a simple rational, of the square root of one, or of a rational times ln 2, ln 10 or pi, is that
number. Among programs that compute in float32 or narrower, so is one that float32 rounds a short decimal to.
"""

from dataclasses import dataclass
from fractions import Fraction
from functools import lru_cache
from math import isfinite, log, pi

import numpy as np

__all__ = ["Constant", "exact_constant"]

_CLOSE = Fraction(1, 2**50)
_DENOMINATOR = 10_000
_DIGITS = 12  # digits that a short decimal has in float64
_DIGITS_32 = 4
_SYMBOLS = {"ln 2": log(2), "ln 10": log(10), "pi": pi}
_PLAIN = 1_000  # a larger factor of a root or of pi is taken for an accident


@dataclass(frozen=True, slots=True)
class Constant:
    """The number that a constant stands for: sign * value * symbol^power, or the root of all but the sign."""

    value: Fraction  # not negative
    sign: int = 1
    root: bool = False
    symbol: str = ""
    power: int = 0
    known: bool = True  # the number is surely the one that was meant

    @property
    def rational(self) -> Fraction | None:
        """The number itself, where it is rational."""
        return None if self.root or self.symbol else self.sign * self.value


@lru_cache(maxsize=4096)
def exact_constant(value: Fraction, narrow: bool = False) -> Constant:
    """Return the number that a constant stands for; `narrow` where no float64 is computed with it."""
    sign, size = (-1, -value) if value < 0 else (1, value)
    if size.denominator & (size.denominator - 1) == 0 and size.denominator <= 2**20:
        return Constant(size, sign)  # a number that floats have exactly
    found = _simple(size, narrow)
    if found is not None:
        return Constant(found, sign)
    radicand = _simple(size * size, narrow=False)
    if radicand is not None:
        return Constant(radicand, sign, root=True)
    for name, number in _SYMBOLS.items():
        for power in (1, -1):
            factor = Fraction(number) ** power
            for root in (False, True):
                rest = _simple((size * size if root else size) / factor, narrow=False)
                if rest is not None and max(rest.numerator, rest.denominator) <= _PLAIN:
                    return Constant(rest, sign, root, name, power, known=False)
    return Constant(size, sign, known=False)


def _simple(value: Fraction, narrow: bool) -> Fraction | None:
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
    if narrow and 1e-37 < number < 1e38 and Fraction(float(np.float32(number))) == value:
        for candidate in (Fraction(f"{number:.{_DIGITS_32 - 1}e}"), value.limit_denominator(128)):
            if Fraction(float(np.float32(float(candidate)))) == value:
                return candidate
    return None
