"""Vectorised arithmetic modulo a tower of primes, and the hashes that stand for random oracles.

An array of residues is a uint64 array whose first axis is the level of the tower: row i holds
residues modulo prime i. Every prime is below 2^32, so a product of two residues fits in a word.
"""

from collections.abc import Sequence
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

__all__ = [
    "UNDEFINED",
    "Residues",
    "align_dims",
    "common_level",
    "fingerprint",
    "first_residues",
    "fold",
    "inverse",
    "is_mask",
    "mix",
    "mix_seed",
    "power",
    "reduce",
    "sum_residues",
    "undefined_places",
    "widen",
]

Residues: TypeAlias = NDArray[np.uint64]

UNDEFINED = np.uint64(2**63)
"""What stands for no number; every residue is smaller."""

_SMALL = 2048  # elements of one level below which numpy's own remainder has the least overhead
_GOLDEN = np.uint64(0x9E3779B97F4A7C15)
_MIX_1 = np.uint64(0xBF58476D1CE4E5B9)
_MIX_2 = np.uint64(0x94D049BB133111EB)
_27, _30, _31 = np.uint64(27), np.uint64(30), np.uint64(31)


def mix(words: NDArray[np.uint64]) -> NDArray[np.uint64]:
    """Return the splitmix64 hash of each word."""
    words = words + _GOLDEN
    words = (words ^ (words >> _30)) * _MIX_1
    words = (words ^ (words >> _27)) * _MIX_2
    return words ^ (words >> _31)


def mix_seed(seed: int, number: int) -> int:
    """Return another seed for each number."""
    return int(mix(np.array([(seed * 1_000_003 + number) & (2**64 - 1)], dtype=np.uint64))[0])


def fold(text: str) -> np.uint64:
    """Return a 64-bit hash of a text, the same in every process."""
    data = text.encode()
    padded = np.frombuffer(data + b"\0" * (-len(data) % 8), dtype="<u8")
    state = np.array([len(data)], dtype=np.uint64)
    for word in padded:
        state = mix(state ^ word)
    return np.uint64(state[0])


def reduce(words: NDArray[np.uint64], primes: Residues) -> Residues:
    """Return the words modulo their level's prime; `primes` is one number per level."""
    if words.size <= _SMALL * len(primes):
        return words % primes.reshape(-1, *(1,) * (words.ndim - 1))
    # numpy divides a long array by one number with multiplications: four times the speed.
    quotient = np.empty_like(words)
    for level, prime in enumerate(primes):
        np.floor_divide(words[level], prime, out=quotient[level])
        quotient[level] *= prime
    return np.subtract(words, quotient, out=quotient)


def power(base: Residues, exponents: tuple[int, ...], primes: Residues) -> Residues:
    """Return base to a constant exponent for each level."""
    result = np.empty_like(base)
    for level, exponent in enumerate(exponents):
        prime = primes[level]
        square, value = base[level].copy(), np.ones_like(base[level])
        quotient = np.empty_like(square) if square.size > _SMALL else None
        while exponent:
            if exponent & 1:
                value *= square
                _reduce_in_place(value, prime, quotient)
            exponent >>= 1
            if exponent:
                square *= square
                _reduce_in_place(square, prime, quotient)
        result[level] = value
    return result


def _reduce_in_place(
    words: NDArray[np.uint64], prime: np.uint64, quotient: NDArray[np.uint64] | None
) -> None:
    """Reduce words modulo one prime, by way of the memory for quotients where there is some."""
    if quotient is None:
        np.remainder(words, prime, out=words)
    else:  # faster, as in `reduce`
        np.floor_divide(words, prime, out=quotient)
        np.multiply(quotient, prime, out=quotient)
        np.subtract(words, quotient, out=words)


def inverse(base: Residues, primes: Residues) -> Residues:
    """Return the inverse of every residue; all must be nonzero.

    One power per level and three products per element: pairs are multiplied together until few
    are left, those are inverted, and the inverses handed back down (Montgomery's trick).
    """
    flat = base.reshape(len(primes), -1)
    layers = [flat]
    while flat.shape[1] > 32:
        half = flat.shape[1] // 2
        product = reduce(flat[:, :half] * flat[:, half : 2 * half], primes)
        flat = np.concatenate([product, flat[:, 2 * half :]], axis=1)
        layers.append(flat)
    inverses = power(flat, tuple(int(prime) - 2 for prime in primes), primes)
    for flat in reversed(layers[:-1]):
        half = flat.shape[1] // 2
        whole, rest = inverses[:, :half], inverses[:, half:]
        left = reduce(whole * flat[:, half : 2 * half], primes)
        right = reduce(whole * flat[:, :half], primes)
        inverses = np.concatenate([left, right, rest], axis=1)
    return inverses.reshape(base.shape)


def sum_residues(values: Residues, dims: tuple[int, ...], primes: Residues, *, keepdims: bool) -> Residues:
    """Return the sum over array dimensions; up to 2^32 residues fit in a word before reducing."""
    total: Residues = values.sum(axis=dims, keepdims=keepdims, dtype=np.uint64)
    return reduce(total, primes)


def fingerprint(rows: NDArray[np.uint64], shape: np.uint64) -> NDArray[np.uint64]:
    """Return 128 bits for each row of an array; `shape` is a hash of what its rows are like."""
    values = rows.reshape(len(rows), -1)
    place = mix(np.arange(values.shape[1], dtype=np.uint64) ^ shape)
    first = mix(values ^ place).sum(axis=1, dtype=np.uint64)
    second = mix(values + mix(place)).sum(axis=1, dtype=np.uint64)
    return np.stack([mix(first ^ shape), mix(second ^ shape)], axis=1)


def widen(a: NDArray[Any], ndim: int) -> NDArray[Any]:
    """Return an array with new grid dimensions of extent 1 in front of its own."""
    return a if a.ndim == ndim else a.reshape(*a.shape[:2], *(1,) * (ndim - a.ndim), *a.shape[2:])


def align_dims(a: NDArray[Any], b: NDArray[Any]) -> tuple[NDArray[Any], NDArray[Any]]:
    """Return two arrays with equally many grid dimensions; new dimensions have extent 1 and come first."""
    ndim = max(a.ndim, b.ndim)
    return widen(a, ndim), widen(b, ndim)


def first_residues(a: Residues) -> Residues:
    """Return for each element its residue at the first level where it has one."""
    first: Residues = a[0]
    for level in range(1, len(a)):
        bad = first >= UNDEFINED
        if not bad.any():
            break
        first = np.where(bad, a[level], first)
    return first


def undefined_places(levels: Sequence[NDArray[np.uint64]]) -> NDArray[np.bool_]:
    """Return where any of several values is undefined, each given at one level."""
    bad = levels[0] >= UNDEFINED
    for other in levels[1:]:
        bad = bad | (other >= UNDEFINED)
    return bad


def is_mask(a: Residues) -> bool:
    """Whether all values are 0 or 1, or undefined: a number that stands for a mask may be any."""
    return not ((a > 1) & (a < UNDEFINED)).any()


def common_level(a: Residues, b: Residues) -> int:
    """Return the first level at which both arrays have numbers."""
    level = 0
    while level + 1 < len(a) and ((a[level] >= UNDEFINED).all() or (b[level] >= UNDEFINED).all()):
        level += 1
    return level
