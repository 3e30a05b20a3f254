"""Field: the scalar arithmetic over a tower of prime fields, one more interpreter of every operator.

A value is a uint64 array of shape (levels, trials, *grid). Level 0 is the value; level i + 1 exists
so that `exp` has an exponent: modulo prime i, exp(x) is a random element of order prime i + 1 to the
power of level i + 1 of x. Hence exp(x + y) = exp(x) exp(y) and exp(0) = 1 hold exactly, through as
many nested exponentials as there are levels below the first. On the last level exp is an oracle.
The logarithm is the way back: level i + 1 of log(y) is the exponent that makes level i of y. At level 0
it is undefined; a value is compared at the first level that it has.

**Positive numbers are the squares.** Of x and -x one is a square, products of squares are squares, and so
are exponentials and roots. So the laws of signs and orders under products, shifts and positive factors hold
exactly: |x y| = |x| |y|, max(a + c, b + c) = max(a, b) + c, sqrt(x x) = |x|. That sums of positive numbers
are positive, and that orders are transitive, does not: the caller dismisses trials that break it
(`evaluation/orders.py`). Constants compare as they are.

**Ties** are drawn where there is a `pool`: inputs then hold its constants, 0, 1, -1 and each other's numbers.
Where comparisons of computed numbers never come out equal by themselves, a trial can `declare` them to be so
at random.

**Undefined** is a value of its own: 1 / 0, the root or logarithm of what is no square, and all that is made
of it, unless a mask leaves it out. It says nothing about real numbers. For infinities see `infinity.py`.
"""

from collections import defaultdict
from collections.abc import Hashable, Mapping
from copy import copy
from dataclasses import replace
from fractions import Fraction
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from superopt.errors import SuperoptError
from superopt.verify.field.infinity import endless, exp_of_ends, swallowed
from superopt.verify.field.powers import LARGEST_TABLE, generators, power_table, raised, tower_logarithms
from superopt.verify.field.primes import HIGHEST
from superopt.verify.field.residues import (
    UNDEFINED,
    Residues,
    align_dims,
    common_level,
    fingerprint,
    first_residues,
    fold,
    inverse,
    is_mask,
    power,
    reduce,
    sum_residues,
    undefined_places,
    widen,
)
from superopt.verify.field.signs import Comparison, Steps, drawn_ties, known_steps, order_of, rank_order
from superopt.verify.field.source import Pool, Source, seeds_of

__all__ = ["Field"]

_KEPT = 1 << 16  # elements of arrays whose orders are kept while a field is in use
_EVEN = frozenset({"cos"})
_ODD = frozenset({"sin", "erf"})


def _no_trials() -> NDArray[np.int64]:
    return np.zeros(3, dtype=np.int64)


class Field:
    """One draw of all randomness, for a number of independent trials; implements Scalars[Residues].

    A `sealed` field knows nothing of exp, sqrt and log: they are functions like any other. What is equal
    there is equal for all functions in their place, and no trial is lost to a root. A `lenient` one gives
    what is undefined a number all the same, to tell tensors apart by, and counts how often it did so. A
    `ranked` one orders numbers by random ranks, not by the signs of their differences.
    """

    def __init__(
        self,
        seed: int = 0,
        *,
        trials: int = 1,
        levels: int = 2,
        tower: tuple[int, ...] = HIGHEST,
        extents: Mapping[str, int] | None = None,
        groups: Mapping[str, str] | None = None,
        positions: Mapping[str, tuple[int, ...]] | None = None,
        integers: tuple[int, ...] = (0, 1, 2, 3),
        wide: bool = False,
        constants: tuple[Fraction, ...] = (),
        sealed: bool = False,
        narrow: bool = False,
        pool: Pool | None = None,
        lenient: bool = False,
        ranked: bool = False,
    ) -> None:
        if not 1 <= levels <= len(tower):
            raise SuperoptError(f"a field of {levels} levels; the tower has 1 to {len(tower)}")
        self.tower = tower
        self.primes: Residues = np.array(tower[:levels], dtype=np.uint64)
        self.extents = dict(extents or {})
        self.positions = dict(positions or {})
        self.integers = integers
        self.constants = constants
        self.sealed, self.lenient, self.ranked = sealed, lenient, ranked
        self.declared: frozenset[Hashable] = frozenset()  # comparisons that come out equal at random
        self.site: tuple[int, int] | None = None  # the comparison that is being made, set by the interpreter
        source = Source(
            seeds_of(seed, trials),
            self.primes,
            extents=self.extents,
            groups=dict(groups or {}),
            positions=self.positions,
            integers=integers,
            wide=wide,
            constants=constants,
            narrow=narrow,
            pool=pool,
            lenient=lenient,
        )
        self._start(source)

    def _start(self, source: Source) -> None:
        self.source = source
        self.holes = False  # whether anything undefined was made
        # Trials whose inputs a program refuses.
        self.raised: NDArray[np.bool_] = np.zeros(self.trials, dtype=np.bool_)
        self.faults: NDArray[np.int64] = np.zeros(self.trials, dtype=np.int64)  # undefined, where lenient
        # Of each comparison: in how many trials it came out greater, equal, and less.
        self.met: dict[Hashable, NDArray[np.int64]] = defaultdict(_no_trials)
        self.comparisons: list[Comparison] | None = None
        self._infinity: Residues | None = None
        self._known_orders: dict[Any, NDArray[np.int8]] = {}
        self._known_leaves: dict[tuple[str, tuple[int, ...], str], Residues] = {}
        self.__dict__.pop("_power_tables", None)

    def take(self, trials: NDArray[np.bool_] | NDArray[np.int64]) -> "Field":
        """Return the field of some of the trials, with nothing recorded yet."""
        other = copy(self)
        other._start(replace(self.source, seeds=self.source.seeds[trials]))
        return other

    @property
    def levels(self) -> int:
        """How many primes are in use."""
        return len(self.primes)

    @property
    def trials(self) -> int:
        """How many independent draws are evaluated side by side."""
        return len(self.source.seeds)

    @property
    def has_marks(self) -> bool:
        """Whether some values may be undefined or infinite, which products with masks leave out."""
        return self.holes or self._infinity is not None

    # What enters: leaves, extents, indices.

    def leaf(self, name: str, shape: tuple[int, ...], dtype: str = "f64") -> Residues:
        """Return an input tensor, determined by the seed and the name: residues, bits, or whole numbers."""
        key = name, shape, dtype
        if key not in self._known_leaves:
            self._known_leaves[key] = self.source.leaf(name, shape, dtype)
        return self._known_leaves[key]

    def weights(self, axis: str, size: int) -> Residues:
        """Return how often each position of an axis stands for itself in a sum over the axis."""
        return self.source.weights(axis, size)

    def size(self, axis: str, size: int) -> Residues:
        """Return the extent of an axis: the sum of its weights."""
        return sum_residues(self.weights(axis, size), (2,), self.primes, keepdims=False)

    def index(self, size: int, axis: str = "") -> Residues:
        """Return the index of each position along one dimension: 0, 1, ..., or what `positions` names."""
        return self.source.index(size, axis)

    # Scalars[Residues].

    def const(self, value: Fraction) -> Residues:
        """Return the number that a constant stands for: a rational, the root of one, or times a symbol."""
        return self.source.const(value)

    def infinity(self) -> Residues:
        """Return a random symbol that ranks above everything, its negative below; exp(-inf) = 0."""
        if self._infinity is None:
            self._infinity = self.source.numbers("infinity", ())
        return self._infinity

    def add(self, a: Residues, b: Residues) -> Residues:
        """Return a + b."""
        a, b = align_dims(a, b)
        total = a + b
        # Of total and total - prime the one that did not wrap around is the smaller.
        total = np.minimum(total, total - self._prime_like(total))
        if self._infinity is not None:
            total, bad = swallowed(total, a, b, self._infinity, self.primes)
            total = self._without(bad, total) if bad.any() else total
        return self._made(total, a, b)

    def mul(self, a: Residues, b: Residues) -> Residues:
        """Return a * b."""
        a, b = align_dims(a, b)
        return self._made(self._without_ends(reduce(a * b, self.primes), a, b), a, b)

    def neg(self, a: Residues) -> Residues:
        """Return -a."""
        prime = self._prime_like(a)
        opposite = prime - a
        return self._made(np.minimum(opposite, opposite - prime), a)

    def inv(self, a: Residues) -> Residues:
        """Return 1 / a; of 0 it is undefined."""
        bad = (a == 0) | (a >= UNDEFINED)
        made = inverse(np.where(bad, np.uint64(1), a) if bad.any() else a, self.primes)
        made[bad] = 0
        if self._infinity is not None:
            made = np.where(endless(a, self._infinity, self.primes), np.uint64(0), made)
        return self._without(bad, made) if bad.any() else made

    def exp(self, a: Residues) -> Residues:
        """Return a random element of the next prime's order to the power of the next level of a."""
        a = np.broadcast_to(a, (a.shape[0], self.trials, *a.shape[2:]))
        if self.sealed:
            return exp_of_ends(self._oracle("exp", (a,)), a, self._infinity, self.primes, shift=0)
        result = np.empty(a.shape, dtype=np.uint64)
        rows = np.arange(self.trials).reshape(-1, *(1,) * (a.ndim - 2))
        for level, table in enumerate(self._power_tables):
            prime = self.primes[level : level + 1]
            result[level] = raised(table, a[level + 1], prime, rows)
        result[-1] = self._oracle("exp", (a,))[-1]
        if self.holes:
            result[:-1][a[1:] >= UNDEFINED] = UNDEFINED
        return exp_of_ends(result, a, self._infinity, self.primes, shift=1)

    def log(self, a: Residues) -> Residues:
        """Return the exponents that make the levels of a, one level further down; undefined at the first."""
        if self.sealed or self.lenient or self.levels == 1 or self.tower[0] > LARGEST_TABLE:
            return self._oracle("function log", (a,))
        a = np.broadcast_to(a, (a.shape[0], self.trials, *a.shape[2:]))
        self.holes = True
        generated = [self._generator(level) for level in range(self.levels - 1)]
        return tower_logarithms(a, self.tower, self.primes, generated)

    def sqrt(self, a: Residues) -> Residues:
        """Return a to the power (prime + 1) / 4: the root of a square that is itself one."""
        if self.sealed:
            return self._oracle("function sqrt", (a,))
        known = np.where(a >= UNDEFINED, np.uint64(0), a) if self.holes else a
        root = power(known, tuple((int(prime) + 1) // 4 for prime in self.primes), self.primes)
        bad = reduce(root * root, self.primes) != a
        return self._without(bad, root) if bad.any() else root

    def maximum(self, a: Residues, b: Residues) -> Residues:
        """Return the larger of a and b, with all its levels."""
        a, b = align_dims(a, b)
        return self._made(np.where((self._order(a, b) > 0)[None], b, a), a, b)

    def less(self, a: Residues, b: Residues) -> Residues:
        """Return 1 where a is smaller than b, else 0."""
        a, b = align_dims(a, b)
        return self._mask(self._compared(a, b) > 0, a, b)

    def equal(self, a: Residues, b: Residues) -> Residues:
        """Return 1 where a = b, else 0."""
        a, b = align_dims(a, b)
        return self._mask(self._compared(a, b) == 0, a, b)

    def where(self, mask: Residues, a: Residues, b: Residues) -> Residues:
        """Return a where the mask is 1 and b elsewhere, whatever the other one is."""
        if not (self.has_marks and is_mask(mask)):
            # m (a - b) + b with one product fewer than m a + (1 - m) b.
            return self.add(self.mul(mask, self.add(a, self.neg(b))), b)
        ndim = max(mask.ndim, a.ndim, b.ndim)
        mask, a, b = (widen(one, ndim) for one in (mask, a, b))
        return self._made(np.where(mask == 0, b, a), mask)

    def select(self, mask: Residues, a: Residues) -> Residues:
        """Return a where the mask is 1 and 0 elsewhere: the product with a mask."""
        if not (self.has_marks and is_mask(mask)):
            return self.mul(mask, a)
        mask, a = align_dims(mask, a)
        return self._made(np.where(mask == 0, np.uint64(0), a), mask)

    def function(self, name: str, *args: Residues) -> Residues:
        """Return what is known of a function: logarithms, odd and even ones; else a random oracle."""
        match name:
            case "log":
                return self.log(args[0])
            case "log2":
                return self.mul(self.log(args[0]), self.inv(self.source.symbol("ln 2")))
            case "log1p":
                return self.log(self.add(widen(self.const(Fraction(1)), args[0].ndim), args[0]))
            case "guard":
                return self.select(*args)
        if name not in _EVEN and name not in _ODD:
            return self._oracle(f"function {name}", args)
        opposite = self.neg(args[0])
        smaller = self._first_level(args[0]) <= self._first_level(opposite)
        made = self._oracle(f"function {name}", (np.where(smaller[None], args[0], opposite),))
        if name in _EVEN:
            return made
        turned = np.where(smaller[None], made, self.neg(made))
        return np.where((self._first_level(args[0]) == 0)[None], np.uint64(0), turned)

    # Reductions and identities of whole tensors.

    def sum_mod(self, a: Residues, axes: int | tuple[int, ...]) -> Residues:
        """Return the plain sum over array dimensions, which stay with one element each."""
        dims = (axes,) if isinstance(axes, int) else axes
        a = self._without_ends(a, a)
        if self.holes:
            bad = np.asarray((a >= UNDEFINED).any(axis=dims, keepdims=True))
            if bad.any():
                known = np.where(a >= UNDEFINED, np.uint64(0), a)
                return self._without(bad, sum_residues(known, dims, self.primes, keepdims=True))
        return sum_residues(a, dims, self.primes, keepdims=True)

    def max_over(self, a: Residues, axes: int | tuple[int, ...]) -> Residues:
        """Return the largest element over array dimensions, which stay; of none, minus infinity."""
        dims = sorted(axis % a.ndim for axis in ((axes,) if isinstance(axes, int) else axes))
        if 0 in (a.shape[dim] for dim in dims):
            shape = [1 if i in dims else extent for i, extent in enumerate(a.shape)]
            below = self.neg(self.infinity()).reshape(*a.shape[:2], *(1,) * (a.ndim - 2))
            return np.broadcast_to(below, shape)
        for dim in reversed(dims):
            best = a.take([0], axis=dim)
            for place in range(1, a.shape[dim]):
                best = self.maximum(best, a.take([place], axis=dim))
            a = best
        return a

    def fingerprint(self, a: Residues) -> NDArray[np.uint64]:
        """Return 128 bits for each row of a batch: a is (levels, trials, rows, *grid), the result (rows, 2).

        Two rows get the same bits if their shapes and first levels agree in all trials, and others by an
        accident of 2^-128.
        """
        return fingerprint(np.moveaxis(self._first_level(a), 1, 0), fold(f"{a.shape[1]} {a.shape[3:]}"))

    # How it is done.

    def _oracle(self, name: str, args: tuple[Residues, ...]) -> Residues:
        ndim = max(a.ndim for a in args)
        firsts = [self._first_level(widen(arg, ndim)) for arg in args]
        result = self.source.oracle(name, firsts)
        bad = undefined_places(firsts) if self.holes else np.False_
        return self._without(np.broadcast_to(bad, result.shape), result) if bad.any() else result

    def _first_level(self, a: Residues) -> Residues:
        """Return for each element its residue at the first level where it has one."""
        return first_residues(a) if self.holes else a[0]

    def _compared(self, a: Residues, b: Residues) -> NDArray[np.int8]:
        """Return the order of a and b where ties count, and note it."""
        order = self._order(a, b)
        if self.site is not None:
            known = np.ones(order.shape, dtype=np.bool_)
            if self.holes:
                known = (self._first_level(a) < UNDEFINED) & (self._first_level(b) < UNDEFINED)
            rest = tuple(range(1, order.ndim))
            for way in (-1, 0, 1):
                self.met[self.site][way + 1] += int(((order == way) & known).any(axis=rest).sum())
            if self.site in self.declared:
                difference = self._first_level(self.add(a, self.neg(b)))
                prime = np.uint64(self.primes[common_level(a, b) if self.holes else 0])
                tied = drawn_ties(difference, prime, self.source.seeds)
                order = np.where(tied, np.int8(0), order)
        return order

    def _order(self, a: Residues, b: Residues) -> NDArray[np.int8]:
        """Return 1 where a < b, 0 where a = b, -1 where a > b, at the first level that both have."""
        level = common_level(a, b) if self.holes else 0
        x, y, _ = np.broadcast_arrays(a[level], b[level], self.source.seeds.reshape(-1, *(1,) * (a.ndim - 2)))
        # Two programs mostly compare the same numbers.
        key = level, self._infinity is None, x.shape, *([x.tobytes(), y.tobytes()] if x.size <= _KEPT else ())
        order = self._known_orders.get(key)
        if order is None:
            order = self._drawn_order(x, y, level)
            if x.size <= _KEPT:
                self._known_orders[key] = order
        if self.comparisons is not None:
            self.comparisons.append(Comparison(x, y, order, level, self.site))
        return order

    def _drawn_order(self, x: NDArray[np.uint64], y: NDArray[np.uint64], level: int) -> NDArray[np.int8]:
        """Return the order of two arrays at one level, by ranks or by signs."""
        prime = int(self.primes[level])
        if self.ranked:
            return rank_order(x, y, self.source.seeds, self.infinity()[level], prime)
        undefined = (x >= UNDEFINED) | (y >= UNDEFINED) if self.holes else None
        top = None if self._infinity is None else self._infinity[level]
        return order_of(x, y, prime, self._known_steps[level], infinity=top, undefined=undefined)

    @cached_property
    def _known_steps(self) -> list[Steps]:
        """For each level: the differences between the constants of the programs, and their signs."""
        return known_steps(self.source.fixed_numbers, self.primes)

    def _mask(self, truth: NDArray[np.bool_], *args: Residues) -> Residues:
        mask = np.broadcast_to(truth.astype(np.uint64), (self.levels, *truth.shape))
        if not self.holes:
            return mask
        bad = undefined_places([self._first_level(arg) for arg in args])
        return np.where(bad[None], UNDEFINED, mask) if bad.any() else mask

    def _made(self, result: Residues, *args: Residues) -> Residues:
        """Return a result, undefined where an operand is."""
        if self.holes:
            for arg in args:
                bad = arg >= UNDEFINED
                if bad.any():
                    result = np.where(bad, UNDEFINED, result)
        return result

    def _without(self, bad: NDArray[np.bool_], result: Residues) -> Residues:
        """Return a result that is undefined in places, and note that there are such."""
        if self.lenient:
            self.faults += np.broadcast_to(bad, (self.levels, self.trials, *bad.shape[2:])).sum(
                axis=(0, *range(2, bad.ndim))
            )
            return result
        self.holes = True
        return np.where(bad, UNDEFINED, result)

    def _without_ends(self, result: Residues, *args: Residues) -> Residues:
        """Return a result that is undefined where an operand is infinity or its negative."""
        if self._infinity is None:
            return result
        for arg in args:
            bad = endless(arg, self._infinity, self.primes)
            result = self._without(bad, result) if bad.any() else result
        return result

    def _prime_like(self, a: Residues) -> Residues:
        return self.primes.reshape(-1, *(1,) * (a.ndim - 1))

    @cached_property
    def _power_tables(self) -> list[list[Residues]]:
        """For each level but the last: for each byte of an exponent, all 256 powers in each trial."""
        return [
            power_table(self._generator(level), self.primes[level : level + 1])
            for level in range(self.levels - 1)
        ]

    def _generator(self, level: int) -> Residues:
        """Return a random element for each trial whose order is exactly the next prime."""
        return generators(self.source.words("generator", ())[level], self.primes[level])
