"""Layout: how long the tiles of a kernel are, and how the values in them lie in memory."""

from collections.abc import Iterable, Sequence
from math import ceil, prod

from superopt.codegen.cpp.alike import find_alike
from superopt.codegen.cpp.config import CppConfig
from superopt.codegen.cpp.plan import VIEWS, Nest, Plan, is_written_out, make_plan, viewed
from superopt.codegen.lowering import lower_for_cpp
from superopt.codegen.statements import KernelProgram, Tensor, contiguous_strides, traced_strides
from superopt.dtypes import DTYPES
from superopt.ir import value_axes

__all__ = ["Layout"]

_FLOAT = 4  # bytes of a number in scratch memory


class Layout:
    """The tiles of a kernel in one configuration, and the strides of what its loops read and write."""

    def __init__(self, program: KernelProgram, config: CppConfig) -> None:
        self.config = config
        self.program = lower_for_cpp(program, config.whole)
        self.graph = program.graph
        self.sizes = self.graph.sizes
        self.axes = value_axes(self.graph)
        self.grid = config.order or program.grid
        tiles = dict(config.tiles)
        self.single = frozenset(axis for axis in self.grid if tiles[axis] == 1)
        walked = {*self.grid, *self.program.looped}
        self.tiles = {axis: max(min(tiles[axis], self.sizes[axis]), 1) for axis in walked}
        self.plan: Plan = make_plan(self.program, self.single)
        self.alike = find_alike(self.program, self.plan.body, self.grid, tiles)
        self.ports = {tensor.value: tensor for tensor in self.program.loads}
        self._strides: dict[int, dict[str, int]] = {}

    def stays(self, value: int, *, columns: bool = False) -> bool:
        """Whether packed rows, or columns, of contractions stay for all programs along the innermost axis."""
        if self.alike is None:
            return False
        return value in (self.alike.columns if columns else self.alike.rows)

    def count(self, axis: str) -> int:
        """Return how many tiles an axis has."""
        return ceil(self.sizes[axis] / self.tiles[axis]) if axis in self.tiles else 1

    def extent(self, axis: str) -> float:
        """Return the positions of an average tile."""
        return self.sizes[axis] / max(self.count(axis), 1) if axis in self.tiles else self.sizes[axis]

    def volume(self, axes: Iterable[str]) -> float:
        """Return the positions of a tile along some axes."""
        return prod(self.extent(axis) for axis in axes if axis not in self.single)

    def positions(self, value: int) -> float:
        """Return the positions of memory of a tile of a value; windows that overlap share theirs."""
        axes, step = self.axes[value], self.graph.step_of(value)
        read = self.volume(axes)
        if step is None or step.op != "window":
            return read
        sliding = {axis for place in step.places for axis, _ in place.terms}
        spans = 1.0
        for place in step.places:
            span = 1 + sum(abs(factor) * (self.extent(axis) - 1) for axis, factor in place.terms)
            spans *= min(span, prod(self.sizes[axis] for axis in place.axes))
        return min(read, spans * self.volume(axes - sliding))

    def in_order(self, axes: Iterable[str]) -> list[str]:
        """Return the axes of a tile in the order in which it is laid out, without those of one position."""
        rank = {axis: at for at, axis in enumerate(self.plan.order)}
        return sorted((axis for axis in axes if axis not in self.single), key=rank.__getitem__)

    def loops(self, nest: Nest) -> list[str]:
        """Return the axes of the loops of a nest, the outermost first; reductions run inside other loops."""
        order = self.in_order(nest.axes)
        return sorted(order, key=lambda axis: (axis == order[-1], axis in nest.reduced))

    def source(self, value: int) -> int:
        """Return the value that is read where a view of it is asked for."""
        return viewed(self.graph, value)

    def is_written_out(self, value: int) -> bool:
        """Whether no memory holds a value, since it is a constant, an extent or an index."""
        return is_written_out(self.graph, value)

    def bytes_of(self, value: int) -> int:
        """Return the bytes of a number of a value."""
        port = self.ports.get(self.source(value))
        return _FLOAT if port is None else DTYPES[port.dtype].bytes

    def strides(self, value: int) -> dict[str, int]:
        """Return how far apart neighbours along each axis of a value lie, in numbers."""
        if value not in self._strides:
            self._strides[value] = self._found_strides(value)
        return self._strides[value]

    def _found_strides(self, value: int) -> dict[str, int]:
        if value in self.ports:
            return traced_strides(self.ports[value], self.sizes)
        step = self.graph.step_of(value)
        if step is None or step.op not in VIEWS:
            order = self.in_order(self.axes[value])
            lengths = [int(self.tiles.get(axis, self.sizes[axis])) for axis in order]
            return dict(zip(order, contiguous_strides(lengths), strict=True))
        mapping = dict(step.mapping)
        source = dict(self.strides(step.inputs[0]))
        found: dict[str, int] = {}
        for place in step.places:
            stride = source[place.axes[-1]]
            found |= {axis: factor * stride for axis, factor in place.terms}
            source = {axis: one for axis, one in source.items() if axis not in place.axes}
        for axis, stride in source.items():
            seen = mapping.get(axis, axis)
            if isinstance(seen, str):
                found[seen] = found.get(seen, 0) + stride
        return found

    def run(self, value: int, walked: Sequence[str], inside: Sequence[str] | None = None) -> float:
        """Return how many bytes of a tensor are read along memory, tile after tile, inside some walks.

        `walked` are the axes of the walks, and `inside` those of the loops within a tile, the innermost
        first. Without `inside`, a tile is read in the order of memory.
        """
        strides = self.strides(value)
        several = [axis for axis in strides if axis not in self.single and self.extent(axis) > 1]
        within = None if inside is None else [axis for axis in inside if axis in several]
        loops = [axis for axis in (*walked, *reversed(self.grid)) if axis in strides and self.count(axis) > 1]
        run, whole = float(self.bytes_of(value)), 1
        order = sorted(strides, key=strides.__getitem__)
        for at, axis in enumerate(order):
            if strides[axis] > whole:
                break
            if within is not None and axis in several:
                if within[:1] != [axis]:
                    return run
                del within[0]
            if self.count(axis) > 1:
                # The next tile follows where this axis is walked first, and a tile has one row.
                follows = loops[0] == axis and all(self.extent(one) <= 1 for one in order[at + 1 :])
                if not follows:
                    return run * self.extent(axis)
                del loops[0]
            run *= self.sizes[axis]
            whole *= self.sizes[axis]
        return run

    def stored_strides(self, tensor: Tensor) -> dict[str, int]:
        """Return how far apart neighbours lie in a tensor that the kernel writes."""
        shape = [self.sizes[axis] for axis in tensor.axes]
        return dict(zip(tensor.axes, contiguous_strides(shape), strict=True))
