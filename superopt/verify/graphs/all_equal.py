"""All equal: whether many graphs are equal to one. All are evaluated together, the steps they share once."""

from collections.abc import Sequence
from dataclasses import replace
from math import inf
from time import perf_counter

from superopt.ir import Axis, Graph, Output, Step, live_graph, refine_axis
from superopt.verify.graphs.equality import equal_graphs
from superopt.verify.verdict import Verdict

__all__ = ["equal_to_all"]

_SHARE = 0.25  # the proof of one graph alone may take this share of the time that is left
_LEAST_S = 0.3  # a proof gets at least so many seconds; most take less
_FIRST, _GROWTH, _MOST = 2, 4, 8  # graphs compared together: at first, times as many then, at most
_SURE = 0.8  # several graphs together may take this share of the time that is left


def equal_to_all(
    goal: Graph, graphs: Sequence[Graph], *, seed: int | None = None, seconds: float | None = None
) -> list[Verdict]:
    """Return for each graph whether it computes the same as the goal.

    The graphs have the goal's ports, though they may write an axis as a product of others. Without a
    `seed` the random tests are fresh. Within so many `seconds` graphs are compared, together or
    apart, or left unknown; one that takes long leaves time to those after it. Nothing is begun afterwards.
    """
    end = inf if seconds is None else perf_counter() + seconds
    found: list[Verdict] = []
    size = _FIRST
    while len(found) < len(graphs):
        several, start = graphs[len(found) : len(found) + size], perf_counter()
        # Nothing but the first proof is begun when time is over; no proof takes all that is left.
        until = start + max(_SURE * (end - start), 0.0 if found else _LEAST_S)
        together = _together(goal, several, seed, until) if len(several) > 1 else None
        # What graphs share is evaluated once, but many comparisons may take longer together than apart.
        if together is not None and together.equal:
            found += [together] * len(several)
            size = min(size * _GROWTH, _MOST)
        else:  # a single unequal graph makes the verdict on several of them unequal
            found += _alone(goal, several, seed, end)
            size = max(size // 2, 1)
        each_s = (perf_counter() - start) / len(several)
        left_s = end - perf_counter()
        while size > 1 and size * each_s > _SURE * left_s:
            size //= 2
    return found


def _alone(goal: Graph, graphs: Sequence[Graph], seed: int | None, end: float) -> list[Verdict]:
    """Compare each graph by itself; one that takes long leaves time to those after it."""
    return [equal_graphs(goal, graph, seed=seed, end=min(_share(end), end)) for graph in graphs]


def _together(goal: Graph, graphs: Sequence[Graph], seed: int | None, end: float) -> Verdict | None:
    """Return the verdict on graphs as one that computes what all of them do, None where they are not one."""
    parts: dict[str, tuple[Axis, ...]] = {}
    for graph in graphs:
        parts |= _split_axes(goal, graph)
    bundle = _bundle([_refined(graph, parts) for graph in graphs])
    if bundle is None:
        return None
    return equal_graphs(_repeated(_refined(goal, parts), len(graphs)), bundle, seed=seed, end=end)


def _share(end: float) -> float:
    """Return when the next proof is to be over, of several that share the time until an end."""
    now = perf_counter()
    return now + max(_SHARE * (end - now), _LEAST_S)


def _split_axes(goal: Graph, graph: Graph) -> dict[str, tuple[Axis, ...]]:
    """Return the axes of the goal that a graph writes as products, with their parts."""
    found: dict[str, tuple[Axis, ...]] = {}
    whole, fine = goal.sizes, graph.sizes
    for port, other in zip(goal.inputs, graph.inputs, strict=True):
        for dim, parts in zip(port.dims, other.dims, strict=True):
            rest = list(parts)
            for axis in dim:
                taken = [rest.pop(0)]
                if taken == [axis]:
                    continue
                extent = fine[taken[0]]
                while extent < whole[axis]:
                    taken.append(rest.pop(0))
                    extent *= fine[taken[-1]]
                found[axis] = tuple(Axis(name, fine[name]) for name in taken)
    return found


def _refined(graph: Graph, parts: dict[str, tuple[Axis, ...]]) -> Graph:
    """Return the graph with these axes split where the graph has not split them."""
    for axis, pieces in parts.items():
        if axis in graph.sizes:
            graph = refine_axis(graph, axis, pieces)
    return graph


def _repeated(goal: Graph, count: int) -> Graph:
    """Return the goal with its outputs written down once for each graph."""
    return replace(goal, outputs=tuple(_numbered(output, i) for i in range(count) for output in goal.outputs))


def _bundle(graphs: Sequence[Graph]) -> Graph | None:
    """Return graphs over the same inputs as one, equal steps made one; None where an axis has two lengths."""
    axes = dict.fromkeys(axis for graph in graphs for axis in graph.axes)
    if len({axis.name for axis in axes}) < len(axes):
        return None
    first = len(graphs[0].inputs)
    steps: list[Step] = []
    outputs: list[Output] = []
    for number, graph in enumerate(graphs):
        shift = len(steps)

        def moved(value: int, shift: int = shift) -> int:
            return value if value < first else value + shift

        steps += [step.reading(map(moved, step.inputs)) for step in graph.steps]
        outputs += [replace(_numbered(output, number), value=moved(output.value)) for output in graph.outputs]
    return live_graph(replace(graphs[0], axes=tuple(axes), steps=tuple(steps), outputs=tuple(outputs)))


def _numbered(output: Output, number: int) -> Output:
    return replace(output, port=replace(output.port, name=f"{output.port.name}_{number}"))
