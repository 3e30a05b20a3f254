"""Cut: a graph in two at a waist, a place where few bytes cross from what is before to what is after.

Steps are taken in the order in which the outputs need them, so that what belongs together stays
together. A cut never runs through an expression that reads no tensor: both sides keep their own.

What crosses is a tensor whose dtype the program does not name. It is what PyTorch would have there: in a
program in half precision the half type for values of some roles (`Roles`), and fp32 for statistics. A mask
crosses as numbers, which kernels can store, and is a mask again where it is read.
"""

from collections.abc import Collection
from dataclasses import replace
from fractions import Fraction
from math import prod

from superopt.dtypes import FLOATS, HALVES, INTEGERS
from superopt.ir.check import check_graph
from superopt.ir.graph import (
    REDUCTIONS,
    Axis,
    Graph,
    Output,
    Port,
    Step,
    kept_by_identity,
    live_graph,
    needed_order,
    value_axes,
)
from superopt.ir.masks import mask_values, selects

__all__ = ["Roles", "cut_after", "cut_graph", "half_of", "only_used", "tensorless_values"]

_LEAST_SHARE = 0.2  # each side has at least this share of the reductions
_VIEWS = ("rename", "select", "window")


@kept_by_identity
def tensorless_values(graph: Graph) -> tuple[bool, ...]:
    """Return for each value whether it reads no tensor: constants, extents, masks of indices."""
    tensorless = [False] * len(graph.inputs)
    for step in graph.steps:
        tensorless.append(all(tensorless[i] for i in step.inputs))
    return tuple(tensorless)


def cut_graph(graph: Graph) -> tuple[Graph, Graph] | None:
    """Return the graph as two, the first feeding the second, or None where nothing can be cut."""
    tensorless = tensorless_values(graph)
    order = [value for value in needed_order(graph) if not tensorless[value]]
    axes = value_axes(graph)
    sizes = graph.sizes
    last_use = {output.value: len(order) for output in graph.outputs}
    place = {value: i for i, value in enumerate(order)}
    for value in order:
        for i in graph.step_at(value).inputs:
            last_use[i] = max(last_use.get(i, 0), place[value])
    weight = [1.0 if graph.step_at(value).op in REDUCTIONS else 0.01 for value in order]
    total = sum(weight)
    best: tuple[float, int] | None = None
    before = 0.0
    for at in range(1, len(order)):
        before += weight[at - 1]
        if min(before, total - before) < _LEAST_SHARE * total:
            continue
        crossing = sum(
            prod(sizes[axis] for axis in axes[value]) for value in order[:at] if last_use.get(value, -1) >= at
        )
        imbalance = abs(before / total - 0.5)
        score = crossing * (1 + imbalance)
        if best is None or score < best[0]:
            best = (score, at)
    if best is None:
        return None
    return _split(graph, order, best[1], tensorless, axes)


def cut_after(graph: Graph, early: Collection[int]) -> tuple[Graph, Graph]:
    """Return a graph as two, the first of which makes these values, each with all that it is made of."""
    first, tensorless = len(graph.inputs), tensorless_values(graph)
    before = [one for one in sorted(early) if one >= first and not tensorless[one]]
    rest = [value for value, _ in graph.numbered if value not in early and not tensorless[value]]
    return _split(graph, [*before, *rest], len(before), tensorless, value_axes(graph))


def _split(
    graph: Graph, order: list[int], at: int, tensorless: tuple[bool, ...], axes: tuple[frozenset[str], ...]
) -> tuple[Graph, Graph]:
    first = len(graph.inputs)
    early = set(order[:at])
    needed = {i for value in order[at:] for i in graph.step_at(value).inputs if i in early}
    done = {output.value for output in graph.outputs if output.value in early or output.value < first}
    dtype_of = _crossing_dtypes(graph, needed)
    rank = {axis.name: i for i, axis in enumerate(graph.axes)}
    ports = {
        value: Port(
            f"{graph.name}_v{value}",
            dtype_of[value],
            tuple((axis,) for axis in sorted(axes[value], key=rank.__getitem__)),
        )
        for value in sorted(needed)
    }
    kept = tuple(output for output in graph.outputs if output.value in done)
    for output in reversed(kept):  # a result that the second half reads too enters it under its own name
        exact = output.port.dtype in {dtype_of.get(output.value), "bool", *INTEGERS}  # it leaves as it is
        if output.value in needed and exact and set(output.port.axes) == axes[output.value]:
            ports[output.value] = output.port
    named = {output.port.name for output in kept}
    extra = tuple(Output(port, value) for value, port in sorted(ports.items()) if port.name not in named)
    head = only_used(replace(graph, name=f"{graph.name}.0", outputs=(*kept, *extra)))

    inputs = (*graph.inputs, *(ports[value] for value in sorted(ports)))
    position = {value: value for value in range(first)}
    position |= {value: first + i for i, value in enumerate(sorted(ports))}
    steps: list[Step] = []
    for value in sorted(ports):
        if mask_values(graph)[value] and ports[value].dtype != "bool":
            steps.append(Step("const", value=Fraction(0)))
            steps.append(Step("ne", (position[value], len(inputs) + len(steps) - 1)))
            position[value] = len(inputs) + len(steps) - 1
    for value, step in enumerate(graph.steps, first):
        if value in position or (value in early and not tensorless[value]):
            continue
        steps.append(step.reading(position[i] for i in step.inputs))
        position[value] = len(inputs) + len(steps) - 1
    outputs = tuple(
        replace(output, value=position[output.value]) for output in graph.outputs if output not in kept
    )
    tail = only_used(Graph(f"{graph.name}.1", graph.axes, inputs, tuple(steps), outputs))
    return check_graph(head), check_graph(tail)


def _crossing_dtypes(graph: Graph, values: Collection[int]) -> dict[int, str]:
    """Return the dtypes in which values cross a cut."""
    masks, roles, half = mask_values(graph), Roles(graph), half_of(graph)
    wide = "f64" if any(port.dtype == "f64" for port in graph.inputs) else "f32"
    return {i: half if half and (masks[i] or roles.is_rounded(i)) else wide for i in values}


def half_of(graph: Graph) -> str | None:
    """Return the half precision in which a program's tensors come; None where it has none, or two."""
    halves = {port.dtype for port in graph.inputs} & HALVES
    return next(iter(halves)) if len(halves) == 1 else None


class Roles:
    """Which values of a graph in half precision a program rounds, as PyTorch rounds every tensor.

    These are the operands and results of matrix products, except products of a tensor in fp32, and what is
    shaped like such a result or like a tensor of the program. `parts` are axes of parts that programs share
    out: what has one is not rounded.
    """

    def __init__(self, graph: Graph, parts: Collection[str] = ()) -> None:
        self.graph, self.axes, self.parts = graph, value_axes(graph), frozenset(parts)
        half = half_of(graph)
        ports = (*graph.inputs, *(output.port for output in graph.outputs))
        self.shapes = {frozenset(port.axes) for port in ports if port.dtype == half}
        self.operands: set[int] = set()
        self.products: set[int] = set()
        for value, step in graph.numbered:
            if step.op == "contract" and self._is_in_half(step):
                self.products.add(value)
                self.operands.update(one for i in step.inputs for one in self._views(i))
            elif step.op == "sum" and step.inputs[0] in self.products and set(step.axes) <= self.parts:
                self.products.add(value)  # the parts of a product, put together
        self.shapes |= {self.axes[value] - self.parts for value in self.products}

    def is_rounded(self, value: int) -> bool:
        """Return whether the program rounds a tensor of this role."""
        step = self.graph.step_of(value)
        if step is None or self.axes[value] & self.parts:
            return False
        if value in self.operands or value in self.products:
            return True
        return step.op not in REDUCTIONS and self.axes[value] in self.shapes

    def _is_in_half(self, step: Step) -> bool:
        """Return whether a contraction is a matrix product whose operands may be rounded."""
        a, b = (self.axes[i] for i in step.inputs)
        sources = [self._views(i)[-1] for i in step.inputs]
        inputs = self.graph.inputs
        wide = any(i < len(inputs) and inputs[i].dtype in FLOATS - HALVES for i in sources)
        return bool(a - b and b - a) and not wide and not selects(self.graph, step)

    def _views(self, value: int) -> list[int]:
        """Return a value, and what it reads at other places, the last of which is no view."""
        found = [value]
        while (step := self.graph.step_of(found[-1])) is not None and step.op in _VIEWS:
            found.append(step.inputs[0])
        return found


def only_used(graph: Graph) -> Graph:
    """Return the graph without inputs, steps and axes that it does not use."""
    graph = live_graph(graph)
    used = {i for step in graph.steps for i in step.inputs} | {output.value for output in graph.outputs}
    keep = [i for i in range(len(graph.inputs)) if i in used]
    position = {old: new for new, old in enumerate(keep)}
    shift = len(graph.inputs) - len(keep)

    def moved(value: int) -> int:
        return position[value] if value < len(graph.inputs) else value - shift

    graph = replace(
        graph,
        inputs=tuple(graph.inputs[i] for i in keep),
        steps=tuple(step.reading(map(moved, step.inputs)) for step in graph.steps),
        outputs=tuple(replace(output, value=moved(output.value)) for output in graph.outputs),
    )
    names = {axis for port in graph.inputs for axis in port.axes}
    names |= {axis for output in graph.outputs for axis in output.port.axes}
    for step in graph.steps:
        names |= {*step.axes, *(old for old, _ in step.mapping)}
        names |= {new for _, new in step.mapping if isinstance(new, str)}
        names |= {axis for place in step.places for axis in place.named}
    axes: tuple[Axis, ...] = tuple(axis for axis in graph.axes if axis.name in names)
    return replace(graph, axes=axes)
