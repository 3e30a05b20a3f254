"""Launch: a whole muGraph run on torch tensors, its block kernels as compiled C++."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import prod
from struct import Struct
from typing import Any

import torch
from torch import Tensor as TorchTensor

from superopt.codegen.cpp.compile import compile_source, load_kernel
from superopt.codegen.cpp.config import CppConfig, default_config
from superopt.codegen.cpp.emit import emit
from superopt.codegen.cpp.errors import UnsupportedError
from superopt.codegen.cpp.source import Argument
from superopt.codegen.statements import KernelProgram, Tensor, axis_strides, lower_block, split_extents
from superopt.errors import InputError
from superopt.ir import Graph, Port, Step, value_axes
from superopt.ir.mugraph import Block, Call, MuGraph

__all__ = ["CppKernel", "CppMuGraph"]

_DTYPES = {
    "f32": torch.float32,
    "f16": torch.float16,
    "bf16": torch.bfloat16,
    "bool": torch.bool,
    "u8": torch.uint8,
    "i8": torch.int8,
    "i16": torch.int16,
    "i32": torch.int32,
    "i64": torch.int64,
}

_PLANS = 256  # for so many combinations of shapes, calls are prepared
_SMALL = 16384  # elements: copying a small tensor's form takes less time than stating it
_PART = 16  # positions: the parts of a split axis start at cache lines


class CppKernel:
    """One compiled kernel; it is called with a record of eight-byte fields, addresses first."""

    def __init__(self, program: KernelProgram, config: CppConfig, *, flags: Sequence[str] = ()) -> None:
        self.program = program
        self.reads = tuple(tensor.value for tensor in program.loads)
        self.source = emit(program, config)
        self.call = load_kernel(compile_source(self.source, flags=flags), program.name)
        self.pack = Struct(f"{len(program.loads) + len(program.stores)}Q").pack

    def fields(
        self,
        loads: Sequence[Sequence[int]],
        stores: Sequence[Sequence[int]],
        sizes: Mapping[str, int],
        threads: int,
    ) -> bytes:
        """Return the fields after the addresses, for tensors of these strides."""
        strides = [
            [_strides(tensor, found, sizes) for tensor, found in zip(tensors, given, strict=True)]
            for tensors, given in ((self.program.loads, loads), (self.program.stores, stores))
        ]
        rest = [one for one in self.source.arguments if one.kind not in ("load", "store")]
        return Struct(f"{len(rest)}q").pack(*(_number(one, strides, sizes, threads) for one in rest))


def _contiguous(shape: Sequence[int]) -> tuple[int, ...]:
    return tuple(prod(max(1, size) for size in shape[at + 1 :]) for at in range(len(shape)))


def _number(
    argument: Argument, strides: list[list[dict[str, int]]], sizes: Mapping[str, int], threads: int
) -> int:
    if argument.kind == "threads":
        return threads
    if argument.kind == "size":
        return sizes[argument.axis]
    return strides[argument.stored][argument.position][argument.axis]


def _strides(tensor: Tensor, found: Sequence[int], sizes: Mapping[str, int]) -> dict[str, int]:
    port = tensor.port or Port(tensor.name, tensor.dtype, tuple((axis,) for axis in tensor.axes))
    return axis_strides(port, found, sizes)


class LibraryCall:
    """A kernel that is left to torch: contractions, in the widest dtype that they read."""

    def __init__(self, mugraph: MuGraph, call: Call) -> None:
        self._graph = mugraph.graph
        self._axes = value_axes(self._graph)
        self._steps: list[tuple[int, Step]] = []
        for tile in call.body:
            step = self._graph.step_of(tile.value)
            if step is None or step.op != "contract":
                name = "an input" if step is None else step.op
                raise UnsupportedError(f"{self._graph.name}: a library call of {name}; known: contract")
            self._steps.append((tile.value, step))
        writes = set(mugraph.stores(call))
        self._outputs = [output for output in self._graph.outputs if output.value in writes]

    def __call__(
        self, values: list[TorchTensor], results: dict[str, TorchTensor], sizes: Mapping[str, int]
    ) -> None:
        """Add what the steps compute to the values, and to the results those that leave."""
        letters = {axis: i for i, axis in enumerate(sizes)}
        for value, step in self._steps:
            tensors = [self._by_axes(i, values[i], sizes) for i in step.inputs]
            dtype = torch.promote_types(*(tensor.dtype for tensor, _ in tensors))
            order = [letters[axis] for axis in sizes if axis in self._axes[value]]
            operands = [
                part
                for tensor, axes in tensors
                for part in (tensor.to(dtype), [letters[axis] for axis in axes])
            ]
            values[value] = torch.einsum(*operands, order)
        for output in self._outputs:
            made, axes = self._by_axes(output.value, values[output.value], sizes)
            results[output.port.name] = spread(
                made, dict(zip(axes, made.stride(), strict=True)), output.port, sizes
            )
        for value, _ in self._steps:
            values[value] = values[value].float().contiguous()

    def shapes(self, sizes: Mapping[str, int]) -> dict[int, tuple[int, ...]]:
        """Return the shape of each value that it computes, one dimension for each axis."""
        return {
            value: tuple(sizes[axis] for axis in sizes if axis in self._axes[value])
            for value, _ in self._steps
        }

    def _by_axes(
        self, value: int, tensor: TorchTensor, sizes: Mapping[str, int]
    ) -> tuple[TorchTensor, tuple[str, ...]]:
        """Return a view of a tensor with one dimension for each axis, and the axes."""
        if value >= len(self._graph.inputs):
            return tensor, tuple(axis for axis in sizes if axis in self._axes[value])
        port = self._graph.inputs[value]
        strides = axis_strides(port, tensor.stride(), sizes)
        return tensor.as_strided(
            [sizes[axis] for axis in port.axes], [strides[axis] for axis in port.axes]
        ), port.axes


def spread(
    tensor: TorchTensor, strides: Mapping[str, int], port: Port, sizes: Mapping[str, int]
) -> TorchTensor:
    """Return a copy of a tensor, given the stride of each axis, in the shape and dtype of an output."""
    view = tensor.as_strided(
        [sizes[axis] for axis in port.axes], [strides.get(axis, 0) for axis in port.axes]
    )
    shape = [prod(sizes[axis] for axis in dim) for dim in port.dims]
    return view.reshape(shape).to(_DTYPES[port.dtype], copy=True, memory_format=torch.contiguous_format)


_Made = tuple[tuple[int, ...], torch.dtype, int, str | None, TorchTensor | None]
"""Shape, dtype and value of a result, its name where it leaves, and one like it where that is small."""


@dataclass(frozen=True, slots=True)
class _Plan:
    """What follows from the shapes, strides and dtypes of the inputs, and from the number of threads."""

    sizes: dict[str, int]
    launches: list[tuple[CppKernel | LibraryCall, list[_Made], bytes]]


class CppMuGraph:
    """A muGraph as a function of torch tensors by name; it returns the outputs by name."""

    def __init__(
        self,
        mugraph: MuGraph,
        configs: Mapping[int, CppConfig] | None = None,
        *,
        flags: Sequence[str] = (),
    ) -> None:
        self.mugraph = mugraph
        self.graph: Graph = mugraph.graph
        self._names = tuple(port.name for port in self.graph.inputs)
        self._dims = {port.name: self._unsplit(port) for port in self.graph.inputs}
        self._carried = [one for one in self.graph.outputs if one.value < len(self.graph.inputs)]
        self._unmade: list[Any] = [None] * len(self.graph.steps)
        self._plans: dict[object, _Plan] = {}
        self._kernels: list[CppKernel | LibraryCall] = []
        for number, kernel in enumerate(mugraph.kernels):
            if not isinstance(kernel, Block):
                self._kernels.append(LibraryCall(mugraph, kernel))
                continue
            program = lower_block(mugraph, number)
            config = (configs or {}).get(number) or default_config(
                program, self.graph.sizes, cores=torch.get_num_threads()
            )
            self._kernels.append(CppKernel(program, config, flags=flags))

    @property
    def sources(self) -> tuple[str, ...]:
        """The C++ text of every kernel."""
        return tuple(kernel.source.code for kernel in self._kernels if isinstance(kernel, CppKernel))

    def __call__(self, **tensors: TorchTensor) -> dict[str, TorchTensor]:
        """Run the kernels in order."""
        threads = torch.get_num_threads()
        try:
            given = [tensors[name] for name in self._names]
        except KeyError as missing:
            raise InputError(f"{self.graph.name}: no tensor for input {missing}") from None
        known: list[object] = [threads]
        for one in given:
            known += (one.shape, one.stride(), one.dtype, one.is_cpu)
        key = tuple(known)
        plan = self._plans.get(key)
        if plan is None:
            if len(self._plans) >= _PLANS:
                self._plans.clear()
            plan = self._plans[key] = self._plan(tensors, threads)
        values = given + self._unmade
        results: dict[str, TorchTensor] = {}
        for kernel, made, fields in plan.launches:
            if isinstance(kernel, LibraryCall):
                kernel(values, results, plan.sizes)
                continue
            addresses = [values[value].data_ptr() for value in kernel.reads]
            for shape, dtype, value, name, like in made:
                tensor = torch.empty(shape, dtype=dtype) if like is None else torch.empty_like(like)
                addresses.append(tensor.data_ptr())
                if name is None:
                    values[value] = tensor
                else:
                    results[name] = tensor
            kernel.call(kernel.pack(*addresses) + fields)
        for output in self._carried:
            carried = values[output.value]
            strides = axis_strides(self.graph.inputs[output.value], carried.stride(), plan.sizes)
            results[output.port.name] = spread(carried, strides, output.port, plan.sizes)
        return results

    def _plan(self, tensors: Mapping[str, TorchTensor], threads: int) -> "_Plan":
        """Return what need not be worked out at every call."""
        sizes = self._sizes(tensors)
        strides = {value: tensors[name].stride() for value, name in enumerate(self._names)}
        launches: list[tuple[CppKernel | LibraryCall, list[_Made], bytes]] = []
        for kernel in self._kernels:
            if isinstance(kernel, LibraryCall):
                strides |= {value: _contiguous(shape) for value, shape in kernel.shapes(sizes).items()}
                launches.append((kernel, [], b""))
                continue
            made: list[_Made] = []
            for tensor in kernel.program.stores:
                empty = next((one for one in kernel.program.repeated(tensor.value) if not sizes[one]), None)
                if empty is not None:
                    raise InputError(
                        f"{self.graph.name}: axis {empty!r} is empty; {tensor.name} has no program"
                    )
                dims = tensor.port.dims if tensor.port else tuple((axis,) for axis in tensor.axes)
                shape = tuple(prod(sizes[axis] for axis in dim) for dim in dims)
                name = tensor.name if tensor.port else None
                dtype = _DTYPES[tensor.dtype]
                like = torch.empty(shape, dtype=dtype) if prod(shape) <= _SMALL else None
                made.append((shape, dtype, tensor.value, name, like))
                if name is None:
                    strides[tensor.value] = _contiguous(shape)
            reads = [strides[value] for value in kernel.reads]
            fields = kernel.fields(reads, [_contiguous(shape) for shape, *_ in made], sizes, threads)
            launches.append((kernel, made, fields))
        return _Plan(sizes, launches)

    def _sizes(self, tensors: Mapping[str, TorchTensor]) -> dict[str, int]:
        """Return the size of each axis, read off the tensors; sizes may differ from the graph's."""
        sizes = dict(self.graph.sizes)
        for port in self.graph.inputs:
            tensor = tensors.get(port.name)
            if tensor is None:
                raise InputError(f"{self.graph.name}: no tensor for input {port.name!r}")
            if tensor.dtype is not _DTYPES.get(port.dtype) or tensor.device.type != "cpu":
                raise InputError(
                    f"{self.graph.name}: {port.name!r} is {tensor.dtype} on {tensor.device}; made for"
                    f" {port.dtype} on the CPU"
                )
            dims = self._dims[port.name]
            if len(tensor.shape) != len(dims):
                raise InputError(
                    f"{self.graph.name}: {port.name!r} has {tensor.dim()} dimensions, not {len(dims)}"
                )
            for dim, size in zip(dims, tensor.shape, strict=True):
                if len(dim) == 1:
                    sizes[dim[0]] = size
        for port in self.graph.inputs:
            expected = tuple(prod(sizes[axis] for axis in dim) for dim in self._dims[port.name])
            if tuple(tensors[port.name].shape) != expected:
                raise InputError(
                    f"{self.graph.name}: {port.name!r} has shape {tuple(tensors[port.name].shape)},"
                    f" expected {expected}"
                )
        for split in self.mugraph.splits:
            sizes = split_extents(split, sizes, _PART)
        return sizes

    def _unsplit(self, port: Port) -> tuple[tuple[str, ...], ...]:
        """Return the axes of each dimension of an input, those that are split by their own names."""
        whole = {(split.outer, split.inner): split.axis for split in self.mugraph.splits}
        dims: list[tuple[str, ...]] = []
        for dim in port.dims:
            axes: list[str] = []
            for axis in dim:
                pair = (axes[-1] if axes else "", axis)
                axes = [*axes[:-1], whole[pair]] if pair in whole else [*axes, axis]
            dims.append(tuple(axes))
        return tuple(dims)
