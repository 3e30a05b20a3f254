"""Fuse: the default schedule of a graph, from which better ones start.

A kernel takes as many steps as can share a grid; a value that must cross programs, such as a sum over
an axis of the next step's grid, ends it. A reduction of what is itself reduced combines partial
results: it starts a new kernel, so that the programs of the one before share out the axis. Inside a
kernel every reduction is walked tile by tile, reductions over the same axis and pass in one loop; what
a second pass needs of the first one's tiles is computed again, unless that is a contraction: then the
kernel ends before the second pass. A shift made from maxima may run in the loop that finds them, where
all that depends on it has a degree (see `running`): then there is no second pass.
"""

from collections.abc import Callable, Collection, Mapping, Sequence

from superopt.errors import GraphError
from superopt.ir.graph import REDUCTIONS, Graph, live_graph, needed_order, value_axes, value_names
from superopt.ir.mugraph.blocks import Fusion
from superopt.ir.mugraph.check import check_mugraph
from superopt.ir.mugraph.facts import Facts, FusionChoices
from superopt.ir.mugraph.kernels import Call, Kernel, MuGraph, Split, Tile, walk
from superopt.ir.mugraph.library import convolution_of

__all__ = ["fuse", "leaving_products"]

# The reductions whose partial results each of these may combine.
_PARTS = {"sum": ("sum", "contract"), "max": ("max",)}
_VIEWS = frozenset({"rename", "window"})  # what they show is no less than what they read
_DEFAULTS = FusionChoices()


def fuse(
    graph: Graph,
    *,
    library: Callable[[Graph, int], bool] = lambda graph, value: False,
    splits: Sequence[Split] = (),
    online: bool = False,
    choices: FusionChoices = _DEFAULTS,
) -> MuGraph:
    """Return the graph as fused kernels; steps that no output needs are left out.

    Values that `library` picks are computed by calls of a library, each a kernel of its own. Parts of
    `splits` are combined in a kernel after the one that makes them. Without `online` no shift runs:
    what uses a maximum waits for it. Values that `choices` names are those of `live_graph(graph)`.
    """
    graph = live_graph(graph)
    facts = Facts(graph, tuple(splits), online, choices)
    rounds = _rounds(graph, splits, joined=choices.joined)
    order = [value for value in needed_order(graph) if not facts.tensorless[value]]
    if choices.late:
        order.sort(key=leaving_products(graph).__contains__)
    kernels: list[Kernel] = []
    called = {value for value in order if library(graph, value)}
    slid = _slid_over(graph, facts, called)
    order = [value for value in order if value not in slid.values()]
    read = {i for value in called for i in graph.step_at(value).inputs if i != slid.get(value)}
    stored = called | read | {graph.step_at(window).inputs[0] for window in slid.values()}
    stored |= {output.value for output in graph.outputs}
    views = {value for value in order if graph.step_at(value).op in _VIEWS and value not in stored}
    order = _views_last(graph, sorted(order, key=rounds.__getitem__), rounds, views)
    while order:
        if order[0] in called:
            kernels.append(_call(order.pop(0), slid, kernels))
            continue
        fit = sum(rounds[value] == rounds[order[0]] for value in order)
        fit = next((i for i, value in enumerate(order[:fit]) if value in called), fit)
        fit = next((i for i, value in enumerate(order[:fit], 1) if value in choices.cuts), fit)
        for count in range(fit, 0, -1):
            if count > 1 and order[count - 1] in views:  # who reads it makes it
                continue
            block = Fusion(facts, frozenset(order[:count])).block(alone=count == 1)
            if block is not None:
                kernels.append(block)
                order = order[count:]
                break
        else:
            raise GraphError(f"graph {graph.name!r}: no kernel alone computes {value_names(graph)[order[0]]}")
    for value in sorted({output.value for output in graph.outputs}):
        if facts.tensorless[value] and value >= len(graph.inputs):
            block = Fusion(facts, frozenset({value})).block(alone=True)
            assert block is not None
            kernels.append(block)
    return check_mugraph(MuGraph(graph, tuple(kernels), tuple(splits)))


def leaving_products(graph: Graph) -> frozenset[int]:
    """Return the products that leave a graph and that no step reads."""
    read = {i for step in graph.steps for i in step.inputs}
    leaving = {output.value for output in graph.outputs} - read
    return frozenset(value for value, step in graph.numbered if value in leaving and step.op == "contract")


def _slid_over(graph: Graph, facts: Facts, called: Collection[int]) -> dict[int, int]:
    """Return the windows that convolutions of a library slide over themselves, which nothing else reads."""
    found = {}
    for value in called:
        one = convolution_of(graph, value)
        if one is not None:
            found[value] = one.window
    alone = {
        window for window in found.values() if all(found.get(one) == window for one in facts.readers[window])
    }
    return {value: window for value, window in found.items() if window in alone - facts.outputs}


def _call(value: int, slid: Mapping[int, int], kernels: Sequence[Kernel]) -> Call:
    """Return the call of a library for a value, with the window that it slides over."""
    if value not in slid:
        return Call((Tile(value),))
    window = slid[value]
    before = any(tile.value == window for kernel in kernels for tile, _ in walk(kernel))
    return Call((Tile(window, recomputed=before), Tile(value)))


def _views_last(
    graph: Graph, order: Sequence[int], rounds: Sequence[int], views: Collection[int]
) -> list[int]:
    """Return values in order, each view right before the first step of its round that reads it.

    A view needs no kernel of its own there, nor must the kernel that makes what it shows make it.
    """
    waiting: list[int] = []
    found: list[int] = []

    def place(value: int) -> None:
        for view in [one for one in waiting if one in graph.step_at(value).inputs]:
            waiting.remove(view)
            place(view)
        found.append(value)

    for at, value in enumerate(order):
        if value in views:
            waiting.append(value)
        else:
            place(value)
        if at + 1 == len(order) or rounds[order[at + 1]] != rounds[value]:
            while waiting:
                place(waiting.pop(0))
    return found


def _rounds(graph: Graph, splits: Sequence[Split], *, joined: bool) -> list[int]:
    """Return for each value how often partial results were combined before it is known."""
    axes = value_axes(graph)
    outer = frozenset(split.outer for split in splits)
    inner = frozenset(split.inner for split in splits)
    rounds = [0] * len(graph.inputs)
    parted = [0] * len(graph.inputs)  # the last round in which something on the way went along a part
    for step in graph.steps:
        made = graph.step_of(step.inputs[0]) if step.op in _PARTS else None
        nested = made is not None and made.op in _PARTS[step.op]
        meets = step.op in REDUCTIONS and not outer.isdisjoint(step.axes)
        found = max((rounds[i] for i in step.inputs), default=0)
        last = max((parted[i] for i in step.inputs), default=0)
        found = max(found, last + 1) if meets else found + (nested and not joined)
        rounds.append(found)
        along = any(not inner.isdisjoint(axes[i]) for i in step.inputs)
        parted.append(max(last, found) if along else last)
    return rounds
