"""Packed: weights of contractions kept as panels of columns, so that kernels need not copy them in each call.

    in w: f32[n, k] constant        becomes      in w: f32[(n_panel n_lane), k] constant
    t2 = contract[k](x, w)                       t2 = contract[k](x, w)

The graph is the same, but for an axis in two parts. What changes is that the weight is made once: it is kept
in the order `n_panel, k, n_lane`, in which all that a block of products reads of it lies in one piece.
"""

from collections.abc import Iterator
from math import prod

from superopt.errors import GraphError
from superopt.ir import Axis, Graph, fixed_axes, refine_axes, value_axes
from superopt.weights.division import Weights, is_small, once_values, port_bytes

__all__ = ["packed"]

_COLUMNS = {"f32": 32, "bf16": 64}  # columns of a panel: as many as a block of products has in registers


def packed(graph: Graph, weights: Weights) -> tuple[Graph, tuple[int, ...]] | None:
    """Return a graph and what is made of it once, its weights in panels among it; None where there are none.

    Large weights go from where they were, which was to be asked for; a few small ones are kept twice.
    """
    found: dict[int, str] = {}
    twice = 0
    for at, axis in _columns(graph) if weights != "live" else ():
        size = port_bytes(graph, graph.inputs[at])
        if is_small(size) and is_small(twice + size):
            twice += size
        elif is_small(size) or weights != "frozen":
            continue
        found[at] = axis
    if not found:
        return None
    names = set(graph.sizes)
    parts: dict[str, tuple[Axis, Axis]] = {}
    for at, axis in found.items():
        count = _COLUMNS[graph.inputs[at].dtype]
        if axis not in parts and graph.sizes[axis] > count:
            outer, inner = (_fresh(f"{axis}_{part}", names) for part in ("panel", "lane"))
            parts[axis] = Axis(outer, graph.sizes[axis] // count), Axis(inner, count)
    try:
        made = refine_axes(graph, parts)
    except GraphError:  # the axis goes by another name as well
        return None
    return made, tuple(sorted({*found, *once_values(made, weights)}))


def _columns(graph: Graph) -> Iterator[tuple[int, str]]:
    """Yield the weights that one contraction of rows reads and nothing else does, and their columns."""
    axes, sizes, fixed = value_axes(graph), graph.sizes, fixed_axes(graph)
    for at, port in enumerate(graph.inputs):
        steps = [step for step in graph.steps if at in step.inputs]
        count = _COLUMNS.get(port.dtype)
        if not port.constant or count is None or [step.op for step in steps] != ["contract"]:
            continue
        [step] = steps
        rows = axes[next((one for one in step.inputs if one != at), at)]
        own = [axis for axis in port.axes if axis not in rows]
        several = prod(sizes[axis] for axis in rows - set(port.axes)) > 1
        whole = bool(own) and {*own, *step.axes} == set(port.axes)
        if whole and several and sizes[own[-1]] % count == 0 and own[-1] not in fixed:
            yield at, own[-1]


def _fresh(name: str, taken: set[str]) -> str:
    while name in taken:
        name += "_"
    taken.add(name)
    return name
