"""Numbers that graphs are tested with: fractions known modulo a prime, with their size as a float.

Sums and products of inputs are polynomials, and two polynomials that differ do so modulo a large prime at
nearly every point. An order has no meaning there, so each number also carries its own value as a float64, by
which relu tells the sign. A float is wrong about a sign only where numbers cancel to a part in 10^15; then
two equal graphs may look different, never two different ones equal, since a candidate is tested again with
other numbers.

Inputs are fractions, small and large: among integers `a + a * a` is never negative, and its relu looks
needless.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

__all__ = ["PRIME", "Numbers", "drawn", "fingerprints", "fractions", "mixed"]

PRIME = (1 << 31) - 1
_PARTS = 1 << 10  # inputs are multiples of one such part
_LARGEST = 1 << 20  # parts in an input; products of sixteen inputs stay far below the largest float

_SHIFTS = (np.uint64(30), np.uint64(27), np.uint64(31))
_FACTORS = (np.uint64(0xBF58476D1CE4E5B9), np.uint64(0x94D049BB133111EB))
_STEP = np.uint64(0x9E3779B97F4A7C15)

Array = NDArray[Any]


@dataclass(frozen=True, slots=True)
class Numbers:
    """An array of fractions: residues modulo the prime, and approximate values."""

    residues: NDArray[np.int64]
    sizes: NDArray[np.float64]

    @staticmethod
    def each(function: Callable[..., Array], *numbers: Numbers) -> Numbers:
        """Return what a function that only moves elements makes of residues and sizes alike."""
        return Numbers(
            function(*(one.residues for one in numbers)), function(*(one.sizes for one in numbers))
        )

    def __add__(self, other: Numbers) -> Numbers:
        return Numbers((self.residues + other.residues) % PRIME, self.sizes + other.sizes)

    def __mul__(self, other: Numbers) -> Numbers:
        return Numbers(self.residues * other.residues % PRIME, self.sizes * other.sizes)

    def relu(self) -> Numbers:
        """Return the numbers above zero, and zero for the others."""
        above = self.sizes > 0
        return Numbers(np.where(above, self.residues, 0), np.where(above, self.sizes, 0.0))

    def matmul(self, other: Numbers) -> Numbers:
        """Return products of matrices; each term is reduced before it is added, so that none overflows."""
        residues = np.zeros((1, 1), dtype=np.int64)
        for k in range(self.residues.shape[-1]):
            term = self.residues[..., :, k, None] * other.residues[..., None, k, :]
            term %= PRIME
            residues = residues + term
        residues %= PRIME
        return Numbers(residues, self.sizes @ other.sizes)


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


def fingerprints(numbers: Numbers) -> NDArray[np.uint64]:
    """Return 64 bits for each of a batch of tensors: its elements with their places, and its shape."""
    residues = numbers.residues
    count, shape = len(residues), residues.shape[1:]
    flat = residues.reshape(count, -1).astype(np.uint64)
    salt = np.uint64(hash_of(shape))
    places = mixed(np.arange(flat.shape[1], dtype=np.uint64) + salt)
    return mixed(mixed(flat ^ places).sum(axis=1, dtype=np.uint64) + salt)


def hash_of(shape: tuple[int, ...]) -> int:
    """Return a number of its own for each shape."""
    word = 1
    for size in shape:
        word = word * 1_000_003 + size
    return word
