"""Proof: that a muGraph which a file or the cache brings computes what it claims to, and nothing else."""

from collections.abc import Callable
from dataclasses import replace
from functools import lru_cache
from math import prod
from typing import Any

from superopt.errors import GraphError
from superopt.ir import Graph, MuGraph, Split, Step, check_graph, live_graph
from superopt.ir.rewrite import Emit, rewritten
from superopt.schedule.recipe import prepared
from superopt.verify.verdict import combined
from superopt.weights.division import divided

__all__ = ["proven", "proven_by_graph"]


def proven(goal: Graph, mugraph: MuGraph) -> Any:
    """Return the verdict that a muGraph's graph is equal to a goal, or None where it is not shown to be."""
    return _verdict(goal, mugraph.graph, lambda: _by_parts(mugraph.graph, mugraph.splits))


def proven_by_graph(goal: Graph, graph: Graph, mugraph: MuGraph, once: tuple[int, ...] = ()) -> Any:
    """Return the verdict that a muGraph, said to run a graph, is equal to a goal, or None.

    Where some values of the graph are made of weights once, the graph must be equal to the goal, and the
    muGraph to the part of the graph that runs in each call: together they compute the graph.

    To the field a logarithm is a function like any other, which no shift passes. There the graph must be
    equal to the goal, and the muGraph's the very one that follows from it.
    """
    if not once:
        return _proof(goal, graph, mugraph.graph, mugraph.splits)
    verdict = _verdict(goal, graph, lambda: graph)
    if verdict is None or not _says_what_is_constant(goal, graph):
        return None
    run = divided(graph, once).run
    last = _proof(run, run, mugraph.graph, mugraph.splits)
    return None if last is None else combined([verdict, last])


def _says_what_is_constant(goal: Graph, graph: Graph) -> bool:
    """Whether only such inputs are constant in a graph as are in its goal: a file might say otherwise."""
    constant = {port.name for port in goal.inputs if port.constant}
    return constant.issuperset(port.name for port in graph.inputs if port.constant)


@lru_cache(maxsize=256)  # many schedules run the same graph
def _proof(goal: Graph, graph: Graph, run: Graph, splits: tuple[Split, ...]) -> Any:
    verdict = _verdict(goal, run, lambda: _by_parts(run, splits))
    if verdict is not None:
        return verdict
    halves = [one for one in splits if one.outer in graph.sizes]
    others = tuple((one.axis, run.sizes[one.outer]) for one in splits if one not in halves)
    try:
        follows = prepared(graph, others, halves).graph == run
    except GraphError:
        return None
    return _verdict(goal, graph, lambda: graph) if follows else None


def _verdict(goal: Graph, graph: Graph, compared: Callable[[], Graph]) -> Any:
    from superopt.verify.graphs.many import equal_to_all

    same_ports = [(port.name, port.dtype) for port in goal.inputs] == [
        (port.name, port.dtype) for port in graph.inputs
    ] and [(one.port.name, one.port.dtype) for one in goal.outputs] == [
        (one.port.name, one.port.dtype) for one in graph.outputs
    ]
    if not same_ports:
        return None
    try:
        verdict = equal_to_all(_stretched(goal, graph), [compared()])[0]
    except (GraphError, ValueError, IndexError, KeyError):  # ports that have nothing to do with the goal's
        return None
    return verdict if verdict.equal else None


def _stretched(goal: Graph, graph: Graph) -> Graph:
    """Return the goal with the axes that a graph has in parts as long as all parts together.

    Equality is shown for all sizes; the last part of an axis may be shorter, which is the kernel's affair.
    """
    sizes = dict(goal.sizes)
    for port, other in zip(goal.inputs, graph.inputs, strict=True):
        for dim, parts in zip(port.dims, other.dims, strict=True):
            if len(dim) == 1 and parts != dim:
                sizes[dim[0]] = prod(graph.sizes[axis] for axis in parts)
    return replace(goal, axes=tuple(replace(axis, size=sizes[axis.name]) for axis in goal.axes))


def _by_parts(graph: Graph, splits: tuple[Split, ...]) -> Graph:
    """Return a muGraph's graph with the extent of a split axis as the product of the extents of its parts."""
    parts = {split.axis: (split.outer, split.inner) for split in splits}

    def written(step: Step, emit: Emit) -> int:
        if step.op != "size" or step.axes[0] not in parts:
            return emit(step)
        outer, inner = (emit(Step("size", axes=(axis,))) for axis in parts[step.axes[0]])
        return emit(Step("mul", (outer, inner)))

    made = rewritten(graph, written)
    axes = tuple(axis for axis in graph.axes if axis.name not in parts)
    return check_graph(live_graph(replace(made, axes=axes)))
