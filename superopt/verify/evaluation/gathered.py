"""Gatherings: reductions that may each rest on a position of its own.

The second largest number of a row needs two positions, and to leave out all others needs a third. So it is
with sums of what comparisons choose: of the numbers above 3, of those below 1, and of those between, no two
have a position in common. A sum of all numbers chooses none: few positions, each repeated at random, show it.
"""

from collections import Counter
from collections.abc import Mapping, Sequence

from superopt.ir import Graph, tensorless_values, value_axes
from superopt.ops import OPS

__all__ = ["gatherings"]

_CHOOSING = frozenset({"maximum", "minimum", "relu", "abs", "sqrt", "rsqrt"})
"""Operators that choose between numbers; a root does by the sign of what it was squared of."""


def gatherings(graphs: Sequence[Graph], groups: Mapping[str, str]) -> Counter[str]:
    """Return for each group of axes how many reductions of one graph may rest on a position of their own."""
    found: Counter[str] = Counter()
    for graph in graphs:
        found |= _gatherings_of(graph, groups)
    return found


def _gatherings_of(graph: Graph, groups: Mapping[str, str]) -> Counter[str]:
    tensorless, axes = tensorless_values(graph), value_axes(graph)
    chosen = [axes[at] if port.dtype == "bool" else frozenset[str]() for at, port in enumerate(graph.inputs)]
    found: Counter[str] = Counter()
    for at, step in graph.numbered:
        own = frozenset[str]().union(*(chosen[i] for i in step.inputs))
        if not tensorless[at] and step.op in ("max", "sum", "contract"):
            found.update(groups[axis] for axis in step.axes if step.op == "max" or axis in own)
        if not tensorless[at] and (step.op in _CHOOSING or (step.op in OPS and OPS[step.op].mask)):
            own |= axes[at]
        moved = dict(step.mapping) if step.op == "rename" else {}
        chosen.append(frozenset(str(moved.get(axis, axis)) for axis in own) & axes[at])
    return found
