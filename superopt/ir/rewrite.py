"""Rewrites of a whole graph that change its axes and nothing of its meaning."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from math import prod

from superopt.errors import GraphError
from superopt.ir.check import check_graph
from superopt.ir.graph import REDUCTIONS, Axis, Graph, Port, Step, live_graph, value_axes

__all__ = ["Emit", "merge_axes", "merge_extents", "refine_axes", "refine_axis", "rename_axes", "rewritten"]

Emit = Callable[[Step], int]
"""Adds a step to a graph that is being written, and returns its value."""


def refine_axis(graph: Graph, axis: str, parts: Sequence[Axis]) -> Graph:
    """Return the graph with one axis written as a product of axes, outermost first.

        sum[k](x)  with k = (k0 k1)   becomes   sum[k0, k1](x)

    A size step becomes a product of sizes, an index step `k0 * size(k1) + k1`; a renamed axis
    takes `refine_axes`.
    """
    return refine_axes(graph, {axis: parts})


def refine_axes(graph: Graph, factors: Mapping[str, Sequence[Axis]]) -> Graph:
    """Return the graph with some axes written as products of axes; renamed ones are refined alike."""
    sizes = graph.sizes
    names: dict[str, tuple[str, ...]] = {}
    for axis, parts in factors.items():
        if axis not in sizes:
            raise GraphError(f"graph {graph.name!r} has no axis {axis!r}")
        if prod(part.size for part in parts) != sizes[axis]:
            raise GraphError(f"axis {axis!r} of size {sizes[axis]} is not the product of {list(parts)}")
        names[axis] = tuple(part.name for part in parts)
    axes = tuple(new for old in graph.axes for new in factors.get(old.name, (old,)))
    known = {axis.name: axis.size for axis in axes}

    def expand(items: tuple[str, ...]) -> tuple[str, ...]:
        return tuple(new for old in items for new in names.get(old, (old,)))

    def expand_pair(old: str, new: str | int) -> list[tuple[str, str | int]]:
        parts = names.get(old, (old,))
        if isinstance(new, str):
            images = names.get(new, (new,))
            if [known[part] for part in parts] != [known[part] for part in images]:
                raise GraphError(f"axis {old!r} is renamed to {new!r}: refine both alike, or neither")
            return list(zip(parts, images, strict=True))
        pairs: list[tuple[str, str | int]] = []
        for part in reversed(parts):
            new, rest = divmod(new, known[part])
            pairs.insert(0, (part, rest))
        return pairs

    sized = {axis: [(part.name, part.size) for part in parts] for axis, parts in factors.items()}

    def written(step: Step, emit: Emit) -> int:
        if step.op not in ("size", "index") or step.axes[0] not in names:
            mapping = tuple(pair for old, new in step.mapping for pair in expand_pair(old, new))
            places = tuple(place.refined(sized) for place in step.places)
            return emit(replace(step, axes=expand(step.axes), mapping=mapping, places=places))
        own = names[step.axes[0]]
        value = emit(Step(step.op, axes=own[:1]))
        for name in own[1:]:
            value = emit(Step("mul", (value, emit(Step("size", axes=(name,))))))
            if step.op == "index":
                value = emit(Step("add", (value, emit(Step("index", axes=(name,))))))
        return value

    def port_of(port: Port) -> Port:
        return replace(port, dims=tuple(expand(dim) for dim in port.dims))

    made = rewritten(graph, written)
    inputs = tuple(map(port_of, graph.inputs))
    outputs = tuple(replace(output, port=port_of(output.port)) for output in made.outputs)
    return check_graph(replace(made, axes=axes, inputs=inputs, outputs=outputs))


def rewritten(graph: Graph, written: Callable[[Step, Emit], int]) -> Graph:
    """Return the graph with each step as `written` emits it, which returns its value."""
    first = len(graph.inputs)
    at = list(range(first))
    steps: list[Step] = []

    def emit(step: Step) -> int:
        steps.append(step)
        return first + len(steps) - 1

    for step in graph.steps:
        at.append(written(step.reading(at[i] for i in step.inputs), emit))
    outputs = tuple(replace(output, value=at[output.value]) for output in graph.outputs)
    return replace(graph, steps=tuple(steps), outputs=outputs)


def merge_axes(graph: Graph, parts: Sequence[str], axis: str) -> Graph | None:
    """Return the graph with neighbouring axes made one again, or None where some step tells them apart."""
    together = frozenset(parts)
    sizes = graph.sizes
    merged = Axis(axis, prod(sizes[part] for part in parts))
    graph = replace(graph, axes=(*graph.axes, merged))
    graph = live_graph(replace(graph, steps=merge_extents(graph, tuple(parts), axis)))
    for axes in value_axes(graph):
        if axes & together and not axes >= together:
            return None
    for step in graph.steps:
        used = together & {*step.axes, *(old for old, _ in step.mapping), *(str(n) for _, n in step.mapping)}
        used |= together & {axis for place in step.places for axis in place.named}
        if used and (used != together or step.op not in REDUCTIONS):
            return None

    def join(items: tuple[str, ...]) -> tuple[str, ...]:
        return tuple(axis if item == parts[0] else item for item in items if item not in parts[1:])

    for port in (*graph.inputs, *(output.port for output in graph.outputs)):
        for dim in port.dims:
            if together & set(dim) and " ".join(parts) not in " ".join(dim):
                return None
    kept = (old for old in graph.axes[:-1] if old.name not in parts[1:])
    return replace(
        graph,
        axes=tuple(merged if old.name == parts[0] else old for old in kept),
        inputs=tuple(replace(port, dims=tuple(map(join, port.dims))) for port in graph.inputs),
        steps=tuple(replace(step, axes=join(step.axes)) if step.axes else step for step in graph.steps),
        outputs=tuple(
            replace(output, port=replace(output.port, dims=tuple(map(join, output.port.dims))))
            for output in graph.outputs
        ),
    )


def merge_extents(graph: Graph, parts: tuple[str, ...], axis: str) -> tuple[Step, ...]:
    """Return the steps with what `refine_axis` made of size and index steps undone."""
    steps = list(graph.steps)
    first = len(graph.inputs)
    meaning: dict[int, tuple[str, int]] = {}  # value -> (size or index, how many of the parts it covers)
    product: dict[int, int] = {}  # value -> parts covered by an index that was multiplied by the next size

    for value, step in enumerate(steps, first):
        if step.op in ("size", "index") and step.axes == parts[:1]:
            meaning[value] = (step.op, 1)
        elif step.op in ("mul", "add"):
            for a, b in (step.inputs, step.inputs[::-1]):
                other = graph.step_of(b)
                if other is None:
                    continue
                if step.op == "mul" and a in meaning and other.op == "size":
                    op, covered = meaning[a]
                    if covered < len(parts) and other.axes == (parts[covered],):
                        if op == "size":
                            meaning[value] = ("size", covered + 1)
                        else:
                            product[value] = covered
                if step.op == "add" and other.op == "index" and a in product:
                    covered = product[a]
                    if other.axes == (parts[covered],):
                        meaning[value] = ("index", covered + 1)
    for value, (op, covered) in meaning.items():
        if covered == len(parts):
            steps[value - first] = Step(op, axes=(axis,))
    return tuple(steps)


def rename_axes(graph: Graph, mapping: Mapping[str, str]) -> Graph:
    """Return the graph with its axes under other names."""

    def names(items: tuple[str, ...]) -> tuple[str, ...]:
        return tuple(mapping.get(item, item) for item in items)

    def port_of(port: Port) -> Port:
        return replace(port, dims=tuple(map(names, port.dims)))

    def step_of(step: Step) -> Step:
        pairs = tuple(
            (mapping.get(old, old), mapping.get(new, new) if isinstance(new, str) else new)
            for old, new in step.mapping
        )
        places = tuple(place.renamed(mapping) for place in step.places)
        return replace(step, axes=names(step.axes), mapping=pairs, places=places)

    return check_graph(
        replace(
            graph,
            axes=tuple(Axis(mapping.get(axis.name, axis.name), axis.size) for axis in graph.axes),
            inputs=tuple(map(port_of, graph.inputs)),
            steps=tuple(map(step_of, graph.steps)),
            outputs=tuple(replace(output, port=port_of(output.port)) for output in graph.outputs),
        )
    )
