"""Launch: a whole muGraph run on torch tensors, its block kernels as compiled C++."""

from array import array
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import prod

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

_PART = 16  # positions: the parts of a split axis start at cache lines


class CppKernel:
    """One compiled kernel, and the record of arguments that it is called with."""

    def __init__(self, program: KernelProgram, config: CppConfig, *, flags: Sequence[str] = ()) -> None:
        self.program = program
        self.reads = [tensor.value for tensor in program.loads]
        self.source = emit(program, config)
        self._kernel = load_kernel(compile_source(self.source, flags=flags), program.name)
        self._record = array("q", [0]) * len(self.source.arguments)
        self._address = self._record.buffer_info()[0]
        self._sizes: Mapping[str, int] = {}
        self._layout: list[object] = []

    def __call__(
        self,
        loads: Sequence[TorchTensor],
        stores: Sequence[TorchTensor],
        sizes: Mapping[str, int],
        threads: int,
    ) -> None:
        """Run on tensors, in the order of the program's loads and stores."""
        record = self._record
        tensors = (*loads, *stores)
        for position, tensor in enumerate(tensors):
            record[position] = tensor.data_ptr()
        layout: list[object] = [threads, *[tensor.stride() for tensor in tensors]]
        if sizes is not self._sizes or layout != self._layout:
            self._fill(loads, stores, sizes, threads)
            self._sizes, self._layout = sizes, layout
        self._kernel(self._address)

    def _fill(
        self,
        loads: Sequence[TorchTensor],
        stores: Sequence[TorchTensor],
        sizes: Mapping[str, int],
        threads: int,
    ) -> None:
        strides = [
            [_strides(tensor, found, sizes) for tensor, found in zip(tensors, given, strict=True)]
            for tensors, given in ((self.program.loads, loads), (self.program.stores, stores))
        ]
        for at, argument in enumerate(self.source.arguments):
            if argument.kind not in ("load", "store"):
                self._record[at] = _number(argument, strides, sizes, threads)


def _number(
    argument: Argument, strides: list[list[dict[str, int]]], sizes: Mapping[str, int], threads: int
) -> int:
    if argument.kind == "threads":
        return threads
    if argument.kind == "size":
        return sizes[argument.axis]
    return strides[argument.stored][argument.position][argument.axis]


def _strides(tensor: Tensor, found: TorchTensor, sizes: Mapping[str, int]) -> dict[str, int]:
    port = tensor.port or Port(tensor.name, tensor.dtype, tuple((axis,) for axis in tensor.axes))
    return axis_strides(port, found.stride(), sizes)


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
        self, values: dict[int, TorchTensor], results: dict[str, TorchTensor], sizes: Mapping[str, int]
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


_Made = tuple[tuple[int, ...], torch.dtype, int, str | None]  # shape, dtype, value, name where it leaves


@dataclass(frozen=True, slots=True)
class _Plan:
    """The size of each axis, and the tensors that each kernel writes, for inputs of certain shapes."""

    sizes: dict[str, int]
    stores: list[list[_Made]]


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
        self._inputs = [(value, port.name) for value, port in enumerate(self.graph.inputs)]
        self._dims = {port.name: self._unsplit(port) for port in self.graph.inputs}
        self._carried = [one for one in self.graph.outputs if one.value < len(self.graph.inputs)]
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
        key = tuple([(name, tensor.shape, tensor.dtype, tensor.is_cpu) for name, tensor in tensors.items()])
        plan = self._plans.get(key)
        if plan is None:
            plan = self._plans.setdefault(key, self._plan(tensors))
        threads = torch.get_num_threads()
        values = {value: tensors[name] for value, name in self._inputs}
        results: dict[str, TorchTensor] = {}
        for kernel, made in zip(self._kernels, plan.stores, strict=True):
            if isinstance(kernel, LibraryCall):
                kernel(values, results, plan.sizes)
                continue
            stores = [torch.empty(shape, dtype=dtype) for shape, dtype, _, _ in made]
            for tensor, (_, _, value, name) in zip(stores, made, strict=True):
                if name is None:
                    values[value] = tensor
                else:
                    results[name] = tensor
            kernel([values[value] for value in kernel.reads], stores, plan.sizes, threads)
        for output in self._carried:
            carried = values[output.value]
            strides = axis_strides(self.graph.inputs[output.value], carried.stride(), plan.sizes)
            results[output.port.name] = spread(carried, strides, output.port, plan.sizes)
        return results

    def _plan(self, tensors: Mapping[str, TorchTensor]) -> "_Plan":
        """Return what follows from the shapes of the inputs."""
        sizes = self._sizes(tensors)
        stores = []
        for kernel in self._kernels:
            made: list[_Made] = []
            for tensor in kernel.program.stores if isinstance(kernel, CppKernel) else ():
                dims = tensor.port.dims if tensor.port else tuple((axis,) for axis in tensor.axes)
                shape = tuple(prod(sizes[axis] for axis in dim) for dim in dims)
                name = tensor.name if tensor.port else None
                made.append((shape, _DTYPES[tensor.dtype], tensor.value, name))
            stores.append(made)
        return _Plan(sizes, stores)

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
