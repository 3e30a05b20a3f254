"""Orders: whether the comparisons of one trial could all be true of real numbers.

Squares stand for positive numbers, so sums of positive numbers may come out negative, and a < b < c < a
happens. Where two programs disagree on such a trial, that says nothing about real numbers. A trial is
sound if its comparisons, the order of the constants, and what is known of signs make no circle.
"""

from collections.abc import Mapping, Sequence
from fractions import Fraction
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from superopt.ir import Graph
from superopt.ops import OPS
from superopt.verify.field.arithmetic import Field
from superopt.verify.field.residues import UNDEFINED, Residues

__all__ = ["RISING", "nonnegative_values", "sound_trials"]

_HALF = Fraction(1, 2)
RISING: dict[str, tuple[Fraction, Fraction]] = {
    "exp": (Fraction(0), Fraction(1)),
    "exp2": (Fraction(0), Fraction(1)),
    "sigmoid": (Fraction(0), _HALF),
    "tanh": (Fraction(0), Fraction(0)),
    "sqrt": (Fraction(0), Fraction(0)),
}
"""Operators that rise, each with an argument and its result."""

Comparison = tuple[Residues, Residues, NDArray[np.int8], int]
"""Two arrays of shape (trials, *grid), the sign of their difference, and the prime of their level."""


def sound_trials(
    field: Field,
    comparisons: Sequence[Comparison],
    nonnegative: Sequence[Residues],
    rising: Sequence[tuple[str, Residues, Residues]] = (),
) -> NDArray[np.bool_]:
    """Return for each trial whether all its comparisons can be true together.

    `nonnegative` has values that no real numbers make negative, `rising` the arguments and the results of
    functions that rise, with their names.
    """
    found = {Fraction(0), *field.constants, *map(Fraction, field.integers)}
    constants = sorted(found | {-value for value in found})
    ladders = [
        [value.numerator * pow(value.denominator, -1, prime) % prime for value in constants]
        for prime in map(int, field.primes)
    ]
    steps = {high - low for high in constants for low in constants if high > low}
    shifts = {
        prime: {one.numerator * pow(one.denominator, -1, prime) % prime for one in steps}
        for prime in map(int, field.primes)
    }
    sound = []
    for trial in range(field.trials):
        edges = _edges(trial, comparisons, nonnegative) | _ladder(ladders)
        edges |= _shifted(edges, shifts)
        sound.append(not _circular(edges | _risen(field, trial, edges, rising)))
    return np.array(sound, dtype=np.bool_)


def _edges(
    trial: int, comparisons: Sequence[Comparison], nonnegative: Sequence[Residues]
) -> set[tuple[int, int]]:
    """Return which residue is smaller than which."""
    edges: set[tuple[int, int]] = set()
    primes: set[int] = set()
    for a, b, order, prime in comparisons:
        x, y, way = a[trial].ravel(), b[trial].ravel(), order[trial].ravel()
        known = (way != 0) & (x < UNDEFINED) & (y < UNDEFINED)
        low, high = np.where(way > 0, x, y)[known], np.where(way > 0, y, x)[known]
        edges |= set(zip(low.tolist(), high.tolist(), strict=True))
        # What is smaller is, with the other sign, larger.
        low, high = (np.uint64(prime) - one for one in (high, low))
        edges |= set(zip((low % np.uint64(prime)).tolist(), (high % np.uint64(prime)).tolist(), strict=True))
        primes.add(prime)
    met = {number for edge in edges for number in edge}
    for values in nonnegative:
        positive = {number for number in values[:, trial].ravel().tolist() if 0 < number < UNDEFINED}
        edges |= {(0, number) for number in positive & met}
        edges |= {(prime - number, 0) for prime in primes for number in positive if prime - number in met}
    return edges


def _shifted(edges: set[tuple[int, int]], shifts: Mapping[int, set[int]]) -> set[tuple[int, int]]:
    """Return which numbers are smaller than others that are more by a difference of two constants."""
    met = {number for edge in edges for number in edge}
    return {
        (number, (number + step) % prime)
        for prime, steps in shifts.items()
        for step in steps
        for number in met
        if number < prime and (number + step) % prime in met
    }


def _risen(
    field: Field, trial: int, edges: set[tuple[int, int]], rising: Sequence[tuple[str, Residues, Residues]]
) -> set[tuple[int, int]]:
    """Return the orders of results that follow from those of arguments, and the other way round."""
    found: set[tuple[int, int]] = set()
    known: dict[str, dict[int, int]] = {}
    for name, arguments, results in rising:
        x, y = np.broadcast_arrays(arguments[0, trial], results[0, trial])
        fixed = [int(field.const(one)[0, 0]) for one in RISING[name]]
        own = known.setdefault(name, {fixed[0]: fixed[1]})
        own |= zip(x.ravel().tolist(), y.ravel().tolist(), strict=True)
    for own in known.values():
        back = {y: x for x, y in own.items()}
        found |= {(own[a], own[b]) for a, b in edges if a in own and b in own}
        found |= {(back[a], back[b]) for a, b in edges if a in back and b in back}
    return {(a, b) for a, b in found if max(a, b) < UNDEFINED}


def _ladder(ladders: Sequence[Sequence[int]]) -> set[tuple[int, int]]:
    return {edge for ladder in ladders for edge in pairwise(ladder)}


def _circular(edges: set[tuple[int, int]]) -> bool:
    """Return whether some number is, by several steps, smaller than itself."""
    below: dict[int, set[int]] = {}
    waiting: dict[int, int] = {}
    for low, high in edges:
        below.setdefault(low, set()).add(high)
        waiting[high] = waiting.get(high, 0) + 1
        waiting.setdefault(low, 0)
    free = [number for number, count in waiting.items() if not count]
    left = len(waiting)
    while free:
        left -= 1
        for high in below.get(free.pop(), ()):
            waiting[high] -= 1
            if not waiting[high]:
                free.append(high)
    return left > 0


class _Signs:
    """Scalars whose values say whether a number is surely not negative; True only where that is certain."""

    def const(self, value: Fraction) -> bool:
        return value >= 0

    def infinity(self) -> bool:
        return True

    def add(self, a: bool, b: bool) -> bool:
        return a and b

    def mul(self, a: bool, b: bool) -> bool:
        return a and b

    def neg(self, a: bool) -> bool:
        return False

    def inv(self, a: bool) -> bool:
        return a

    def exp(self, a: bool) -> bool:
        return True

    def sqrt(self, a: bool) -> bool:
        return True

    def maximum(self, a: bool, b: bool) -> bool:
        return a or b

    def less(self, a: bool, b: bool) -> bool:
        return True

    equal = less

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
        else:
            known.append(all(args))  # sums, maxima and views; sizes, indices and infinity have no operands
    return tuple(known)
