"""Apart: a graph without windows, for parts of the house that know none, and with them again."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from math import prod

from superopt.ir.check import check_graph
from superopt.ir.cut import cut_after, cut_graph, only_used
from superopt.ir.graph import Axis, Graph, Port, Step, made_from
from superopt.ir.rewrite import Emit, rewritten
from superopt.ir.windows.place import print_place

__all__ = ["Apart", "explicit", "halves_of", "read_as_lines", "read_as_one", "reads_windows", "windows_apart"]

_WHOLE = 64  # the longest axis that a proof evaluates at all of its positions
_MOST_PAIRS = 1 << 16  # elements of one mask of equal places


@dataclass(frozen=True, slots=True)
class Apart:
    """A graph in which windows of inputs are inputs of their own, and what those are."""

    graph: Graph
    windows: Mapping[str, tuple[str, Step]]  # for each such input the tensor that it reads, and the step
    ports: tuple[Port, ...]  # the inputs that the graph had
    axes: tuple[Axis, ...]

    def same_windows(self, other: "Apart") -> bool:
        """Return whether another graph has the same windows of the same tensors."""
        ours, theirs = (
            [
                (port.name, [[(axis, sizes[axis]) for axis in dim] for dim in port.dims])
                for port in one.graph.inputs
            ]
            for one, sizes in ((self, self.graph.sizes), (other, other.graph.sizes))
        )
        return self.windows == other.windows and ours == theirs

    def restored(self, graph: Graph) -> Graph:
        """Return a graph over these inputs, or some of them, with its windows as steps again."""
        read = {port.name for port in graph.inputs}
        wanted = {self.windows[name][0] for name in read if name in self.windows} | read
        own = {port.name for port in self.ports}
        others = [one for one in graph.inputs if one.name not in own and one.name not in self.windows]
        inputs = (*(port for port in self.ports if port.name in wanted), *others)
        place = {port.name: at for at, port in enumerate(inputs)}
        steps: list[Step] = []
        moved: list[int] = []
        for port in graph.inputs:
            if port.name in self.windows:
                source, step = self.windows[port.name]
                moved.append(len(inputs) + len(steps))
                steps.append(step.reading([place[source]]))
            else:
                moved.append(place[port.name])
        moved += [len(inputs) + len(steps) + at for at in range(len(graph.steps))]
        steps += [step.reading(moved[i] for i in step.inputs) for step in graph.steps]
        outputs = tuple(replace(output, value=moved[output.value]) for output in graph.outputs)
        known = {axis.name for axis in graph.axes}
        axes = (*graph.axes, *(axis for axis in self.axes if axis.name not in known))
        return check_graph(only_used(Graph(graph.name, axes, inputs, tuple(steps), outputs)))


def reads_windows(graph: Graph) -> bool:
    """Return whether a graph has windows."""
    return any(step.op == "window" for step in graph.steps)


def read_as_one(graph: Graph) -> frozenset[int]:
    """Return the inputs of which a window reads several dimensions as one; they must lie so in memory."""
    found = set()
    for step in graph.steps:
        for place in step.places:
            if step.inputs[0] < len(graph.inputs) and len(place.axes) > 1:
                dims = graph.inputs[step.inputs[0]].dims
                if not any(" ".join(place.axes) in " ".join(dim) for dim in dims):
                    found.add(step.inputs[0])
    return frozenset(found)


def read_as_lines(graph: Graph, value: int, order: Sequence[str]) -> tuple[str, ...]:
    """Return the axes of a value in an order in which those follow each other that a window reads as one."""
    found = tuple(order)
    for step in graph.steps:
        for place in step.places if value in step.inputs else ():
            if len(place.axes) > 1:
                before = found[: found.index(place.axes[-1])]
                rest = [axis for axis in found if axis not in place.axes]
                at = sum(axis not in place.axes for axis in before)
                found = (*rest[:at], *place.axes, *rest[at:])
    return found


def windows_apart(graph: Graph) -> Apart | None:
    """Return a graph with its windows as inputs, or None where a window reads what is computed."""
    first = len(graph.inputs)
    found = [(value, step) for value, step in graph.numbered if step.op == "window"]
    if any(step.inputs[0] >= first for _, step in found):
        return None
    windows: dict[str, tuple[str, Step]] = {}
    ports: dict[int, Port] = {}
    taken = {port.name for port in graph.inputs} | {output.port.name for output in graph.outputs}
    for value, step in found:
        step = replace(step, places=tuple(sorted(step.places, key=lambda place: place.axes)))
        source = graph.inputs[step.inputs[0]]
        name = _name(source.name, step)
        while name in taken:
            name += "_"
        taken.add(name)
        windows[name] = source.name, step.reading([0])
        read = {axis for place in step.places for axis in place.axes}
        own = [axis for axis in source.axes if axis not in read]
        own += [axis for place in step.places for axis, _ in place.terms]
        dims = tuple((axis,) for axis in dict.fromkeys(own))  # the source may have an axis of the window, too
        ports[value] = Port(name, source.dtype, dims, constant=source.constant)
    inputs = (*graph.inputs, *ports.values())
    moved = {value: first + at for at, value in enumerate(ports)}
    steps: list[Step] = []
    for value, step in graph.numbered:
        if value not in moved:
            steps.append(step.reading(moved.get(i, i) for i in step.inputs))
            moved[value] = len(inputs) + len(steps) - 1
    outputs = tuple(replace(output, value=moved.get(output.value, output.value)) for output in graph.outputs)
    made = replace(graph, inputs=inputs, steps=tuple(steps), outputs=outputs)
    return Apart(check_graph(made), windows, graph.inputs, graph.axes)


def _name(source: str, step: Step) -> str:
    text = "_".join(map(print_place, step.places)).replace("-", "less").replace("+", "and")
    return f"{source}_at_{re.sub(r'[^A-Za-z0-9]+', '_', text)}".strip("_")


def halves_of(graph: Graph) -> tuple[Graph, Graph] | None:
    """Return a graph as two, the first of which makes what windows read; else cut where few bytes cross."""
    first = len(graph.inputs)
    depth = [0] * first  # how many windows of computed values there are on the way to a value
    read: list[int] = []
    for step in graph.steps:
        inner = step.op == "window" and step.inputs[0] >= first
        depth.append(max((depth[i] for i in step.inputs), default=0) + inner)
        if inner and depth[-1] == 1:
            read.append(step.inputs[0])
    if read:
        return cut_after(graph, made_from(read, graph.operands_of))
    apart = windows_apart(graph) if reads_windows(graph) else None
    halves = cut_graph(graph if apart is None else apart.graph)
    if apart is None or halves is None:
        return halves
    return apart.restored(halves[0]), apart.restored(halves[1])


def explicit(graph: Graph) -> Graph | None:
    """Return a graph with each window as a contraction with the mask of equal places, in which it is proven.

    None where axes are so long that the field would not evaluate all of their positions.
    """
    sizes = graph.sizes
    for place in (place for step in graph.steps for place in step.places):
        made = [axis for axis, _ in place.terms]
        pairs = prod(sizes[axis] for axis in (*place.axes, *made))
        if pairs > _MOST_PAIRS or max((sizes[axis] for axis in (*place.axes, *made)), default=1) > _WHOLE:
            return None

    def written(step: Step, emit: Emit) -> int:
        if step.op != "window":
            return emit(step)
        value = step.inputs[0]
        for place in step.places:
            inner = [prod(sizes[one] for one in place.axes[at + 1 :]) for at in range(len(place.axes))]
            read = _form(emit, list(zip(place.axes, inner, strict=True)), 0)
            made = _form(emit, place.terms, place.offset)
            value = emit(Step("contract", (value, emit(Step("eq", (read, made)))), axes=place.axes))
        return value

    return check_graph(rewritten(graph, written))


def _form(emit: Emit, terms: Sequence[tuple[str, int]], offset: int) -> int:
    """Emit a sum of indices, each times a number, and a number."""
    found = emit(Step("const", value=Fraction(offset)))
    for axis, factor in terms:
        index = emit(Step("index", axes=(axis,)))
        scaled = emit(Step("mul", (index, emit(Step("const", value=Fraction(factor))))))
        found = emit(Step("add", (found, scaled)))
    return found
