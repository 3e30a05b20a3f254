"""Packed: weights of contractions kept as panels of columns, so that kernels need not copy them in each call.

    in w: f32[n, k] constant        becomes      in w: f32[(n_panel n_lane), k] constant
    t2 = contract[k](x, w)                       t2 = contract[k](x, w)

The graph is the same, but for an axis in two parts. What changes is that the weight is made once: it is kept
in the order `n_panel, k, n_lane`, in which all that a block of products reads of it lies in one piece.
"""

from collections.abc import Iterator

from superopt.errors import GraphError
from superopt.ir import Axis, Graph, fixed_axes, refine_axes, value_axes
from superopt.weights.division import Weights, divided, is_small, once_values, port_bytes

__all__ = ["packed"]

# Columns of a panel: as many as a block of products has in registers, else fewer.
_COLUMNS = {"f32": (32,), "bf16": (64, 32), "i8": (64, 32)}


def packed(graph: Graph, weights: Weights) -> tuple[Graph, tuple[int, ...]] | None:
    """Return a graph and what is made of it once, its weights in panels among it; None where there are none.

    Large weights go from where they were, which was to be asked for; a few small ones are kept twice.
    """
    found: dict[int, tuple[str, int]] = {}
    twice = 0
    for at, size, axis, count in _columns(graph, weights) if weights != "live" else ():
        if at < len(graph.inputs) and is_small(size) and is_small(twice + size):
            twice += size
        elif at < len(graph.inputs) and (is_small(size) or weights != "frozen"):
            continue
        found[at] = axis, count
    if not found:
        return None
    names = set(graph.sizes)
    parts: dict[str, tuple[Axis, Axis]] = {}
    for axis, count in found.values():
        if axis not in parts and graph.sizes[axis] > count:
            outer, inner = (_fresh(f"{axis}_{part}", names) for part in ("panel", "lane"))
            parts[axis] = Axis(outer, graph.sizes[axis] // count), Axis(inner, count)
    try:
        made = refine_axes(graph, parts)
    except GraphError:  # the axis goes by another name as well
        return None
    inputs = {at for at in found if at < len(graph.inputs)}
    return made, tuple(sorted({*inputs, *once_values(made, weights)}))


def _columns(graph: Graph, weights: Weights) -> Iterator[tuple[int, int, str, int]]:
    """Yield weights that one contraction reads and nothing else does: bytes, columns, columns of a panel.

    Weights are inputs, or made of inputs once.
    """
    axes, sizes = value_axes(graph), graph.sizes
    leaving = {output.value for output in graph.outputs}
    ports = (*graph.inputs, *(output.port for output in graph.outputs))
    # Tensors are read at other places along these; weights that are joined have an axis of their own.
    fixed = fixed_axes(graph).intersection(axis for port in ports for axis in port.axes)
    constant = [at for at, port in enumerate(graph.inputs) if port.constant]
    for at in (*constant, *once_values(graph, weights)):
        steps = [step for step in graph.steps if at in step.inputs]
        if [step.op for step in steps] != ["contract"] or at in leaving:
            continue
        port = graph.inputs[at] if at < len(graph.inputs) else divided(graph, (at,)).once.outputs[0].port
        rows = axes[next((one for one in steps[0].inputs if one != at), at)]
        own = [axis for axis in port.axes if axis not in rows]
        if not own or {*own, *steps[0].axes} != set(port.axes) or own[-1] in fixed:
            continue
        count = next((one for one in _COLUMNS.get(port.dtype, ()) if sizes[own[-1]] % one == 0), None)
        if count is not None:
            yield at, port_bytes(graph, port), own[-1], count


def _fresh(name: str, taken: set[str]) -> str:
    while name in taken:
        name += "_"
    taken.add(name)
    return name
