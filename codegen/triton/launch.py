"""Launch: a whole muGraph on torch tensors, kernel by kernel."""

import linecache
from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, replace
from functools import cache
from math import prod
from typing import Any

import torch
from torch import Tensor

from superopt.codegen.statements import KernelProgram, axis_strides, lower_block, split_extents
from superopt.codegen.statements import Tensor as TensorOfKernel
from superopt.codegen.triton.choices import default_config, exact_axes
from superopt.codegen.triton.config import TritonConfig, next_power
from superopt.codegen.triton.emit import emit
from superopt.codegen.triton.library import run_call, spread
from superopt.codegen.triton.plan import make_plan
from superopt.codegen.triton.source import TritonSource
from superopt.errors import InputError
from superopt.ir import Graph, MuGraph, Port, Split, value_axes
from superopt.ir.mugraph import Call

__all__ = ["TritonMuGraph", "load_kernel", "sizes_of"]

DTYPES = {
    "f64": torch.float64,
    "f32": torch.float32,
    "f16": torch.float16,
    "bf16": torch.bfloat16,
    "f8e4m3": torch.float8_e4m3fn,
    "f8e5m2": torch.float8_e5m2,
    "i64": torch.int64,
    "i32": torch.int32,
    "i16": torch.int16,
    "i8": torch.int8,
    "u8": torch.uint8,
    "bool": torch.bool,
}
WIDE_FROM = 2**31


@cache
def load_kernel(text: str, name: str) -> Any:
    """Return the kernel that a source defines, ready to launch; the source stays visible to debuggers."""
    filename = f"<superopt {name} {hash(text) & 0xFFFFFFFF:08x}>.py"
    linecache.cache[filename] = (len(text), None, text.splitlines(keepends=True), filename)
    scope: dict[str, Any] = {"__name__": f"superopt_kernel_{name}"}
    exec(compile(text, filename, "exec"), scope)
    return scope[name]


def sizes_of(graph: Graph, tensors: Mapping[str, Tensor], splits: Sequence[Split] = ()) -> dict[str, int]:
    """Return the extent of every axis, from the shapes of tensors; a product keeps its inner sizes.

    A split axis has the extent that its tensors have, and as many parts as the graph says.
    """
    found: dict[str, int] = {}
    ports = [replace(port, dims=tuple(_joined(dim, splits) for dim in port.dims)) for port in graph.inputs]
    for port in ports:
        tensor = _tensor(graph, port, tensors)
        for at, dim in enumerate(port.dims):
            if len(dim) == 1 and found.setdefault(dim[0], tensor.shape[at]) != tensor.shape[at]:
                raise InputError(
                    f"{graph.name}: axis {dim[0]!r} is {found[dim[0]]} long, but dimension {at} of"
                    f" {port.name!r} has {tensor.shape[at]}"
                )
    for port in ports:
        for at, dim in enumerate(port.dims):
            for axis in dim[1:]:
                found.setdefault(axis, graph.sizes[axis])
            inner = prod(found[axis] for axis in dim[1:])
            size = tensors[port.name].shape[at]
            if dim and inner:
                found.setdefault(dim[0], size // inner)
            if prod(found.get(axis, 0) for axis in dim) != size:
                raise InputError(
                    f"{graph.name}: dimension {at} of {port.name!r} is {size} long, which is no"
                    f" {' * '.join(dim) or '1'} with {', '.join(f'{a}={found.get(a)}' for a in dim)}"
                )
    sizes = {axis: found.get(axis, size) for axis, size in graph.sizes.items()}
    for split in splits:
        sizes = split_extents(split, sizes)
    return sizes


def _joined(dim: tuple[str, ...], splits: Sequence[Split]) -> tuple[str, ...]:
    """Return the axes of a dimension with split ones whole again."""
    for split in splits:
        if split.outer in dim:
            at = dim.index(split.outer)
            dim = (*dim[:at], split.axis, *dim[at + 2 :])
    return dim


def _tensor(graph: Graph, port: Port, tensors: Mapping[str, Tensor]) -> Tensor:
    if port.name not in tensors:
        raise InputError(f"{graph.name}: give the tensor {port.name!r}; it takes {_listed(graph)}")
    tensor = tensors[port.name]
    if tensor.dim() != len(port.dims):
        raise InputError(
            f"{graph.name}: {port.name!r} has {tensor.dim()} dimensions; it was built for {len(port.dims)}"
        )
    if tensor.dtype != DTYPES[port.dtype]:
        raise InputError(
            f"{graph.name}: {port.name!r} is {tensor.dtype}; it was built for {DTYPES[port.dtype]}"
        )
    return tensor


def _listed(graph: Graph) -> str:
    return ", ".join(port.name for port in graph.inputs)


@dataclass(slots=True)
class _Memory:
    """A value in memory, and the stride of each of its axes."""

    tensor: Tensor
    strides: dict[str, int]

    def reach(self, sizes: Mapping[str, int]) -> int:
        """Return the largest offset of an element."""
        return sum((sizes[axis] - 1) * stride for axis, stride in self.strides.items())


class TritonMuGraph:
    """A muGraph as a callable: `TritonMuGraph(mugraph)(x=x, w=w)` returns its outputs by name."""

    def __init__(
        self, mugraph: MuGraph, configs: Sequence[TritonConfig | None] | None = None, *, between: str = "f32"
    ) -> None:
        self.mugraph = mugraph
        self.graph = mugraph.graph
        self.between = between
        self.axes = value_axes(self.graph)
        self.programs = tuple(
            None if isinstance(kernel, Call) else lower_block(mugraph, at, between=between)
            for at, kernel in enumerate(mugraph.kernels)
        )
        self.configs = tuple(configs) if configs is not None else (None,) * len(self.programs)
        if len(self.configs) != len(self.programs):
            raise InputError(
                f"{self.graph.name}: {len(self.configs)} configurations for {len(self.programs)} kernels"
            )
        self._sources: dict[tuple[int, bool, tuple[int, ...]], TritonSource] = {}
        self._extents: dict[tuple[int, ...], dict[str, int]] = {}

    def source(self, kernel: int, sizes: Mapping[str, int], *, wide: bool = False) -> TritonSource:
        """Return the source that runs one kernel at these sizes, with masks only where they need them."""
        sizes = self.extents(sizes)
        key = kernel, wide, tuple(sizes[axis.name] for axis in self.graph.axes)
        if key not in self._sources:
            self._sources[key] = self._emitted(kernel, sizes, wide)
        return self._sources[key]

    def extents(self, sizes: Mapping[str, int]) -> dict[str, int]:
        """Return the extents of all axes: parts of split ones hold whole tiles of every kernel."""
        splits = self.mugraph.splits
        if not splits:
            return dict(sizes)
        inner = {axis for split in splits for axis in (split.outer, split.inner)}
        key = tuple(sizes[axis.name] for axis in self.graph.axes if axis.name not in inner)
        if key not in self._extents:
            found = {**sizes, **{split.outer: self.graph.sizes[split.outer] for split in splits}}
            for split in splits:
                found = split_extents(split, found)
            tiles = [
                (make_plan(program, config).roles, config.blocks)
                for program, config in zip(self.programs, self.configs, strict=True)
                if program is not None
                for config in [config or default_config(program, found)]
            ]
            for split in splits:
                multiple = max(
                    (blocks[split.inner] for roles, blocks in tiles if roles.get(split.inner) == "tile"),
                    default=1,
                )
                found[split.outer] = self.graph.sizes[split.outer]
                found = split_extents(split, found, multiple)
            self._extents[key] = found
        return self._extents[key]

    def _emitted(self, kernel: int, sizes: Mapping[str, int], wide: bool) -> TritonSource:
        program = self.programs[kernel]
        if program is None:
            raise InputError(f"{self.graph.name}: kernel {kernel} is a library's; it has no source here")
        config = self.configs[kernel] or default_config(program, sizes)
        config = _covering(program, config, sizes)
        largest = max((prod(sizes[axis] for axis in one.axes) for one in _memory(program)), default=0)
        return emit(
            program,
            replace(
                config,
                exact=exact_axes(config, sizes, program.splits),
                wide=wide or config.wide or largest >= WIDE_FROM,
            ),
        )

    def __call__(self, **tensors: Tensor) -> dict[str, Tensor]:
        """Return the outputs by name."""
        sizes = self.extents(sizes_of(self.graph, tensors, self.mugraph.splits))
        device = next((tensor.device for tensor in tensors.values()), torch.device("cpu"))
        memory = {
            value: _Memory(tensors[port.name], axis_strides(port, tensors[port.name].stride(), sizes))
            for value, port in enumerate(self.graph.inputs)
        }
        wide = any(held.reach(sizes) >= WIDE_FROM for held in memory.values())
        results: dict[str, Tensor] = {}
        for at, kernel in enumerate(self.mugraph.kernels):
            program = self.programs[at]
            if program is None:
                named = {
                    value: self._named(value, memory[value], sizes) for value in self.mugraph.loads(kernel)
                }
                for value, made in run_call(self.graph, kernel, named, self.mugraph.stores(kernel)).items():
                    self._keep(value, made, memory, results, sizes)
                continue
            written = {tensor.name: self._allocate(tensor, sizes, device) for tensor in program.stores}
            self._run(program, self.source(at, sizes, wide=wide), memory, written, sizes)
            for tensor in program.stores:
                if tensor.port is None:
                    memory[tensor.value] = written[tensor.name]
                else:
                    results[tensor.name] = self._leave(tensor.port, written[tensor.name], sizes)
        for output in self.graph.outputs:
            if output.port.name not in results:
                held = memory[output.value]
                dtype = DTYPES[output.port.dtype]
                results[output.port.name] = self._leave(output.port, held, sizes).to(dtype, copy=True)
        return {output.port.name: results[output.port.name] for output in self.graph.outputs}

    def _run(
        self,
        program: KernelProgram,
        source: TritonSource,
        memory: Mapping[int, _Memory],
        written: Mapping[str, _Memory],
        sizes: Mapping[str, int],
    ) -> None:
        held = {tensor.name: memory[tensor.value] for tensor in program.loads} | dict(written)
        grid = source.programs(sizes)
        if grid == 0:
            return
        values: dict[str, Any] = {}
        for one in source.arguments:
            if one.kind == "tensor":
                values[one.name] = held[one.tensor or ""].tensor
            elif one.kind == "stride":
                values[one.name] = held[one.tensor or ""].strides[one.axis or ""]
            else:
                sized = sizes if one.kind == "extent" else source.config.blocks
                values[one.name] = sized[one.axis or ""]
        kernel = load_kernel(source.text, source.name)
        options = {"num_warps": source.config.num_warps, "num_stages": source.config.num_stages}
        device = next(one.tensor.device for one in held.values())
        with torch.cuda.device(device) if device.type == "cuda" else nullcontext():
            kernel[(grid,)](**values, **options)

    def _allocate(self, tensor: TensorOfKernel, sizes: Mapping[str, int], device: torch.device) -> _Memory:
        axes = [axis for axis in tensor.axes if axis in self.axes[tensor.value]]
        shape = [sizes[axis] for axis in axes]
        made = torch.empty(shape, dtype=DTYPES[tensor.dtype], device=device)
        return _Memory(made, dict(zip(axes, made.stride(), strict=True)))

    def _leave(self, port: Port, held: _Memory, sizes: Mapping[str, int]) -> Tensor:
        """Return a value as the tensor of a port: axes grouped into dimensions, missing ones repeated."""
        shape = [sizes[axis] for axis in port.axes]
        strides = [held.strides.get(axis, 0) for axis in port.axes]
        whole = torch.as_strided(held.tensor, shape, strides, held.tensor.storage_offset())
        return whole.reshape([prod(sizes[axis] for axis in dim) for dim in port.dims])

    def _named(self, value: int, held: _Memory, sizes: Mapping[str, int]) -> tuple[Tensor, tuple[str, ...]]:
        axes = tuple(held.strides)
        shape, strides = [sizes[axis] for axis in axes], [held.strides[axis] for axis in axes]
        return torch.as_strided(held.tensor, shape, strides, held.tensor.storage_offset()), axes

    def _keep(
        self,
        value: int,
        made: tuple[Tensor, tuple[str, ...]],
        memory: dict[int, _Memory],
        results: dict[str, Tensor],
        sizes: Mapping[str, int],
    ) -> None:
        tensor, axes = made
        for output in self.graph.outputs:
            if output.value == value:
                order = tuple(axis for axis in output.port.axes if axis in axes)
                laid = spread(tensor, axes, order).to(DTYPES[output.port.dtype])
                held = _Memory(laid, dict(zip(order, laid.stride(), strict=True)))
                results[output.port.name] = self._leave(output.port, held, sizes)
        memory[value] = _Memory(tensor, dict(zip(axes, tensor.stride(), strict=True)))


def _memory(program: KernelProgram) -> tuple[TensorOfKernel, ...]:
    return (*program.loads, *program.stores)


def _covering(program: KernelProgram, config: TritonConfig, sizes: Mapping[str, int]) -> TritonConfig:
    """Return the configuration with tiles of whole axes long enough for these sizes."""
    roles = make_plan(program, config).roles
    tiles = tuple(
        (axis, max(tile, next_power(sizes[axis])) if roles.get(axis) == "whole" else tile)
        for axis, tile in config.tiles
    )
    return replace(config, tiles=tiles)
