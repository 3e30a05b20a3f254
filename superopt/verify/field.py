"""Field: the scalar arithmetic over a tower of prime fields, one more interpreter of every operator.

A value is a uint64 array of shape (levels, trials, *grid). Level 0 is the value; level i + 1 exists
so that `exp` has an exponent: modulo prime i, exp(x) is a random element of order prime i + 1 to the
power of level i + 1 of x. Hence exp(x + y) = exp(x) exp(y) and exp(0) = 1 hold exactly, through as
many nested exponentials as there are levels below the first. On the last level exp is an oracle.

What holds here holds of real numbers wherever both sides are defined and square roots are taken of
positive numbers (here: of squares). What holds of real numbers can be missed: orders other than
`maximum`'s own laws, and whatever a random oracle hides.
"""

from collections.abc import Mapping
from fractions import Fraction
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from superopt.errors import SuperoptError
from superopt.verify.constants import exact_constant
from superopt.verify.residues import (
    TOWER,
    Residues,
    fold,
    inverse,
    mix,
    power,
    reduce,
    sum_residues,
)

__all__ = ["INTEGERS", "LARGE_INTEGER", "Field", "Residues"]

INTEGERS = frozenset({"i64", "i32", "i16", "i8", "u8"})

_SMALLEST, _LARGEST = np.uint64(0), np.uint64(2**64 - 1)
_SMALL_INTEGER = 8
_RANK_STEP = np.uint64(2**64 // (2 * _SMALL_INTEGER + 1))
_LARGE_STEP = _RANK_STEP // np.uint64(2**22)  # 2^20 of them stay within half a rank step
LARGE_INTEGER = 2**20
"""Integers up to this magnitude compare as they do among real numbers, with one another."""
_WINDOW = 8
_BYTE = np.uint64(255)


class Field:
    """One draw of all randomness, for a number of independent trials; implements Scalars[Residues].

    `zero_divisions` and `nonresidues` count, for each trial and at the levels in `watched`, the
    zeros that were inverted (to 0) and the numbers that are no squares whose root was taken. Such
    a trial says nothing about real numbers: the caller draws another.

    A `sealed` field knows nothing of exp and sqrt: they are functions like any other. What is equal
    there is equal for all functions in their place, and no trial is lost to a root.
    """

    def __init__(
        self,
        seed: int = 0,
        *,
        trials: int = 1,
        levels: int = 2,
        tower: tuple[int, ...] = TOWER,
        extents: Mapping[str, int] | None = None,
        groups: Mapping[str, str] | None = None,
        positions: Mapping[str, tuple[int, ...]] | None = None,
        integers: tuple[int, ...] = (0, 1, 2, 3),
        sealed: bool = False,
    ) -> None:
        self.sealed = sealed
        self.integers = integers  # what tensors of integers hold; as many as some power of two
        first = mix(np.array([seed & (2**64 - 1)], dtype=np.uint64))
        counter: NDArray[np.uint64] = np.arange(trials, dtype=np.uint64)
        self._start(mix(first + counter), levels, tower, extents, groups, positions)

    def _start(
        self,
        seeds: NDArray[np.uint64],
        levels: int,
        tower: tuple[int, ...],
        extents: Mapping[str, int] | None,
        groups: Mapping[str, str] | None,
        positions: Mapping[str, tuple[int, ...]] | None,
    ) -> None:
        if not 1 <= levels <= len(tower):
            raise SuperoptError(f"a field of {levels} levels; the tower has 1 to {len(tower)}")
        self.seeds = seeds
        self.tower = tower
        self.primes: Residues = np.array(tower[:levels], dtype=np.uint64)
        self.extents = dict(extents or {})
        self.groups = dict(groups or {})
        self.positions = dict(positions or {})
        self.watched: NDArray[np.bool_] = np.ones(levels, dtype=np.bool_)
        self.zero_divisions: NDArray[np.int64] = np.zeros(len(seeds), dtype=np.int64)
        self.nonresidues: NDArray[np.int64] = np.zeros(len(seeds), dtype=np.int64)
        self._infinity: Residues | None = None
        self._exponents = [int(prime) - 2 for prime in self.primes]
        # (level, 1): the salt that makes the oracles of different levels independent.
        self._salt = mix(np.arange(1, levels + 1, dtype=np.uint64)[:, None])

    def take(self, trials: NDArray[np.bool_] | NDArray[np.int64]) -> "Field":
        """Return the field of some of the trials, with nothing recorded yet."""
        other = object.__new__(Field)
        other.sealed = self.sealed
        other.integers = self.integers
        other._start(self.seeds[trials], self.levels, self.tower, self.extents, self.groups, self.positions)
        return other

    @property
    def levels(self) -> int:
        """How many primes are in use."""
        return len(self.primes)

    @property
    def trials(self) -> int:
        """How many independent draws are evaluated side by side."""
        return len(self.seeds)

    # What enters: leaves, extents, indices.

    def leaf(self, name: str, shape: tuple[int, ...], dtype: str = "f64") -> Residues:
        """Return an input tensor, determined by the seed and the name: residues, bits, or whole numbers."""
        words = self._words(f"leaf {name}", shape)
        if dtype == "bool":
            bits = mix(words[:1]) & np.uint64(1)
            return np.broadcast_to(bits, words.shape).copy()
        if dtype in INTEGERS:
            known = np.array([[number % int(p) for number in self.integers] for p in self.primes], np.uint64)
            drawn = (mix(words[:1])[0] % np.uint64(len(self.integers))).astype(np.intp)
            return known[:, drawn]
        return reduce(words, self.primes)

    def weights(self, axis: str, size: int) -> Residues:
        """Return how often each position of an axis stands for itself in a sum over the axis.

        A sum over a real extent n is evaluated on few positions, each repeated a random number of
        times. Only so is sum(1) = size, a true identity, kept without evaluating n positions, and
        so do identities of one small extent (as (a+b)^2 - a^2 - b^2 = 2ab) not pass for general.
        The multiplicities add up to the extent where `extents` names one; else they are free, the
        extent is a random symbol, and what is proven holds for any. Axes of one group (`groups`
        names a leader for each) index the same tensor by a rename, so they share their weights.
        """
        if self.extents.get(axis) == size:
            return np.ones((self.levels, self.trials, size), dtype=np.uint64)
        weights = reduce(self._words(f"weights {self.groups.get(axis, axis)}", (size,)), self.primes)
        if axis in self.extents and size:
            weights[:, :, -1] = 0
            rest = sum_residues(weights, (2,), self.primes, keepdims=False)
            extent = self.const(Fraction(self.extents[axis]))
            weights[:, :, -1] = self.add(extent, self.neg(rest))
        return weights

    def size(self, axis: str, size: int) -> Residues:
        """Return the extent of an axis: the sum of its weights."""
        return sum_residues(self.weights(axis, size), (2,), self.primes, keepdims=False)

    def index(self, size: int, axis: str = "") -> Residues:
        """Return the index of each position along one dimension: 0, 1, ..., or drawn from `positions`."""
        pool = self.positions.get(axis, ())
        if len(pool) <= size:
            values = np.arange(size, dtype=np.uint64)
            return np.broadcast_to(values, (self.levels, self.trials, size)).copy()
        order = self._words(f"positions {self.groups.get(axis, axis)}", (len(pool),))[0].argsort(axis=-1)
        drawn = np.sort(np.array(pool, dtype=np.uint64)[order[:, :size]], axis=-1)
        return np.broadcast_to(drawn, (self.levels, *drawn.shape)).copy()

    # Scalars[Residues].

    def const(self, value: Fraction) -> Residues:
        """Return an exact constant: the rational, or the root of one, that a float stands for."""
        value, root = exact_constant(value, self.tower)
        values = []
        for prime in self.primes.tolist():
            if value.denominator % prime == 0:
                raise SuperoptError(f"the constant {value} is not defined modulo {prime}")
            number = value.numerator * pow(value.denominator, -1, prime) % prime
            values.append(pow(number, (prime + 1) // 4, prime) if root else number)
        return np.array(values, dtype=np.uint64).reshape(-1, 1)

    def infinity(self) -> Residues:
        """Return a random symbol that ranks above everything, its negative below; exp(-inf) = 0."""
        if self._infinity is None:
            self._infinity = reduce(self._words("infinity", ()), self.primes)
        return self._infinity

    def add(self, a: Residues, b: Residues) -> Residues:
        """Return a + b."""
        a, b = _align(a, b)
        total = a + b
        # Of total and total - prime the one that did not wrap around is the smaller.
        result: Residues = np.minimum(total, total - self._prime_like(total))
        return result

    def mul(self, a: Residues, b: Residues) -> Residues:
        """Return a * b."""
        a, b = _align(a, b)
        return reduce(a * b, self.primes)

    def neg(self, a: Residues) -> Residues:
        """Return -a."""
        prime = self._prime_like(a)
        opposite = prime - a
        result: Residues = np.minimum(opposite, opposite - prime)
        return result

    def inv(self, a: Residues) -> Residues:
        """Return 1 / a, and 0 for 0, which is counted."""
        zero = a == 0
        if not zero.any():
            return inverse(a, self.primes)
        self._count(self.zero_divisions, zero)
        result = inverse(np.where(zero, np.uint64(1), a), self.primes)
        result[zero] = 0
        return result

    def exp(self, a: Residues) -> Residues:
        """Return a random element of the next prime's order to the power of the next level of a."""
        a = np.broadcast_to(a, (a.shape[0], self.trials, *a.shape[2:]))
        if self.sealed:
            result = self._oracle("exp", (a,))
            if self._infinity is not None:
                result[:, a[0] == _align(self.neg(self._infinity), a)[0][0]] = 0
            return result
        result = np.empty(a.shape, dtype=np.uint64)
        rows = np.arange(self.trials).reshape(-1, *(1,) * (a.ndim - 2))
        for level, table in enumerate(self._power_tables):
            prime = self.primes[level : level + 1]
            exponent = a[level + 1]
            value: Residues | None = None
            for window, powers in enumerate(table):
                digit = (exponent >> np.uint64(_WINDOW * window)) & _BYTE
                factor = powers[rows, digit.astype(np.intp)]
                value = factor if value is None else reduce((value * factor)[None], prime)[0]
            assert value is not None
            result[level] = value
        result[-1] = self._oracle("exp", (a,))[-1]
        if self._infinity is not None:
            below = self.neg(self._infinity)
            result[:-1][a[1:] == _align(below[1:], a)[0]] = 0
            result[-1][a[0] == _align(below[:1], a)[0][0]] = 0
        return result

    def sqrt(self, a: Residues) -> Residues:
        """Return a to the power (prime + 1) / 4: multiplicative, and a square root of every square."""
        if self.sealed:
            return self.function("sqrt", a)
        root = power(a, tuple((int(prime) + 1) // 4 for prime in self.primes), self.primes)
        self._count(self.nonresidues, reduce(root * root, self.primes) != a)
        return root

    def maximum(self, a: Residues, b: Residues) -> Residues:
        """Return whichever ranks higher in a random total order, with all its levels."""
        a, b = _align(a, b)
        return np.where((self._rank(a[0]) >= self._rank(b[0]))[None], a, b)

    def less(self, a: Residues, b: Residues) -> Residues:
        """Return 1 where a ranks below b, else 0."""
        a, b = _align(a, b)
        return self._mask(self._rank(a[0]) < self._rank(b[0]))

    def equal(self, a: Residues, b: Residues) -> Residues:
        """Return 1 where a = b, else 0."""
        a, b = _align(a, b)
        return self._mask(a[0] == b[0])

    def where(self, mask: Residues, a: Residues, b: Residues) -> Residues:
        """Return m a + (1 - m) b."""
        # m (a - b) + b is the same with one product fewer.
        return self.add(self.mul(mask, self.add(a, self.neg(b))), b)

    def function(self, name: str, *args: Residues) -> Residues:
        """Return a random oracle of level 0 of the arguments, in their order."""
        return self._oracle(f"function {name}", args)

    # Reductions and identities of whole tensors.

    def sum_mod(self, a: Residues, axes: int | tuple[int, ...], *, keepdims: bool = False) -> Residues:
        """Return the plain sum over array dimensions."""
        dims = (axes,) if isinstance(axes, int) else axes
        return sum_residues(a, dims, self.primes, keepdims=keepdims)

    def max_over(self, a: Residues, axes: int | tuple[int, ...], *, keepdims: bool = False) -> Residues:
        """Return the element of the highest rank over array dimensions; of none, minus infinity."""
        dims = sorted(axis % a.ndim for axis in ((axes,) if isinstance(axes, int) else axes))
        if 0 in (a.shape[dim] for dim in dims):
            shape = [1 if i in dims else extent for i, extent in enumerate(a.shape)]
            below = self.neg(self.infinity()).reshape(*a.shape[:2], *(1,) * (a.ndim - 2))
            a = np.broadcast_to(below, shape)
            return a if keepdims else a.squeeze(tuple(dims))
        for dim in reversed(dims):
            winner = self._rank(a[0]).argmax(axis=dim - 1, keepdims=True)[None]
            a = np.take_along_axis(a, np.broadcast_to(winner, (len(a), *winner.shape[1:])), axis=dim)
        return a if keepdims else a.squeeze(tuple(dims))

    def fingerprint(self, a: Residues) -> NDArray[np.uint64]:
        """Return 128 bits for each row of a batch: a is (levels, trials, rows, *grid), the result (rows, 2).

        Two rows get the same bits if their shapes and level 0 agree in all trials, and others by an
        accident of 2^-128.
        """
        values = np.moveaxis(a[0], 1, 0).reshape(a.shape[2], -1)
        shape = fold(f"{a.shape[1]} {a.shape[3:]}")
        place = mix(np.arange(values.shape[1], dtype=np.uint64) ^ shape)
        first = mix(values ^ place).sum(axis=1, dtype=np.uint64)
        second = mix(values + mix(place)).sum(axis=1, dtype=np.uint64)
        return np.stack([mix(first ^ shape), mix(second ^ shape)], axis=1)

    # How it is done.

    def _words(self, name: str, shape: tuple[int, ...]) -> NDArray[np.uint64]:
        """Return 64 random bits for each level, trial and position, determined by seed and name."""
        start = mix(mix(self.seeds ^ fold(name))[None, :] ^ self._salt)
        count = int(np.prod(shape, dtype=np.int64))
        positions = np.arange(count, dtype=np.uint64) * np.uint64(0xD1342543DE82EF95)
        return mix(mix(start[:, :, None] + positions)).reshape(self.levels, self.trials, *shape)

    def _oracle(self, name: str, args: tuple[Residues, ...]) -> Residues:
        ndim = max(a.ndim for a in args)
        column = (1,) * (ndim - 2)
        state = mix(self.seeds ^ fold(name)).reshape(-1, *column)
        for arg in args:
            state = mix(state ^ mix(_widen(arg, ndim)[0]))
        return reduce(mix(state[None] ^ self._salt.reshape(-1, 1, *column)), self.primes)

    def _rank(self, values: NDArray[np.uint64]) -> NDArray[np.uint64]:
        """Return the place of level-0 residues in the random order, one per trial.

        The order of -x and -y is opposite to that of x and y, so that a minimum is one. Integers of
        magnitude up to 2^20 keep their own order, so that comparisons of indices come
        out as they do for real numbers; those up to 8 are evenly spread among the rest, so that a
        clamp between small constants meets numbers below, between and above.
        """
        column = (1,) * (values.ndim - 1)
        prime = self.primes[0]
        opposite = prime - values
        rank = mix(np.minimum(values, opposite) ^ mix(self.seeds ^ fold("rank")).reshape(-1, *column))
        rank = np.where(values <= opposite, rank, ~rank)
        shifted = values + np.uint64(LARGE_INTEGER)
        shifted = np.minimum(shifted, shifted - prime)
        integer = shifted <= 2 * LARGE_INTEGER
        if integer.any():
            number = shifted.astype(np.int64) - LARGE_INTEGER
            near = np.clip(number, -_SMALL_INTEGER, _SMALL_INTEGER)
            spread = (near + _SMALL_INTEGER).astype(np.uint64) * _RANK_STEP + _RANK_STEP // np.uint64(2)
            # Two's complement: a negative distance wraps around to a subtraction.
            spread += (number - near).astype(np.uint64) * _LARGE_STEP
            rank = np.where(integer, spread, rank)
        if self._infinity is not None:
            top = self._infinity[0].reshape(-1, *column)
            rank = np.where(values == top, _LARGEST, rank)
            rank = np.where(values == prime - top, _SMALLEST, rank)
        return rank

    def _mask(self, truth: NDArray[np.bool_]) -> Residues:
        return np.broadcast_to(truth.astype(np.uint64), (self.levels, *truth.shape))

    def _prime_like(self, a: Residues) -> Residues:
        return self.primes.reshape(-1, *(1,) * (a.ndim - 1))

    def _count(self, counter: NDArray[np.int64], found: NDArray[np.bool_]) -> None:
        counts = found[self.watched].sum(axis=(0, *range(2, found.ndim)))
        counter += counts

    @cached_property
    def _power_tables(self) -> list[list[Residues]]:
        """For each level but the last: for each byte of an exponent, all 256 powers in each trial."""
        tables = []
        for level in range(self.levels - 1):
            prime = self.primes[level : level + 1]
            generator = self._generator(level)
            windows = []
            for _ in range(-(-int(prime[0]).bit_length() // _WINDOW)):
                powers = np.ones((self.trials, 1), dtype=np.uint64)
                square = generator[:, None]
                for _ in range(_WINDOW):
                    powers = np.concatenate([powers, reduce((powers * square)[None], prime)[0]], axis=1)
                    square = reduce((square * square)[None], prime)[0]
                windows.append(powers)
                generator = square[:, 0]
            tables.append(windows)
        return tables

    def _generator(self, level: int) -> Residues:
        """Return a random element for each trial whose order is exactly the next prime."""
        prime = self.primes[level]
        words = self._words("generator", ())[level]
        # 2 .. prime - 2, whose squares are all the elements of that order.
        root = words % (prime - np.uint64(3)) + np.uint64(2)
        square: Residues = root * root % prime
        return square


def _widen(a: Residues, ndim: int) -> Residues:
    """Return a with grid dimensions of extent 1 put in front of those it has."""
    return a if a.ndim == ndim else a.reshape(*a.shape[:2], *(1,) * (ndim - a.ndim), *a.shape[2:])


def _align(a: Residues, b: Residues) -> tuple[Residues, Residues]:
    ndim = max(a.ndim, b.ndim)
    return _widen(a, ndim), _widen(b, ndim)
