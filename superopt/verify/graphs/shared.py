"""Shared: what two graphs compute in the very same way.

Outputs that both graphs make by the same steps are equal, whatever the steps are. Where whole programs are
too large for a bound, the steps that they share are cut off: both then read the shared value as an input. If
they are equal for any such input, they are equal for the shared value.

So it is with inner values that are proven to be equal, one after the other from the inputs on: each is an
input of both graphs from there on.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

from superopt.ir import (
    COMMUTATIVE,
    Graph,
    Output,
    Port,
    Step,
    check_graph,
    live_graph,
    mask_values,
    tensorless_values,
    value_axes,
)
from superopt.ops import OPS
from superopt.verify.verdict import Verdict

__all__ = ["cut_equal", "cut_shared", "same_outputs"]

_MOST_PAIRS = 64  # proofs that one inner value equals another
_RATIONAL = frozenset({"add", "sub", "mul", "div", "neg", "square", "reciprocal"})
_ROOTS = frozenset({"sqrt", "rsqrt"})  # proofs need to see that they are positive, and what their squares are
_FUNCTIONS = frozenset({*OPS, "max"}) - _RATIONAL - _ROOTS


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


def cut_equal(
    left: Graph, right: Graph, equal: Callable[[Graph, Graph], Verdict]
) -> tuple[Graph, Graph, list[Verdict]] | None:
    """Return two graphs that read equal inner values as inputs, with their proofs; None where none are equal.

    Such values are what windows read, and what enters and leaves functions that are neither rational nor
    roots. They are proven from the inputs on, each with those before it as inputs, so that each proof is of
    one layer. Pairs that are not proven say nothing: programs may be equal all the same. Axes and inputs are
    matched by name.
    """
    proven: list[Verdict] = []
    numbers = list(range(len(value_axes(left)))), [-1 - at for at in range(len(value_axes(right)))]
    roles = _roles(left), _roles(right)
    cuts: dict[int, _Cut] = {}
    tried = 0
    for one, role in roles[0].items():
        cut, before = _cut_of(left, one), dict(cuts)
        for other in (at for at, same in roles[1].items() if same & role):
            if numbers[1][other] >= 0 or tried >= _MOST_PAIRS or cut != _cut_of(right, other):
                continue
            tried += 1
            verdict = equal(
                _cut(_made(left, one, cut), numbers[0], before, "inner"),
                _cut(_made(right, other, cut), numbers[1], before, "inner"),
            )
            if verdict.equal:
                numbers[1][other] = one
                cuts[one] = cut
                proven.append(verdict)
    if not proven:
        return None
    return _cut(left, numbers[0], cuts, "inner"), _cut(right, numbers[1], cuts, "inner"), proven


def _roles(graph: Graph) -> dict[int, frozenset[str]]:
    """Return the values that may be cut off, with what reads and makes them."""
    first, tensorless = len(graph.inputs), tensorless_values(graph)
    found: dict[int, set[str]] = {}
    read: set[int] = set()
    for value, step in graph.numbered:
        read.update(step.inputs)
        for i in step.inputs if step.op == "window" or step.op in _FUNCTIONS else ():
            found.setdefault(i, set()).add(f"read by {step.op}")
        if step.op in _FUNCTIONS:
            found.setdefault(value, set()).add(f"made by {step.op}")
    return {
        value: frozenset(found[value])
        for value in sorted(found)
        if value >= first and value in read and not tensorless[value]
    }


def _cut_of(graph: Graph, value: int) -> "_Cut":
    sizes = graph.sizes
    axes = tuple(sorted(value_axes(graph)[value]))
    return _Cut(axes, mask_values(graph)[value], tuple(sizes[axis] for axis in axes))


def _made(graph: Graph, value: int, cut: "_Cut") -> Graph:
    """Return a graph with one of its values as the only output."""
    port = Port("made", "f32", tuple((axis,) for axis in cut.axes))
    return replace(graph, outputs=(Output(port, value),))


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
        read = [numbers[i] for i in step.inputs]
        if step.op == "contract":  # a sum of products, however it is written
            read = [known.setdefault(_key(Step("mul", step.inputs), read, name), len(known))]
            step = Step("sum", step.inputs[:1], axes=step.axes)
        numbers.append(known.setdefault(_key(step, read, name), len(known)))
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
