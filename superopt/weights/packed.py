"""Packed: weights of contractions kept as panels of columns, so that kernels need not copy them in each call.

    in w: f32[n, k] constant        becomes      in w: f32[(n_panel n_lane), k] constant
    t2 = contract[k](x, w)                       t2 = contract[k](x, w)

The graph is the same, but for an axis in two parts. What changes is that the weight is made once: it is kept
in the order `n_panel, k, n_lane`, in which all that a block of products reads of it lies in one piece.

Weights of few bits become floats on the way to a product, with a scale for each group. Their bytes and their
scales are both kept in panels.
"""

from collections.abc import Iterator, Sequence

from superopt.errors import GraphError
from superopt.ir import Axis, Graph, Step, fixed_axes, refine_axes, value_axes
from superopt.ops import OPS
from superopt.weights.division import (
    Weights,
    constant_values,
    divided,
    is_small,
    made_of,
    once_values,
    port_bytes,
)

__all__ = ["packed"]

# Columns of a panel: as many as a block of products has in registers, else fewer.
_COLUMNS = {"f32": (32,), "bf16": (64, 32), "i8": (64, 32)}
_MADE = (32,)  # the same where weights become floats on the way


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

    Weights are inputs, or made of inputs once, or on the way.
    """
    axes = value_axes(graph)
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
        count = _count(graph, own[-1], _COLUMNS.get(port.dtype, ()))
        if count is not None:
            yield at, port_bytes(graph, port), own[-1], count
    for inputs, axis in _made_on_the_way(graph, weights):
        count = None if axis in fixed else _count(graph, axis, _MADE)
        if count is not None:
            for at in inputs:
                yield at, port_bytes(graph, graph.inputs[at]), axis, count


def _count(graph: Graph, axis: str, counts: Sequence[int]) -> int | None:
    """Return how many columns a panel has, or None where the columns do not fill whole panels."""
    return next((one for one in counts if graph.sizes[axis] % one == 0), None)


def _made_on_the_way(graph: Graph, weights: Weights) -> Iterator[tuple[list[int], str]]:
    """Yield inputs of which each call makes matrices, pointwise and for products alone, and their columns.

    The same inputs may make several matrices, as bytes do that hold two numbers each.
    """
    constant, axes, first = constant_values(graph), value_axes(graph), len(graph.inputs)
    once = set(once_values(graph, weights))
    made: dict[frozenset[int], list[tuple[int, Step]]] = {}
    for value, step in graph.numbered:
        for matrix in step.inputs if step.op == "contract" and not constant[value] else ():
            if constant[matrix] and matrix >= first and matrix not in once:
                inputs = frozenset(one for one in made_of(graph, matrix) if one < first)
                made.setdefault(inputs, []).append((matrix, step))
    for inputs, found in made.items():
        several = [at for at in sorted(inputs) if len(graph.inputs[at].axes) > 1]
        if not several or not _is_for_products_alone(graph, found):
            continue
        largest = max((graph.inputs[at] for at in several), key=lambda port: port_bytes(graph, port))
        rows = [axes[one] for matrix, step in found for one in step.inputs if one != matrix]
        own = [axis for axis in largest.axes if all(axis not in one for one in rows)]
        if own and all(axes[matrix] == {*own, *step.axes} for matrix, step in found):
            yield [at for at in several if own[-1] in graph.inputs[at].axes], own[-1]


def _is_for_products_alone(graph: Graph, found: Sequence[tuple[int, Step]]) -> bool:
    """Whether matrices are made pointwise, and what they are made of serves nothing but their products."""
    first = len(graph.inputs)
    values = set[int]().union(*(made_of(graph, matrix) for matrix, _ in found))
    steps = [graph.step_at(one) for one in values if one >= first]
    known = {id(step) for step in (*steps, *(step for _, step in found))}
    read = {one for step in graph.steps if id(step) not in known for one in step.inputs}
    leaving = {output.value for output in graph.outputs}
    numbers = {value for value in values if value >= first and graph.step_at(value).op == "const"}
    pointwise = all(step.op in OPS or step.op in ("const", "select") for step in steps)
    return pointwise and not (values - numbers) & (read | leaving)


def _fresh(name: str, taken: set[str]) -> str:
    while name in taken:
        name += "_"
    taken.add(name)
    return name
