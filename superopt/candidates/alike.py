"""Alike: candidates that differ in nothing but their arithmetic on single numbers.

Equal graphs come in many trivial variations, such as a division before a sum or after it. Their kernels read
the same tiles in the same loops and multiply the same matrices, so in one configuration they take the same
time: one of them is tried, and the others wait in case its numbers are refused.
"""

from collections import Counter
from collections.abc import Hashable, Iterable, Sequence

from superopt.candidates.candidate import Candidate
from superopt.ir import Block, Graph, MuGraph, value_axes
from superopt.ir.mugraph import Kernel, walk

__all__ = ["alike_last", "frame"]


def alike_last(candidates: Iterable[Candidate]) -> tuple[list[Candidate], list[Candidate]]:
    """Return candidates whose kernels all differ, each the first of its like, and the others."""
    first: dict[Hashable, Candidate] = {}
    others = []
    for one in candidates:
        if first.setdefault((frame(one.mugraph), one.configs), one) is not one:
            others.append(one)
    return list(first.values()), others


def frame(mugraph: MuGraph) -> Hashable:
    """Return what kernels read, multiply and store, in which loops; without arithmetic on single numbers."""
    return tuple(_frame(mugraph, kernel) for kernel in mugraph.kernels)


def _frame(mugraph: MuGraph, kernel: Kernel) -> Hashable:
    graph, axes = mugraph.graph, value_axes(mugraph.graph)
    rounded = dict(mugraph.rounded)
    loads = frozenset(mugraph.loads(kernel))
    read: set[Hashable] = set()
    multiplied: Counter[Hashable] = Counter()
    for tile, around in walk(kernel):
        loops = tuple((loop.axis, bool(loop.running)) for loop in around)
        step = graph.step_at(tile.value)
        read |= {(loops, _seen(graph, i, axes, rounded)) for i in step.inputs if i in loads}
        if step.op == "contract":
            a, b = (axes[i] for i in step.inputs)
            if a - b and b - a:
                multiplied[loops, frozenset((a, b)), step.axes] += 1
    stored = frozenset(_seen(graph, i, axes, rounded) for i in mugraph.stores(kernel))
    grid = kernel.grid if isinstance(kernel, Block) else None
    return grid, frozenset(read), frozenset(multiplied.items()), stored


def _seen(graph: Graph, value: int, axes: Sequence[frozenset[str]], rounded: dict[int, str]) -> Hashable:
    """Return what stands for a tensor in all graphs: the name of an input, or axes and dtype."""
    is_input = value < len(graph.inputs)
    return graph.inputs[value].name if is_input else (axes[value], rounded.get(value, "f32"))
