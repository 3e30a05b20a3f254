"""Sizes: graphs and muGraphs at other sizes of their axes."""

from collections.abc import Mapping
from dataclasses import replace

from superopt.ir import Axis, Graph, MuGraph, Port, fixed_axes, measured_axes
from superopt.ir.extents import fitting_extents, whole_dims

__all__ = ["bucket", "mugraph_for", "resized", "without_strides"]


def resized(graph: Graph, sizes: Mapping[str, int]) -> Graph:
    """Return a graph with other sizes of some axes; its ports lose the strides they were traced with."""
    return replace(
        graph,
        axes=tuple(Axis(axis.name, sizes.get(axis.name, axis.size)) for axis in graph.axes),
        inputs=tuple(map(without_strides, graph.inputs)),
    )


def mugraph_for(mugraph: MuGraph, goal: Graph) -> MuGraph:
    """Return a muGraph at the sizes of its goal; an axis split in parts keeps how long the inner ones are."""
    graph, known = mugraph.graph, dict(goal.sizes)
    for split in mugraph.splits:
        if split.axis in known:  # other splits cut a part of an axis again, whose length stays
            known[split.outer] = graph.sizes[split.outer]
            known[split.inner] = -(-known[split.axis] // known[split.outer])
    by_name = {port.name: goal.shape(port) for port in goal.inputs}
    shapes = [by_name[port.name] for port in graph.inputs]
    sizes = fitting_extents(graph, shapes, mugraph.splits, given=known)
    return replace(mugraph, graph=resized(graph, sizes))


def bucket(mugraph: MuGraph) -> tuple[object, ...]:
    """Return what kernels are chosen by: powers of two of axes that are read off tensors, others exactly."""
    dims = [dim for port in mugraph.graph.inputs for dim in whole_dims(port, mugraph.splits)]
    free = measured_axes(dims) - fixed_axes(mugraph.graph)
    parts = {part for split in mugraph.splits if split.axis in free for part in (split.outer, split.inner)}
    return tuple(
        ("up to", 1 << max(axis.size - 1, 0).bit_length()) if axis.name in free else axis.size
        for axis in mugraph.graph.axes
        if axis.name not in parts
    )


def without_strides(port: Port) -> Port:
    """Return a tensor without the strides that it was traced with."""
    return replace(port, strides=None)
