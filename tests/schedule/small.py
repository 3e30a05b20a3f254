"""Schedules on small sizes: a muGraph made for real sizes, with its axes cut short."""

from collections.abc import Mapping
from dataclasses import replace

import torch
from torch import Tensor

from superopt.ir import Graph, MuGraph

_SIZES = (3, 5, 2, 4)


def small_sizes(graph: Graph) -> dict[str, int]:
    """Return small sizes for all axes; renamed axes stay equal, and selected places stay inside."""
    leader = {axis: axis for axis in graph.sizes}

    def find(axis: str) -> str:
        while leader[axis] != axis:
            axis = leader[axis]
        return axis

    least: dict[str, int] = {}
    for step in graph.steps:
        for old, new in step.mapping:
            if isinstance(new, str):
                leader[find(old)] = find(new)
            else:
                least[old] = max(least.get(old, 0), new + 1)
    groups = sorted({find(axis) for axis in leader}, key=list(leader).index)
    chosen = {group: _SIZES[at % len(_SIZES)] for at, group in enumerate(groups)}
    for axis, size in least.items():
        chosen[find(axis)] = max(chosen[find(axis)], size)
    return {axis: min(chosen[find(axis)], size) for axis, size in graph.sizes.items()}


def resized(graph: Graph, sizes: Mapping[str, int]) -> Graph:
    """Return the graph with other extents of its axes."""
    return replace(
        graph,
        axes=tuple(replace(axis, size=sizes[axis.name]) for axis in graph.axes),
        inputs=tuple(replace(port, strides=None) for port in graph.inputs),
    )


def shrunk(mugraph: MuGraph, sizes: Mapping[str, int], parts: int = 3) -> MuGraph:
    """Return the muGraph with small extents; a split axis has so many parts, the last ones shorter."""
    known = dict(sizes)
    for split in mugraph.splits:
        known[split.outer] = parts
        known[split.inner] = -(-known[split.axis] // parts)
    return replace(mugraph, graph=resized(mugraph.graph, known))


def random_tensors(graph: Graph, scale: float = 1.0) -> dict[str, Tensor]:
    """Return a tensor for each input, the same ones every time."""
    torch.manual_seed(0)
    return {
        port.name: (torch.rand(graph.shape(port)) < 0.7)
        if port.dtype == "bool"
        else torch.randn(graph.shape(port), dtype=torch.float64) * scale
        for port in graph.inputs
    }
