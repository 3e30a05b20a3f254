"""Costs: the seconds of a step and of a change of placement on a machine, and the moves that it takes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from itertools import permutations
from math import prod

from superopt.dtypes import DTYPES
from superopt.errors import InputError
from superopt.ir import REDUCTIONS, STRUCTURAL, value_axes
from superopt.shard.machine import Machine
from superopt.shard.placements import Grid, grid_of
from superopt.shard.reductions import Program, Step
from superopt.shard.sharded import MAXIMUM, SUM, Instruction, Layout, Mesh, Placement, Sharded, is_partial
from superopt.shard.simulate import Reduction, best_program

__all__ = ["Costs", "Move", "Timeline", "mesh_of", "with_moves_early"]

Move = tuple[str, tuple[int, ...], str, str, str]
"""A move: its kind, the dimensions, the axis, the axis of the new chunks, and how it reduces."""

_NULLARY = frozenset({"const", "infinity", "size"})
_FREE = frozenset({"rename", "select", "const", "infinity", "size", "index"})


def mesh_of(machine: Machine) -> Mesh:
    """Return the mesh with a dimension for each level of a machine."""
    if "local" in (level.name for level in machine.levels):
        raise InputError("machine: 'local' names the places within a device; give that level another name")
    return Mesh(tuple(level.name for level in machine.levels), machine.counts)


@dataclass(frozen=True, slots=True)
class Timeline:
    """When each instruction of a program starts and ends, in seconds."""

    spans: tuple[tuple[float, float], ...]

    @property
    def seconds(self) -> float:
        """The end of the last instruction."""
        return max((end for _, end in self.spans), default=0.0)


def with_moves_early(sharded: Sharded, *, inputs: bool) -> Sharded:
    """Return the same program with each move begun right after its operand is made.

    With `inputs`, tensors that enter, and their moves, come first of all.
    """
    follow: dict[int, list[int]] = {}
    for at, one in enumerate(sharded.instructions):
        if (one.moves or one.kind == "slice") and (
            inputs or sharded.instructions[one.inputs[0]].kind != "enter"
        ):
            follow.setdefault(one.inputs[0], []).append(at)
    order: list[int] = []
    taken: set[int] = set()

    def take(at: int) -> None:
        if at not in taken:
            taken.add(at)
            order.append(at)
            for move in follow.get(at, ()):
                take(move)

    for at, one in enumerate(sharded.instructions):
        if inputs and one.kind == "enter":
            take(at)
    for at in range(len(sharded.instructions)):
        take(at)
    places = {old: new for new, old in enumerate(order)}
    made = [sharded.instructions[at] for at in order]
    return replace(
        sharded,
        instructions=tuple(replace(one, inputs=tuple(places[i] for i in one.inputs)) for one in made),
        outputs=tuple(places[at] for at in sharded.outputs),
    )


class Costs:
    """What steps and moves of one program take on one machine."""

    def __init__(self, layout: Layout, machine: Machine) -> None:
        self.layout = layout
        self.machine = machine
        self.grid: Grid = grid_of(machine)
        self.axes = value_axes(layout.graph)
        self.sizes = layout.graph.sizes
        graph = layout.graph
        ports = (*graph.inputs, *(one.port for one in graph.outputs))
        self.item = max((4, *(DTYPES[port.dtype].bytes for port in ports)))  # halves are computed in float32
        self.whole: Placement = (None,) * len(layout.mesh.sizes)
        self.nullary = {at for at, step in graph.numbered if step.op in _NULLARY}
        self.bytes = lru_cache(maxsize=None)(self._bytes)
        self.cheapest = lru_cache(maxsize=None)(self._cheapest)
        self.changed = lru_cache(maxsize=None)(self._changed)
        self.reduction = lru_cache(maxsize=None)(self._reduction)
        self._single = lru_cache(maxsize=None)(self._collective)

    def _bytes(self, value: int, placement: Placement) -> int:
        """Return the bytes of a value on each device."""
        graph = self.layout.graph
        item = DTYPES[graph.inputs[value].dtype].bytes if value < len(graph.inputs) else self.item
        return item * self.layout.elements(value, placement)

    def step_seconds(self, value: int, operands: tuple[Placement, ...], placement: Placement) -> float:
        """Return the seconds of a step: of its arithmetic, or of its traffic if that is longer."""
        graph = self.layout.graph
        step = graph.step_at(value)
        if step.op in _FREE:
            return 0.0
        device = self.machine.device
        union = frozenset[str]().union(*(self.axes[i] for i in step.inputs))
        split = prod(
            self.layout.mesh.sizes[dim]
            for dim in range(len(placement))
            if any(one[dim] is not None and one[dim] in union for one in operands)
        )
        work = prod(self.sizes[axis] for axis in union) / split
        traffic = float(self.bytes(value, placement))
        if step.op in REDUCTIONS or step.op not in STRUCTURAL:
            reads = zip(step.inputs, operands, strict=True)
            own = sum(self.bytes(i, one) for i, one in reads)
            # An elementwise step is fused with what makes its operands.
            traffic += own if step.op == "contract" else 0
        return max(2 * work / device.flops_per_s, traffic / device.bytes_per_s)

    def call_seconds(
        self, reads: Sequence[tuple[int, Placement]], makes: Sequence[tuple[int, Placement]]
    ) -> float:
        """Return the seconds of a call: of its traffic, as nothing is known of what it computes."""
        return sum(self.bytes(*one) for one in (*reads, *makes)) / self.machine.device.bytes_per_s

    def _reduction(self, dims: tuple[int, ...], size: int) -> tuple[float, Program]:
        """Return the seconds and the best program of an all-reduce along some dimensions."""
        best = best_program(self.grid, dims, float(size))
        return best.seconds, best.program

    def _collective(self, name: str, dim: int, size: int) -> float:
        if self.layout.mesh.sizes[dim] == 1:
            return 0.0
        return Reduction(self.grid, (dim,)).step_seconds(Step(name, 0, 1), float(size))

    def move_seconds(self, kind: str, dims: tuple[int, ...], size: int) -> float:
        """Return the seconds of a move of so many bytes on each device."""
        if kind == "all-reduce":
            return self.reduction(dims, size)[0]
        (dim,) = dims
        if kind == "all-to-all":
            # Each device keeps its own part and sends the others: as many bytes as in an all-gather.
            return self._single("all-gather", dim, max(1, size // self.layout.mesh.sizes[dim]))
        return self._single(kind, dim, size)

    def loads(self, sharded: Sharded, one: Instruction) -> tuple[float, ...]:
        """Return the bytes that a move puts on the busiest link of each level."""
        source = sharded.instructions[one.inputs[0]]
        size = self.bytes(source.value, source.placement)
        dims = tuple(dim for dim in one.dims if self.layout.mesh.sizes[dim] > 1)
        if not dims:
            return (0.0,) * len(self.machine.levels)
        program: Program = (Step(one.kind, 0, 1),)
        if one.kind == "all-reduce":
            program = self.reduction(dims, size)[1]
        elif one.kind == "all-to-all":
            program, size = (Step("all-gather", 0, 1),), max(1, size // self.layout.mesh.sizes[dims[0]])
        return tuple(map(float, Reduction(self.grid, dims).loads(program, float(size))))

    def timed(self, sharded: Sharded) -> Timeline:
        """Return when each instruction runs, if moves run beside steps once their operands are there."""
        spans: list[tuple[float, float]] = []
        computing = moving = 0.0
        for one in sharded.instructions:
            ready = max((spans[i][1] for i in one.inputs), default=0.0)
            source = sharded.instructions[one.inputs[0]] if one.inputs else one
            if one.moves:
                computing = max(computing, ready)  # a move begins in its turn, with its operand at hand
                start = max(moving, computing)
                moving = start + self.move_seconds(
                    one.kind, one.dims, self.bytes(source.value, source.placement)
                )
                spans.append((start, moving))
                continue
            start = max(ready, computing)
            seconds = 0.0
            if one.kind == "step":
                operands = tuple(sharded.instructions[i].placement for i in one.inputs)
                seconds = self.step_seconds(one.value, operands, one.placement)
            elif one.kind == "call":
                seconds = self.call_seconds(
                    [(sharded.instructions[i].value, sharded.instructions[i].placement) for i in one.inputs],
                    [(one.value, one.placement)],
                )
            if seconds:
                computing = start + seconds
            spans.append((start, start + seconds))
        return Timeline(tuple(spans))

    def peak(self, sharded: Sharded) -> int:
        """Return the most bytes that each device holds; tensors that enter are there from the beginning."""
        last = {i: at for at, one in enumerate(sharded.instructions) for i in one.inputs}
        last |= dict.fromkeys(sharded.outputs, len(sharded.instructions))
        sizes = [self.bytes(one.value, one.placement) for one in sharded.instructions]
        entered = sum(
            size for size, one in zip(sizes, sharded.instructions, strict=True) if one.kind == "enter"
        )
        held = most = 0
        for at, one in enumerate(sharded.instructions):
            held += sizes[at] if one.kind != "enter" else 0
            most = max(most, held)
            for i in {*one.inputs, at}:
                if last.get(i, at) == at and sharded.instructions[i].kind != "enter":
                    held -= sizes[i]
        return entered + most

    def _cheapest(
        self, value: int, known: frozenset[Placement], wanted: Placement
    ) -> tuple[float, Placement] | None:
        """Return the least seconds of a change of placement, and where it starts."""
        found = [
            (change[0], start)
            for start in sorted(known, key=str)
            if (change := self.changed(value, start, wanted)) is not None
        ]
        return min(found, key=lambda one: one[0], default=None)

    def _changed(
        self, value: int, start: Placement, end: Placement
    ) -> tuple[float, tuple[tuple[Move, Placement], ...]] | None:
        """Return the seconds of a change of placement, and its moves with the placement after each.

        Chunks are cut out first, which takes no time; the other moves come in the order that is the fastest.
        None where there is no way: a whole value never becomes partial again.
        """
        pairs = list(enumerate(zip(start, end, strict=True)))
        if any(is_partial(new) and old != new for _, (old, new) in pairs):
            return None
        moves: list[tuple[str, tuple[int, ...], str]] = []
        for dim, (old, new) in pairs:
            if old == SUM and new not in (None, SUM):
                moves.append(("reduce-scatter", (dim,), SUM))
            elif old is not None and not is_partial(old) and old != new:
                moves.append(("all-gather" if new is None else "all-to-all", (dim,), SUM))
        for how in (SUM, MAXIMUM):
            # Sums become chunks by a reduce-scatter.
            dims = tuple(
                dim for dim, (old, new) in pairs if old == how != new and (new is None or how != SUM)
            )
            if dims:
                moves.append(("all-reduce", dims, how))
        ways = (self._in_order(value, start, end, order) for order in permutations(moves))
        return min(ways, key=lambda way: way[0])

    def _in_order(
        self, value: int, start: Placement, end: Placement, order: Sequence[tuple[str, tuple[int, ...], str]]
    ) -> tuple[float, tuple[tuple[Move, Placement], ...]]:
        """Return the seconds of moves in an order, and the moves with the placement after each."""
        now = list(start)
        seconds = 0.0
        made: list[tuple[Move, Placement]] = []

        def note(kind: str, dims: tuple[int, ...], axis: str = "", onto: str = "", how: str = SUM) -> None:
            made.append(((kind, dims, axis, onto, how), tuple(now)))

        def cut() -> None:
            for dim, new in enumerate(end):
                if now[dim] is None and new is not None:
                    now[dim] = new
                    note("slice", (dim,), new)

        cut()
        for kind, dims, how in order:
            seconds += self.move_seconds(kind, dims, self.bytes(value, tuple(now)))
            old, new = now[dims[0]], end[dims[0]]
            for dim in dims:
                now[dim] = None if kind == "all-reduce" else end[dim]
            if kind == "all-reduce":
                note(kind, dims, how=how)
                cut()
            elif kind == "reduce-scatter":
                note(kind, dims, str(new))
            else:
                note(kind, dims, str(old), str(new or ""))
        assert tuple(now) == end
        return seconds, tuple(made)
