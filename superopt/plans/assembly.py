"""Assembly: a whole program with kernels in place of its regions, and programs in parts."""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from superopt.ir import Graph, Opaque, Program, Region, check_program
from superopt.targets import Kernel, OrderedKernel

if TYPE_CHECKING:
    from torch import Tensor

    from superopt.trace.traced import Traced

__all__ = ["Alone", "assemble", "in_parts", "known_tensors"]


def assemble(traced: "Traced", kernels: Mapping[str, Kernel]) -> Callable[..., Any]:
    """Return the whole function, its regions computed by kernels where there are some."""

    def run_region(region: Region, known: "dict[str, Tensor]") -> "dict[str, Tensor]":
        kernel = kernels.get(region.graph.name)
        if kernel is None:
            return _as_torch(region.graph, known)
        return kernel(**{port.name: known[port.name] for port in region.graph.inputs})

    def run(*inputs: Any) -> Any:
        return traced.run(*inputs, run_region=run_region)

    return _alone(traced, kernels, run) or run


class Alone:
    """A function that is one kernel; where all its inputs are tensors, they go there as they come."""

    def __init__(
        self,
        kernel: OrderedKernel,
        run: Callable[..., Any],
        count: int,
        picked: tuple[int, ...] | None,
    ) -> None:
        from torch import Tensor

        self._tensor = Tensor
        self._kernel = kernel
        self._run = run
        self._count = count
        self._picked = picked  # of the kernel's outputs, for a tuple; None: the first one is the result

    def __call__(self, *inputs: Any) -> Any:
        """Compute the function."""
        if len(inputs) != self._count:
            return self._run(*inputs)
        for one in inputs:
            if not isinstance(one, self._tensor):
                return self._run(*inputs)
        outputs = self._kernel.in_order(inputs)
        return outputs[0] if self._picked is None else tuple([outputs[at] for at in self._picked])

    def prepared(self, inputs: "tuple[Tensor, ...]") -> Callable[..., Any]:
        """Return what computes tensors of the shapes, strides and dtypes of these, and looks no closer."""
        if len(inputs) != self._count:
            return self._run
        run, picked = self._kernel.prepared(inputs), self._picked
        if picked is None:
            return lambda *inputs: run(inputs)[0]

        def run_and_pick(*inputs: Any) -> Any:
            outputs = run(inputs)
            return tuple([outputs[at] for at in picked])

        return run_and_pick


def _alone(traced: "Traced", kernels: Mapping[str, Kernel], run: Callable[..., Any]) -> Alone | None:
    """Return a program of one kernel with the same inputs, or None where there is more to it."""
    from superopt.trace.tape import Ref

    nodes = traced.program.nodes
    if len(nodes) != 1 or not isinstance(nodes[0], Region):
        return None
    kernel: object = kernels.get(nodes[0].graph.name)
    if not isinstance(kernel, OrderedKernel) or kernel.inputs != traced.input_names:
        return None
    outputs, result = kernel.outputs, traced.result
    if isinstance(result, Ref) and traced.names.get(result.index) == outputs[0]:
        return Alone(kernel, run, len(traced.input_names), None)
    if type(result) is not tuple or not all(isinstance(one, Ref) for one in result):
        return None
    names = [traced.names.get(one.index) for one in result]
    if not set(names) <= set(outputs):
        return None
    return Alone(kernel, run, len(traced.input_names), tuple(outputs.index(name) for name in names if name))


def in_parts(traced: "Traced", goals: Iterable[Graph]) -> "Traced":
    """Return a program whose regions are the goals of a search, which may be parts of its own regions.

    The parts of a region are named after it, as in `layer.0` and `layer.1.0`, and come in order.
    """
    parts: dict[str, list[Region]] = {}
    for goal in goals:
        parts.setdefault(goal.name.partition(".")[0], []).append(Region(goal))
    nodes: list[Region | Opaque] = []
    for node in traced.program.nodes:
        nodes += parts.get(node.graph.name, [node]) if isinstance(node, Region) else [node]
    program: Program = replace(traced.program, nodes=tuple(nodes))
    return replace(traced, program=check_program(program))


def known_tensors(traced: "Traced", inputs: tuple[Any, ...]) -> "dict[str, Tensor]":
    """Return every tensor that enters a region, from one run of the program."""
    seen: dict[str, Tensor] = {}

    def run_region(region: Region, known: "dict[str, Tensor]") -> "dict[str, Tensor]":
        seen.update(known)
        return _as_torch(region.graph, known)

    traced.run(*inputs, run_region=run_region)
    return seen


def _as_torch(graph: Graph, known: "dict[str, Tensor]") -> "dict[str, Tensor]":
    """Return the outputs of a region, computed by torch in fp32."""
    import torch

    from superopt.trace.run import TORCH_DTYPES, run_graph

    made = run_graph(graph, known, torch.float32)
    dtypes = {output.port.name: TORCH_DTYPES[output.port.dtype] for output in graph.outputs}
    return {name: tensor.to(dtypes[name]) for name, tensor in made.items()}
