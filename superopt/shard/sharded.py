"""Sharded programs: what every device of a mesh does, as instructions on the values of a graph.

A **placement** says for each dimension of the mesh how a value lies on it: `None`, each device has all of it;
an axis, each device has its chunk of this axis; `+` or `^`, the value is the sum or the maximum of what the
devices have. An axis that a dimension may split is written as chunks, one for each such dimension, and the
places within them.

`rules` says how operands and value of an operator may lie along a dimension of the mesh with nothing moved.
Dimensions are independent of each other: a step may take another rule along each of them.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from math import prod
from typing import TypeAlias

from superopt.errors import InputError
from superopt.ir import Axis, Graph, Output, Port, Step, refine_axes, step_axes, value_axes, value_names
from superopt.ir.windows.place import Place

__all__ = [
    "DEVICE",
    "MAXIMUM",
    "SUM",
    "Call",
    "Instruction",
    "Layout",
    "Mesh",
    "Placement",
    "Rule",
    "Sharded",
    "Split",
    "call_rules",
    "check_mesh",
    "checked_pins",
    "is_partial",
    "layout_of",
    "placement_text",
    "rules",
]

SUM, MAXIMUM = "+", "^"

DEVICE = -1
"""Stands in the text of a call for the device that holds the tensors."""

Placement: TypeAlias = tuple[str | None, ...]
"""How a value lies on each dimension of the mesh."""

Tag: TypeAlias = str | None
Rule: TypeAlias = tuple[tuple[Tag, ...], Tag]
"""The tags of the operands, and that of the value."""


def is_partial(tag: str | None) -> bool:
    """Return whether devices have parts that are still to be put together."""
    return tag in (SUM, MAXIMUM)


@dataclass(frozen=True, slots=True)
class Mesh:
    """The dimensions of a mesh of devices: their names and sizes, outermost first."""

    names: tuple[str, ...]
    sizes: tuple[int, ...]

    @property
    def devices(self) -> int:
        """The number of devices."""
        return prod(self.sizes)


Split: TypeAlias = tuple[tuple[Tag, ...], tuple[Tag, ...]]
"""The axis of each argument and of each result of a call, of which a device may have the same chunk."""


@dataclass(frozen=True, slots=True)
class Call:
    """A call of an operator that is no algebra, between the regions of a program."""

    name: str
    target: str
    arguments: tuple[int, ...]  # outputs of the graph, by position
    results: tuple[str, ...]  # inputs of the graph
    splits: tuple[Split, ...]
    text: tuple[str | int, ...]  # the call as Python; a number stands for an argument, or for the device
    written: tuple[int, ...]  # arguments that the operator writes into
    taken: tuple[str | int, ...]  # of each result, what selects it from the call's value, or such an argument


@dataclass(frozen=True, slots=True)
class Layout:
    """A graph on a mesh: for each axis the dimensions, by position, that may split it.

    What `calls` read leaves the graph, and what they make enters it.
    """

    graph: Graph
    mesh: Mesh
    splits: dict[str, tuple[int, ...]]
    calls: tuple[Call, ...] = ()

    @property
    def made_by(self) -> dict[int, tuple[Call, int]]:
        """The call that makes a value, and which of its results that is."""
        found = {name: (call, at) for call in self.calls for at, name in enumerate(call.results)}
        return {at: found[port.name] for at, port in enumerate(self.graph.inputs) if port.name in found}

    @property
    def entering(self) -> tuple[Port, ...]:
        """The tensors that enter the program."""
        made = self.made_by
        return tuple(port for at, port in enumerate(self.graph.inputs) if at not in made)

    @property
    def leaving(self) -> tuple[Output, ...]:
        """The tensors that leave the program."""
        read = {at for call in self.calls for at in call.arguments}
        return tuple(one for at, one in enumerate(self.graph.outputs) if at not in read)

    def made_of(self, call: Call) -> tuple[int, ...]:
        """Return the values that a call makes."""
        places = {port.name: at for at, port in enumerate(self.graph.inputs)}
        return tuple(places[name] for name in call.results)

    def read_by(self, call: Call) -> tuple[int, ...]:
        """Return the values that a call reads."""
        return tuple(self.graph.outputs[at].value for at in call.arguments)

    def pieces(self, axis: str) -> tuple[Axis, ...]:
        """Return what an axis is a product of: its chunks, outermost first, and the places in them."""
        dims = self.splits[axis]
        size = self.graph.sizes[axis]
        if not dims:
            return (Axis(axis, size),)
        chunks = [Axis(self.chunk(axis, dim), self.mesh.sizes[dim]) for dim in dims]
        return (*chunks, Axis(f"{axis}_local", size // prod(one.size for one in chunks)))

    def place_of(self, place: Place) -> Place:
        """Return where a window reads, with every axis that may be split written as its pieces."""
        return place.refined(
            {axis: [(one.name, one.size) for one in self.pieces(axis)] for axis in place.named}
        )

    def pieces_of(self, value: int) -> tuple[str, ...]:
        """Return the pieces of all axes of a value."""
        own = value_axes(self.graph)[value]
        return tuple(
            piece.name for axis in self.graph.axes if axis.name in own for piece in self.pieces(axis.name)
        )

    def chunk(self, axis: str, dim: int) -> str:
        """Return the name of the chunks of an axis on a dimension."""
        return f"{axis}_{self.mesh.names[dim]}"

    def mesh_axis(self, dim: int) -> str:
        """Return the name of the axis that stands for the devices along a dimension."""
        return f"device_{self.mesh.names[dim]}"

    def refined(self) -> Graph:
        """Return the graph with every axis that may be split written as its pieces."""
        factors = {axis: self.pieces(axis) for axis, dims in self.splits.items() if dims}
        return refine_axes(self.graph, factors) if factors else self.graph

    def elements(self, value: int, placement: Placement) -> int:
        """Return how many elements of a value each device has."""
        sizes = self.graph.sizes
        whole = prod(sizes[axis] for axis in value_axes(self.graph)[value])
        return whole // prod(
            self.mesh.sizes[dim]
            for dim, tag in enumerate(placement)
            if tag is not None and not is_partial(tag)
        )


def layout_of(graph: Graph, mesh: Mesh, calls: tuple[Call, ...] = ()) -> Layout:
    """Return which dimensions may split each axis: as many as divide it, the last dimensions first."""
    alike = {axis.name: {axis.name} for axis in graph.axes}
    for step in graph.steps:
        if step.op == "rename":
            for old, new in step.mapping:
                joined = alike[old] | alike[str(new)]
                alike |= dict.fromkeys(joined, joined)
    taken = {axis.name for axis in graph.axes}
    splits: dict[str, tuple[int, ...]] = {}
    for axis in graph.axes:
        rest, dims = axis.size, []
        for dim in reversed(range(len(mesh.sizes))):
            pieces = {f"{one}_{end}" for one in alike[axis.name] for end in (mesh.names[dim], "local")}
            clash = not taken.isdisjoint(pieces)
            if mesh.sizes[dim] > 1 and rest and rest % mesh.sizes[dim] == 0 and not clash:
                rest //= mesh.sizes[dim]
                dims.append(dim)
        splits[axis.name] = tuple(sorted(dims))
    return Layout(graph, mesh, splits, calls)


@dataclass(frozen=True, slots=True)
class Instruction:
    """What all devices do at one point: enter a tensor, take a step of the graph, or move a value.

    `inputs` are positions of earlier instructions. A move is one of all-reduce (with `how` + or ^),
    reduce-scatter, all-gather, all-to-all and slice; it goes along `dims` and, except for all-reduce, from or
    to chunks of `axis`; an all-to-all leaves the chunks of `axis` and makes those of `onto`.
    """

    kind: str  # enter, step, call, or the name of a move
    value: int  # the value of the graph that is made
    placement: Placement
    inputs: tuple[int, ...] = ()
    dims: tuple[int, ...] = ()
    axis: str = ""
    onto: str = ""
    how: str = SUM

    @property
    def moves(self) -> bool:
        """Whether devices exchange data."""
        return self.kind not in ("enter", "step", "call", "slice")


@dataclass(frozen=True, slots=True)
class Sharded:
    """A program for all devices: its instructions, and which of them make the outputs."""

    layout: Layout
    instructions: tuple[Instruction, ...]
    outputs: tuple[int, ...]

    def __str__(self) -> str:
        names = value_names(self.layout.graph)
        made_by = self.layout.made_by
        lines = []
        for at, one in enumerate(self.instructions):
            what = f"{one.kind}({', '.join(f'%{i}' for i in one.inputs)})"
            if one.kind == "step":
                step = self.layout.graph.step_at(one.value)
                what = f"{step.op}({', '.join(f'%{i}' for i in one.inputs)})"
            elif one.kind == "call":
                call, place = made_by[one.value]
                what = f"{call.target}[{place}]({', '.join(f'%{i}' for i in one.inputs)})"
            elif one.dims:
                over = "+".join(self.layout.mesh.names[dim] for dim in one.dims)
                what = f"{one.kind}[{over}]({', '.join(f'%{i}' for i in one.inputs)})"
            lines.append(f"%{at} = {what}  # {names[one.value]} {self.placed(one.placement)}")
        lines += [
            f"out {output.port.name} = %{at}"
            for output, at in zip(self.layout.graph.outputs, self.outputs, strict=True)
            if output in self.layout.leaving
        ]
        return "\n".join(lines) + "\n"

    def placed(self, placement: Placement) -> str:
        """Return a placement in words."""
        return placement_text(placement, self.layout.mesh)

    @property
    def moves(self) -> tuple[Instruction, ...]:
        """The instructions by which devices exchange data."""
        return tuple(one for one in self.instructions if one.moves)

    def placement_of(self, name: str) -> Placement:
        """Return how an input first lies, or an output in the end."""
        for at, port in enumerate(self.layout.graph.inputs):
            if port.name == name:
                entered = [one for one in self.instructions if one.kind == "enter" and one.value == at]
                return entered[0].placement if entered else (None,) * len(self.layout.mesh.sizes)
        for output, at in zip(self.layout.graph.outputs, self.outputs, strict=True):
            if output.port.name == name:
                return self.instructions[at].placement
        raise InputError(f"the program has no tensor {name!r}")


def placement_text(placement: Sequence[str | None], mesh: Mesh) -> str:
    """Return a placement in words, such as `n over gpu`."""
    words = {SUM: "partial sums", MAXIMUM: "partial maxima"}
    found = [
        f"{words.get(tag, tag)} over {name}"
        for name, tag in zip(mesh.names, placement, strict=True)
        if tag is not None
    ]
    return ", ".join(found) or "whole"


def check_mesh(layout: Layout) -> None:
    """Raise InputError where a dimension of the mesh can split no axis at all."""
    sizes = layout.graph.sizes
    for dim, (name, many) in enumerate(zip(layout.mesh.names, layout.mesh.sizes, strict=True)):
        if many == 1 or any(dim in dims for dims in layout.splits.values()):
            continue
        longest = max(sizes, key=sizes.__getitem__)
        near = next(one for one in range(many - 1, 0, -1) if one == 1 or _splits(layout, dim, one))
        raise InputError(
            f"mesh: {name}={many} divides no axis of the program beside the deeper levels, not even"
            f" {longest!r} of size {sizes[longest]}; the nearest choice that works: {name}={near}"
        )


def _splits(layout: Layout, dim: int, many: int) -> bool:
    """Return whether a dimension of the mesh could split an axis if it had so many devices."""
    sizes = (*layout.mesh.sizes[:dim], many, *layout.mesh.sizes[dim + 1 :])
    return any(
        dim in dims for dims in layout_of(layout.graph, replace(layout.mesh, sizes=sizes)).splits.values()
    )


def checked_pins(layout: Layout, pins: Mapping[str, Placement]) -> dict[int, Placement]:
    """Return the placements that are fixed, by value; those of outputs by -1 less the output's position."""
    graph, found = layout.graph, dict[int, Placement]()
    entering, leaving = set(layout.entering), set(layout.leaving)
    inputs = {port.name: (at, port) for at, port in enumerate(graph.inputs) if port in entering}
    outputs = {one.port.name: (-1 - at, one.port) for at, one in enumerate(graph.outputs) if one in leaving}
    for name, placement in pins.items():
        if name not in inputs and name not in outputs:
            raise InputError(
                f"pins: the program has no tensor {name!r}; it has {', '.join((*inputs, *outputs))}"
            )
        at, port = inputs.get(name) or outputs[name]
        if len(placement) != len(layout.mesh.sizes):
            raise InputError(f"pins: {name} needs a placement for each of {', '.join(layout.mesh.names)}")
        for dim, axis in enumerate(placement):
            if axis is not None and (axis not in port.axes or dim not in layout.splits[axis]):
                raise InputError(_cannot_split(layout, name, port.axes, axis, dim))
        found[at] = tuple(placement)
    return found


def _cannot_split(layout: Layout, name: str, axes: tuple[str, ...], axis: str, dim: int) -> str:
    """Say why an axis cannot be split along a dimension, and what would work."""
    mesh, sizes = layout.mesh, layout.graph.sizes
    others = [one for one in axes if dim in layout.splits[one]]
    instead = f"split {others[0]} instead" if others else "leave it whole"
    if axis not in axes:
        known = ", ".join(axes)
        return f"pins: {name} has no axis {axis!r}, only {known}; the nearest choice that works: {instead}"
    many = mesh.sizes[dim]
    near = max((one for one in range(1, many + 1) if sizes[axis] % one == 0), default=1)
    return (
        f"pins: axis {axis!r} of {name} has size {sizes[axis]}, which {mesh.names[dim]}={many} does not"
        f" divide beside other splits; the nearest choice that works: {mesh.names[dim]}={near}, or {instead}"
    )


_LINEAR: dict[str, tuple[tuple[Tag, ...], ...]] = {
    "neg": ((SUM,),),
    "add": ((SUM, SUM),),
    "sub": ((SUM, SUM),),
    "mul": ((SUM, None), (None, SUM)),
    "contract": ((SUM, None), (None, SUM)),
    "div": ((SUM, None),),
    "sum": ((SUM,),),
    "rename": ((SUM,), (MAXIMUM,)),
    "select": ((SUM,), (MAXIMUM,)),
    "max": ((MAXIMUM,),),
}
"""Operators that give partial values from partial operands, and from which."""


def rules(step: Step, operands: tuple[frozenset[str], ...], splittable: frozenset[str]) -> Iterator[Rule]:
    """Yield the rules of a step along a dimension that may split some axes."""
    yield (None,) * len(operands), None
    for tags in _LINEAR.get(step.op, ()):
        yield tags, SUM if SUM in tags else MAXIMUM
    union = frozenset[str]().union(*operands)
    made = step_axes(step, operands)
    mapping = dict(step.mapping)
    slid = {axis for place in step.places for axis in place.named}  # a window reads beyond its own part
    for axis in sorted((union | made) & splittable):
        if step.op == "index":
            yield (), axis
        if axis in slid or axis not in union or (step.op == "select" and axis in mapping):
            continue
        tags = tuple(axis if axis in own else None for own in operands)
        after = str(mapping.get(axis, axis))
        if after in made:
            yield tags, after
        else:
            yield tags, MAXIMUM if step.op == "max" else SUM


def call_rules(layout: Layout, call: Call, dim: int) -> Iterator[tuple[tuple[Tag, ...], tuple[Tag, ...]]]:
    """Yield how the arguments and the results of a call may lie along a dimension."""
    yield (None,) * len(call.arguments), (None,) * len(call.results)
    axes = value_axes(layout.graph)
    reads = [axes[value] for value in layout.read_by(call)]
    for before, after in call.splits:
        own = {layout.splits[axis] for axis in (*before, *after) if axis is not None}
        fit = all(tag is None or tag in held for tag, held in zip(before, reads, strict=True))
        # Chunks of the same places: the axes are split by the same dimensions.
        if fit and len(own) == 1 and dim in own.pop():
            yield before, after
