"""Proof: that a muGraph which a file or the cache brings computes what it claims to, and nothing else.

So is shown that a muGraph serves other sizes than those at which it was found.
"""

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import lru_cache
from math import inf, prod
from typing import Any

from superopt.candidates.candidate import Candidate
from superopt.candidates.sizes import mugraph_for, resized
from superopt.errors import GraphError
from superopt.ir import Graph, MuGraph, Split, Step, check_graph, live_graph, rename_axes
from superopt.ir.rewrite import Emit, rewritten
from superopt.schedule.recipe import prepared
from superopt.verify.verdict import Verdict, combined
from superopt.weights.division import divided

__all__ = ["SizeProofs", "prove", "prove_by_graph"]


def prove(goal: Graph, mugraph: MuGraph) -> Any:
    """Return the verdict that a muGraph's graph is equal to a goal, or None where it is not shown to be."""
    return _verdict(goal, mugraph.graph, lambda: _by_parts(mugraph.graph, mugraph.splits))


def prove_by_graph(goal: Graph, graph: Graph, mugraph: MuGraph, once: tuple[int, ...] = ()) -> Any:
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
    return _verdict(goal, graph, lambda: graph) if _follows(graph, run, splits) else None


def _follows(graph: Graph, run: Graph, splits: tuple[Split, ...]) -> bool:
    """Whether a muGraph's graph is the one that schedules make of a graph with axes in such parts."""
    halves = [one for one in splits if one.outer in graph.sizes]
    others = tuple((one.axis, run.sizes[one.outer]) for one in splits if one not in halves)
    try:
        return prepared(graph, others, halves).graph == run
    except GraphError:
        return False


def _verdict(goal: Graph, graph: Graph, compared: Callable[[], Graph]) -> Any:
    verdict = _compared(goal, graph, compared)
    return verdict if verdict.equal else None


def _compared(goal: Graph, graph: Graph, compared: Callable[[], Graph], end: float = inf) -> Verdict:
    """Return the verdict on a graph, in the form that is `compared`; other ports leave it unknown."""
    from superopt.verify.graphs.equality import equal_graphs

    same_ports = [(port.name, port.dtype) for port in goal.inputs] == [
        (port.name, port.dtype) for port in graph.inputs
    ] and [(one.port.name, one.port.dtype) for one in goal.outputs] == [
        (one.port.name, one.port.dtype) for one in graph.outputs
    ]
    if not same_ports:
        return _OTHER_PORTS
    try:
        return equal_graphs(_stretched(goal, graph), compared(), end=end)
    except (GraphError, ValueError, IndexError, KeyError):  # ports that have nothing to do with the goal's
        return _OTHER_PORTS


_OTHER_PORTS = Verdict("unknown", notes=("its tensors are not those of the goal",))


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


class SizeProofs:
    """Proofs that candidates serve other sizes than those at which they were found.

    A number in a graph may stand for a size, as 2 for the length of an axis of two positions. A search and
    its proof see one length of each axis, so what they show says nothing of other lengths.
    """

    def __init__(self) -> None:
        self._known: dict[object, Verdict] = {}  # regions of a program are often alike but for their names

    def verdict(self, built: Graph, candidate: Candidate, goal: Graph, *, end: float = inf) -> Verdict:
        """Return whether a candidate is equal to a goal, a region at other sizes than those of `built`.

        What is not shown by the time `end`, as `perf_counter` has it, is unknown.
        """
        mugraph, once = candidate.mugraph, candidate.once
        goal = _telling(built, goal, mugraph)
        halves = tuple(one for one in mugraph.splits if one.outer in candidate.graph.sizes)
        graph = mugraph_for(MuGraph(candidate.graph, (), halves), goal).graph
        run = resized(candidate.run, graph.sizes) if once else graph
        scheduled = mugraph_for(mugraph, run).graph
        follows = _follows(run, scheduled, mugraph.splits)
        graphs = goal, graph, run, scheduled
        key = (follows, once, *_without_names(graphs, mugraph.splits))
        if key in self._known:
            return self._known[key]
        verdict = _through_graph(*graphs, mugraph.splits, follows=follows, end=end)
        if verdict.equal or verdict.witness is not None:
            self._known[key] = verdict
        return verdict


def _through_graph(
    goal: Graph,
    graph: Graph,
    run: Graph,
    scheduled: Graph,
    splits: tuple[Split, ...],
    *,
    follows: bool,
    end: float,
) -> Verdict:
    """Return whether a graph is equal to a goal, and a muGraph's graph to the part that runs in each call."""
    if run is graph and not follows:
        return _compared(goal, scheduled, lambda: _by_parts(scheduled, splits), end)
    verdict = _compared(goal, graph, lambda: graph, end)
    if follows:
        return verdict
    return combined([verdict, _compared(run, scheduled, lambda: _by_parts(scheduled, splits), end)])


def _telling(built: Graph, goal: Graph, mugraph: MuGraph) -> Graph:
    """Return a goal at sizes that tell whether something holds at the goal's own.

    An axis without positions tells nothing. An axis in parts is compared at the length of all its parts
    together, which may be more than the goal has, and must not be the length that the axis was built with.
    """
    old, parts = built.sizes, {one.axis: mugraph.graph.sizes[one.outer] for one in mugraph.splits}
    longer: dict[tuple[int, int], int] = {}  # an axis may be renamed to another one of its size
    for axis, size in goal.sizes.items():
        count = parts.get(axis, 1)
        if size != old[axis] and (size == 0 or -(-size // count) * count == old[axis]):
            longer[old[axis], size] = old[axis] + count
    sizes = {axis: longer.get((old[axis], size), size) for axis, size in goal.sizes.items()}
    return resized(goal, sizes)


def _without_names(graphs: Sequence[Graph], splits: tuple[Split, ...]) -> tuple[object, ...]:
    """Return graphs of one goal, and splits, with numbers for the names of axes and tensors."""
    goal = graphs[0]
    axes = dict.fromkeys(axis.name for graph in graphs for axis in graph.axes)
    numbers = {name: f"a{at}" for at, name in enumerate(axes)}
    ports = [*goal.inputs, *(output.port for output in goal.outputs)]
    tensors = {port.name: f"t{at}" for at, port in enumerate(ports)}
    bare = []
    for graph in graphs:
        graph = rename_axes(graph, {axis.name: numbers[axis.name] for axis in graph.axes})
        inputs = tuple(replace(port, name=tensors.get(port.name, port.name)) for port in graph.inputs)
        outputs = tuple(
            replace(one, port=replace(one.port, name=tensors.get(one.port.name, one.port.name)))
            for one in graph.outputs
        )
        bare.append(replace(graph, name="", inputs=inputs, outputs=outputs))
    names = [(one.axis, one.outer, one.inner) for one in splits]
    return *bare, tuple(tuple(numbers.get(name, name) for name in one) for one in names)
