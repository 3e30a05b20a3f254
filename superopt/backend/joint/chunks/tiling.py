"""Tiling: a graph in chunks along one axis, so that its largest values are made, used and dropped in parts.

    logits = contract[k](x, w)          [m, n]      each chunk makes them for a few m alone,
    loss   = sum[m](...)                []          adds its part to the sums over m,
    dw     = contract[m](dlogits, x)    [n, k]
    dx     = contract[n](dlogits, w)    [m, k]      and writes its rows of what leaves

What does not depend on a large value is made before the chunks, and what depends on a sum over the axis
after them. A graph in which a chunk needs such a sum cannot be tiled along that axis.
"""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from math import prod

from superopt.ir import (
    Graph,
    Output,
    Port,
    Step,
    StepWriter,
    check_graph,
    mask_values,
    only_used,
    tensorless_values,
    value_axes,
)

__all__ = ["UNDEFINED", "Product", "Sum", "Tiling", "largest_bytes", "part_of", "tiled", "with_undefined"]

UNDEFINED = "undefined"
"""The result that counts numbers for which the program raises, as indices out of range."""

_ELEMENT = 4  # bytes of a number between the parts
_IN_PLACE = 1 << 18  # bytes above which a product is added up in place


@dataclass(frozen=True, slots=True)
class Sum:
    """What each chunk gives a part of: `add` or `maximum` of the parts."""

    port: Port
    op: str


@dataclass(frozen=True, slots=True)
class Product:
    """A product of matrices, summed over the axis, that is added up in place: its parts are never made."""

    port: Port
    left: Port  # the axis, then those that the product has of it
    right: Port


@dataclass(frozen=True, slots=True)
class Tiling:
    """A graph in three parts; values go from part to part by the names of their ports."""

    goal: Graph
    axis: str
    before: Graph
    chunk: Graph  # at the size of the whole axis
    after: Graph
    rows: tuple[str, ...]  # results of a chunk that carry the axis and leave
    sums: tuple[Sum, ...]
    products: tuple[Product, ...]


def with_undefined(graph: Graph) -> Graph:
    """Return a graph with one more result, where the program raises for some numbers: how many there are."""
    axes, first = value_axes(graph), len(graph.inputs)
    steps, counts = list(graph.steps), list[int]()

    def add(step: Step) -> int:
        steps.append(step)
        return first + len(steps) - 1

    for step in graph.steps:
        if step.op == "guard" and step.inputs[0] == step.inputs[1]:  # 1 where it does not raise
            missing = add(Step("eq", (step.inputs[0], add(Step("const", value=Fraction(0))))))
            over = tuple(sorted(axes[step.inputs[0]]))
            counts.append(add(Step("sum", (missing,), axes=over)) if over else missing)
    if not counts:
        return graph
    total = counts[0]
    for one in counts[1:]:
        total = add(Step("add", (total, one)))
    output = Output(Port(UNDEFINED, "f32", ()), total)
    return check_graph(replace(graph, steps=tuple(steps), outputs=(*graph.outputs, output)))


def largest_bytes(graph: Graph) -> int:
    """Return the bytes of the largest value of a graph."""
    sizes = graph.sizes
    return max(_ELEMENT * prod(sizes[axis] for axis in axes) for axes in value_axes(graph))


def tiled(graph: Graph, axis: str, limit_bytes: int, *, whole: int | None = None) -> Tiling | None:
    """Return a graph in chunks along an axis, which spare it values of more bytes; None where it cannot be.

    A graph that is a part of another, by which large values are told, says how long the whole axis is.
    """
    tiler = _Tiler(graph, axis, limit_bytes, whole)
    return tiler.made() if tiler.fits() else None


def part_of(graph: Graph, name: str, entering: Mapping[int, Port], outputs: Sequence[Output]) -> Graph:
    """Return what makes some outputs of a graph, where some of its values enter."""
    inputs = (*graph.inputs, *entering.values())
    first = len(graph.inputs)
    position = {value: value for value in range(first)}
    position |= {value: first + at for at, value in enumerate(entering)}
    written = StepWriter(frozenset(port.axes) for port in inputs)
    for value, step in graph.numbered:
        if value not in position:
            position[value] = written.add(step.reading(position[one] for one in step.inputs))
    moved = tuple(replace(one, value=position[one.value]) for one in outputs)
    whole = Graph(name, graph.axes, inputs, tuple(written.steps), moved)
    return check_graph(only_used(whole)) if outputs else only_used(whole)


class _Tiler:
    """Sorts the values of a graph: made before the chunks, by each chunk for its part, or after them."""

    def __init__(self, graph: Graph, axis: str, limit_bytes: int, whole: int | None) -> None:
        size = Fraction(graph.sizes[axis])  # a chunk does not know how long the whole axis is
        steps = (
            Step("const", value=size) if one.op == "size" and one.axes == (axis,) else one
            for one in graph.steps
        )
        self.graph, self.axis = replace(graph, steps=tuple(steps)), axis
        self.axes, self.masks = value_axes(self.graph), mask_values(self.graph)
        self.first = len(graph.inputs)
        sizes = graph.sizes if whole is None else {**graph.sizes, axis: whole}
        self.large = [_ELEMENT * prod(sizes[one] for one in axes) > limit_bytes for axes in self.axes]
        self.chunked = {value for value, large in enumerate(self.large) if large and self.has(value)}
        self.late: set[int] = set()
        self.sums: list[int] = []  # what chunks add up
        self.early: set[int] = set()

    def has(self, value: int) -> bool:
        """Whether a value has the axis."""
        return self.axis in self.axes[value]

    def fits(self) -> bool:
        """Sort the values; return whether chunks make all that is large, and need no sum of other chunks."""
        graph, axis = self.graph, self.axis
        ports = [*graph.inputs, *(one.port for one in graph.outputs)]
        if any(value < self.first for value in self.chunked) or any(
            one.axes.count(axis) > 1 for one in ports
        ):
            return False
        tensorless = tensorless_values(graph)
        for value, step in graph.numbered:
            named = {one for place in step.places for one in place.named} | {
                one for pair in step.mapping for one in pair
            }
            if axis in named or (step.op == "index" and axis in step.axes):
                return False
            if self.late.intersection(step.inputs):
                if self.has(value) or self.chunked.intersection(step.inputs):
                    return False
                self.late.add(value)
            elif self.chunked.intersection(step.inputs) and not self.has(value):
                self.sums.append(value)
                self.late.add(value)
            elif self.has(value) and self.chunked.intersection(step.inputs):
                self.chunked.add(value)
            elif not (self.has(value) or tensorless[value] or step.op == "rename"):
                self.early.add(value)
        spared = self.chunked - {one.value for one in graph.outputs}
        return any(self.large[value] for value in spared) and not any(
            self.large[value] for value in self.early
        )

    def made(self) -> Tiling:
        """Return the three parts."""
        graph = self.graph
        early = {value: self._port(value) for value in sorted(self.early)}
        rows = [one for one in graph.outputs if one.value in self.chunked]
        sums, products = list[Sum](), list[Product]()
        given, late = dict[int, Port](), dict[int, Port]()
        for value in self.sums:
            step = graph.step_at(value)
            sides = self._sides(step)
            late[value] = port = self._port(value, sides)
            if sides:
                operands = [self._port(one, (self.axis,)) for one in step.inputs]
                products.append(Product(port, *operands))
                given |= zip(step.inputs, operands, strict=True)
            else:
                sums.append(Sum(port, "maximum" if step.op == "max" else "add"))
                given[value] = port
        chunk = part_of(
            graph,
            f"{graph.name}_chunk",
            early,
            [*rows, *(Output(port, value) for value, port in given.items())],
        )
        after = part_of(
            graph, f"{graph.name}_after", early | late, [one for one in graph.outputs if one not in rows]
        )
        used = {port.name for port in (*chunk.inputs, *after.inputs)}
        outputs = [Output(port, value) for value, port in early.items() if port.name in used]
        before = part_of(graph, f"{graph.name}_before", {}, outputs)
        names = tuple(one.port.name for one in rows)
        return Tiling(graph, self.axis, before, chunk, after, names, tuple(sums), tuple(products))

    def _sides(self, step: Step) -> tuple[str, ...]:
        """Return a sum's axes, of both operands, then of each, where it is large products of matrices."""
        selects = step.op == "contract" and self.masks[step.inputs[0]] != self.masks[step.inputs[1]]
        if step.op != "contract" or step.axes != (self.axis,) or selects:
            return ()
        left, right = (self.axes[one] - {self.axis} for one in step.inputs)
        sides = [self._sorted(one) for one in (left & right, left - right, right - left)]
        sizes, whole = self.graph.sizes, [axis for side in sides for axis in side]
        large = _ELEMENT * prod(sizes[one] for one in whole) > _IN_PLACE
        return tuple(whole) if all(sides[1:]) and large else ()

    def _sorted(self, axes: Collection[str]) -> list[str]:
        return [axis.name for axis in self.graph.axes if axis.name in axes]

    def _port(self, value: int, before: Sequence[str] = ()) -> Port:
        """Return a port for a value, with some axes before all others."""
        order = [*before, *(axis for axis in self._sorted(self.axes[value]) if axis not in before)]
        name = f"{self.graph.name}_v{value}" + "_chunked" * (self.axis in before)
        return Port(name, "bool" if self.masks[value] else "f32", tuple((axis,) for axis in order))
