"""Powers: tables by which exponentials and logarithms are looked up in the field."""

from collections.abc import Sequence
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from superopt.verify.field.residues import UNDEFINED, Residues, reduce

__all__ = ["LARGEST_TABLE", "generators", "power_table", "raised", "tower_logarithms"]

LARGEST_TABLE = 2**23
"""The largest prime that has a table of logarithms."""

_WINDOW = 8  # bits of an exponent that are looked up at once
_BYTE = np.uint64(255)
_SQUARE = 4  # a base of all squares modulo every prime
_NO_LOGARITHM = 2**32 - 1


def generators(words: NDArray[np.uint64], prime: np.uint64) -> NDArray[np.uint64]:
    """Return for each random word a random square other than 0 and 1: its order is the next prime."""
    # 2 .. prime - 2, whose squares are all the elements of that order.
    root = words % (prime - np.uint64(3)) + np.uint64(2)
    square: NDArray[np.uint64] = root * root % prime
    return square


def power_table(generator: NDArray[np.uint64], prime: Residues) -> list[NDArray[np.uint64]]:
    """Return, for each byte of an exponent, all 256 powers of each trial's generator; one prime."""
    windows = []
    for _ in range(-(-int(prime[0]).bit_length() // _WINDOW)):
        powers = np.ones((len(generator), 1), dtype=np.uint64)
        square = generator[:, None]
        for _ in range(_WINDOW):
            powers = np.concatenate([powers, reduce((powers * square)[None], prime)[0]], axis=1)
            square = reduce((square * square)[None], prime)[0]
        windows.append(powers)
        generator = square[:, 0]
    return windows


def raised(
    table: list[NDArray[np.uint64]], exponent: NDArray[np.uint64], prime: Residues, rows: NDArray[np.intp]
) -> NDArray[np.uint64]:
    """Return the generators to the power of some exponents; `rows` says of which trial each exponent is."""
    value: NDArray[np.uint64] | None = None
    for window, powers in enumerate(table):
        digit = (exponent >> np.uint64(_WINDOW * window)) & _BYTE
        factor = powers[rows, digit.astype(np.intp)]
        value = factor if value is None else reduce((value * factor)[None], prime)[0]
    assert value is not None
    return value


def tower_logarithms(
    values: Residues, tower: Sequence[int], primes: Residues, generated: Sequence[NDArray[np.uint64]]
) -> Residues:
    """Return the logarithms of values with several levels, each one level further down than its power."""
    result = np.full(values.shape, UNDEFINED, dtype=np.uint64)
    for level, generator in enumerate(generated):
        result[level + 1] = _logarithms_of(values[level], tower[level], primes[level + 1], generator)
    return result


def _logarithms_of(
    values: NDArray[np.uint64], prime: int, order: np.uint64, generator: NDArray[np.uint64]
) -> NDArray[np.uint64]:
    """Return the exponents to which each trial's generator makes some residues; undefined for no squares."""
    table = _logarithms(prime, _SQUARE)
    known = values < UNDEFINED
    found = table[np.where(known, values, np.uint64(0)).astype(np.intp)].astype(np.uint64)
    known &= found < order
    own = table[generator.astype(np.intp)].astype(np.uint64)
    back = np.array([pow(int(one), -1, int(order)) for one in own], dtype=np.uint64)
    return np.where(known, found * back.reshape(-1, *(1,) * (values.ndim - 1)) % order, UNDEFINED)


@lru_cache(maxsize=8)
def _logarithms(prime: int, base: int) -> NDArray[np.uint32]:
    """Return for each square modulo a small prime the exponent to which the base makes it."""
    order = (prime - 1) // 2
    powers = np.ones(1, dtype=np.uint64)
    square = base
    while len(powers) < order:
        powers = np.concatenate([powers, powers * np.uint64(square) % np.uint64(prime)])
        square = square * square % prime
    table = np.full(prime, _NO_LOGARITHM, dtype=np.uint32)
    table[powers[:order].astype(np.intp)] = np.arange(order, dtype=np.uint32)
    return table
