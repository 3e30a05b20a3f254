"""Costs: the seconds of a step and of a change of placement on a machine, and the moves that it takes."""

from __future__ import annotations

from functools import lru_cache
from math import prod

from superopt.dtypes import DTYPES
from superopt.ir import REDUCTIONS, STRUCTURAL, value_axes
from superopt.shard.machine import Machine
from superopt.shard.placements import Grid, grid_of
from superopt.shard.reductions import Program, Step
from superopt.shard.sharded import MAXIMUM, SUM, Layout, Mesh, Placement, is_partial
from superopt.shard.simulate import Reduction, best_program

__all__ = ["Costs", "Move", "mesh_of"]

Move = tuple[str, tuple[int, ...], str, str, str]
"""A move: its kind, the dimensions, the axis, the axis of the new chunks, and how it reduces."""

_FREE = frozenset({"rename", "select", "const", "infinity", "size", "index"})


def mesh_of(machine: Machine) -> Mesh:
    """Return the mesh with a dimension for each level of a machine."""
    return Mesh(tuple(level.name for level in machine.levels), machine.counts)


class Costs:
    """What steps and moves of one program take on one machine."""

    def __init__(self, layout: Layout, machine: Machine) -> None:
        self.layout = layout
        self.machine = machine
        self.grid: Grid = grid_of(machine)
        self.axes = value_axes(layout.graph)
        self.sizes = layout.graph.sizes
        graph = layout.graph
        self.item = max(
            (DTYPES[port.dtype].bytes for port in (*graph.inputs, *(one.port for one in graph.outputs))),
            default=4,
        )
        self.bytes = lru_cache(maxsize=None)(self._bytes)
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

    def _reduction(self, dims: tuple[int, ...], size: int) -> tuple[float, Program]:
        """Return the seconds and the best program of an all-reduce along some dimensions."""
        best = best_program(self.grid, dims, float(size))
        return best.seconds, best.program

    def _collective(self, name: str, dim: int, size: int) -> float:
        if self.layout.mesh.sizes[dim] == 1:
            return 0.0
        return Reduction(self.grid, (dim,)).step_seconds(Step(name, 0, 1), float(size))

    def _changed(
        self, value: int, start: Placement, end: Placement
    ) -> tuple[float, tuple[tuple[Move, Placement], ...]] | None:
        """Return the seconds of a change of placement, and its moves with the placement after each.

        None where there is no way: a whole value never becomes partial again.
        """
        now = list(start)
        seconds = 0.0
        moves: list[tuple[Move, Placement]] = []

        def size() -> int:
            return self.bytes(value, tuple(now))

        def note(kind: str, dims: tuple[int, ...], axis: str = "", onto: str = "", how: str = SUM) -> None:
            moves.append(((kind, dims, axis, onto, how), tuple(now)))

        pairs = list(enumerate(zip(start, end, strict=True)))
        if any(is_partial(new) and old != new for _, (old, new) in pairs):
            return None
        for dim, (old, new) in pairs:
            if old is None and new is not None:
                now[dim] = new
                note("slice", (dim,), new)
        for dim, (old, new) in pairs:
            if old == SUM and new not in (None, SUM):
                assert new is not None
                seconds += self._single("reduce-scatter", dim, size())
                now[dim] = new
                note("reduce-scatter", (dim,), new)
        for how in (SUM, MAXIMUM):
            dims = tuple(dim for dim, (old, new) in pairs if now[dim] == how and old == how != new)
            if dims:
                seconds += self.reduction(dims, size())[0]
                for dim in dims:
                    now[dim] = None
                note("all-reduce", dims, how=how)
        for dim, (_, new) in pairs:
            if now[dim] is None and new is not None and not is_partial(new):
                now[dim] = new
                note("slice", (dim,), new)
        for dim, (old, new) in pairs:
            if old is not None and not is_partial(old) and old != new:
                if new is None:
                    seconds += self._single("all-gather", dim, size())
                    now[dim] = None
                    note("all-gather", (dim,), old)
                else:
                    many = self.layout.mesh.sizes[dim]
                    # Each device keeps its own part and sends the others: as many bytes as in an all-gather.
                    seconds += self._single("all-gather", dim, max(1, size() // many))
                    now[dim] = new
                    note("all-to-all", (dim,), old, new)
        assert tuple(now) == end
        return seconds, tuple(moves)
