"""Search: the shardings of a program, step by step, by dynamic programming over how its live values lie.

A state says in which placements each live value is to be had; among the ways to the same state only those
are kept that no other way beats in both time and memory. Where memory is plenty, a state is also dropped if a
faster one can be turned into it in the time between them. Tensors that enter lie where they are first read,
as the caller chooses, unless they are pinned. Where states are more than a limit, the rest is dropped, and
the result says so.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import lru_cache
from itertools import product

from superopt.errors import InputError
from superopt.ir import Graph, stabilize, value_names
from superopt.shard.costs import Costs, mesh_of, with_moves_early
from superopt.shard.machine import Machine
from superopt.shard.sharded import (
    Instruction,
    Layout,
    Placement,
    Rule,
    Sharded,
    check_mesh,
    checked_pins,
    is_partial,
    layout_of,
    rules,
)

__all__ = ["Plan", "Plans", "plan_shardings"]

_NULLARY = frozenset({"const", "infinity", "size"})
_PLENTY = 4  # times the bytes of all values, each held whole: so much memory limits no plan
_WAYS = 4  # the most ways to one state; no other way beats a kept one in both time and memory


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
class _Choice:
    """What was chosen for a step: how its operands and its value lie; the choices before it."""

    value: int
    operands: tuple[Placement, ...]
    placement: Placement
    before: _Choice | None


@dataclass(frozen=True, slots=True)
class _Way:
    seconds: float
    moving: float
    entered: int  # bytes of the tensors that entered, which are there from the beginning
    peak: int  # the most bytes of all else at any step
    choice: _Choice | None


State = tuple[tuple[int, frozenset[Placement]], ...]


@lru_cache(maxsize=1 << 14)
def _only(placement: Placement) -> frozenset[Placement]:
    """Return the set of one placement; equal sets are one object, so that comparing them is fast."""
    return frozenset({placement})


@lru_cache(maxsize=1 << 14)
def _with(places: frozenset[Placement], placement: Placement) -> frozenset[Placement]:
    return places | {placement}


def plan_shardings(
    graph: Graph,
    machine: Machine,
    *,
    pins: Mapping[str, Placement] | None = None,
    memory: float | None = None,
    states: int = 128,
    alternatives: int = 8,
) -> Plans:
    """Return ways to run a graph on all devices of a machine, each level of which is a dimension of the mesh.

    `pins` fixes how inputs and outputs lie; `memory` limits the bytes on each device.
    """
    layout = layout_of(stabilize(graph), mesh_of(machine))
    search = _Search(layout, machine, pins or {}, machine.device.bytes if memory is None else memory, states)
    check_mesh(layout)
    return Plans(graph, machine, search.run(alternatives), search.complete)


class _Search:
    def __init__(
        self, layout: Layout, machine: Machine, pins: Mapping[str, Placement], memory: float, states: int
    ) -> None:
        self.layout, self.graph, self.memory, self.most = layout, layout.graph, memory, states
        self.costs = Costs(layout, machine)
        self.dims = range(len(layout.mesh.sizes))
        self.cheapest: dict[tuple[int, frozenset[Placement], Placement], tuple[float, Placement] | None] = {}
        self.whole: Placement = (None,) * len(self.dims)
        self.complete = True
        self._owed = lru_cache(maxsize=None)(self._seconds_owed)
        self._held = lru_cache(maxsize=None)(self._bytes_held)
        self.pins = checked_pins(layout, pins)
        whole = sum(self.costs.bytes(value, self.whole) for value in range(len(self.costs.axes)))
        self.plenty = memory >= _PLENTY * whole
        self.least = 0  # the fewest bytes that any placement needed, where memory was too short
        self.nullary = {at for at, step in self.graph.numbered if step.op in _NULLARY}
        self.last_use = {i: at for at, step in self.graph.numbered for i in step.inputs}
        for output in self.graph.outputs:
            self.last_use[output.value] = len(self.graph.inputs) + len(self.graph.steps)

    def run(self, alternatives: int) -> tuple[Plan, ...]:
        """Return the best plans."""
        ways: dict[State, list[_Way]] = {(): [_Way(0.0, 0.0, 0, 0, None)]}
        for at, _ in self.graph.numbered:
            if at in self.nullary or at not in self.last_use:
                continue
            ways = self._cut(self._after(at, ways))
            if not ways:
                raise InputError(self._too_little(at))
        return self._plans(ways, alternatives)

    def _after(self, at: int, ways: dict[State, list[_Way]]) -> dict[State, list[_Way]]:
        """Return the states after one more step."""
        found: dict[State, list[_Way]] = {}
        step = self.graph.step_at(at)
        choices = [
            (*choice, self.costs.step_seconds(at, *choice), (at, _only(choice[1])))
            for choice in self._choices(at)
        ]
        freed = {i for i in step.inputs if self.last_use[i] == at}
        ways_to_one = 1 if self.plenty else _WAYS
        for state, reached in ways.items():
            rest = tuple(pair for pair in state if pair[0] not in step.inputs)
            live = dict(state)
            held = sum(self._held(*pair) for pair in rest)
            for operands, placement, own, value in choices:
                made = self._taken(live, step.inputs, operands)
                if made is None:
                    continue
                moving, entering, read = made
                needed = held + self._held(*value) + sum(self._held(*pair) for pair in read.items())
                kept = (pair for pair in read.items() if pair[0] not in freed)
                after = (*rest, *kept, value)
                for way in reached:
                    entered = way.entered + entering
                    peak = max(way.peak, needed)
                    if entered + peak > self.memory:
                        self.plenty = False
                        self.least = min(self.least or entered + peak, entered + peak)
                        continue
                    choice = _Choice(at, operands, placement, way.choice)
                    new = _Way(way.seconds + own + moving, way.moving + moving, entered, peak, choice)
                    self.complete &= _keep(found.setdefault(after, []), new, ways_to_one)
        return found

    def _bytes_held(self, value: int, places: frozenset[Placement]) -> int:
        """Return the bytes that a value takes in some placements; tensors that entered are counted apart."""
        return sum(self.costs.bytes(value, one) for one in places) if value >= len(self.graph.inputs) else 0

    def _choices(self, at: int) -> Iterator[tuple[tuple[Placement, ...], Placement]]:
        """Yield how the operands and the value of a step may lie, on all dimensions together."""
        step = self.graph.step_at(at)
        axes = tuple(self.costs.axes[i] for i in step.inputs)
        own: list[list[Rule]] = []
        for dim in self.dims:
            splittable = frozenset(axis for axis, dims in self.layout.splits.items() if dim in dims)
            own.append(list(rules(step, axes, splittable)))
        for chosen in product(*own):
            operands = tuple(tuple(rule[0][i] for rule in chosen) for i in range(len(axes)))
            yield operands, tuple(rule[1] for rule in chosen)

    def _taken(
        self, live: dict[int, frozenset[Placement]], values: tuple[int, ...], operands: tuple[Placement, ...]
    ) -> tuple[float, int, dict[int, frozenset[Placement]]] | None:
        """Return the seconds and bytes to bring operands into these placements, and how they lie then."""
        read: dict[int, frozenset[Placement]] = {}
        seconds, entering = 0.0, 0
        for value, wanted in zip(values, operands, strict=True):
            if value in self.nullary:
                if wanted != self.whole:
                    return None
                continue
            known = read.get(value) or live.get(value)
            if known is None:
                start = self.pins.get(value)
                if start is None and any(map(is_partial, wanted)):
                    return None
                known = _only(wanted if start is None else start)
                entering += sum(self.costs.bytes(value, one) for one in known)
            if wanted not in known:
                way = self.costs_of_change(value, known, wanted)
                if way is None:
                    return None
                seconds += way[0]
                entering += self.costs.bytes(value, wanted) if value < len(self.graph.inputs) else 0
                known = _with(known, wanted)
            read[value] = known
        return seconds, entering, read

    def costs_of_change(
        self, value: int, known: frozenset[Placement], wanted: Placement
    ) -> tuple[float, Placement] | None:
        """Return the least seconds of a change of placement, and where it starts."""
        key = value, known, wanted
        if key not in self.cheapest:
            found = [
                (change[0], start)
                for start in sorted(known, key=str)
                if (change := self.costs.changed(value, start, wanted)) is not None
            ]
            self.cheapest[key] = min(found, key=lambda one: one[0], default=None)
        return self.cheapest[key]

    def _cut(self, ways: dict[State, list[_Way]]) -> dict[State, list[_Way]]:
        """Return the states that are the fastest, and among them some that need the least memory."""
        if self.plenty:
            return self._cut_fast(ways)
        if len(ways) <= self.most:
            return ways
        self.complete = False
        fast = self._fastest(ways)
        small = sorted(
            ways, key=lambda state: min((way.peak + way.entered, way.seconds) for way in ways[state])
        )
        kept = dict.fromkeys(fast[: self.most * 3 // 4] + small[: self.most // 4])
        return {state: ways[state] for state in kept}

    def _cut_fast(self, ways: dict[State, list[_Way]]) -> dict[State, list[_Way]]:
        """Return the fastest states but those that a faster one is turned into in the time between them."""
        kept: dict[State, list[_Way]] = {}
        for state in self._fastest(ways):
            (way,) = ways[state]
            if any(self._becomes(other, state, way.seconds - own.seconds) for other, (own,) in kept.items()):
                continue
            if len(kept) == self.most:
                self.complete = False
                break
            kept[state] = [way]
        return kept

    def _fastest(self, ways: dict[State, list[_Way]]) -> list[State]:
        """Return the states by the seconds of their fastest way, and those that their values still owe."""
        seconds = {
            state: min(way.seconds for way in own) + sum(self._owed(*pair) for pair in state)
            for state, own in ways.items()
        }
        return sorted(ways, key=seconds.__getitem__)

    def _seconds_owed(self, value: int, places: frozenset[Placement]) -> float:
        """Return the seconds in which a value that lies in parts alone is put together, as it must be.

        Without them, a way that puts off its reductions would always look faster than one that has made them.
        """
        if not all(any(map(is_partial, one)) for one in places):
            return 0.0
        changes = (self.costs_of_change(value, places, one) for one in self._final(value, places))
        return min(change[0] for change in changes if change is not None)

    def _becomes(self, state: State, wanted: State, seconds: float) -> bool:
        """Return whether a state can be turned into another one within some seconds."""
        if seconds < 0:
            return False
        for (value, known), (_, places) in zip(state, wanted, strict=True):
            for place in places - known if known is not places else ():
                way = self.costs_of_change(value, known, place)
                if way is None:
                    return False
                seconds -= way[0]
                if seconds < 0:
                    return False
        return True

    def _plans(self, ways: dict[State, list[_Way]], alternatives: int) -> tuple[Plan, ...]:
        ends: list[tuple[_Way, list[Placement]]] = []
        for state, reached in ways.items():
            live = dict(state)
            placed: list[Placement] = []
            moving = 0.0
            for output in self.graph.outputs:
                known = live.get(output.value, frozenset({self.pins.get(output.value, self.whole)}))
                pinned = self.pins.get(-1 - self.graph.outputs.index(output))
                wanted = [pinned] if pinned is not None else self._final(output.value, known)
                costs = [
                    (change[0], str(one), one)
                    for one in wanted
                    if (change := self.costs_of_change(output.value, known, one)) is not None
                ]
                if not costs:
                    break
                best = min(costs)
                moving += best[0]
                placed.append(best[2])
            else:
                for way in reached:
                    own = _Way(way.seconds + moving, way.moving + moving, way.entered, way.peak, way.choice)
                    ends.append((own, placed))
        ends.sort(key=lambda end: (end[0].seconds, end[0].entered + end[0].peak))
        plans: list[Plan] = []
        self.least = 0
        for way, placed in ends:
            plans += self._in_order(self._written(way.choice, placed), way.moving)
            if len(plans) == alternatives:
                break
        if not plans:
            raise InputError(self._too_little(self.graph.outputs[-1].value))
        return tuple(sorted(plans, key=lambda plan: plan.seconds))

    def _in_order(self, sharded: Sharded, moving: float) -> list[Plan]:
        """Return a program in the order that hides most of what its moves take, if one fits the memory.

        The states know nothing of what moves hold on their way, nor of those that make the outputs.
        """
        orders = (sharded, *(with_moves_early(sharded, inputs=inputs) for inputs in (False, True)))
        plans = [Plan(one, self.costs.timed(one).seconds, moving, self.costs.peak(one)) for one in orders]
        least = min(plan.bytes for plan in plans)
        self.least = min(self.least or least, least)
        fits = [plan for plan in plans if plan.bytes <= self.memory]
        return [min(fits, key=lambda plan: plan.seconds)] if fits else []

    def _final(self, value: int, known: frozenset[Placement]) -> list[Placement]:
        """Return placements in which an output may leave: as it lies, with partial values put together."""
        found: list[Placement] = []
        axes = sorted(self.costs.axes[value])
        for one in sorted(known, key=str):
            ways = [
                [None, *(axis for axis in axes if dim in self.layout.splits[axis])]
                if is_partial(tag)
                else [tag]
                for dim, tag in enumerate(one)
            ]
            found += [tuple(way) for way in product(*ways)]
        return found

    def _written(self, last: _Choice | None, placed: list[Placement]) -> Sharded:
        """Return the program of a chain of choices."""
        choices: list[_Choice] = []
        while last is not None:
            choices.insert(0, last)
            last = last.before
        writer = _Writer(self)
        for choice in choices:
            step = self.graph.step_at(choice.value)
            inputs = tuple(
                writer.having(value, wanted)
                for value, wanted in zip(step.inputs, choice.operands, strict=True)
            )
            writer.add(Instruction("step", choice.value, choice.placement, inputs))
        outputs = tuple(
            writer.having(output.value, placement)
            for output, placement in zip(self.graph.outputs, placed, strict=True)
        )
        return Sharded(self.layout, tuple(writer.made), outputs)

    def _too_little(self, at: int) -> str:
        names = value_names(self.graph)
        return (
            f"memory: {names[at]} does not fit on any placement found, which take at least "
            f"{self.least / 1e9:.3g} GB on each device of {self.memory / 1e9:.3g} GB; the nearest choice "
            f"that works: {self.least / 1e9:.3g} GB or more devices"
        )


class _Writer:
    """Writes the instructions of a plan; a value is moved to a placement once."""

    def __init__(self, search: _Search) -> None:
        self.search = search
        self.made: list[Instruction] = []
        self.places: dict[int, dict[Placement, int]] = {}

    def add(self, one: Instruction) -> int:
        """Add an instruction and return its position."""
        self.made.append(one)
        self.places.setdefault(one.value, {})[one.placement] = len(self.made) - 1
        return len(self.made) - 1

    def having(self, value: int, wanted: Placement) -> int:
        """Return the instruction that leaves a value in a placement."""
        search = self.search
        known = self.places.setdefault(value, {})
        if wanted in known:
            return known[wanted]
        if value in search.nullary:
            return self.add(Instruction("step", value, search.whole))
        if not known:
            start = search.pins.get(value, wanted)
            at = self.add(Instruction("enter", value, start))
            if start == wanted:
                return at
        way = search.costs_of_change(value, frozenset(known), wanted)
        assert way is not None
        at = known[way[1]]
        change = search.costs.changed(value, way[1], wanted)
        assert change is not None
        for (kind, dims, axis, onto, how), placement in change[1]:
            at = self.add(Instruction(kind, value, placement, (at,), dims, axis, onto, how))
        return at


def _keep(ways: list[_Way], new: _Way, most: int) -> bool:
    """Add a way unless another one is as good; drop those it beats. Say whether none else was dropped."""
    if most == 1:
        ways[:] = [min((*ways, new), key=lambda one: (one.seconds, one.peak))]
        return True
    for old in ways:
        if old.seconds <= new.seconds and old.peak <= new.peak and old.entered <= new.entered:
            return True
    ways[:] = [
        old
        for old in ways
        if not (new.seconds <= old.seconds and new.peak <= old.peak and new.entered <= old.entered)
    ]
    ways.append(new)
    if len(ways) <= most:
        return True
    # The way with the least memory always stays.
    ways.sort(key=lambda one: one.peak + one.entered)
    ways.remove(max(ways[1:], key=lambda one: (one.seconds, one.peak)))
    return False
