"""Cut: a graph in two at a waist, a place where few bytes cross from what is before to what is after.

Steps are taken in the order in which the outputs need them, so that what belongs together stays
together. A cut never runs through an expression that reads no tensor: both sides keep their own.
"""

from collections.abc import Collection
from dataclasses import replace
from math import prod

from superopt.dtypes import FLOATS
from superopt.ir.check import check_graph
from superopt.ir.graph import (
    REDUCTIONS,
    Axis,
    Graph,
    Output,
    Port,
    Step,
    kept_for_graph,
    live_graph,
    needed_order,
    value_axes,
)

__all__ = ["cut_after", "cut_graph", "only_used", "tensorless_values"]

_LEAST_SHARE = 0.2  # each side has at least this share of the reductions


@kept_for_graph
def tensorless_values(graph: Graph) -> tuple[bool, ...]:
    """Return for each value whether it reads no tensor: constants, extents, masks of indices."""
    tensorless = [False] * len(graph.inputs)
    for step in graph.steps:
        tensorless.append(all(tensorless[i] for i in step.inputs))
    return tuple(tensorless)


def cut_graph(graph: Graph) -> tuple[Graph, Graph] | None:
    """Return the graph as two, the first feeding the second, or None where nothing can be cut."""
    tensorless = tensorless_values(graph)
    order = [value for value in needed_order(graph) if not tensorless[value]]
    axes = value_axes(graph)
    sizes = graph.sizes
    last_use = {output.value: len(order) for output in graph.outputs}
    place = {value: i for i, value in enumerate(order)}
    for value in order:
        for i in graph.step_at(value).inputs:
            last_use[i] = max(last_use.get(i, 0), place[value])
    weight = [1.0 if graph.step_at(value).op in REDUCTIONS else 0.01 for value in order]
    total = sum(weight)
    best: tuple[float, int] | None = None
    before = 0.0
    for at in range(1, len(order)):
        before += weight[at - 1]
        if min(before, total - before) < _LEAST_SHARE * total:
            continue
        crossing = sum(
            prod(sizes[axis] for axis in axes[value]) for value in order[:at] if last_use.get(value, -1) >= at
        )
        imbalance = abs(before / total - 0.5)
        score = crossing * (1 + imbalance)
        if best is None or score < best[0]:
            best = (score, at)
    if best is None:
        return None
    return _split(graph, order, best[1], tensorless, axes)


def cut_after(graph: Graph, early: Collection[int]) -> tuple[Graph, Graph]:
    """Return a graph as two, the first of which makes these values, each with all that it is made of."""
    first, tensorless = len(graph.inputs), tensorless_values(graph)
    before = [one for one in sorted(early) if one >= first and not tensorless[one]]
    rest = [value for value, _ in graph.numbered if value not in early and not tensorless[value]]
    return _split(graph, [*before, *rest], len(before), tensorless, value_axes(graph))


def _split(
    graph: Graph, order: list[int], at: int, tensorless: tuple[bool, ...], axes: tuple[frozenset[str], ...]
) -> tuple[Graph, Graph]:
    first = len(graph.inputs)
    early = set(order[:at])
    needed = {i for value in order[at:] for i in graph.step_at(value).inputs if i in early}
    done = {output.value for output in graph.outputs if output.value in early or output.value < first}
    crossing = sorted(needed - done)
    dtype = next((port.dtype for port in graph.inputs if port.dtype in FLOATS), "f32")
    rank = {axis.name: i for i, axis in enumerate(graph.axes)}
    ports = {
        value: Port(
            f"{graph.name}_v{value}",
            dtype,
            tuple((axis,) for axis in sorted(axes[value], key=rank.__getitem__)),
        )
        for value in crossing
    }
    kept = tuple(output for output in graph.outputs if output.value in done)
    for output in kept:  # a result that the second half reads too enters it under its own name
        if output.value in needed and set(output.port.axes) == axes[output.value]:
            ports.setdefault(output.value, output.port)
    for value in sorted(needed & done):
        ports.setdefault(
            value,
            Port(
                f"{graph.name}_v{value}",
                dtype,
                tuple((axis,) for axis in sorted(axes[value], key=rank.__getitem__)),
            ),
        )
    named = {output.port.name for output in kept}
    extra = tuple(Output(port, value) for value, port in sorted(ports.items()) if port.name not in named)
    head = only_used(replace(graph, name=f"{graph.name}.0", outputs=(*kept, *extra)))

    inputs = (*graph.inputs, *(ports[value] for value in sorted(ports)))
    position = {value: value for value in range(first)}
    position |= {value: first + i for i, value in enumerate(sorted(ports))}
    steps: list[Step] = []
    for value, step in enumerate(graph.steps, first):
        if value in position or (value in early and not tensorless[value]):
            continue
        steps.append(step.reading(position[i] for i in step.inputs))
        position[value] = len(inputs) + len(steps) - 1
    outputs = tuple(
        replace(output, value=position[output.value]) for output in graph.outputs if output not in kept
    )
    tail = only_used(Graph(f"{graph.name}.1", graph.axes, inputs, tuple(steps), outputs))
    return check_graph(head), check_graph(tail)


def only_used(graph: Graph) -> Graph:
    """Return the graph without inputs, steps and axes that it does not use."""
    graph = live_graph(graph)
    used = {i for step in graph.steps for i in step.inputs} | {output.value for output in graph.outputs}
    keep = [i for i in range(len(graph.inputs)) if i in used]
    position = {old: new for new, old in enumerate(keep)}
    shift = len(graph.inputs) - len(keep)

    def moved(value: int) -> int:
        return position[value] if value < len(graph.inputs) else value - shift

    graph = replace(
        graph,
        inputs=tuple(graph.inputs[i] for i in keep),
        steps=tuple(step.reading(map(moved, step.inputs)) for step in graph.steps),
        outputs=tuple(replace(output, value=moved(output.value)) for output in graph.outputs),
    )
    names = {axis for port in graph.inputs for axis in port.axes}
    names |= {axis for output in graph.outputs for axis in output.port.axes}
    for step in graph.steps:
        names |= {*step.axes, *(old for old, _ in step.mapping)}
        names |= {new for _, new in step.mapping if isinstance(new, str)}
        names |= {axis for place in step.places for axis in place.named}
    axes: tuple[Axis, ...] = tuple(axis for axis in graph.axes if axis.name in names)
    return replace(graph, axes=axes)
