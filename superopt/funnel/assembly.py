"""Assembly: a whole program with kernels in place of its regions, and programs in parts."""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from superopt.candidates.candidate import Candidate
from superopt.candidates.parts import region_name
from superopt.candidates.sizes import resized
from superopt.dtypes import INTEGERS
from superopt.ir import Graph, Opaque, Program, Region, check_program, extents, live_graph, stabilize
from superopt.targets import Kernel, OrderedKernel
from superopt.trace.capture.tape import Ref
from superopt.trace.run import TORCH_DTYPES, run_graph
from superopt.trace.traced import Traced
from superopt.weights.kept import KeptKernel

__all__ = ["Alone", "InTorch", "as_kernel", "assemble", "in_parts", "known_tensors"]


def assemble(traced: Traced, kernels: Mapping[str, Kernel]) -> Callable[..., Any]:
    """Return the whole function, its regions computed by kernels where there are some."""
    in_torch = {
        region.graph.name: InTorch(region.graph)
        for region in traced.program.regions
        if region.graph.name not in kernels
    }

    def run_region(region: Region, known: dict[str, Tensor]) -> dict[str, Tensor]:
        kernel = kernels.get(region.graph.name)
        if kernel is None:
            return in_torch[region.graph.name](known)
        return kernel(**{port.name: known[port.name] for port in region.graph.inputs})

    def run(*inputs: Any) -> Any:
        return traced.run(*inputs, run_region=run_region)

    return _alone(traced, kernels, run) or run


class InTorch:
    """A region as torch computes it: in fp32, or in fp64 where fp32 does not hold its tensors.

    Exponentials are less their maxima where a shift is free, as in PyTorch and in kernels. No gradients are
    made, and autocast changes nothing: it would multiply in another dtype.
    """

    def __init__(self, goal: Graph) -> None:
        self._goal = goal
        self._stable: Graph | None = None  # made when it is first needed: most regions have kernels

    def __call__(self, known: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Return the outputs by name, for inputs of any sizes that the region may have."""
        if self._stable is None:
            self._stable = live_graph(stabilize(self._goal))
        graph = self._stable
        shapes = [known[port.name].shape for port in graph.inputs]
        if shapes != [graph.shape(port) for port in graph.inputs]:
            graph = resized(graph, extents(self._goal, shapes))
        outputs = [output.port for output in graph.outputs]
        wide = {port.dtype for port in (*graph.inputs, *outputs)} & {"f64", *INTEGERS}
        with torch.no_grad(), torch._C._DisableAutocast():
            made = run_graph(graph, known, torch.float64 if wide else torch.float32)
            return {port.name: made[port.name].to(TORCH_DTYPES[port.dtype]) for port in outputs}


class Alone:
    """A function that is one kernel; if all its inputs are tensors, they are passed on directly.

    Tensors that the function holds are passed along without a copy.
    """

    def __init__(
        self,
        kernel: OrderedKernel,
        run: Callable[..., Any],
        count: int,
        held: tuple[Tensor, ...],
        order: tuple[int, ...],
        picked: tuple[int, ...] | None,
    ) -> None:
        self._kernel = kernel
        self._in_order = kernel.in_order
        self._run = run
        self._count = count
        self._held = held
        # Places among the inputs and the held tensors; None: the inputs as they come.
        self._order = order if order != tuple(range(count)) else None
        self._picked = picked  # outputs of the kernel that make a tuple; None: the first output is the result
        self._plain = self._order is None and picked is None

    def __call__(self, *inputs: Any) -> Any:
        """Compute the function."""
        if len(inputs) != self._count:
            return self._run(*inputs)
        try:
            if self._plain:
                return self._in_order(inputs)[0]
            outputs = self._in_order(self._arranged(inputs))
        except (AttributeError, TypeError):  # no form is known of what is no tensor
            if all(isinstance(one, Tensor) for one in inputs):
                raise
            return self._run(*inputs)
        return outputs[0] if self._picked is None else tuple([outputs[at] for at in self._picked])

    def _arranged(self, inputs: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
        """Return what the kernel reads, in its order."""
        if self._order is None:
            return inputs
        known = (*inputs, *self._held)
        return tuple([known[at] for at in self._order])

    def prepared(self, inputs: tuple[Tensor, ...]) -> Callable[..., Any]:
        """Return a function for tensors of these shapes, strides and dtypes that checks nothing."""
        if len(inputs) != self._count:
            return self._run
        run, picked, arranged = self._kernel.prepared(self._arranged(inputs)), self._picked, self._arranged
        if picked is None and self._order is None:
            return lambda *inputs: run(inputs)[0]
        if picked is None:
            return lambda *inputs: run(arranged(inputs))[0]

        def run_and_pick(*inputs: Any) -> Any:
            outputs = run(arranged(inputs))
            return tuple([outputs[at] for at in picked])

        return run_and_pick


def _alone(traced: Traced, kernels: Mapping[str, Kernel], run: Callable[..., Any]) -> Alone | None:
    """Return the program as one kernel, or None where it has more than one part."""
    nodes = traced.program.nodes
    if len(nodes) != 1 or not isinstance(nodes[0], Region) or traced.orders:  # kernels make no other order
        return None
    kernel: object = kernels.get(nodes[0].graph.name)
    known = (*traced.input_names, *traced.constants)
    if not isinstance(kernel, OrderedKernel) or not set(kernel.inputs) <= set(known):
        return None
    order = tuple(known.index(name) for name in kernel.inputs)
    held = tuple(traced.constants.values())
    outputs, result = kernel.outputs, traced.result
    if isinstance(result, Ref) and traced.names.get(result.index) == outputs[0]:
        return Alone(kernel, run, len(traced.input_names), held, order, None)
    if type(result) is not tuple or not all(isinstance(one, Ref) for one in result):
        return None
    names = [traced.names.get(one.index) for one in result]
    places = {(traced.names.get(one.index), traced.memory.get(one.index)) for one in result}
    if not set(names) <= set(outputs) or len(places) > len(set(names)):  # an output is returned twice, apart
        return None
    picked = tuple(outputs.index(name) for name in names if name)
    return Alone(kernel, run, len(traced.input_names), held, order, picked)


def as_kernel(goal: Graph, candidate: Candidate, kernel: Kernel) -> Kernel:
    """Return the kernel of a candidate as a kernel of its region, with what it keeps of the weights.

    Where that cannot be kept, PyTorch computes the region as its graph says.
    """
    parts = candidate.parts
    if parts is None:
        return kernel
    return KeptKernel(goal, parts, kernel, InTorch(goal))


def in_parts(traced: Traced, goals: Iterable[Graph]) -> Traced:
    """Return a program whose regions are the goals of a search, which may be parts of its own regions.

    The parts of a region are named after it, as in `layer.0` and `layer.1.0`, and come in order.
    """
    parts: dict[str, list[Region]] = {}
    for goal in goals:
        parts.setdefault(region_name(goal), []).append(Region(goal))
    nodes: list[Region | Opaque] = []
    for node in traced.program.nodes:
        nodes += parts.get(node.graph.name, [node]) if isinstance(node, Region) else [node]
    program: Program = replace(traced.program, nodes=tuple(nodes))
    return replace(traced, program=check_program(program))


def known_tensors(traced: Traced, inputs: tuple[Any, ...]) -> dict[str, Tensor]:
    """Return every tensor that enters a region, from one run of the program."""
    seen: dict[str, Tensor] = {}

    def run_region(region: Region, known: dict[str, Tensor]) -> dict[str, Tensor]:
        seen.update(known)
        return InTorch(region.graph)(known)

    traced.run(*inputs, run_region=run_region)
    return seen
