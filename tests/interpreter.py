"""An interpreter that runs a muGraph tile by tile in float64, as the kernels of any code generator have to.

Every kernel is lowered to statements; its programs run one after another, each on its own tiles. What
was not written is NaN, positions that lie beyond the end of a split axis included: reading them shows.
It says what a muGraph means, loops, running shifts and parts included, and is as slow as that sounds.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from fractions import Fraction
from itertools import product
from math import inf

import torch
from torch import Tensor

from superopt.codegen.statements import (
    Compute,
    KernelProgram,
    Load,
    LoopStatement,
    Move,
    Start,
    Statement,
    Store,
    lower_block,
)
from superopt.ir import Block, Graph, MuGraph, Port, Split, Step, value_axes
from superopt.ops import OPS
from superopt.trace.run import TorchScalars

__all__ = ["execute"]

_SCALARS = TorchScalars(torch.float64, torch.device("cpu"))


@dataclass(frozen=True, slots=True)
class _Array:
    """A tensor whose dimensions are axes; a mask holds only zeros and ones, and a product with it selects."""

    tensor: Tensor
    axes: tuple[str, ...]
    mask: bool = False

    def spread(self, axes: tuple[str, ...]) -> Tensor:
        """Return the tensor with its dimensions in this order, and 1 for each axis it lacks."""
        tensor = self.tensor.permute([self.axes.index(axis) for axis in axes if axis in self.axes])
        for at, axis in enumerate(axes):
            if axis not in self.axes:
                tensor = tensor.unsqueeze(at)
        return tensor


def execute(mugraph: MuGraph, tensors: Mapping[str, Tensor], tile: int = 2) -> dict[str, Tensor]:
    """Return the outputs by name, from inputs by name; `tile` positions of grid axes and loops at a time."""
    graph = mugraph.graph
    memory: dict[int | str, _Array] = {}
    for value, port in enumerate(graph.inputs):
        memory[value] = _entered(graph, port, tensors[port.name].double(), mugraph.splits)
    for output in graph.outputs:
        memory[output.port.name] = _unwritten(graph, output.port.axes)
    for number, kernel in enumerate(mugraph.kernels):
        body = mugraph
        if not isinstance(kernel, Block):  # a library computes the same on whole tensors
            alone = Block((), kernel.body)
            body = replace(
                mugraph, kernels=(*mugraph.kernels[:number], alone, *mugraph.kernels[number + 1 :])
            )
        _Kernel(lower_block(body, number), memory, tile).run()
    return {
        output.port.name: memory[output.port.name].tensor.reshape(graph.shape(output.port))
        for output in graph.outputs
    }


def _entered(graph: Graph, port: Port, tensor: Tensor, splits: tuple[Split, ...]) -> _Array:
    """Return an input with a dimension for each axis; what lies beyond the end of a split axis is NaN."""
    by_parts = {(split.outer, split.inner): split.axis for split in splits}
    sizes = graph.sizes
    axes: list[str] = []
    flat = list(port.axes)
    while flat:
        pair = by_parts.get((flat[0], flat[1])) if len(flat) > 1 else None
        axes.append(pair or flat[0])
        flat = flat[2 if pair else 1 :]
    tensor = tensor.reshape([sizes[axis] for axis in axes])
    for split in splits:
        if split.axis in axes:
            at = axes.index(split.axis)
            missing = sizes[split.outer] * sizes[split.inner] - sizes[split.axis]
            shape = [*tensor.shape]
            shape[at] = missing
            tensor = torch.cat([tensor, torch.full(shape, torch.nan, dtype=tensor.dtype)], at)
            axes[at : at + 1] = [split.outer, split.inner]
            tensor = tensor.reshape([sizes[axis] for axis in axes])
    return _Array(tensor, tuple(axes), port.dtype == "bool")


def _unwritten(graph: Graph, axes: tuple[str, ...]) -> _Array:
    sizes = graph.sizes
    return _Array(torch.full([sizes[axis] for axis in axes], torch.nan, dtype=torch.float64), axes)


class _Kernel:
    """One kernel: the tiles of the program at hand, and the positions that they stand for."""

    def __init__(self, program: KernelProgram, memory: dict[int | str, _Array], tile: int) -> None:
        self.program = program
        self.memory = memory
        self.tile = tile
        self.sizes = program.graph.sizes
        self.loaded = {tensor.value for tensor in program.loads}
        self.tiles: dict[int, _Array] = {}
        self.at: dict[str, slice] = {}

    def run(self) -> None:
        """Run all programs of the kernel."""
        alone = {split.outer for split in self.program.splits}
        tilings = [list(self._tiles(axis, 1 if axis in alone else self.tile)) for axis in self.program.grid]
        for places in product(*tilings):
            self.tiles = {}
            self.at = {axis: slice(0, size) for axis, size in self.sizes.items()}
            self.at |= dict(zip(self.program.grid, places, strict=True))
            for split in self.program.splits:
                before = self.at[split.outer].start * self.sizes[split.inner]
                self.at[split.inner] = slice(
                    0, max(min(self.sizes[split.inner], self.sizes[split.axis] - before), 0)
                )
            self._body(self.program.statements)

    def _tiles(self, axis: str, length: int) -> Iterator[slice]:
        end = self.at[axis].stop if axis in self.at else self.sizes[axis]
        for start in range(0, end, length):
            yield slice(start, min(start + length, end))

    def _body(self, statements: tuple[Statement, ...]) -> None:
        for statement in statements:
            match statement:
                case LoopStatement(axis, body):
                    whole = self.at[axis]
                    for place in self._tiles(axis, self.tile):
                        self.at[axis] = place
                        self._body(body)
                        self.at[axis] = whole
                case Load(value):
                    self.tiles[value] = self._read(value)
                case Start(value):
                    self.tiles[value] = self._neutral(value)
                case Compute(value, step, accumulates):
                    result = self._computed(step)
                    if accumulates:
                        result = self._added(self.tiles[value], result, step)
                    self.tiles[value] = result
                case Move(value, step, rescales):
                    self._move(value, step, rescales)
                case Store(value, tensor):
                    self._write(value, tensor.port.name if tensor.port else value, tensor.axes)

    def _read(self, value: int, moved: Mapping[str, str | int] | None = None) -> _Array:
        """Return the tile of a tensor in memory, some of its axes read at other places."""
        array = self.memory[value]
        places: list[slice | int] = []
        axes: list[str] = []
        for axis in array.axes:
            to = (moved or {}).get(axis, axis)
            if isinstance(to, int):
                places.append(to)
            else:
                places.append(self.at[to])
                axes.append(to)
        return _Array(array.tensor[tuple(places)], tuple(axes), array.mask)

    def _write(self, value: int, key: int | str, axes: tuple[str, ...]) -> None:
        if key not in self.memory:
            self.memory[key] = replace(_unwritten(self.program.graph, axes), mask=self.tiles[value].mask)
        self.memory[key].tensor[tuple(self.at[axis] for axis in axes)] = self.tiles[value].spread(axes)

    def _neutral(self, value: int) -> _Array:
        step = self.program.graph.step_of(value)
        axes = tuple(sorted(value_axes(self.program.graph)[value]))
        shape = [self.at[axis].stop - self.at[axis].start for axis in axes]
        least = -inf if step is not None and step.op == "max" else 0.0
        return _Array(torch.full(shape, least, dtype=torch.float64), axes)

    def _move(self, value: int, step: Step, rescales: tuple[tuple[int, Fraction], ...]) -> None:
        old, new = self.tiles[value], self._computed(step)
        self.tiles[value] = new
        moved = _Array(new.tensor - old.spread(new.axes), new.axes)
        for accumulator, degree in rescales:
            array = self.tiles[accumulator]
            factor = torch.exp(float(degree) * moved.spread(array.axes))
            self.tiles[accumulator] = replace(array, tensor=array.tensor * factor)

    def _added(self, before: _Array, now: _Array, step: Step) -> _Array:
        other = now.spread(before.axes)
        joined = torch.maximum(before.tensor, other) if step.op == "max" else before.tensor + other
        return replace(before, tensor=joined)

    def _computed(self, step: Step) -> _Array:
        match step.op:
            case "const":
                assert step.value is not None
                return _Array(_SCALARS.const(step.value), (), step.value in (0, 1))
            case "infinity":
                return _Array(_SCALARS.infinity(), ())
            case "size":
                return _Array(torch.tensor(self.sizes[step.axes[0]], dtype=torch.float64), ())
            case "index":
                place = self.at[step.axes[0]]
                return _Array(torch.arange(place.start, place.stop, dtype=torch.float64), step.axes)
            case "rename" | "select" if step.inputs[0] in self.loaded:
                return self._read(step.inputs[0], dict(step.mapping))
        operands = [self.tiles[i] for i in step.inputs]
        match step.op:
            case "sum" | "max":
                return _reduced(operands[0], step)
            case "contract":
                return _reduced(_elementwise("mul", operands), Step("sum", (0,), step.axes))
            case "rename" | "select":
                return _moved(operands[0], dict(step.mapping))
        return _elementwise(step.op, operands)


def _elementwise(op: str, operands: list[_Array]) -> _Array:
    axes = tuple(dict.fromkeys(axis for one in operands for axis in one.axes))
    tensors = [one.spread(axes) for one in operands]
    if op == "mul" and operands[0].mask != operands[1].mask:
        chosen, other = tensors if operands[0].mask else tensors[::-1]
        return _Array(torch.where(chosen != 0, other, torch.zeros(1, dtype=torch.float64)), axes)
    mask = OPS[op].makes_mask(one.mask for one in operands)
    return _Array(OPS[op].scalar(_SCALARS, *tensors), axes, mask)


def _reduced(array: _Array, step: Step) -> _Array:
    dims = [array.axes.index(axis) for axis in step.axes]
    kept = tuple(axis for axis in array.axes if axis not in step.axes)
    if step.op == "sum":
        return _Array(array.tensor.sum(dims), kept)
    if 0 in (array.tensor.shape[dim] for dim in dims):
        shape = [size for dim, size in enumerate(array.tensor.shape) if dim not in dims]
        return _Array(torch.full(shape, -inf, dtype=torch.float64), kept)
    return _Array(array.tensor.amax(dims), kept, array.mask)


def _moved(array: _Array, mapping: Mapping[str, str | int]) -> _Array:
    tensor, axes = array.tensor, list(array.axes)
    for axis in array.axes:
        to = mapping.get(axis)
        if isinstance(to, int):
            tensor = tensor.select(axes.index(axis), to)
            axes.remove(axis)
    return _Array(tensor, tuple(str(mapping.get(axis, axis)) for axis in axes), array.mask)
