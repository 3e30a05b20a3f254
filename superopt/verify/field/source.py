"""Source: all that enters a field, determined by a seed and by names: inputs, weights, constants, oracles."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from fractions import Fraction
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from superopt.dtypes import INTEGERS
from superopt.errors import SuperoptError
from superopt.verify.field.constants import exact_constant
from superopt.verify.field.residues import Residues, fold, inverse, mix, power, reduce, sum_residues

__all__ = ["Pool", "Source", "seeds_of"]


@dataclass(frozen=True, slots=True)
class Pool:
    """Numbers that inputs hold in some trials: constants, and numbers that inputs share."""

    own: tuple[Fraction, ...] = ()  # constants of the programs
    shifts: tuple[Fraction, ...] = ()  # distances that inputs may have from shared numbers
    shared: int = 1

    @property
    def numbers(self) -> tuple[Fraction, ...]:
        """All its constants: 0, 1 and -1 are in every pool."""
        return tuple(dict.fromkeys([*map(Fraction, (0, 1, -1)), *self.own]))


def seeds_of(seed: int, trials: int) -> NDArray[np.uint64]:
    """Return a seed for each trial."""
    first = mix(np.array([seed & (2**64 - 1)], dtype=np.uint64))
    counter: NDArray[np.uint64] = np.arange(trials, dtype=np.uint64)
    return mix(first + counter)


@dataclass(frozen=True, eq=False)
class Source:
    """What is drawn for a number of independent trials, by the settings of a field (see `Field`)."""

    seeds: NDArray[np.uint64]
    primes: Residues
    extents: Mapping[str, int]
    groups: Mapping[str, str]
    positions: Mapping[str, tuple[int, ...]]
    integers: tuple[int, ...]  # the numbers that tensors of integers hold; their count is a power of two
    wide: bool  # whether half of their elements are any numbers
    constants: tuple[Fraction, ...]  # constants of the programs, which compare as they are
    narrow: bool  # constants were rounded to float32 or less
    pool: "Pool | None"  # what inputs hold, where numbers that are compared are to be equal
    lenient: bool
    _weights: dict[tuple[str, int], Residues] = field(default_factory=dict, init=False, repr=False)

    def words(self, name: str, shape: tuple[int, ...]) -> NDArray[np.uint64]:
        """Return 64 random bits for each level, trial and position, determined by seed and name."""
        start = mix(mix(self.seeds ^ fold(name))[None, :] ^ self._salt)
        count = int(np.prod(shape, dtype=np.int64))
        positions = np.arange(count, dtype=np.uint64) * np.uint64(0xD1342543DE82EF95)
        return mix(mix(start[:, :, None] + positions)).reshape(len(self.primes), len(self.seeds), *shape)

    def numbers(self, name: str, shape: tuple[int, ...]) -> Residues:
        """Return random residues, determined by seed and name."""
        return reduce(self.words(name, shape), self.primes)

    def oracle(self, name: str, args: Sequence[NDArray[np.uint64]]) -> Residues:
        """Return random residues determined by seed, name and arguments of one level and rank."""
        column = (1,) * (args[0].ndim - 1)
        state = mix(self.seeds ^ fold(name)).reshape(-1, *column)
        for arg in args:
            state = mix(state ^ mix(arg))
        return reduce(mix(state[None] ^ self._salt.reshape(-1, 1, *column)), self.primes)

    @cached_property
    def _salt(self) -> NDArray[np.uint64]:
        """Of shape (level, 1): the salt that makes the oracles of different levels independent."""
        return mix(np.arange(1, len(self.primes) + 1, dtype=np.uint64)[:, None])

    def leaf(self, name: str, shape: tuple[int, ...], dtype: str = "f64") -> Residues:
        """Return an input tensor, determined by the seed and the name: residues, bits, or whole numbers."""
        words = self.words(f"leaf {name}", shape)
        if dtype == "bool":
            bits = mix(words[:1]) & np.uint64(1)
            return np.broadcast_to(bits, words.shape).copy()
        if dtype in INTEGERS:
            known = np.array([[number % int(p) for number in self.integers] for p in self.primes], np.uint64)
            drawn = (mix(words[:1])[0] % np.uint64(len(self.integers))).astype(np.intp)
            if not self.wide:
                return known[:, drawn]
            any_number = mix(mix(words[0])) & np.uint64(1) == 0
            return np.where(any_number[None], reduce(words, self.primes), known[:, drawn])
        values = reduce(words, self.primes)
        if self.pool is None:
            return values
        mode = self.words(f"pool {name}", (2,))[0]
        return _from_pool(self._pooled(self.pool), values, mode, mix(mix(words[0])))

    def _pooled(self, pool: "Pool") -> Residues:
        """Return the numbers of a pool, of shape (levels, trials, numbers)."""
        shared = [*np.moveaxis(self.numbers("shared number", (pool.shared,)), 2, 0)]
        constants = [np.broadcast_to(self.const(one), shared[0].shape) for one in pool.numbers]
        shifts = [self.const(way * shift) for shift in pool.shifts for way in (1, -1)]
        apart = [reduce(one + shift, self.primes) for one in shared for shift in shifts]
        return np.stack([*constants, *shared, *apart], axis=2)

    def weights(self, axis: str, size: int) -> Residues:
        """Return how often each position of an axis stands for itself in a sum over the axis.

        A sum over a real extent n is evaluated on few positions, each repeated a random number of
        times. Only so is sum(1) = size, a true identity, kept without evaluating n positions, and
        so do identities of one small extent (as (a+b)^2 - a^2 - b^2 = 2ab) not pass for general.
        The multiplicities add up to the extent where `extents` names one; else they are free, the
        extent is a random symbol, and what is proven holds for any. Axes of one group (`groups`
        names a leader for each) index the same tensor by a rename, so they share their weights.
        """
        if (axis, size) not in self._weights:
            self._weights[axis, size] = self._weigh(axis, size)
        return self._weights[axis, size]

    def _weigh(self, axis: str, size: int) -> Residues:
        if self.extents.get(axis) == size:
            return np.ones((len(self.primes), len(self.seeds), size), dtype=np.uint64)
        weights = self.numbers(f"weights {self.groups.get(axis, axis)}", (size,))
        if axis in self.extents and size:
            weights[:, :, -1] = 0
            rest = sum_residues(weights, (2,), self.primes, keepdims=False)
            extent = self.const(Fraction(self.extents[axis]))
            weights[:, :, -1] = reduce(extent + self.primes[:, None] - rest, self.primes)
        return weights

    def index(self, size: int, axis: str = "") -> Residues:
        """Return the index of each position along one dimension: 0, 1, ..., or what `positions` names."""
        values = np.array(self.positions.get(axis, range(size)), dtype=np.uint64)
        return np.broadcast_to(values, (len(self.primes), len(self.seeds), size)).copy()

    def const(self, value: Fraction) -> Residues:
        """Return the number that a constant stands for: a rational, the root of one, or times a symbol."""
        meant = exact_constant(value, self.narrow)
        values = []
        for prime in self.primes.tolist():
            if meant.value.denominator % prime == 0 and not self.lenient:
                raise SuperoptError(f"the constant {meant.value} is not defined modulo {prime}")
            inverse_of = (
                0 if meant.value.denominator % prime == 0 else pow(meant.value.denominator, -1, prime)
            )
            values.append(meant.value.numerator * inverse_of % prime)
        found: Residues = np.array(values, dtype=np.uint64).reshape(-1, 1)
        if meant.symbol:
            factor = self.symbol(meant.symbol)
            factor = inverse(factor, self.primes) if meant.power < 0 else factor
            found = reduce(found * factor, self.primes)
        if meant.root:
            found = power(found, tuple((int(prime) + 1) // 4 for prime in self.primes), self.primes)
        return reduce(self.primes[:, None] - found, self.primes) if meant.sign < 0 else found

    @cached_property
    def fixed_numbers(self) -> dict[Fraction, list[int]]:
        """The constants of the programs that have one residue at each level in all trials, with those."""
        made = {one: self.const(one) for one in {*self.constants, *map(Fraction, self.integers)}}
        made[Fraction(0)] = np.zeros((len(self.primes), 1), dtype=np.uint64)
        return {one: [int(row[0]) for row in rows] for one, rows in made.items() if rows.shape[1] == 1}

    def symbol(self, name: str) -> Residues:
        """Return a random square, and so positive, which stands for a number such as pi."""
        words = self.numbers(f"symbol {name}", ())
        return reduce(words * words, self.primes)


def _from_pool(
    pool: Residues, values: Residues, mode: NDArray[np.uint64], bits: NDArray[np.uint64]
) -> Residues:
    """Return drawn numbers with some of them replaced by numbers of the pool (levels, trials, numbers).

    In a quarter of the trials an input holds none, in half of them one number of the pool in about half
    of its places, in a quarter the pool's numbers everywhere. Two random words of each trial (`mode`) say
    which, and one of each place (`bits`).
    """
    column = (-1, *(1,) * (values.ndim - 2))
    kind = (mode[:, 0] % np.uint64(4)).reshape(column)
    target = np.broadcast_to((mode[:, 1] % np.uint64(pool.shape[2])).reshape(column), values.shape[1:])
    anything = (bits >> np.uint64(8)) % np.uint64(pool.shape[2])
    chosen = np.where(kind == 3, anything, target).astype(np.intp)
    rows = np.arange(values.shape[1]).reshape(column)
    taken = (kind == 3) | ((kind > 0) & (bits & np.uint64(1) == 0))
    return np.where(taken[None], pool[:, rows, chosen], values)
