"""Library: kernels that are left to torch, and copies of tensors in the shape of an output."""

from collections.abc import Mapping
from math import prod

import torch
from torch import Tensor as TorchTensor

from superopt.codegen.cpp.errors import UnsupportedError
from superopt.codegen.statements import axis_strides
from superopt.dtypes import torch_dtypes
from superopt.ir import Port, Step, value_axes
from superopt.ir.mugraph import Call, MuGraph

__all__ = ["LibraryCall", "spread"]


def _multiplied(dtype: torch.dtype) -> torch.dtype:
    """Return the dtype in which torch multiplies tensors of a dtype: it has no arithmetic on eight bits."""
    return torch.float32 if dtype.itemsize == 1 and dtype.is_floating_point else dtype


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
        self._dtypes = {value: torch_dtypes()[dtype] for value, dtype in mugraph.rounded}
        writes = set(mugraph.stores(call))
        self._outputs = [output for output in self._graph.outputs if output.value in writes]

    def __call__(
        self, values: list[TorchTensor], results: dict[str, TorchTensor], sizes: Mapping[str, int]
    ) -> None:
        """Add what the steps compute to the values, and to the results those that leave."""
        letters = {axis: i for i, axis in enumerate(sizes)}
        for value, step in self._steps:
            tensors = [self._by_axes(i, values[i], sizes) for i in step.inputs]
            dtype = torch.promote_types(*(_multiplied(tensor.dtype) for tensor, _ in tensors))
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
            values[value] = values[value].to(self._dtypes.get(value, torch.float32)).contiguous()

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
    return view.reshape(shape).to(
        torch_dtypes()[port.dtype], copy=True, memory_format=torch.contiguous_format
    )
