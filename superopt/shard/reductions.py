"""Reduction programs: sequences of collectives that leave the sum over all devices on every device.

A **state** says, for each device and each chunk of the tensor, which devices' contributions the device holds
in that chunk. A **step** is a collective among the devices of some groups: those that differ in some
neighbouring levels only. A collective has a precondition, so that no contribution is counted twice and none
is lost, and its effect on states is exact. The space of states is explored by the search engine.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache
from math import prod
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from superopt.errors import InputError
from superopt.frontier.engine import Keys, Limits, Rows, explore

__all__ = [
    "COLLECTIVES",
    "Program",
    "ReductionSpace",
    "Step",
    "applied",
    "goal_state",
    "groups",
    "programs",
    "start_state",
    "summed",
]

COLLECTIVES = ("all-reduce", "reduce-scatter", "all-gather", "reduce", "broadcast")
_MOST_LEVELS = 4  # the states of five levels are too many to explore

State = NDArray[np.int64]
"""The contributions of each device and chunk as bits: int64[devices, chunks]."""


@dataclass(frozen=True, slots=True, order=True)
class Step:
    """A collective in groups of devices that differ at the levels from `first` to `last`, which is left out.

    With `masters`, only the first device of each part takes part where deeper levels exist.
    """

    collective: str
    first: int
    last: int
    masters: bool = False

    def form(self, levels: int) -> str:
        """Return the form: inside a group, in parallel across groups, or by the masters of groups."""
        return "masters" if self.masters else "inside" if self.last == levels else "parallel"

    def text(self, names: tuple[str, ...]) -> str:
        """Return the step in words."""
        over = "+".join(names[self.first : self.last])
        return f"{self.collective}({over}{', masters' if self.masters else ''})"


def steps(levels: int) -> tuple[Step, ...]:
    """Return all steps of a machine with so many levels."""
    found = []
    for first in range(levels):
        for last in range(first + 1, levels + 1):
            for masters in (False, True)[: 1 + (last < levels)]:
                found += [Step(name, first, last, masters) for name in COLLECTIVES]
    return tuple(found)


Program: TypeAlias = tuple[Step, ...]


@lru_cache(maxsize=4096)
def groups(counts: tuple[int, ...], step: Step) -> tuple[tuple[int, ...], ...]:
    """Return the devices of each group of a step, in order."""
    grid = np.arange(prod(counts)).reshape(
        prod(counts[: step.first]), prod(counts[step.first : step.last]), prod(counts[step.last :])
    )
    across = grid.transpose(0, 2, 1)
    chosen = across[:, :1] if step.masters else across
    return tuple(tuple(map(int, row)) for row in chosen.reshape(-1, grid.shape[1]))


def start_state(counts: tuple[int, ...]) -> State:
    """Return the state in which each device has its own contribution to all chunks."""
    devices = prod(counts)
    bits: State = np.left_shift(np.int64(1), np.arange(devices, dtype=np.int64))
    return np.repeat(bits[:, None], devices, axis=1)


def goal_state(counts: tuple[int, ...]) -> State:
    """Return the state in which every device has all contributions to all chunks."""
    devices = prod(counts)
    return np.full((devices, devices), (1 << devices) - 1, dtype=np.int64)


def applied(state: State, counts: tuple[int, ...], step: Step) -> State | None:
    """Return the state after a step, or None where its precondition does not hold."""
    made = state.copy()
    for group in groups(counts, step):
        after = _EFFECTS[step.collective](state[list(group)])
        if after is None:
            return None
        made[list(group)] = after
    return made


def _summed(held: State) -> State | None:
    """Return the union of contributions, if all devices hold the same chunks and nothing counts twice."""
    full = held != 0
    if not full[0].any() or (full != full[0]).any():
        return None
    union: State = np.bitwise_or.reduce(held, axis=0)
    # Sums without a carry are unions: each bit occurs once.
    return union if bool((held.sum(axis=0) == union).all()) else None


def _all_reduce(held: State) -> State | None:
    union = _summed(held)
    return None if union is None else np.repeat(union[None], len(held), axis=0)


def _reduce_scatter(held: State) -> State | None:
    union = _summed(held)
    if union is None:
        return None
    chunks = np.flatnonzero(union)
    if len(chunks) % len(held):
        return None
    made = np.zeros_like(held)
    for device, part in enumerate(np.split(chunks, len(held))):
        made[device, part] = union[part]
    return made


def _all_gather(held: State) -> State | None:
    counts = (held != 0).sum(axis=1)
    if not counts[0] or (counts != counts[0]).any() or ((held != 0).sum(axis=0) > 1).any():
        return None
    return np.repeat(held.sum(axis=0)[None], len(held), axis=0)


def _reduce(held: State) -> State | None:
    union = _summed(held)
    if union is None:
        return None
    made = np.zeros_like(held)
    made[0] = union
    return made


def _broadcast(held: State) -> State | None:
    """Return the first device's state for all, if each other device holds a part of it and not all of it."""
    if ((held[1:] | held[0]) != held[0]).any() or (held[1:] == held[0]).all(axis=1).any():
        return None
    return np.repeat(held[:1], len(held), axis=0)


_EFFECTS = {
    "all-reduce": _all_reduce,
    "reduce-scatter": _reduce_scatter,
    "all-gather": _all_gather,
    "reduce": _reduce,
    "broadcast": _broadcast,
}


def moves(state: State, counts: tuple[int, ...]) -> Iterator[tuple[Step, State]]:
    """Yield each step that may be taken in a state, with the state after it."""
    for step in steps(len(counts)):
        after = applied(state, counts, step)
        if after is not None and (after != state).any():
            yield step, after


@dataclass(frozen=True)
class ReductionSpace:
    """All states that collectives lead to on a machine with levels of these sizes."""

    sizes: tuple[int, ...]
    name: str = "reductions"
    shared: bool = False

    @property
    def width(self) -> int:
        """The number of integers in a row: the contributions of each device and chunk."""
        return prod(self.sizes) ** 2

    def fingerprint(self) -> str:
        """Return the space and its parameters as text."""
        return f"reductions on {'x'.join(map(str, self.sizes))}"

    def roots(self) -> Rows:
        """Return the state before the reduction."""
        return start_state(self.sizes).reshape(1, -1)

    def expand(self, rows: Rows) -> Rows:
        """Return the states that one more step leads to."""
        devices = prod(self.sizes)
        found = [
            after.reshape(1, -1) for row in rows for _, after in moves(row.reshape(devices, -1), self.sizes)
        ]
        return np.concatenate(found) if found else rows[:0]

    def keys(self, rows: Rows) -> Keys:
        """Return two sums of hashed contributions, each with weights of its own."""
        random = np.random.default_rng(0)
        weights = random.integers(1 << 62, 1 << 63, (self.width, 2), dtype=np.uint64) | np.uint64(1)
        mixed = np.ascontiguousarray(rows).view(np.uint64) * np.uint64(0x9E3779B97F4A7C15)
        mixed ^= mixed >> np.uint64(31)
        mixed *= np.uint64(0xBF58476D1CE4E5B9)
        mixed ^= mixed >> np.uint64(29)
        return np.stack([(mixed * weights[:, word]).sum(axis=1) for word in range(2)], axis=1)

    def absorb(self, rows: Rows, keys: Keys) -> None:
        """Do nothing: the space keeps no knowledge of its own between levels."""

    def counts(self) -> dict[str, int]:
        """Return no counts: the space prunes nothing."""
        return {}


@lru_cache(maxsize=64)
def programs(levels: int, longest: int = 5) -> tuple[Program, ...]:
    """Return all programs of at most so many steps for a machine with so many levels, the shortest first.

    They are found with two parts at each level. Preconditions and effects speak of groups and of equal shares
    of chunks only, so that a program for two parts is one for any number; `summed` runs it at real size.
    """
    if levels > _MOST_LEVELS:
        raise InputError(
            f"a reduction along {levels} levels of a machine has too many programs to search; the nearest"
            f" choice that works: {_MOST_LEVELS} levels, with neighbouring ones joined"
        )
    sizes = (2,) * levels
    found = explore(ReductionSpace(sizes), limits=Limits(levels=longest - 1))
    devices = prod(sizes)
    # The engine keeps states but not the steps between them, so the steps are taken once more here.
    goal = goal_state(sizes).tobytes()
    arcs = {
        row.tobytes(): [(step, after.tobytes()) for step, after in moves(row.reshape(devices, -1), sizes)]
        for row in found.rows
    }
    near = _distances(arcs, goal)
    made: list[Program] = []

    def extend(state: bytes, taken: Program) -> None:
        if state == goal:
            made.append(taken)
            return
        for step, after in arcs.get(state, ()):
            if len(taken) + 1 + near.get(after, longest) <= longest:
                extend(after, (*taken, step))

    extend(start_state(sizes).tobytes(), ())
    return tuple(sorted(made, key=lambda program: (len(program), program)))


def _distances(arcs: dict[bytes, list[tuple[Step, bytes]]], goal: bytes) -> dict[bytes, int]:
    """Return how many steps each state is from the goal."""
    found = {goal: 0}
    changed = True
    while changed:
        changed = False
        for state, ways in arcs.items():
            best = min((found[after] + 1 for _, after in ways if after in found), default=None)
            if best is not None and best < found.get(state, best + 1):
                found[state] = best
                changed = True
    return found


def summed(program: Program, counts: tuple[int, ...]) -> bool:
    """Return whether a program leaves the sum of random numbers on every device, at the real size.

    Numbers are integers modulo 2^64, so that a contribution that is lost or counted twice shows.
    """
    devices = prod(counts)
    values = np.random.default_rng(0).integers(0, 1 << 63, (devices, devices), dtype=np.uint64)
    total = values.sum(axis=0)
    held = np.ones((devices, devices), dtype=np.bool_)
    for step in program:
        for group in map(list, groups(counts, step)):
            values[group], held[group] = _moved(step.collective, values[group], held[group])
    return bool(held.all() and (values == total).all())


def _moved(
    collective: str, values: NDArray[np.uint64], held: NDArray[np.bool_]
) -> tuple[NDArray[np.uint64], NDArray[np.bool_]]:
    """Return the numbers and the chunks that a group's devices hold after a collective."""
    if collective == "broadcast":
        return np.broadcast_to(values[0], values.shape), np.broadcast_to(held[0], held.shape)
    union = held.any(axis=0)
    total = np.where(held, values, np.uint64(0)).sum(axis=0)
    kept = np.zeros_like(held)
    if collective == "reduce":
        kept[0] = union
    elif collective == "reduce-scatter":
        for device, part in enumerate(np.array_split(np.flatnonzero(union), len(held))):
            kept[device, part] = True
    else:
        kept[:] = union
    return np.where(kept, total, values), kept
