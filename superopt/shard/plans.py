"""Plans: sharded programs with what they take, and how a chain of choices is written as instructions."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TypeAlias

from superopt.ir import Graph
from superopt.shard.costs import Costs
from superopt.shard.machine import Machine
from superopt.shard.sharded import Call, Instruction, Placement, Sharded

__all__ = ["Choice", "Event", "Plan", "Plans", "written"]

Event: TypeAlias = int | Call
"""What is done at one point: a step of the graph, by its value, or a call."""


@dataclass(frozen=True, slots=True)
class Plan:
    """A sharded program, the seconds it is simulated to take, and the bytes on each device.

    `moving_s` are the seconds in which data move; those that computing hides are in `seconds` once only.
    """

    sharded: Sharded
    seconds: float
    moving_s: float
    bytes: int


@dataclass(frozen=True, slots=True)
class Plans:
    """The plans found, the fastest first, and whether none was dropped on the way."""

    graph: Graph
    machine: Machine
    found: tuple[Plan, ...]
    complete: bool

    @property
    def best(self) -> Plan:
        """The fastest plan."""
        return self.found[0]


@dataclass(frozen=True, slots=True)
class Choice:
    """What was chosen for a step or a call: how its operands and its values lie; the choices before it."""

    event: Event
    operands: tuple[Placement, ...]
    placements: tuple[Placement, ...]
    before: Choice | None


def written(
    costs: Costs, pins: Mapping[int, Placement], last: Choice | None, placed: Sequence[Placement]
) -> Sharded:
    """Return the program of a chain of choices, whose results leave in these placements."""
    choices: list[Choice] = []
    while last is not None:
        choices.insert(0, last)
        last = last.before
    writer = _Writer(costs, pins)
    read: dict[int, int] = {}  # what calls read, by output of the graph
    for choice in choices:
        writer.take(choice, read)
    layout = costs.layout
    left = iter(placed)
    outputs = tuple(
        read[at] if at in read else writer.having(output.value, next(left))
        for at, output in enumerate(layout.graph.outputs)
    )
    return Sharded(layout, tuple(writer.made), outputs)


class _Writer:
    """Writes the instructions of a plan; a value is moved to a placement once."""

    def __init__(self, costs: Costs, pins: Mapping[int, Placement]) -> None:
        self.costs, self.pins = costs, pins
        self.made: list[Instruction] = []
        self.places: dict[int, dict[Placement, int]] = {}

    def take(self, choice: Choice, read: dict[int, int]) -> None:
        """Add a step, or a call with all its results, and note what the call reads."""
        layout, event = self.costs.layout, choice.event
        if isinstance(event, int):
            values = layout.graph.step_at(event).inputs
            self.add(Instruction("step", event, choice.placements[0], self._all(values, choice.operands)))
            return
        inputs = self._all(layout.read_by(event), choice.operands)
        read |= zip(event.arguments, inputs, strict=True)
        for value, placement in zip(layout.made_of(event), choice.placements, strict=True):
            self.add(Instruction("call", value, placement, inputs))

    def _all(self, values: Sequence[int], placements: Sequence[Placement]) -> tuple[int, ...]:
        return tuple(self.having(*pair) for pair in zip(values, placements, strict=True))

    def add(self, one: Instruction) -> int:
        """Add an instruction and return its position."""
        self.made.append(one)
        self.places.setdefault(one.value, {})[one.placement] = len(self.made) - 1
        return len(self.made) - 1

    def having(self, value: int, wanted: Placement) -> int:
        """Return the instruction that leaves a value in a placement."""
        known = self.places.setdefault(value, {})
        if wanted in known:
            return known[wanted]
        if value in self.costs.nullary:
            return self.add(Instruction("step", value, self.costs.whole))
        if not known:
            start = self.pins.get(value, wanted)
            at = self.add(Instruction("enter", value, start))
            if start == wanted:
                return at
        way = self.costs.cheapest(value, frozenset(known), wanted)
        assert way is not None
        at = known[way[1]]
        change = self.costs.changed(value, way[1], wanted)
        assert change is not None
        for (kind, dims, axis, onto, how), placement in change[1]:
            at = self.add(Instruction(kind, value, placement, (at,), dims, axis, onto, how))
        return at
