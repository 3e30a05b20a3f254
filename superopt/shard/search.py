"""Search: the shardings of a program, by dynamic programming over how its live values lie.

It goes step by step through all regions, and call by call between them.
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
from math import inf

from superopt.errors import InputError
from superopt.ir import Graph, stabilize, value_names
from superopt.shard.calls import Whole
from superopt.shard.costs import Costs, mesh_of, with_moves_early
from superopt.shard.machine import Machine
from superopt.shard.plans import Choice, Event, Plan, Plans, written
from superopt.shard.sharded import (
    Layout,
    Placement,
    Rule,
    Sharded,
    call_rules,
    check_mesh,
    checked_pins,
    is_partial,
    layout_of,
    rules,
)

__all__ = ["Plan", "Plans", "plan_shardings"]

_PLENTY = 4  # times the bytes of all values, each held whole: so much memory limits no plan
_WAYS = 4  # the most ways to one state; no other way beats a kept one in both time and memory


@dataclass(frozen=True, slots=True)
class _Way:
    seconds: float
    moving: float
    entered: int  # bytes of the tensors that entered, which are there from the beginning
    peak: int  # the most bytes of all else at any step
    choice: Choice | None


State = tuple[tuple[int, frozenset[Placement]], ...]


@dataclass(frozen=True, slots=True)
class _Option:
    """One way to take a step or a call, and what it adds to the state and to the costs."""

    operands: tuple[Placement, ...]
    placements: tuple[Placement, ...]
    after: State
    seconds: float
    moving: float
    entering: int
    held: int


@lru_cache(maxsize=1 << 14)
def _only(placement: Placement) -> frozenset[Placement]:
    """Return the set of one placement; equal sets are one object, so that comparing them is fast."""
    return frozenset({placement})


@lru_cache(maxsize=1 << 14)
def _with(places: frozenset[Placement], placement: Placement) -> frozenset[Placement]:
    return places | {placement}


def plan_shardings(
    graph: Graph | Whole,
    machine: Machine,
    *,
    pins: Mapping[str, Placement] | None = None,
    memory: float | None = None,
    states: int = 128,
    alternatives: int = 8,
) -> Plans:
    """Return ways to run a graph, or a whole program, on all devices of a machine.

    Each level of the machine is a dimension of the mesh. `pins` fixes how inputs and outputs lie;
    `memory` limits the bytes on each device.
    """
    whole = Whole(stabilize(graph), graph) if isinstance(graph, Graph) else graph
    layout = layout_of(whole.graph, mesh_of(machine), whole.calls)
    search = _Search(layout, machine, pins or {}, machine.device.bytes if memory is None else memory, states)
    check_mesh(layout)
    return Plans(whole.original, machine, search.run(alternatives), search.complete)


class _Search:
    def __init__(
        self, layout: Layout, machine: Machine, pins: Mapping[str, Placement], memory: float, states: int
    ) -> None:
        self.layout, self.graph, self.memory, self.most = layout, layout.graph, memory, states
        self.costs = Costs(layout, machine)
        self.dims = range(len(layout.mesh.sizes))
        self.complete = True
        self._owed = lru_cache(maxsize=None)(self._seconds_owed)
        self._lacking = lru_cache(maxsize=None)(self._seconds_lacking)
        self._held = lru_cache(maxsize=None)(self._bytes_held)
        self.pins = checked_pins(layout, pins)
        whole = sum(self.costs.bytes(value, self.costs.whole) for value in range(len(self.costs.axes)))
        self.plenty = memory >= _PLENTY * whole
        self.least = 0  # the fewest bytes that any placement needed, where memory was too short
        self.made = layout.made_by
        self.events = self._in_turn()
        self.last_use = {i: at for at, event in enumerate(self.events) for i in self._reads(event)}
        for output in layout.leaving:
            self.last_use[output.value] = len(self.events)

    def run(self, alternatives: int) -> tuple[Plan, ...]:
        """Return the best plans."""
        ways: dict[State, list[_Way]] = {(): [_Way(0.0, 0.0, 0, 0, None)]}
        for turn, event in enumerate(self.events):
            if isinstance(event, int) and (event in self.costs.nullary or event not in self.last_use):
                continue
            ways = self._cut(self._after(turn, ways))
            if not ways:
                raise InputError(self._too_little(self._makes(event)[0]))
        return self._plans(ways, alternatives)

    def _in_turn(self) -> list[Event]:
        """Return steps and calls in order: each call right before what first reads its results."""
        order: list[Event] = []
        waiting = dict.fromkeys(self.layout.calls)

        def call_for(values: tuple[int, ...]) -> None:
            for value in values:
                call = self.made[value][0] if value in self.made else None
                if call in waiting:
                    del waiting[call]
                    call_for(self.layout.read_by(call))
                    order.append(call)

        for at, step in self.graph.numbered:
            call_for(step.inputs)
            order.append(at)
        for call in self.layout.calls:
            call_for(self._makes(call))
        return order

    def _reads(self, event: Event) -> tuple[int, ...]:
        return self.graph.step_at(event).inputs if isinstance(event, int) else self.layout.read_by(event)

    def _makes(self, event: Event) -> tuple[int, ...]:
        return (event,) if isinstance(event, int) else self.layout.made_of(event)

    def _after(self, turn: int, ways: dict[State, list[_Way]]) -> dict[State, list[_Way]]:
        """Return the states after one more step or call."""
        found: dict[State, list[_Way]] = {}
        inputs = self._reads(self.events[turn])
        ways_to_one = 1 if self.plenty else _WAYS
        known: dict[State, list[_Option]] = {}  # the options where the operands lie in these placements
        for state, reached in ways.items():
            operands = tuple(pair for pair in state if pair[0] in inputs)
            rest = tuple(pair for pair in state if pair[0] not in inputs)
            held = sum(self._held(*pair) for pair in rest)
            if operands not in known:
                known[operands] = self._options(turn, dict(operands))
            for option in known[operands]:
                into = found.setdefault(rest + option.after, [])
                for way in reached:
                    seconds, entered = way.seconds + option.seconds, way.entered + option.entering
                    peak = max(way.peak, held + option.held)
                    if entered + peak > self.memory:
                        self.plenty = False
                        self.least = min(self.least or entered + peak, entered + peak)
                    elif ways_to_one > 1 or not into or (seconds, peak) < (into[0].seconds, into[0].peak):
                        choice = Choice(self.events[turn], option.operands, option.placements, way.choice)
                        new = _Way(seconds, way.moving + option.moving, entered, peak, choice)
                        self.complete &= _keep(into, new, ways_to_one)
        return {state: own for state, own in found.items() if own}

    def _options(self, turn: int, live: dict[int, frozenset[Placement]]) -> list[_Option]:
        """Return the ways to take a step or a call, given how its operands are to be had.

        Where memory is plenty, only the fastest way counts of those after which values lie alike.
        """
        event = self.events[turn]
        inputs = self._reads(event)
        found: dict[State, list[_Option]] = {}
        for operands, placements in self._choices(event):
            made = self._taken(live, inputs, operands)
            if made is None:
                continue
            moving, entering, read = made
            values = tuple(zip(self._makes(event), map(_only, placements), strict=True))
            held = sum(self._held(*pair) for pair in (*values, *read.items()))
            pairs = (*(pair for pair in read.items() if self.last_use[pair[0]] != turn), *values)
            after = tuple(pair for pair in pairs if pair[0] in self.last_use)
            seconds = moving + self._seconds(event, operands, placements)
            option = _Option(operands, placements, after, seconds, moving, entering, held)
            found.setdefault(after, []).append(option)
        if self.plenty:
            return [min(own, key=lambda option: (option.seconds, option.held)) for own in found.values()]
        return [option for own in found.values() for option in own]

    def _bytes_held(self, value: int, places: frozenset[Placement]) -> int:
        """Return the bytes that a value takes in some placements; tensors that entered are counted apart."""
        enters = value < len(self.graph.inputs) and value not in self.made
        return 0 if enters else sum(self.costs.bytes(value, one) for one in places)

    def _seconds(
        self, event: Event, operands: tuple[Placement, ...], placements: tuple[Placement, ...]
    ) -> float:
        if isinstance(event, int):
            return self.costs.step_seconds(event, operands, placements[0])
        reads = tuple(zip(self._reads(event), operands, strict=True))
        return self.costs.call_seconds(reads, tuple(zip(self._makes(event), placements, strict=True)))

    def _choices(self, event: Event) -> Iterator[tuple[tuple[Placement, ...], tuple[Placement, ...]]]:
        """Yield how operands and values of a step or a call may lie, on all dimensions together."""
        if not isinstance(event, int):
            for taken in product(*(list(call_rules(self.layout, event, dim)) for dim in self.dims)):
                operands, values = (
                    tuple(zip(*(rule[side] for rule in taken), strict=True)) for side in (0, 1)
                )
                yield operands or (), values
            return
        step = self.graph.step_at(event)
        axes = tuple(self.costs.axes[i] for i in step.inputs)
        own: list[list[Rule]] = []
        for dim in self.dims:
            splittable = frozenset(axis for axis, dims in self.layout.splits.items() if dim in dims)
            own.append(list(rules(step, axes, splittable)))
        for chosen in product(*own):
            operands = tuple(tuple(rule[0][i] for rule in chosen) for i in range(len(axes)))
            yield operands, (tuple(rule[1] for rule in chosen),)

    def _taken(
        self, live: dict[int, frozenset[Placement]], values: tuple[int, ...], operands: tuple[Placement, ...]
    ) -> tuple[float, int, dict[int, frozenset[Placement]]] | None:
        """Return the seconds and bytes to bring operands into these placements, and how they lie then."""
        read: dict[int, frozenset[Placement]] = {}
        seconds, entering = 0.0, 0
        for value, wanted in zip(values, operands, strict=True):
            if value in self.costs.nullary:
                if wanted != self.costs.whole:
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
                way = self.costs.cheapest(value, known, wanted)
                if way is None:
                    return None
                seconds += way[0]
                if value < len(self.graph.inputs) and value not in self.made:
                    entering += self.costs.bytes(value, wanted)
                known = _with(known, wanted)
            read[value] = known
        return seconds, entering, read

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
        changes = (self.costs.cheapest(value, places, one) for one in self._final(value, places))
        return min(change[0] for change in changes if change is not None)

    def _becomes(self, state: State, wanted: State, seconds: float) -> bool:
        """Return whether a state can be turned into another one within some seconds."""
        if seconds < 0:
            return False
        for (value, known), (_, places) in zip(state, wanted, strict=True):
            if known is not places:
                seconds -= self._lacking(value, known, places)
                if seconds < 0:
                    return False
        return True

    def _seconds_lacking(
        self, value: int, known: frozenset[Placement], places: frozenset[Placement]
    ) -> float:
        """Return the seconds in which a value is brought into the placements that it lacks."""
        ways = [self.costs.cheapest(value, known, place) for place in places - known]
        return sum(inf if way is None else way[0] for way in ways)

    def _plans(self, ways: dict[State, list[_Way]], alternatives: int) -> tuple[Plan, ...]:
        ends: list[tuple[_Way, list[Placement]]] = []
        for state, reached in ways.items():
            live = dict(state)
            placed: list[Placement] = []
            moving = 0.0
            for output in self.layout.leaving:
                known = live.get(output.value, frozenset({self.pins.get(output.value, self.costs.whole)}))
                pinned = self.pins.get(-1 - self.graph.outputs.index(output))
                wanted = [pinned] if pinned is not None else self._final(output.value, known)
                costs = [
                    (change[0], str(one), one)
                    for one in wanted
                    if (change := self.costs.cheapest(output.value, known, one)) is not None
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
            plans += self._in_order(written(self.costs, self.pins, way.choice, placed), way.moving)
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

    def _too_little(self, at: int) -> str:
        names = value_names(self.graph)
        return (
            f"memory: {names[at]} does not fit on any placement found, which take at least "
            f"{self.least / 1e9:.3g} GB on each device of {self.memory / 1e9:.3g} GB; the nearest choice "
            f"that works: {self.least / 1e9:.3g} GB or more devices"
        )


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
