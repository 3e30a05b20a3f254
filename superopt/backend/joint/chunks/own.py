"""Own: stages of a chunk by kernels of ours, which read and write where the chunk's tensors lie."""

import logging
from collections.abc import Mapping, Sequence
from dataclasses import replace

from torch import Tensor

from superopt.backend.joint.chunks.stages import Between, Multiply, Operand
from superopt.candidates.sizes import resized
from superopt.codegen.cpp import CppMuGraph
from superopt.codegen.errors import UnsupportedError
from superopt.errors import SuperoptError, first_line
from superopt.ir import Graph, Port, fuse
from superopt.rivals.wide.own import product_graph
from superopt.trace.run import TORCH_DTYPES

__all__ = ["OwnStage", "own_between", "own_product"]

log = logging.getLogger("superopt")

_NAMES = {TORCH_DTYPES[name]: name for name in ("f32", "bf16", "i64", "i32", "bool")}
_FLOATS = "f32", "bf16"
_SUM = "sum_before"
"""The name of the input with what a product is added to."""


class OwnStage:
    """A graph by kernels of ours, which write some results where inputs lie."""

    def __init__(self, graph: Graph, over: Mapping[str, str]) -> None:
        self._kernels = CppMuGraph(fuse(graph))
        names = [port.name for port in graph.inputs]
        self._reads = [names.index(name) for name in self._kernels.inputs]
        if not self._kernels.makes_all:
            raise UnsupportedError(f"{graph.name}: a result is an input")
        for output, entering in over.items():
            if not self._kernels.may_lie_over(output, entering):
                raise UnsupportedError(f"{graph.name}: {entering} is read after {output} is written there")

    def __call__(self, given: Sequence[Tensor], results: Sequence[Tensor]) -> None:
        """Compute contiguous results of tensors in order."""
        self._kernels.into([given[at] for at in self._reads], results)


def own_product(step: Multiply, sizes: Mapping[str, int], tensors: Sequence[Tensor]) -> OwnStage | None:
    """Return a product of two tensors, the third of which it makes, or None where kernels of ours cannot.

    One that is added to those before reads the third as well.
    """
    if not tensors[2].is_contiguous() or any(_NAMES.get(one.dtype) not in _FLOATS for one in tensors):
        return None
    operands = step.left, step.right, step.made
    left, right, result = (_port(one, tensor) for one, tensor in zip(operands, tensors, strict=True))
    axes = {axis: sizes[axis] for one in (step.left, step.right) for axis in one.axes}
    before = replace(result, name=_SUM) if step.adds else None
    graph = product_graph((left, right), result, step.summed, axes, before)
    return _made(graph, {result.name: _SUM} if step.adds else {})


def own_between(
    step: Between, sizes: Mapping[str, int], given: Sequence[Tensor], results: Mapping[str, Tensor]
) -> OwnStage | None:
    """Return what computes a graph between products, or None where kernels of ours cannot.

    Of results those are given whose memory is there.
    """
    graph = resized(step.graph, sizes)
    tensors = dict(zip((port.name for port in graph.inputs), given, strict=True)) | dict(results)
    ports = [*graph.inputs, *(one.port for one in graph.outputs)]
    dtypes = {port.name: _dtype(port, tensors.get(port.name)) for port in ports}
    if None in dtypes.values() or any(one.port.dtype not in _FLOATS for one in graph.outputs):
        return None
    made = _with_dtypes(graph, {name: dtype for name, dtype in dtypes.items() if dtype is not None})
    places = {tensor.data_ptr(): port.name for port, tensor in zip(graph.inputs, given, strict=True)}
    over = {name: places[one.data_ptr()] for name, one in results.items() if one.data_ptr() in places}
    return _made(made, over)


def _made(graph: Graph, over: Mapping[str, str]) -> OwnStage | None:
    try:
        return OwnStage(graph, over)
    except SuperoptError as error:  # there may be no compiler
        log.info("a stage of chunks is left to PyTorch: %s", first_line(error))
        return None


def _port(one: Operand, tensor: Tensor) -> Port:
    return Port(one.name, _NAMES[tensor.dtype], tuple((axis,) for axis in one.axes))


def _dtype(port: Port, tensor: Tensor | None) -> str | None:
    """Return the dtype of what is at a port, None where another one means something else."""
    found = port.dtype if tensor is None else _NAMES.get(tensor.dtype)
    return found if found == port.dtype or {found, port.dtype}.issubset(_FLOATS) else None


def _with_dtypes(graph: Graph, dtypes: Mapping[str, str]) -> Graph:
    inputs = (replace(port, dtype=dtypes[port.name]) for port in graph.inputs)
    ports = (replace(one.port, dtype=dtypes[one.port.name]) for one in graph.outputs)
    outputs = (replace(one, port=port) for one, port in zip(graph.outputs, ports, strict=True))
    return replace(graph, inputs=tuple(inputs), outputs=tuple(outputs))
