"""Simulator: how long a reduction program takes on a machine, from bytes, links and their contention.

All groups of a step run at once. The bytes of a step are laid on the links that they cross: a message between
devices that first differ at some level leaves the sender's part of that level, and each part below it, and
enters those of the receiver. A step takes as long as its busiest link, and the latency of each round.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import ceil, log2, prod

import numpy as np
from numpy.typing import NDArray

from superopt.shard.placements import Grid
from superopt.shard.reductions import Program, Step, groups, programs

__all__ = ["Reduction", "Timed", "all_reduce", "best_program", "ranked_programs"]


def all_reduce(levels: int) -> Program:
    """Return the program of one all-reduce over all levels."""
    return (Step("all-reduce", 0, levels),)


@dataclass(frozen=True, slots=True)
class Timed:
    """A program of an axis and the seconds that it is simulated to take."""

    program: Program
    seconds: float


class Reduction:
    """A reduction over some levels of a grid; the devices that differ elsewhere reduce at the same time."""

    def __init__(self, grid: Grid, own: tuple[int, ...]) -> None:
        self.grid = grid
        self.own = own
        self.counts = tuple(grid.counts[at] for at in own)
        rest = [at for at in range(len(grid.counts)) if at not in own]
        numbers = np.arange(prod(grid.counts)).reshape(grid.counts)
        # int[groups, devices of a group]
        self.members = numbers.transpose(*rest, *own).reshape(-1, prod(self.counts))
        machine = grid.machine
        places = machine.places
        self.parts = [
            np.unique(places[:, : at + 1], axis=0, return_inverse=True)[1].ravel()
            for at in range(len(machine.levels))
        ]

        self._known: dict[tuple[Step, float], float] = {}

    def seconds(self, program: Program, size: float) -> float:
        """Return the seconds of a program on so many bytes on each device."""
        held, total = 1.0, 0.0
        for step in program:
            known = step, held * size
            if known not in self._known:
                self._known[known] = self.step_seconds(*known)
            total += self._known[known]
            held = _held_after(step, held, self.counts)
        return total

    def step_seconds(self, step: Step, size: float) -> float:
        """Return the seconds of one step, on which each device that takes part enters with so many bytes."""
        return self._step(step, size)[0]

    def loads(self, program: Program, size: float) -> NDArray[np.float64]:
        """Return the bytes that a program puts on the busiest link of each level of the machine."""
        held, total = 1.0, np.zeros(len(self.grid.machine.levels))
        for step in program:
            total += self._step(step, held * size)[1]
            held = _held_after(step, held, self.counts)
        return total

    def _step(self, step: Step, size: float) -> tuple[float, NDArray[np.float64]]:
        """Return the seconds of one step by its faster algorithm, and the bytes on the busiest links."""
        found = np.array(groups(self.counts, step))
        many = found.shape[1]
        if many < 2:
            return 0.0, np.zeros(len(self.grid.machine.levels))
        whole = self.members[:, found].reshape(-1, many)
        match step.collective:
            case "all-reduce":
                ways = [self._ring(whole, 2, size / many), self._tree(whole, 2, size)]
            case "reduce-scatter":
                ways = [self._ring(whole, 1, size / many)]
            case "all-gather":
                ways = [self._ring(whole, 1, size)]
            case _:
                ways = [self._tree(whole, 1, size), self._ring(whole, 2, size / many)]
        seconds, loads = min(ways, key=lambda way: way[0])
        return self.grid.machine.device.begin_s + seconds, loads

    def _ring(self, whole: NDArray[np.int64], turns: int, share: float) -> tuple[float, NDArray[np.float64]]:
        """Return the seconds of some turns of a ring, in whose rounds all send a share to the next device."""
        rounds = turns * (whole.shape[1] - 1)
        loads, latency = self._flows(whole.ravel(), np.roll(whole, -1, axis=1).ravel())
        return rounds * (latency + share * self._slowest(loads)), rounds * share * loads

    def _tree(self, whole: NDArray[np.int64], turns: int, size: float) -> tuple[float, NDArray[np.float64]]:
        """Return the seconds of some turns of a tree, in whose rounds half of the senders send all."""
        total, carried = 0.0, np.zeros(len(self.grid.machine.levels))
        for at in range(ceil(log2(whole.shape[1]))):
            far = 1 << at
            senders = whole[:, far :: 2 * far]
            receivers = whole[:, :: 2 * far][:, : senders.shape[1]]
            loads, latency = self._flows(senders.ravel(), receivers.ravel())
            total += turns * (latency + size * self._slowest(loads))
            carried += turns * size * loads
        return total, carried

    def _slowest(self, loads: NDArray[np.float64]) -> float:
        """Return the seconds in which the busiest links carry their messages."""
        speeds = [level.bytes_per_s for level in self.grid.machine.levels]
        return float((loads / np.array(speeds)).max())

    def _flows(
        self, senders: NDArray[np.int64], receivers: NDArray[np.int64]
    ) -> tuple[NDArray[np.float64], float]:
        """Return the messages on the busiest link of each level, and the longest latency."""
        latency, loads = 0.0, np.zeros(len(self.parts))
        crossing = np.zeros(senders.size, dtype=np.bool_)
        for at, (level, part) in enumerate(zip(self.grid.machine.levels, self.parts, strict=True)):
            crossing |= part[senders] != part[receivers]
            if not crossing.any():
                continue
            latency = max(latency, level.latency_s)
            for ends in (senders, receivers):
                users = part[ends[crossing]] if level.shared else ends[crossing]
                loads[at] = max(loads[at], float(np.bincount(users).max()))
        return loads, latency


def _held_after(step: Step, held: float, counts: tuple[int, ...]) -> float:
    """Return which part of the tensor a device that takes part holds after a step."""
    many = prod(counts[step.first : step.last])
    if step.collective == "reduce-scatter":
        return held / many
    return held * many if step.collective == "all-gather" else held


def ranked_programs(grid: Grid, own: tuple[int, ...], size: float, longest: int = 5) -> tuple[Timed, ...]:
    """Return all programs of a reduction over some levels of a grid, the fastest first."""
    own = tuple(at for at in own if grid.counts[at] > 1)
    if not own:
        return (Timed((), 0.0),)
    reduction = Reduction(grid, own)
    found = [Timed(program, reduction.seconds(program, size)) for program in programs(len(own), longest)]
    return tuple(sorted(found, key=lambda one: (one.seconds, len(one.program), one.program)))


def best_program(grid: Grid, own: tuple[int, ...], size: float) -> Timed:
    """Return the fastest program of a reduction."""
    return ranked_programs(grid, own, size)[0]
