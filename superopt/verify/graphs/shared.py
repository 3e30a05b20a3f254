"""Shared: what two graphs compute in the very same way.

Outputs that both graphs make by the same steps are equal, whatever the steps are. Where whole programs are
too large for a bound, the steps that they share are cut off: both then read the shared value as an input. If
they are equal for any such input, they are equal for the shared value.

So it is with what windows read of computed values, layer by layer: what is proven equal in both graphs is an
input of both from there on.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import product

from superopt.ir import (
    COMMUTATIVE,
    Graph,
    Output,
    Port,
    Step,
    check_graph,
    live_graph,
    made_from,
    mask_values,
    tensorless_values,
    value_axes,
)
from superopt.verify.verdict import Verdict

__all__ = ["cut_layers", "cut_shared", "same_outputs"]

_MOST_PAIRS = 24  # proofs that one layer equals another


def same_outputs(left: Graph, right: Graph) -> bool:
    """Return whether two aligned graphs make all their outputs by the same steps."""
    one, other = _numbered(left, right)
    return all(
        one[x.value] == other[y.value] and x.port.dims == y.port.dims
        for x, y in zip(left.outputs, right.outputs, strict=True)
    )


def cut_shared(left: Graph, right: Graph) -> tuple[Graph, Graph] | None:
    """Return two aligned graphs that read what they share as inputs, or None where they share nothing."""
    one, other = _numbered(left, right)
    shared = set(one) & set(other)
    cuts: dict[int, _Cut] = {}
    for graph, numbers in ((left, one), (right, other)):
        tensorless, axes, masks = tensorless_values(graph), value_axes(graph), mask_values(graph)
        first = len(graph.inputs)
        for value in range(first, first + len(graph.steps)):
            number = numbers[value]
            if number not in shared or tensorless[value]:
                continue
            readers = [
                at
                for at, step in enumerate(graph.steps, first)
                if value in step.inputs and numbers[at] not in shared
            ]
            if readers or any(output.value == value for output in graph.outputs):
                cuts.setdefault(number, _Cut(tuple(sorted(axes[value])), masks[value]))
    # Axes of one side alone have no twin: such a value stays where it is.
    names = {axis.name for axis in left.axes} & {axis.name for axis in right.axes}
    cuts = {number: cut for number, cut in cuts.items() if set(cut.axes) <= names}
    if not cuts:
        return None
    return _cut(left, one, cuts), _cut(right, other, cuts)


def cut_layers(
    left: Graph, right: Graph, equal: Callable[[Graph, Graph], Verdict]
) -> tuple[Graph, Graph, list[Verdict]] | None:
    """Return two graphs that read equal layers as inputs, with their proofs; None where there are none.

    A layer is a computed value that windows read. Axes and inputs are matched by name.
    """
    proven: list[Verdict] = []
    tried = turn = 0
    while tried < _MOST_PAIRS:
        numbers = list(range(len(value_axes(left)))), [-1 - at for at in range(len(value_axes(right)))]
        cuts: dict[int, _Cut] = {}
        for one, other in product(_layers(left), _layers(right)):
            cut = _cut_of(left, one)
            if tried >= _MOST_PAIRS or numbers[1][other] >= 0 or cut != _cut_of(right, other):
                continue
            tried += 1
            verdict = equal(_up_to(left, one, cut), _up_to(right, other, cut))
            if verdict.equal:
                numbers[1][other] = one
                cuts[one] = cut
                proven.append(verdict)
        if not cuts:
            break
        turn += 1
        left, right = (
            _cut(graph, known, cuts, f"layer{turn}")
            for graph, known in zip((left, right), numbers, strict=True)
        )
    return (left, right, proven) if proven else None


def _layers(graph: Graph) -> list[int]:
    """Return the computed values that windows read, and that are made without windows of such values."""
    first = len(graph.inputs)
    read = {step.inputs[0] for step in graph.steps if step.op == "window" and step.inputs[0] >= first}

    def reads_layer(value: int) -> bool:
        step = graph.step_of(value)
        return step is not None and step.op == "window" and step.inputs[0] >= first

    tensorless = tensorless_values(graph)
    return [
        one
        for one in sorted(read)
        if not tensorless[one] and not any(map(reads_layer, made_from([one], graph.operands_of)))
    ]


def _cut_of(graph: Graph, value: int) -> "_Cut":
    sizes = graph.sizes
    axes = tuple(sorted(value_axes(graph)[value]))
    return _Cut(axes, mask_values(graph)[value], tuple(sizes[axis] for axis in axes))


def _up_to(graph: Graph, value: int, cut: "_Cut") -> Graph:
    """Return the graph that makes one value of a graph, from the same inputs."""
    port = Port("layer", "f32", tuple((axis,) for axis in cut.axes))
    return check_graph(live_graph(replace(graph, outputs=(Output(port, value),))))


@dataclass(frozen=True, slots=True)
class _Cut:
    """A value that becomes an input: its axes, and whether it is a mask."""

    axes: tuple[str, ...]
    mask: bool
    sizes: tuple[int, ...] = ()


def _cut(graph: Graph, numbers: Sequence[int], cuts: Mapping[int, _Cut], name: str = "shared") -> Graph:
    """Return the graph with some of its values as inputs; both sides get the same ports."""
    wide = any(port.dtype == "f64" for port in graph.inputs)
    ports = [
        Port(
            f"{name}_{number}",
            "bool" if cut.mask else "f64" if wide else "f32",
            tuple((a,) for a in cut.axes),
        )
        for number, cut in cuts.items()
    ]
    place = {number: len(graph.inputs) + at for at, number in enumerate(cuts)}
    first, shift = len(graph.inputs), len(ports)

    def moved(value: int) -> int:
        if value >= first and numbers[value] in place:
            return place[numbers[value]]
        return value if value < first else value + shift

    made = replace(
        graph,
        inputs=(*graph.inputs, *ports),
        steps=tuple(step.reading(map(moved, step.inputs)) for step in graph.steps),
        outputs=tuple(replace(output, value=moved(output.value)) for output in graph.outputs),
    )
    return check_graph(live_graph(made))


def _numbered(left: Graph, right: Graph) -> tuple[list[int], list[int]]:
    """Return a number for each value of both graphs, the same where the same steps make it."""
    known: dict[object, int] = {}
    shared = {axis.name for axis in left.axes} & {axis.name for axis in right.axes}
    return _numbers(left, known, shared), _numbers(right, known, shared)


def _numbers(graph: Graph, known: dict[object, int], shared: set[str]) -> list[int]:
    sizes = graph.sizes
    own: dict[str, str] = {}

    def name(axis: str) -> str:
        # Axes that are not matched one to one are known by the order in which they come up.
        return axis if axis in shared else own.setdefault(axis, f"#{len(own)} {sizes[axis]}")

    # Two inputs of one name may have their axes in another order, where sizes are alike.
    numbers = [
        known.setdefault(("input", port.name, tuple(tuple(map(name, dim)) for dim in port.dims)), len(known))
        for port in graph.inputs
    ]
    for step in graph.steps:
        numbers.append(known.setdefault(_key(step, [numbers[i] for i in step.inputs], name), len(known)))
    return numbers


def _key(step: Step, inputs: list[int], name: Callable[[str], str]) -> object:
    axes = tuple(sorted(map(name, step.axes)))
    mapping = tuple(
        sorted((name(old), name(new) if isinstance(new, str) else new) for old, new in step.mapping)
    )
    places = tuple(
        (tuple(map(name, place.axes)), tuple((name(axis), by) for axis, by in place.terms), place.offset)
        for place in step.places
    )
    operands = tuple(sorted(inputs) if step.op in COMMUTATIVE else inputs)
    return step.op, operands, axes, mapping, places, step.value
