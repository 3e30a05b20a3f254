"""Signs: which of two residues is the larger.

Positive numbers are the squares (see `Field`). Differences between the constants of the programs have
the signs that they have as numbers, and infinity ranks above everything.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from superopt.verify.field.residues import Residues, fold, mix, power

__all__ = ["Comparison", "Steps", "drawn_ties", "known_steps", "order_of", "rank_order", "signs"]

Steps: TypeAlias = tuple[NDArray[np.uint64], NDArray[np.int8]]
"""Residues of differences whose signs are known, in rising order, and these signs."""


@dataclass(frozen=True, slots=True)
class Comparison:
    """A comparison that was made: two arrays of shape (trials, *grid), and the sign of their difference."""

    a: NDArray[np.uint64]
    b: NDArray[np.uint64]
    order: NDArray[np.int8]
    level: int
    site: tuple[int, int] | None  # the graph and the step that made it


def signs(values: Residues, prime: int) -> NDArray[np.int8]:
    """Return 1 for squares modulo the prime, 0 for 0, -1 for all others: the sign of a residue."""
    half = power(values[None], ((prime - 1) // 2,), np.array([prime], dtype=np.uint64))[0]
    found: NDArray[np.int8] = (half == 1).astype(np.int8) - (half > 1).astype(np.int8)
    return found


def known_steps(numbers: Mapping[Fraction, Sequence[int]], primes: Residues) -> list[Steps]:
    """Return for each prime the differences between some numbers, given their residues, with their signs."""
    found = []
    rising = [numbers[one] for one in sorted(numbers)]
    for level, prime in enumerate(map(int, primes)):
        own = [residues[level] for residues in rising]
        residues = {(x - y) % prime: (a > b) - (a < b) for a, x in enumerate(own) for b, y in enumerate(own)}
        keys = np.array(sorted(residues), dtype=np.uint64)
        found.append((keys, np.array([residues[int(key)] for key in keys], dtype=np.int8)))
    return found


def order_of(
    x: NDArray[np.uint64],
    y: NDArray[np.uint64],
    prime: int,
    known: Steps,
    *,
    infinity: NDArray[np.uint64] | None = None,
    undefined: NDArray[np.bool_] | None = None,
) -> NDArray[np.int8]:
    """Return 1 where x < y, 0 where x = y or either is undefined, -1 where x > y, modulo one prime.

    `infinity` is the number that ranks above everything, one for each trial: the first axis of x and y.
    """
    total = y + (np.uint64(prime) - x)
    difference = np.minimum(total, total - np.uint64(prime))
    if undefined is not None:
        difference = np.where(undefined, np.uint64(0), difference)
    order = signs(difference, prime)
    steps, signs_of_steps = known
    if len(steps):
        place = np.minimum(np.searchsorted(steps, difference), len(steps) - 1)
        order = np.where(steps[place] == difference, signs_of_steps[place], order)
    if infinity is not None:
        top = infinity.reshape(-1, *(1,) * (x.ndim - 1))
        low = np.uint64(prime) - top
        rank_x = (x == top).astype(np.int8) - (x == low).astype(np.int8)
        rank_y = (y == top).astype(np.int8) - (y == low).astype(np.int8)
        order = np.where(rank_x == rank_y, np.where(rank_x == 0, order, 0), np.sign(rank_y - rank_x))
    return order.astype(np.int8)


def rank_order(
    x: NDArray[np.uint64],
    y: NDArray[np.uint64],
    seeds: NDArray[np.uint64],
    infinity: NDArray[np.uint64],
    prime: int,
) -> NDArray[np.int8]:
    """Return the order of x and y by ranks that are drawn by seed; see `bounds/ranks.py`.

    Undefined numbers have ranks as well: a maximum of them is undefined whatever is chosen.
    """
    spread = (-1, *(1,) * (x.ndim - 1))
    trial, top = mix(seeds ^ fold("rank")).reshape(spread), infinity.reshape(spread)
    low = np.uint64(prime) - top
    largest = np.iinfo(np.uint64).max

    def ranks(values: NDArray[np.uint64]) -> NDArray[np.uint64]:
        found = np.where(values == top, largest, mix(values ^ trial))
        return np.where(values == low, np.uint64(0), found)

    one, other = ranks(x), ranks(y)
    return (other > one).astype(np.int8) - (other < one).astype(np.int8)


def drawn_ties(
    difference: NDArray[np.uint64], prime: np.uint64, seeds: NDArray[np.uint64]
) -> NDArray[np.bool_]:
    """Return whether numbers of some difference are declared equal: one in three, drawn by seed."""
    either_way = np.minimum(difference, prime - difference)
    trial = mix(seeds ^ fold("tie")).reshape(-1, *(1,) * (difference.ndim - 1))
    return np.asarray(mix(either_way ^ trial) % np.uint64(3) == 0)
