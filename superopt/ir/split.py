"""Split: an axis written as parts and places within a part, so that programs can share out a reduction.

    z = sum[t](e)      becomes      z0 = sum[t_at](e);  z = sum[t_part](z0)

The part is what a kernel spreads over its grid, the place what it loops over; a later kernel combines
the parts. The extent of the axis need not be a multiple of a part's: the muGraph's `Split` says so.
"""

from collections.abc import Container
from dataclasses import replace

from superopt.errors import GraphError
from superopt.ir.check import check_graph
from superopt.ir.cut import tensorless_values
from superopt.ir.graph import REDUCTIONS, Axis, Graph, Step, live_graph, value_axes
from superopt.ir.mugraph.kernels import Split
from superopt.ir.rewrite import Emit, merge_extents, refine_axes, rewritten

__all__ = ["fresh_name", "split_axis", "uneven"]


def split_axis(graph: Graph, axis: str, parts: int) -> tuple[Graph, Split]:
    """Return the graph with every reduction over an axis done in parts, which are then combined."""
    sizes = graph.sizes
    if axis not in sizes:
        raise GraphError(f"graph {graph.name!r} has no axis {axis!r}")
    if parts < 1:
        raise GraphError(f"axis {axis!r} cannot be split into {parts} parts")
    used = {*(port for output in graph.outputs for port in output.port.axes)}
    mapped = {place for step in graph.steps for pair in step.mapping for place in pair}
    mapped |= {axis for step in graph.steps for place in step.places for axis in place.named}
    if axis in used or axis in mapped:
        raise GraphError(f"axis {axis!r} cannot be split: an output has it, or it is read at other places")
    tensorless = tensorless_values(graph)
    reduced = (step.axes for at, step in graph.numbered if tensorless[at] and step.op in REDUCTIONS)
    if any(axis in axes for axes in reduced):
        raise GraphError(f"axis {axis!r} cannot be split: what is reduced over it reads no tensor")
    outer, inner = fresh_name(f"{axis}_part", sizes), fresh_name(f"{axis}_at", sizes)
    place = -(-sizes[axis] // parts)
    # The extent of the axis itself stays one number; only positions are made of parts and places.
    kept = fresh_name(f"{axis}_", {**sizes, outer: 0, inner: 0})
    longer = replace(
        graph,
        axes=tuple(
            Axis(one.name, place * parts) if one.name == axis else one
            for one in (*graph.axes, Axis(kept, sizes[axis]))
        ),
        steps=tuple(
            replace(step, axes=(kept,)) if step.op == "size" and step.axes == (axis,) else step
            for step in graph.steps
        ),
    )
    refined = refine_axes(longer, {axis: (Axis(outer, parts), Axis(inner, place))})
    own = tuple(Axis(axis, one.size) if one.name == kept else one for one in refined.axes)
    steps = tuple(
        replace(step, axes=tuple(axis if one == kept else one for one in step.axes)) for step in refined.steps
    )
    refined = replace(refined, axes=own, steps=steps)
    return check_graph(_in_two(refined, outer, inner)), Split(axis, outer, inner)


def uneven(graph: Graph, split: Split) -> Graph:
    """Return a graph in which an axis is two of equal parts throughout, for parts that may be shorter.

    The graph then declares the axis, with its extent; its own steps must need no part to be of full
    length: a size of one half, or a position in one, has no meaning for parts that differ.
    """
    sizes, halves = graph.sizes, frozenset((split.outer, split.inner))
    if split.axis in sizes or not halves <= sizes.keys():
        raise GraphError(f"graph {graph.name!r} does not have {split.axis!r} as two axes")
    whole = Axis(split.axis, sizes[split.outer] * sizes[split.inner])
    graph = replace(graph, axes=(*graph.axes, whole))
    steps = merge_extents(graph, (split.outer, split.inner), split.axis)
    graph = live_graph(replace(graph, steps=steps))
    _check_uneven(graph, split)
    graph = _with_places(graph, split)
    return check_graph(_in_two(graph, split.outer, split.inner))


def _check_uneven(graph: Graph, split: Split) -> None:
    """Refuse what parts of different lengths would give another meaning."""
    halves = frozenset((split.outer, split.inner))
    axes, tensorless = value_axes(graph), tensorless_values(graph)

    def refuse(why: str) -> None:
        raise GraphError(f"axis {split.axis!r} cannot be in parts of different lengths: {why}")

    for port in (*graph.inputs, *(output.port for output in graph.outputs)):
        for dim in port.dims:
            if halves & set(dim) and f"{split.outer} {split.inner}" not in " ".join(dim):
                refuse(f"{port.name} has only one half of it")
    if any(halves & set(output.port.axes) for output in graph.outputs):
        refuse("an output has it")
    for value, step in graph.numbered:
        operands = frozenset[str]().union(*(axes[i] for i in step.inputs))
        named = {axis for place in step.places for axis in place.named}
        if halves & (named | {str(axis) for pair in step.mapping for axis in pair}):
            refuse("it is read at other places")
        if step.op in ("size", "index") and halves & set(step.axes):
            refuse(f"the {step.op} of one half of it is used")
        if step.op in REDUCTIONS and halves & set(step.axes):
            if tensorless[value]:
                refuse("what is reduced over it reads no tensor")
            if split.outer in step.axes and split.inner in operands - set(step.axes):
                refuse("parts are put together before they are reduced")
            if split.inner in step.axes and split.outer not in operands:
                refuse("something has places within a part, and no part")


def _with_places(graph: Graph, split: Split) -> Graph:
    """Return the graph with every position along the axis made of its part and the place there."""

    def written(step: Step, emit: Emit) -> int:
        if step.op != "index" or step.axes != (split.axis,):
            return emit(step)
        length = emit(Step("size", axes=(split.inner,)))
        start = emit(Step("mul", (emit(Step("index", axes=(split.outer,))), length)))
        return emit(Step("add", (start, emit(Step("index", axes=(split.inner,))))))

    return rewritten(graph, written)


def _in_two(graph: Graph, outer: str, inner: str) -> Graph:
    """Return the graph with every reduction over both halves done over the inner one first."""

    def written(step: Step, emit: Emit) -> int:
        if step.op not in REDUCTIONS or not {outer, inner} <= set(step.axes):
            return emit(step)
        part = emit(replace(step, axes=tuple(axis for axis in step.axes if axis != outer)))
        return emit(Step("max" if step.op == "max" else "sum", (part,), (outer,)))

    return rewritten(graph, written)


def fresh_name(name: str, taken: Container[str]) -> str:
    """Return a name of an axis that is not taken: this one, or a longer one."""
    while name in taken:
        name += "_"
    return name
