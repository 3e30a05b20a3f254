"""Apart: a muGraph as several that run one after the other, each with a graph of its own.

What one of them leaves for a later one is a result of the first and an input of the second, in the dtype in
which it lies between kernels. Whoever calls them can so let go of memory between two kernels.
"""

from collections.abc import Collection, Iterable, Sequence
from dataclasses import replace
from itertools import pairwise

from superopt.errors import GraphError
from superopt.ir.graph import Graph, Output, Port, Step, value_axes, value_names
from superopt.ir.masks import mask_values
from superopt.ir.mugraph.check import check_mugraph
from superopt.ir.mugraph.kernels import Block, Call, Kernel, Loop, MuGraph, Tile, walk

__all__ = ["Segment", "kernels_apart"]

Segment = range
"""The numbers of kernels that follow each other."""


def kernels_apart(mugraph: MuGraph) -> list[tuple[Segment, MuGraph]]:
    """Return a muGraph as the smallest muGraphs that run in a row, each with the numbers of its kernels.

    Masks and values in parts have no form outside of a muGraph, and windows read only what lies as they need
    it: kernels that hand such values on stay together.
    """
    borders = [at for at in range(1, len(mugraph.kernels)) if _can_part(mugraph, at)]
    segments = [range(*pair) for pair in pairwise([0, *borders, len(mugraph.kernels)])]
    if len(segments) == 1:
        return [(segments[0], mugraph)]
    try:
        return [(one, _alone(mugraph, one)) for one in segments]
    except GraphError:  # a kernel does not stand by itself
        return [(range(len(mugraph.kernels)), mugraph)]


def _can_part(mugraph: MuGraph, border: int) -> bool:
    """Whether all values that cross the border before a kernel can be inputs and results."""
    graph = mugraph.graph
    axes, masks = value_axes(graph), mask_values(graph)
    inner = {axis for split in mugraph.splits for axis in (split.inner, split.outer)}
    seen = {step.inputs[0] for step in graph.steps if step.op == "window"}
    crossing = _stored(mugraph, range(border)) & _loaded(mugraph, range(border, len(mugraph.kernels)))
    return not any(masks[one] or axes[one] & inner or one in seen for one in crossing)


def _stored(mugraph: MuGraph, segment: Segment) -> set[int]:
    return {value for at in segment for value in mugraph.stores(mugraph.kernels[at])}


def _loaded(mugraph: MuGraph, segment: Segment) -> set[int]:
    return {value for at in segment for value in mugraph.loads(mugraph.kernels[at])}


def _alone(mugraph: MuGraph, segment: Segment) -> MuGraph:
    """Return some kernels of a muGraph as a muGraph, or raise GraphError."""
    graph, first = mugraph.graph, len(mugraph.graph.inputs)
    kernels = [mugraph.kernels[at] for at in segment]
    made = {tile.value for kernel in kernels for tile, _ in walk(kernel)}
    stored = _stored(mugraph, segment)
    carried = {one.value for one in graph.outputs if one.value < first and segment.start == 0}
    read = sorted(_loaded(mugraph, segment) - stored | carried)
    after = range(segment.stop, len(mugraph.kernels))
    inputs = tuple(graph.inputs[one] if one < first else _between(mugraph, one) for one in read)
    place = {value: at for at, value in enumerate((*read, *sorted(made)))}
    steps = [graph.step_at(value) for value in sorted(made)]
    outputs = [replace(one, value=place[one.value]) for one in graph.outputs if one.value in stored | carried]
    leaving = sorted(stored & _loaded(mugraph, after))
    known = {one.port.name for one in outputs}
    handed = (Output(_between(mugraph, value), place[value]) for value in leaving)
    outputs += [one for one in handed if one.port.name not in known]
    ports = (*inputs, *(one.port for one in outputs))
    used = _axes_of(ports, steps, kernels)
    splits = tuple(one for one in mugraph.splits if {one.outer, one.inner} & used)
    used |= {axis for one in splits for axis in (one.axis, one.outer, one.inner)}
    own = Graph(
        f"{graph.name}.{segment.start}",
        tuple(axis for axis in graph.axes if axis.name in used),
        inputs,
        tuple(step.reading(place[i] for i in step.inputs) for step in steps),
        tuple(outputs),
    )
    rounded = tuple((place[one], dtype) for one, dtype in mugraph.rounded if one in stored)
    alone = MuGraph(own, tuple(_moved(kernels, place)), splits, rounded)
    read_inside = {value for kernel in alone.kernels for value in alone.loads(kernel)}
    return check_mugraph(replace(alone, rounded=tuple(one for one in rounded if one[0] in read_inside)))


def _between(mugraph: MuGraph, value: int) -> Port:
    """Return a value that lies between kernels as an input or a result; an equal result is itself."""
    graph = mugraph.graph
    dtype = dict(mugraph.rounded).get(value, "f32")
    axes = value_axes(graph)[value]
    for port in (output.port for output in graph.outputs if output.value == value):
        if port.dtype == dtype and port.strides is None and {*port.axes} == axes:
            return port
    dims = tuple((axis.name,) for axis in graph.axes if axis.name in axes)
    return Port(f"{graph.name.replace('.', '_')}_{value_names(graph)[value]}", dtype, dims)


def _axes_of(ports: Iterable[Port], steps: Iterable[Step], kernels: Iterable[Kernel]) -> set[str]:
    """Return the axes of some tensors, steps and kernels."""
    found = {axis for port in ports for axis in port.axes}
    for step in steps:
        found |= {*step.axes, *(axis for place in step.places for axis in place.named)}
        found |= {axis for pair in step.mapping for axis in pair if isinstance(axis, str)}
    for kernel in kernels:
        found |= {*(kernel.grid if isinstance(kernel, Block) else ())}
        found |= {loop.axis for _, loops in walk(kernel) for loop in loops}
    return found


def _moved(kernels: Sequence[Kernel], place: dict[int, int]) -> Iterable[Kernel]:
    """Yield kernels over other numbers of values; what was computed in no kernel before is no repetition."""
    done = set[int]()

    def body(items: Collection[Tile | Loop]) -> tuple[Tile | Loop, ...]:
        found: list[Tile | Loop] = []
        for item in items:
            if isinstance(item, Loop):
                running = tuple(place[value] for value in item.running)
                found.append(replace(item, body=body(item.body), running=running))
            else:
                found.append(Tile(place[item.value], item.recomputed and item.value in done))
                done.add(item.value)
        return tuple(found)

    for kernel in kernels:
        if isinstance(kernel, Block):
            yield replace(kernel, body=body(kernel.body))
        else:
            yield Call(tuple(Tile(place[tile.value]) for tile in kernel.body))
            done.update(tile.value for tile in kernel.body)
