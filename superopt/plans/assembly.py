"""Assembly: a whole program with kernels in place of its regions, and programs in parts."""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from superopt.ir import Graph, Opaque, Program, Region, check_program
from superopt.targets import Kernel

if TYPE_CHECKING:
    from torch import Tensor

    from superopt.trace.traced import Traced

__all__ = ["assemble", "in_parts", "known_tensors"]


def assemble(traced: "Traced", kernels: Mapping[str, Kernel]) -> Callable[..., Any]:
    """Return the whole function, its regions computed by kernels where there are some."""

    def run_region(region: Region, known: "dict[str, Tensor]") -> "dict[str, Tensor]":
        kernel = kernels.get(region.graph.name)
        if kernel is None:
            return _as_torch(region.graph, known)
        return kernel(**{port.name: known[port.name] for port in region.graph.inputs})

    return lambda *inputs: traced.run(*inputs, run_region=run_region)


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
