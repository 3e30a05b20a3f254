"""Orders: whether some comparisons of one trial could all be true of real numbers.

Squares stand for positive numbers, so sums of positive numbers may come out negative, and a < b < c < a
happens. Two programs that disagree for such a reason may agree on all real numbers. The comparisons of a
trial are possible if they, the order of the constants, and the known signs make no circle.
"""

from collections.abc import Sequence
from fractions import Fraction
from itertools import combinations
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from superopt.ir import Graph
from superopt.ops import OPS
from superopt.verify.field.arithmetic import Field
from superopt.verify.field.residues import UNDEFINED, Residues
from superopt.verify.field.signs import Comparison

__all__ = ["RISING", "Orders", "nonnegative_values"]

_HALF = Fraction(1, 2)
RISING: dict[str, tuple[Fraction, Fraction]] = {
    "exp": (Fraction(0), Fraction(1)),
    "exp2": (Fraction(0), Fraction(1)),
    "expm1": (Fraction(0), Fraction(0)),
    "sigmoid": (Fraction(0), _HALF),
    "tanh": (Fraction(0), Fraction(0)),
    "sqrt": (Fraction(0), Fraction(0)),
}
"""Operators that rise, each with an argument and its result."""

_Keys: TypeAlias = NDArray[np.uint64]
"""Numbers, each with its case (or trial) and its level in the upper bits."""
_BITS = np.uint64(32)  # the low bits of a key hold the residue


class Orders:
    """Which number is smaller than which in several cases, each a part of what was compared in one trial."""

    def __init__(self, field: Field, trials: NDArray[np.intp]) -> None:
        """Begin with cases of which nothing is known, given the trial of each."""
        self.field = field
        self.primes = field.primes
        self.levels = np.uint64(field.levels)
        self.trials = trials.astype(np.uint64)
        self.starts = _starts(np.arange(trials.size, dtype=np.uint64), field.levels)
        nothing: _Keys = np.empty(0, dtype=np.uint64)
        self.low, self.high = [nothing], [nothing]

    def compare(self, made: Comparison, parts: NDArray[np.bool_]) -> None:
        """Note what a comparison says of two numbers, and so of their negatives.

        `parts` has for each case the elements that belong to it.
        """
        here = np.nonzero(np.broadcast_to(parts, (self.trials.size, *made.order.shape[1:])))
        there = (self.trials[here[0]].astype(np.intp), *here[1:])
        a, b, order = made.a[there], made.b[there], made.order[there]
        known = (order != 0) & (a < UNDEFINED) & (b < UNDEFINED)
        keys, a, b, rises = self.starts[made.level][here[0]][known], a[known], b[known], order[known] > 0
        low, high = np.where(rises, a, b), np.where(rises, b, a)
        prime = np.uint64(self.primes[made.level])
        self._add(keys + low, keys + high)
        self._add(keys + (prime - high) % prime, keys + (prime - low) % prime)

    def bound(self, nonnegative: Sequence[tuple[Residues, NDArray[np.bool_]]]) -> None:
        """Note that numbers which are compared are not negative where they never are, and those negated.

        `nonnegative` has values with the elements that belong to each case. What other elements came to by
        impossible choices, as the larger of 1 and 2 that is 1, says nothing here.
        """
        positive: list[list[_Keys]] = [[] for _ in self.primes]
        for value, parts in nonnegative:
            here = np.nonzero(np.broadcast_to(parts, (self.trials.size, *value.shape[2:])))
            trials = self.trials[here[0]].astype(np.intp)
            for level, found in enumerate(positive):
                numbers = value[(level, trials, *here[1:])]
                known = (numbers > 0) & (numbers < UNDEFINED)
                found.append(self.starts[level][here[0]][known] + numbers[known])
        met = self._met()
        for level, (prime, found) in enumerate(zip(self.primes, positive, strict=True)):
            known_keys = np.unique(np.concatenate(found)) if found else met[:0]
            own = met[(met >> _BITS) % self.levels == level]
            zeros = own >> _BITS << _BITS
            above = _among(own, known_keys)
            below = _among(zeros + (prime - (own - zeros)) % prime, known_keys)
            self._add(zeros[above], own[above])
            self._add(own[below], zeros[below])

    def add_constants(self) -> None:
        """Note the order of the constants, and of numbers that are a difference of two constants apart."""
        numbers = self.field.source.fixed_numbers
        both = {sign * one: (sign, of_one) for one, of_one in numbers.items() for sign in (1, -1)}
        constants = [
            [sign * of_one[level] for _, (sign, of_one) in sorted(both.items())]
            for level in range(self.field.levels)
        ]
        for level, prime in enumerate(map(int, self.primes)):
            row = np.array([one % prime for one in constants[level]], dtype=np.uint64)
            ladder = self.starts[level][:, None] + row[None, :]
            self._add(ladder[:, :-1].ravel(), ladder[:, 1:].ravel())
        met = self._met()
        for level, prime in enumerate(map(int, self.primes)):
            own = met[(met >> _BITS) % self.levels == level][:, None]
            start = own >> _BITS << _BITS
            rising = {(b - a) % prime for a, b in combinations(constants[level], 2)}
            steps = np.array(sorted(rising), dtype=np.uint64)
            shifted = start + (own - start + steps[None, :]) % np.uint64(prime)
            there = _among(shifted, met)
            self._add(np.broadcast_to(own, shifted.shape)[there], shifted[there])

    def rise(self, rising: Sequence[tuple[str, Residues, Residues]]) -> None:
        """Note the orders of results that follow from those of arguments, and the other way round.

        `rising` has the arguments and the results of functions that rise, with their names.
        """
        starts = _starts(np.arange(self.field.trials, dtype=np.uint64), self.field.levels)[0]
        pairs: dict[str, list[tuple[_Keys, _Keys]]] = {}
        for name, arguments, results in rising:
            fixed = [self.field.const(one)[0].ravel() for one in RISING[name]]
            own = pairs.setdefault(name, [(starts + fixed[0], np.broadcast_to(fixed[1], starts.shape))])
            x, y = np.broadcast_arrays(arguments[0], results[0])
            known = (x < UNDEFINED) & (y < UNDEFINED)
            keys = np.broadcast_to(starts.reshape(-1, *(1,) * (x.ndim - 1)), x.shape)[known]
            own.append((keys + x[known], y[known]))
        edges = self._edges()
        cases = edges[0] >> _BITS << _BITS
        first = self._of_trials(edges[0]), self._of_trials(edges[1])
        mask = (np.uint64(1) << _BITS) - np.uint64(1)
        for own in pairs.values():
            x, y = (np.concatenate([pair[side] for pair in own]) for side in (0, 1))
            base = x >> _BITS << _BITS
            for here, there in ((x, y), (base + y, x & mask)):
                keys, at = np.unique(here, return_index=True)
                found = [np.searchsorted(keys, ends) % keys.size for ends in first]
                both = (keys[found[0]] == first[0]) & (keys[found[1]] == first[1])
                self._add(*(cases[both] + there[at[one[both]]] for one in found))

    def possible(self) -> NDArray[np.bool_]:
        """Return for each case whether no number is, by several steps, smaller than itself."""
        keys, ends = np.unique(np.concatenate(self._edges()), return_inverse=True)
        low, high = np.split(ends.ravel(), 2)
        while low.size:
            # A step from a number with none below it, or to a number with none above it, is in no
            # circle.
            entered, left = np.zeros((2, keys.size), dtype=np.bool_)
            entered[high] = left[low] = True
            inner = entered[low] & left[high]
            if inner.all():
                break
            low, high = low[inner], high[inner]
        found = np.ones(self.trials.size, dtype=np.bool_)
        found[((keys[low] >> _BITS) // self.levels).astype(np.intp)] = False
        return found

    def _of_trials(self, keys: _Keys) -> _Keys:
        """Return keys with the trial of their case in its place."""
        upper = keys >> _BITS
        trials = self.trials[(upper // self.levels).astype(np.intp)]
        return ((trials * self.levels + upper % self.levels) << _BITS) + (keys - (upper << _BITS))

    def _add(self, low: _Keys, high: _Keys) -> None:
        self.low.append(low)
        self.high.append(high)

    def _edges(self) -> tuple[_Keys, _Keys]:
        return np.concatenate(self.low), np.concatenate(self.high)

    def _met(self) -> _Keys:
        """Return the keys of all numbers whose order with others is known."""
        found: _Keys = np.unique(np.concatenate([*self.low, *self.high]))
        return found


def _starts(cases: NDArray[np.uint64], levels: int) -> _Keys:
    """Return the key of 0 at each level of each case."""
    count: NDArray[np.uint64] = np.arange(levels, dtype=np.uint64)
    return (cases[None, :] * np.uint64(levels) + count[:, None]) << _BITS


def _among(keys: _Keys, known: _Keys) -> NDArray[np.bool_]:
    """Return which keys are among some that are sorted."""
    if not known.size:
        return np.zeros(keys.shape, dtype=np.bool_)
    found: NDArray[np.bool_] = known[np.searchsorted(known, keys) % known.size] == keys
    return found


class _Signs:
    """Scalars whose values say whether a number is surely not negative; True only where that is certain."""

    def const(self, value: Fraction) -> bool:
        return value >= 0

    def infinity(self, *args: bool) -> bool:
        return True

    exp = sqrt = less = equal = infinity

    def add(self, *args: bool) -> bool:
        return all(args)

    mul = inv = add

    def neg(self, a: bool) -> bool:
        return False

    def maximum(self, a: bool, b: bool) -> bool:
        return a or b

    def where(self, mask: bool, a: bool, b: bool) -> bool:
        return a and b

    def function(self, name: str, *args: bool) -> bool:
        return name in ("log1p", "guard") and all(args)


def nonnegative_values(graph: Graph) -> tuple[bool, ...]:
    """Return for each value whether it is surely not negative."""
    scalars = _Signs()
    known: list[bool] = [port.dtype == "bool" or port.dtype == "u8" for port in graph.inputs]
    for step in graph.steps:
        args = [known[i] for i in step.inputs]
        if step.op in ("square", "abs", "relu") or (
            step.op in ("mul", "contract") and step.inputs[0] == step.inputs[1]
        ):
            known.append(True)
        elif step.op in OPS:
            known.append(OPS[step.op].mask or bool(OPS[step.op].scalar(scalars, *args)))
        elif step.op == "const":
            known.append((step.value or 0) >= 0)
        elif step.op == "max" and 0 in (graph.sizes[axis] for axis in step.axes):
            known.append(False)  # the largest of no numbers is minus infinity
        else:
            known.append(all(args))  # sums, maxima and views; sizes, indices and infinity have no operands
    return tuple(known)
