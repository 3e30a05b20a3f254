"""Joined: products of one tensor with several weights become one product with all of them, side by side.

    t3 = contract[k](x, wq)                 t3 = window[q = j](wq)
    t4 = contract[k](x, wk)      becomes    t4 = window[n = j - 512](wk)
                                            t5 = add(t3, t4)                made once
                                            t6 = contract[k](x, t5)
                                            t7 = window[j = q](t6)
                                            t8 = window[j = n + 512](t6)

A window is 0 outside what it reads, so the sum holds each weight as it is.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from math import prod

from superopt.ir import Axis, Graph, Step, check_graph, live_graph, operands_first, value_axes
from superopt.ir.windows.place import Place
from superopt.weights.division import Weights, constant_values, once_values, source_ports

__all__ = ["joined"]


@dataclass(frozen=True, slots=True)
class _Product:
    """A contraction of a tensor with a weight."""

    value: int
    tensor: int
    weight: int
    own: tuple[str, ...]  # the axes that the weight alone has, outermost first


def joined(graph: Graph, weights: Weights) -> Graph | None:
    """Return a graph whose products of one tensor with weights are one, or None where nothing is joined.

    Nothing is joined that may not be kept in place of the weights.
    """
    found = None
    tried: set[frozenset[int]] = set()
    graph = live_graph(graph)
    while True:
        groups = [one for one in _groups(graph) if len(one) > 1]
        group = next((one for one in groups if _weights(one) not in tried), None)
        if group is None:
            return found
        made, whole = _with_one_product(graph, group)
        if whole in once_values(made, weights):
            graph = found = made
            tried.clear()  # the numbers of values are others
        else:
            tried.add(_weights(group))


def _weights(group: Sequence[_Product]) -> frozenset[int]:
    return frozenset(one.weight for one in group)


def _groups(graph: Graph) -> list[list[_Product]]:
    """Return the products by the tensor that they share, and by the axes and the dtype of their sums."""
    axes, constant = value_axes(graph), constant_values(graph)
    found: dict[object, list[_Product]] = {}
    for value, step in graph.numbered:
        if step.op != "contract" or constant[value]:
            continue
        tensor, weight = sorted(step.inputs, key=lambda one: constant[one])
        own = axes[weight] - axes[tensor]
        if not constant[weight] or not own or axes[weight] - own != frozenset(step.axes):
            continue
        dtypes = frozenset(port.dtype for port in source_ports(graph, weight))
        one = _Product(value, tensor, weight, _ordered(graph, weight, own))
        if all(one.weight != other.weight for other in found.get((tensor, step.axes, dtypes), ())):
            found.setdefault((tensor, step.axes, dtypes), []).append(one)
    return list(found.values())


def _ordered(graph: Graph, weight: int, own: frozenset[str]) -> tuple[str, ...]:
    """Return axes in the order in which a weight has them, if it is a tensor that enters."""
    known = graph.inputs[weight].axes if weight < len(graph.inputs) else tuple(graph.sizes)
    return tuple(axis for axis in known if axis in own)


def _with_one_product(graph: Graph, group: Sequence[_Product]) -> tuple[Graph, int]:
    """Return a graph that computes a group in one product, and the value of its weights side by side."""
    sizes, first = graph.sizes, len(graph.inputs)
    axis = "joined"
    while axis in sizes:
        axis += "_"
    steps: list[Step] = []

    def emit(step: Step) -> int:
        steps.append(step)
        return first + len(steps) - 1

    lengths = [prod(sizes[name] for name in one.own) for one in group]
    starts = {one.value: sum(lengths[:at]) for at, one in enumerate(group)}
    by_value = {one.value: one for one in group}
    shared = [group[0].tensor, *(one.weight for one in group)]

    def operands(value: int) -> list[int]:
        read = shared if value in by_value else graph.step_at(value).inputs
        return [one for one in read if one >= first]

    position = {value: value for value in range(first)}
    whole = product = -1
    for value in operands_first([one.value for one in graph.outputs if one.value >= first], operands):
        one = by_value.get(value)
        if one is None:
            position[value] = emit(
                graph.step_at(value).reading(position[i] for i in graph.step_at(value).inputs)
            )
            continue
        if product < 0:
            for other in group:
                place = Place(other.own, ((axis, 1),), -starts[other.value])
                laid = emit(Step("window", (position[other.weight],), places=(place,)))
                whole = laid if whole < 0 else emit(Step("add", (whole, laid)))
            product = emit(Step("contract", (position[one.tensor], whole), graph.step_at(value).axes))
        inner = [prod(sizes[name] for name in one.own[at + 1 :]) for at in range(len(one.own))]
        place = Place((axis,), tuple(zip(one.own, inner, strict=True)), starts[value])
        position[value] = emit(Step("window", (product,), places=(place,)))
    outputs = tuple(replace(one, value=position[one.value]) for one in graph.outputs)
    axes = (*graph.axes, Axis(axis, sum(lengths)))
    return check_graph(replace(graph, axes=axes, steps=tuple(steps), outputs=outputs)), whole
