"""Library: kernels that are left to torch, and copies of tensors in the shape of an output."""

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from math import prod

import torch
from torch import Tensor as TorchTensor

from superopt.codegen.library import LibraryCall, as_result
from superopt.codegen.statements import axis_strides
from superopt.dtypes import torch_dtypes
from superopt.ir import Port
from superopt.ir.mugraph import Call, MuGraph, called_order

__all__ = ["LibraryKernel", "LibraryRun", "spread"]

LibraryRun = Callable[[list[TorchTensor], dict[str, TorchTensor]], None]
"""Runs a library kernel: adds its values to the list, and those that are outputs to the dict."""


class LibraryKernel:
    """A kernel that is left to torch."""

    def __init__(self, mugraph: MuGraph, call: Call) -> None:
        self._call = call
        self._mugraph = mugraph
        self._graph = mugraph.graph
        self.reads = tuple(mugraph.loads(call))
        others = (one for one in mugraph.kernels if one is not call)
        self._read = {value for other in others for value in mugraph.loads(other)}
        self._stored = mugraph.stores(call)
        self._dtypes = {value: torch_dtypes()[dtype] for value, dtype in mugraph.rounded}
        self.prepared({}, self._graph.sizes)  # refuses what no library computes

    def prepared(self, strides: Mapping[int, Sequence[int]], sizes: Mapping[str, int]) -> LibraryRun:
        """Return the call on tensors whose inputs have these strides."""
        seen = {value: self._seen(value, strides.get(value), sizes) for value in self.reads}
        axes = {value: self._ordered(value) for value in self.reads}
        call = LibraryCall(self._graph, self._call, axes, self._stored, sizes)
        outputs = self._graph.outputs
        leaving = {i: [one.port for one in outputs if one.value == i] for i in self._stored}
        orders = [[call.axes[i].index(axis) for axis in self._ordered(i)] for i in self._stored]

        def run(values: list[TorchTensor], results: dict[str, TorchTensor]) -> None:
            made = call({value: see(values[value]) for value, see in seen.items()})
            for value, tensor, order in zip(self._stored, made, orders, strict=True):
                strides = dict(zip(call.axes[value], tensor.stride(), strict=True))
                for at, port in enumerate(leaving[value]):  # the first may have the memory itself
                    results[port.name] = spread(tensor, strides, port, sizes, copy=at > 0)
                if value in self._read:
                    dtype = self._dtypes.get(value, torch.float32)
                    values[value] = tensor.permute(order).to(dtype).contiguous()

        return run

    def shapes(self, sizes: Mapping[str, int]) -> dict[int, tuple[int, ...]]:
        """Return the shape of each value that it computes, one dimension for each axis."""
        return {value: tuple(sizes[axis] for axis in self._ordered(value)) for value in self._stored}

    def _ordered(self, value: int) -> tuple[str, ...]:
        """Return the axes of a value, one for each dimension in which it is seen."""
        if value < len(self._graph.inputs):
            return self._graph.inputs[value].axes
        return called_order(self._mugraph, value)

    def _seen(
        self, value: int, stride: Sequence[int] | None, sizes: Mapping[str, int]
    ) -> Callable[[TorchTensor], TorchTensor]:
        """Return a function that views a tensor with one dimension for each axis."""
        if value >= len(self._graph.inputs) or stride is None:
            return lambda tensor: tensor
        port = self._graph.inputs[value]
        strides = axis_strides(port, stride, sizes)
        shape = [sizes[axis] for axis in port.axes]
        return partial(torch.as_strided, size=shape, stride=[strides[axis] for axis in port.axes])


def spread(
    tensor: TorchTensor, strides: Mapping[str, int], port: Port, sizes: Mapping[str, int], *, copy: bool
) -> TorchTensor:
    """Return a tensor, given the stride of each axis, in the shape and dtype of an output."""
    view = tensor.as_strided(
        [sizes[axis] for axis in port.axes], [strides.get(axis, 0) for axis in port.axes]
    )
    shape = [prod(sizes[axis] for axis in dim) for dim in port.dims]
    return as_result(view, shape, torch_dtypes()[port.dtype], copy=copy)
