"""Numbers that graphs are tested with: fractions known modulo a prime, with their size as a float; and reals.

Sums and products of inputs are polynomials, and two polynomials that differ do so modulo a large prime at
nearly every point. An order has no meaning there, so each number also carries its own value as a float64, by
which relu tells the sign. A float is wrong about a sign only where numbers cancel to a part in 10^15; then
two equal graphs may look different, never two different ones equal, since a candidate is tested again with
other numbers.

Inputs are fractions, small and large: among integers `a + a * a` is never negative, and its relu looks
needless.

An exponential, a root or a logarithm of a fraction is none. Where graphs have these, numbers are reals:
floats of 64 bits of mantissa, whose fingerprints are made of the first 36 bits. Two equal graphs look
different where a number lies on the edge between two of these, about once in ten million numbers.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

import numpy as np
from numpy.typing import NDArray

from superopt.rules.discover.language.constants import constant_named

__all__ = [
    "PRIME",
    "Numbers",
    "Reals",
    "drawn",
    "fingerprints",
    "fractions",
    "given",
    "mixed",
    "small",
    "with_undefined",
]

PRIME = (1 << 31) - 1
_PARTS = 1 << 10  # inputs are multiples of one such part
_LARGEST = 1 << 20  # parts in an input; products of sixteen inputs stay far below the largest float

_SMALL = 8  # quarters in the numbers tried first

_SHIFTS = (np.uint64(30), np.uint64(27), np.uint64(31))
_FACTORS = (np.uint64(0xBF58476D1CE4E5B9), np.uint64(0x94D049BB133111EB))
_STEP = np.uint64(0x9E3779B97F4A7C15)

Array = NDArray[Any]


@dataclass(frozen=True, slots=True)
class Numbers:
    """An array of fractions: residues modulo the prime, and approximate values, NaN where undefined."""

    residues: NDArray[np.int64]
    sizes: NDArray[np.float64]

    @staticmethod
    def each(function: Callable[..., Array], *numbers: Numbers) -> Numbers:
        """Return what a function that only moves elements makes of residues and sizes alike."""
        return Numbers(
            function(*(one.residues for one in numbers)), function(*(one.sizes for one in numbers))
        )

    @property
    def shape(self) -> tuple[int, ...]:
        """The dimensions of the array."""
        return self.residues.shape

    @property
    def approximate(self) -> NDArray[np.float64]:
        """The numbers as floats."""
        return self.sizes

    def words(self) -> NDArray[np.uint64]:
        """Return the numbers as words that are equal where the numbers are."""
        return self.residues.astype(np.uint64)

    def differs(self, other: Any) -> NDArray[np.bool_]:
        """Return where two arrays differ."""
        found: NDArray[np.bool_] = self.residues != other.residues
        return found

    def constant(self, value: Fraction) -> Numbers:
        """Return a constant that goes with any shape."""
        return fractions(np.array(value.numerator).reshape((1,) * self.residues.ndim), value.denominator)

    def __add__(self, other: Numbers) -> Numbers:
        return _defined(_reduced(self.residues + other.residues), self.sizes + other.sizes)

    def __mul__(self, other: Numbers) -> Numbers:
        return _defined(_reduced(self.residues * other.residues), self.sizes * other.sizes)

    def negative(self) -> Numbers:
        """Return the numbers times -1."""
        return _defined(-self.residues % PRIME, -self.sizes)

    def relu(self) -> Numbers:
        """Return the numbers above zero, and zero for the others."""
        below = self.sizes <= 0
        return Numbers(np.where(below, 0, self.residues), np.where(below, 0.0, self.sizes))

    def matmul(self, other: Numbers) -> Numbers:
        """Return products of matrices.

        Floats hold whole numbers of 53 bits. So one factor is taken in two halves of 16 bits, and sums of so
        many products are exact.
        """
        total: NDArray[np.int64] | int = 0
        for at in range(0, self.residues.shape[-1], _EXACT_TERMS):
            left = self.residues[..., at : at + _EXACT_TERMS].astype(np.float64)
            right = other.residues[..., at : at + _EXACT_TERMS, :]
            high = (left @ (right >> _HALF).astype(np.float64)).astype(np.int64)
            low = (left @ (right & ((1 << _HALF) - 1)).astype(np.float64)).astype(np.int64)
            total = _reduced((_reduced(high) << _HALF) + low + total)
        return _defined(np.asarray(total), self.sizes @ other.sizes)

    def inverse(self) -> Numbers:
        """Return one divided by the numbers, undefined where they are zero."""
        zero = self.residues == 0
        with np.errstate(divide="ignore"):
            sizes = np.where(zero, np.nan, 1 / self.sizes)
        residues, found, power = self.residues % PRIME, np.ones_like(self.residues), PRIME - 2
        while power:
            if power & 1:
                found = found * residues % PRIME
            residues, power = residues * residues % PRIME, power >> 1
        return _defined(found, sizes)

    def maximum(self, other: Numbers) -> Numbers:
        """Return the larger one of each two numbers."""
        one, two = np.broadcast_arrays(self.sizes, other.sizes)
        mine = one >= two
        residues = np.where(mine, self.residues, other.residues)
        return _defined(residues, np.where(np.isnan(one), one, np.where(mine, one, two)))

    def less(self, other: Numbers) -> Numbers:
        """Return 1 where the number is below the other one; numbers of one residue are equal."""
        below = (self.sizes < other.sizes) & (self.residues != other.residues)
        undefined = np.isnan(self.sizes) | np.isnan(other.sizes)
        return _defined(below.astype(np.int64), np.where(undefined, np.nan, below))

    def where(self, mask: Numbers) -> Numbers:
        """Return the numbers where a mask is not zero, and zero where it is, whatever is there."""
        kept = mask.residues != 0
        sizes = np.where(np.isnan(mask.sizes), np.nan, np.where(kept, self.sizes, 0.0))
        return _defined(np.where(kept, self.residues, 0), sizes)

    def exp(self) -> Numbers:
        """Refuse: graphs with such operators are tried with reals."""
        raise NotImplementedError

    log = sqrt = exp


_HALF = 16  # bits of the lower half of a residue
_EXACT_TERMS = 64  # products of 31 and 16 bits whose sum has 53 bits


def _reduced(numbers: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return numbers from zero on, of at most 62 bits, modulo the prime: 2^31 is 1 there."""
    found = (numbers & PRIME) + (numbers >> 31)
    found = (found & PRIME) + (found >> 31)
    found -= PRIME * (found >= PRIME)
    return found


def _defined(residues: NDArray[np.int64], sizes: NDArray[np.float64]) -> Numbers:
    """Return numbers of which those without a size have a residue of their own, which no fraction has."""
    undefined = np.isnan(sizes)
    if undefined.any():
        residues = np.where(undefined, PRIME, residues)
    return Numbers(residues, sizes)


_GRID = 36  # bits of a real that its fingerprint is made of
_SMALLEST = -24  # exponent below which a real is nothing but an error of rounding
_NEAR = 1e-12  # how far reals may differ that are equal, as a share of the largest number on the way


@dataclass(frozen=True, slots=True)
class Reals:
    """An array of real numbers as long floats, NaN where undefined."""

    numbers: NDArray[np.longdouble]

    @staticmethod
    def each(function: Callable[..., Array], *reals: Reals) -> Reals:
        """Return what a function that only moves elements makes of arrays."""
        return Reals(function(*(one.numbers for one in reals)))

    @property
    def shape(self) -> tuple[int, ...]:
        """The dimensions of the array."""
        return self.numbers.shape

    @property
    def approximate(self) -> NDArray[np.float64]:
        """The numbers as floats."""
        return self.numbers.astype(np.float64)

    def words(self) -> NDArray[np.uint64]:
        """Return the numbers as words that are equal where the numbers are, up to rounding."""
        undefined = ~np.isfinite(self.numbers)
        numbers = np.where(undefined, 0, self.numbers)
        _, exponents = np.frexp(numbers)
        exponents = np.maximum(exponents, _SMALLEST)
        parts = np.rint(np.ldexp(numbers, _GRID - exponents)).astype(np.int64)
        full = np.abs(parts) == 1 << _GRID  # a power of two, from below
        parts, exponents = np.where(full, parts >> 1, parts), exponents + full
        words: NDArray[np.int64] = parts * 2048 + exponents
        words[parts == 0] = 0
        words[undefined] = -1
        return words.view(np.uint64)

    def differs(self, other: Any) -> NDArray[np.bool_]:
        """Return where two arrays differ by more than errors of rounding, or only one of them is defined."""
        one, two = np.broadcast_arrays(self.numbers, other.numbers)
        known = np.isfinite(one) & np.isfinite(two)
        one, two = np.where(known, one, 0), np.where(known, two, 0)
        far = np.abs(one - two) > _NEAR * (1 + np.maximum(np.abs(one), np.abs(two)))
        found: NDArray[np.bool_] = far | (np.isfinite(self.numbers) != np.isfinite(other.numbers))
        return found

    def constant(self, value: Fraction) -> Reals:
        """Return a constant that goes with any shape."""
        number = np.longdouble(value.numerator) / np.longdouble(value.denominator)
        return Reals(np.full((1,) * self.numbers.ndim, number))

    def __add__(self, other: Reals) -> Reals:
        return Reals(self.numbers + other.numbers)

    def __mul__(self, other: Reals) -> Reals:
        return Reals(self.numbers * other.numbers)

    def negative(self) -> Reals:
        """Return the numbers times -1."""
        return Reals(-self.numbers)

    def relu(self) -> Reals:
        """Return the numbers above zero, and zero for the others."""
        return Reals(np.where(self.numbers <= 0, 0, self.numbers))

    def matmul(self, other: Reals) -> Reals:
        """Return products of matrices."""
        return Reals(np.matmul(self.numbers, other.numbers))

    def inverse(self) -> Reals:
        """Return one divided by the numbers, undefined where they are zero."""
        return self._of(lambda x: 1 / x, self.numbers != 0)

    def exp(self) -> Reals:
        """Return e to the numbers."""
        return self._of(np.exp, self.numbers < _LARGEST_EXPONENT)

    def log(self) -> Reals:
        """Return the logarithms of the numbers above zero; the others have none."""
        return self._of(np.log, self.numbers > 0)

    def sqrt(self) -> Reals:
        """Return the roots of the numbers that are not below zero; the others have none."""
        return self._of(np.sqrt, self.numbers >= 0)

    def maximum(self, other: Reals) -> Reals:
        """Return the larger one of each two numbers."""
        return Reals(np.maximum(self.numbers, other.numbers))

    def less(self, other: Reals) -> Reals:
        """Return 1 where the number is below the other one by more than errors of rounding."""
        below = (self.numbers < other.numbers) & self.differs(other)
        undefined = np.isnan(self.numbers) | np.isnan(other.numbers)
        return Reals(np.where(undefined, np.nan, below).astype(np.longdouble))

    def where(self, mask: Reals) -> Reals:
        """Return the numbers where a mask is not zero, and zero where it is, whatever is there."""
        found = np.where(mask.numbers != 0, self.numbers, 0)
        return Reals(np.where(np.isnan(mask.numbers), mask.numbers, found))

    def _of(self, function: Callable[[Array], Array], defined: NDArray[np.bool_]) -> Reals:
        numbers = np.where(defined, self.numbers, 1)
        return Reals(np.where(defined, function(numbers), np.nan).astype(np.longdouble))


_LARGEST_EXPONENT = 5_000.0  # larger exponentials are as good as infinite


def given(
    kind: type[Numbers] | type[Reals],
    name: str,
    generator: np.random.Generator,
    lead: tuple[int, ...],
    dimensions: tuple[int, ...],
) -> Numbers | Reals:
    """Return what an input of this name holds: a constant, or random numbers of a kind."""
    constant = constant_named(name)
    if constant is not None:
        held = np.broadcast_to(constant.holds(dimensions), lead + dimensions) * constant.share.numerator
        return _exactly(kind, np.ascontiguousarray(held), constant.share.denominator)
    if kind is Numbers:
        return drawn(generator, lead + dimensions)
    # Exponentials of these are no extremes, and none is zero.
    return _exactly(kind, generator.integers(-48, 48, lead + dimensions) * 2 + 1, 32)


def small(
    kind: type[Numbers] | type[Reals],
    name: str,
    generator: np.random.Generator,
    lead: tuple[int, ...],
    dimensions: tuple[int, ...],
) -> Numbers | Reals:
    """Return the same, of numbers that a reader can follow: few quarters, often zero."""
    if constant_named(name) is not None:
        return given(kind, name, generator, lead, dimensions)
    return _exactly(kind, generator.integers(-_SMALL, _SMALL + 1, lead + dimensions), 4)


def with_undefined(numbers: Numbers | Reals, generator: np.random.Generator) -> Numbers | Reals:
    """Return numbers of which about a quarter are undefined."""
    undefined = generator.integers(0, 4, numbers.shape) == 0
    if isinstance(numbers, Reals):
        return Reals(np.where(undefined, np.nan, numbers.numbers))
    return _defined(numbers.residues, np.where(undefined, np.nan, numbers.sizes))


def _exactly(
    kind: type[Numbers] | type[Reals], numerators: NDArray[np.int64], denominator: int
) -> Numbers | Reals:
    if kind is Numbers:
        return fractions(numerators, denominator)
    return Reals((numerators / np.longdouble(denominator)).astype(np.longdouble))


def drawn(generator: np.random.Generator, shape: tuple[int, ...]) -> Numbers:
    """Return random fractions of both signs and of all sizes between a part and its inverse."""
    wide = generator.integers(-_LARGEST, _LARGEST + 1, shape)
    shifts = generator.integers(0, 20, shape)
    return fractions(np.sign(wide) * (np.abs(wide) >> shifts), _PARTS)


def fractions(numerators: NDArray[np.int64], denominator: int) -> Numbers:
    """Return fractions as numbers."""
    inverse = pow(denominator, -1, PRIME)
    return Numbers(numerators % PRIME * inverse % PRIME, numerators / denominator)


def mixed(words: NDArray[np.uint64]) -> NDArray[np.uint64]:
    """Return words whose bits all depend on all bits of the given ones (splitmix64)."""
    words = words + _STEP
    words = (words ^ (words >> _SHIFTS[0])) * _FACTORS[0]
    words = (words ^ (words >> _SHIFTS[1])) * _FACTORS[1]
    return words ^ (words >> _SHIFTS[2])


def fingerprints(numbers: Numbers | Reals) -> NDArray[np.uint64]:
    """Return 64 bits for each of a batch of tensors: its elements with their places, and its shape."""
    words = numbers.words()
    count, shape = len(words), words.shape[1:]
    flat = words.reshape(count, -1)
    salt = np.uint64(hash_of(shape) & ((1 << 64) - 1))
    places = mixed(np.arange(flat.shape[1], dtype=np.uint64) + salt)
    return mixed(mixed(flat ^ places).sum(axis=1, dtype=np.uint64) + salt)


def hash_of(shape: tuple[int, ...]) -> int:
    """Return a number of its own for each shape."""
    word = 1
    for size in shape:
        word = word * 1_000_003 + size
    return word
