"""The space that measures the engine: all small programs, merged when they compute the same set of values."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from superopt.errors import InputError
from superopt.frontier.engine.interface import Keys, Rows

__all__ = ["OPERATORS", "Programs"]

Words = NDArray[np.uint64]

PRIME = (1 << 31) - 1  # Mersenne: reduces with a shift and an addition
_P = np.uint64(PRIME)
_BITS = np.uint64(31)
_OPERAND_BITS = 5
OPERATORS = ("add", "mul", "max", "sub")
COMMUTATIVE = ("add", "mul", "max")


@dataclass(frozen=True, slots=True)
class Programs:
    """All straight-line programs of up to `nodes` operator nodes over `variables` variables.

    A row has one integer per node, 0 where there is none yet, else 1 + (operator, left, right); operands
    count the variables first and then the nodes. A node is added only if its value differs from all that
    the program has. The key of a program hashes the *set* of its values at `points` random points modulo
    2^31 - 1, so programs that differ in the order of their nodes or by an identity of the field (such as
    a*(b+c) = a*b + a*c) are one state. `max` takes the larger residue, `sub` is left minus right.
    """

    variables: int = 3
    nodes: int = 3
    operators: tuple[str, ...] = OPERATORS
    points: int = 3
    seed: int = 0
    name: str = "programs"
    _made: dict[str, int] = field(default_factory=lambda: {"same value": 0}, compare=False, repr=False)

    def __post_init__(self) -> None:
        if self.variables < 1 or self.nodes < 1 or self.points < 1:
            raise InputError(
                f"Programs has {self.variables} variables, {self.nodes} nodes, {self.points} points; "
                "give at least 1 of each"
            )
        if self.variables + self.nodes > 1 << _OPERAND_BITS:
            raise InputError(
                f"Programs has {self.variables} variables and {self.nodes} nodes; "
                f"give at most {1 << _OPERAND_BITS} together"
            )
        unknown = [name for name in self.operators if name not in OPERATORS]
        if unknown or not self.operators or len(set(self.operators)) < len(self.operators):
            raise InputError(f"Programs.operators is {self.operators}; give some of {OPERATORS}, each once")

    @property
    def width(self) -> int:
        """The number of integers in a row: one for each node."""
        return self.nodes

    @property
    def shared(self) -> bool:
        """Whether workers must know all programs: no, each is extended by itself."""
        return False

    def fingerprint(self) -> str:
        """Return all parameters as text."""
        operators = ",".join(self.operators)
        return (
            f"programs variables={self.variables} nodes={self.nodes} operators={operators} "
            f"points={self.points} seed={self.seed}"
        )

    def roots(self) -> Rows:
        """Return the empty program."""
        return np.zeros((1, self.nodes), dtype=np.int64)

    def absorb(self, rows: Rows, keys: Keys) -> None:
        """Do nothing: the space is not shared."""

    def counts(self) -> dict[str, int]:
        """Return how many nodes were not added because the program has their value already."""
        return dict(self._made)

    def expand(self, rows: Rows) -> Rows:
        """Return each program with one more node, in all ways."""
        sizes = np.count_nonzero(rows, axis=1)
        made = [self._extended(rows[sizes == size], int(size)) for size in np.unique(sizes)]
        return np.concatenate(made) if made else rows[:0]

    def keys(self, rows: Rows) -> Keys:
        """Return two words, each a sum of hashes of the values: the order of the nodes does not matter."""
        keys = np.zeros((len(rows), 2), dtype=np.uint64)
        sizes = np.count_nonzero(rows, axis=1)
        for size in np.unique(sizes):
            lines = slice(None) if (sizes == size).all() else np.flatnonzero(sizes == size)
            values = self._values(rows[lines], int(size))[:, self.variables :]
            for word in range(2):
                keys[lines, word] = _mixed(values, self._weights(word)).sum(axis=0, dtype=np.uint64)
        return keys

    def _weights(self, word: int) -> Words:
        random = np.random.default_rng((self.seed, 1 + word))
        return random.integers(1 << 62, 1 << 64, self.points, dtype=np.uint64) | np.uint64(1)

    def _values(self, rows: Rows, size: int) -> Words:
        """Return the values (points, variables and nodes, programs) of programs with `size` nodes."""
        count = len(rows)
        values = np.empty((self.points, self.variables + size, count), dtype=np.uint64)
        random = np.random.default_rng((self.seed, 0))
        inputs = random.integers(1, PRIME, (self.points, self.variables, 1), dtype=np.uint64)
        values[:, : self.variables] = inputs
        lines = np.arange(count)
        flat = values.reshape(self.points, -1)
        for at in range(size):
            code = rows[:, at] - 1
            left = ((code >> _OPERAND_BITS) & 31) * count + lines
            right = (code & 31) * count + lines
            operator = code >> (2 * _OPERAND_BITS)
            one, other = flat.take(left, axis=1), flat.take(right, axis=1)
            result = values[:, self.variables + at]
            result[...] = _apply(self.operators[0], one, other)
            for number, name in enumerate(self.operators[1:], 1):
                np.copyto(result, _apply(name, one, other), where=operator == number)
        return values

    def _extended(self, rows: Rows, size: int) -> Rows:
        if size == self.nodes or not len(rows):
            return rows[:0]
        values = self._values(rows, size)
        weights = self._weights(0)
        existing = _mixed(values, weights)
        made = []
        for number, name in enumerate(self.operators):
            left, right = self._operands(name, self.variables + size)
            if not len(left):
                continue
            hashes = _mixed(_apply(name, values[:, left], values[:, right]), weights)
            fresh = hashes != existing[0]
            for old in existing[1:]:
                fresh &= hashes != old
            codes = 1 + ((number << 2 * _OPERAND_BITS) | (left << _OPERAND_BITS) | right)
            way, line = np.nonzero(fresh)
            self._made["same value"] += fresh.size - len(way)
            extended = rows.take(line, axis=0)
            extended[:, size] = codes.take(way)
            made.append(extended)
        return np.concatenate(made) if made else rows[:0]

    @staticmethod
    def _operands(name: str, count: int) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        left, right = np.divmod(np.arange(count * count, dtype=np.int64), count)
        wanted = left <= right if name in COMMUTATIVE else left != right  # x - x would be 0 for every x
        return left[wanted], right[wanted]


def _reduced(values: Words) -> Words:
    """Return values below 2^63 modulo the prime."""
    values = (values & _P) + (values >> _BITS)
    values = (values & _P) + (values >> _BITS)
    return _wrapped(values)


def _wrapped(values: Words) -> Words:
    """Return values below twice the prime modulo the prime."""
    reduced: Words = np.minimum(
        values, values - _P
    )  # the difference wraps around where the value is below the prime
    return reduced


def _apply(name: str, left: Words, right: Words) -> Words:
    if name == "mul":
        return _reduced(left * right)
    if name == "max":
        return np.maximum(left, right)
    result = left + right if name == "add" else left + (_P - right)
    return _wrapped(result)


def _mixed(values: Words, weights: Words) -> Words:
    """Return a hash of the values at all points; the first dimension is the points."""
    mixed: Words = values[0] * weights[0]
    for value, weight in zip(values[1:], weights[1:], strict=True):
        mixed += value * weight
    mixed ^= mixed >> np.uint64(29)
    mixed *= np.uint64(0xBF58476D1CE4E5B9)
    mixed ^= mixed >> np.uint64(32)
    mixed *= np.uint64(0x94D049BB133111EB)
    mixed ^= mixed >> np.uint64(31)
    return mixed
