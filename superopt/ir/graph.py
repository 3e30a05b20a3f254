"""Graph: tensor algebra on named axes.

A value is a function of a set of axes. Inputs are the first values, steps the next ones, in
order; a step names its inputs by position. Nothing here knows a memory layout: that belongs to
the ports, whose dimensions are products of axes as in einops, `[b, s, (h d)]`.

A graph is printed as text, which `parse_graph` reads back.
"""

import re
from collections.abc import Callable, Hashable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from functools import wraps
from math import prod
from typing import TypeVar

from superopt.ir.windows.place import Place, print_place
from superopt.ops import OPS

__all__ = [
    "COMMUTATIVE",
    "COMPARISONS",
    "REDUCTIONS",
    "STRUCTURAL",
    "Axis",
    "Graph",
    "Output",
    "Port",
    "Step",
    "StepWriter",
    "fixed_axes",
    "format_constant",
    "live_graph",
    "made_from",
    "needed_order",
    "operands_first",
    "operations_of",
    "print_graph",
    "print_port",
    "print_step",
    "step_axes",
    "value_axes",
    "value_names",
    "window_axes",
]

STRUCTURAL = {
    "const": 0,  # value: an exact rational
    "infinity": 0,
    "size": 0,  # axes: the one axis whose extent this scalar is
    "index": 0,  # axes: the one axis whose running index this is
    "sum": 1,  # axes: summed over
    "max": 1,  # axes: maximum over
    "contract": 2,  # axes: product of two values, summed over these
    "rename": 1,  # mapping: old axis -> new axis, all at once
    "select": 1,  # mapping: axis -> position; the axis disappears
    "window": 1,  # places: where it is read along some axes, which other axes replace; 0 outside
}
"""Operators that are not elementwise, and how many values each takes."""

REDUCTIONS = frozenset({"sum", "max", "contract"})
"""Operators whose value lacks the axes that the step names, though an operand has them."""

COMMUTATIVE = frozenset({"contract", *(op.name for op in OPS.values() if op.commutes)})
"""Operators whose two operands may be exchanged."""

POWERS = {
    **{op.name: op.powers for op in OPS.values() if op.powers},
    **dict.fromkeys(("sum", "max", "rename", "select"), (Fraction(1),)),
    "contract": (Fraction(1), Fraction(1)),
}
"""Operators whose operand i times t > 0 makes the value t ** powers[i] times as large."""

COMPARISONS = frozenset(op.name for op in OPS.values() if op.sign)
"""Operators that compare two values."""


@dataclass(frozen=True, slots=True)
class Axis:
    """An index range with an identity: two axes of equal size are still two axes."""

    name: str
    size: int


@dataclass(frozen=True, slots=True)
class Port:
    """A tensor that enters or leaves: its dtype, and each dimension as a product of axes."""

    name: str
    dtype: str
    dims: tuple[tuple[str, ...], ...]
    strides: tuple[int, ...] | None = None  # strides in elements; None where the tensor is contiguous
    constant: bool = False  # the function holds the tensor itself, as a weight: calls do not bring it

    @property
    def axes(self) -> tuple[str, ...]:
        """All axes of the tensor, outermost first."""
        return tuple(axis for dim in self.dims for axis in dim)


@dataclass(frozen=True, slots=True)
class Output:
    """A tensor that leaves, and the position of the value it carries."""

    port: Port
    value: int


@dataclass(frozen=True, slots=True)
class Step:
    """One operator applied to earlier values."""

    op: str
    inputs: tuple[int, ...] = ()
    axes: tuple[str, ...] = ()
    mapping: tuple[tuple[str, str | int], ...] = ()
    value: Fraction | None = None
    places: tuple[Place, ...] = ()

    def reading(self, values: Iterable[int]) -> "Step":
        """Return the same step of other values."""
        return replace(self, inputs=tuple(values))


@dataclass(frozen=True, slots=True)
class Graph:
    """A tensor program: axes, the tensors that enter, the steps, the tensors that leave."""

    name: str
    axes: tuple[Axis, ...]
    inputs: tuple[Port, ...]
    steps: tuple[Step, ...]
    outputs: tuple[Output, ...]

    def __str__(self) -> str:
        return print_graph(self)

    @property
    def sizes(self) -> dict[str, int]:
        """The extent of each axis."""
        return {axis.name: axis.size for axis in self.axes}

    def shape(self, port: Port) -> tuple[int, ...]:
        """Return the shape of the tensor at a port."""
        sizes = self.sizes
        return tuple(prod(sizes[axis] for axis in dim) for dim in port.dims)

    @property
    def numbered(self) -> "Iterator[tuple[int, Step]]":
        """Yield each step with the number of its value."""
        return enumerate(self.steps, len(self.inputs))

    def step_of(self, value: int) -> Step | None:
        """Return the step that makes a value, or None for an input."""
        return None if value < len(self.inputs) else self.steps[value - len(self.inputs)]

    def operands_of(self, value: int) -> tuple[int, ...]:
        """Return the operands of the step that makes a value; none for an input."""
        step = self.step_of(value)
        return () if step is None else step.inputs

    def step_at(self, value: int) -> Step:
        """Return the step that makes a value which is no input."""
        assert value >= len(self.inputs)
        return self.steps[value - len(self.inputs)]

    def constant(self, value: int) -> Fraction | None:
        """Return the number that a value is, or None where it is no constant."""
        step = self.step_of(value)
        return None if step is None else step.value


def step_axes(step: Step, inputs: tuple[frozenset[str], ...]) -> frozenset[str]:
    """Return the axes of a step's value, given the axes of its inputs."""
    if step.op == "index":
        return frozenset(step.axes)
    if step.op in ("const", "infinity", "size"):
        return frozenset()
    union = frozenset[str]().union(*inputs)
    if step.op in REDUCTIONS:
        return union - frozenset(step.axes)
    if step.op == "rename":
        mapping = dict(step.mapping)
        return frozenset(str(mapping.get(axis, axis)) for axis in union)
    if step.op == "select":
        return union - frozenset(axis for axis, _ in step.mapping)
    if step.op == "window":
        read = frozenset(axis for place in step.places for axis in place.axes)
        return (union - read) | frozenset(axis for place in step.places for axis, _ in place.terms)
    return union


def follow_renames(graph: Graph, sizes: dict[str, int]) -> dict[str, int]:
    """Return sizes in which an axis that stands for another one, as in `x @ x.T`, is as long as that."""
    sizes = dict(sizes)
    for step in graph.steps:
        if step.op == "rename":
            sizes.update({str(new): sizes[old] for old, new in step.mapping if old in sizes})
    return sizes


def window_axes(graph: Graph) -> frozenset[str]:
    """Return the axes that windows read and make; their sizes follow from each other, and never change."""
    return frozenset(axis for step in graph.steps for place in step.places for axis in place.named)


def fixed_axes(graph: Graph) -> frozenset[str]:
    """Return the axes whose sizes never change: of windows, and those selected from at each position."""
    selected: dict[str, set[str | int]] = {}
    for step in graph.steps:
        if step.op == "select":
            for axis, at in step.mapping:
                selected.setdefault(axis, set()).add(at)
    sizes = graph.sizes
    whole = {axis for axis, places in selected.items() if len(places) == sizes[axis] > 1}
    return window_axes(graph) | whole


_Frozen = TypeVar("_Frozen")
_T = TypeVar("_T")
_KEPT = 64  # graphs, or kernels, whose facts are kept


def kept_by_identity(function: Callable[[_Frozen], _T]) -> Callable[[_Frozen], _T]:
    """Return a function of a graph, or of a kernel, that keeps its results: it is asked the same often.

    Both are known by their identity: to hash one takes about as long as to work out a fact of it.
    """
    kept: dict[int, tuple[_Frozen, _T]] = {}

    @wraps(function)
    def wrapper(frozen: _Frozen) -> _T:
        found = kept.get(id(frozen))
        if found is None:
            if len(kept) >= _KEPT:
                kept.clear()
            found = kept[id(frozen)] = frozen, function(frozen)
        return found[1]

    return wrapper


@kept_by_identity
def value_axes(graph: Graph) -> tuple[frozenset[str], ...]:
    """Return the axes of every value, inputs first."""
    axes = [frozenset(port.axes) for port in graph.inputs]
    for step in graph.steps:
        axes.append(step_axes(step, tuple(axes[i] for i in step.inputs)))
    return tuple(axes)


def operations_of(graph: Graph) -> int:
    """Return about how many operations one run of a graph takes: one for each point of each step."""
    sizes, axes = graph.sizes, value_axes(graph)
    return sum(
        prod(sizes[axis] for axis in axes[value].union(*(axes[i] for i in step.inputs)))
        for value, step in graph.numbered
    )


def arity(op: str) -> int | None:
    """Return how many values an operator takes, or None where there is no such operator."""
    if op in STRUCTURAL:
        return STRUCTURAL[op]
    return OPS[op].arity if op in OPS else None


def needed_order(graph: Graph) -> list[int]:
    """Return the values of steps in the order in which the outputs need them, operands first."""
    first = len(graph.inputs)

    def operands(value: int) -> list[int]:
        return [i for i in graph.step_at(value).inputs if i >= first]

    return operands_first([one.value for one in graph.outputs if one.value >= first], operands)


_Key = TypeVar("_Key", bound=Hashable)


def operands_first(roots: Sequence[_Key], operands: Callable[[_Key], Iterable[_Key]]) -> list[_Key]:
    """Return some things and all that they are made from, each after its operands."""
    order: list[_Key] = []
    placed: set[_Key] = set()
    pending = list(reversed(roots))
    while pending:
        one = pending[-1]
        missing = [] if one in placed else [i for i in operands(one) if i not in placed]
        if missing:
            pending.extend(reversed(missing))
            continue
        pending.pop()
        if one not in placed:
            placed.add(one)
            order.append(one)
    return order


def made_from(values: Iterable[int], operands: Callable[[int], Iterable[int]]) -> set[int]:
    """Return some values and all that they are made from, by the operands of each."""
    found: set[int] = set()
    pending = list(values)
    while pending:
        value = pending.pop()
        if value not in found:
            found.add(value)
            pending += operands(value)
    return found


def live_graph(graph: Graph) -> Graph:
    """Return the graph without steps that no output needs, equal steps made one; inputs stay."""
    first = len(graph.inputs)
    position = {i: i for i in range(first)}
    seen: dict[Step, int] = {}
    steps: list[Step] = []
    for value in sorted(needed_order(graph)):
        step = graph.step_at(value)
        step = step.reading(position[i] for i in step.inputs)
        if step not in seen:
            seen[step] = first + len(steps)
            steps.append(step)
        position[value] = seen[step]
    outputs = tuple(replace(output, value=position[output.value]) for output in graph.outputs)
    return replace(graph, steps=tuple(steps), outputs=outputs)


class StepWriter:
    """The steps of a graph that is written anew, equal ones once, and the axes of each of its values."""

    def __init__(self, inputs: Iterable[frozenset[str]]) -> None:
        self.axes = list(inputs)
        self.steps: list[Step] = []
        self._known: dict[Step, int] = {}

    def add(self, step: Step) -> int:
        """Add a step, unless it is known, and return its value."""
        if step not in self._known:
            self._known[step] = len(self.axes)
            self.steps.append(step)
            self.axes.append(step_axes(step, tuple(self.axes[i] for i in step.inputs)))
        return self._known[step]


def print_graph(graph: Graph) -> str:
    """Return the text form."""
    names = value_names(graph)
    lines = [f"graph {graph.name}"]
    lines.append(" ".join(["axes", *(f"{axis.name}={axis.size}" for axis in graph.axes)]))
    lines += [f"in {print_port(port)}" for port in graph.inputs]
    for position, step in enumerate(graph.steps, len(graph.inputs)):
        lines.append(f"{names[position]} = {print_step(step, names)}")
    lines += [f"out {print_port(output.port)} = {names[output.value]}" for output in graph.outputs]
    return "\n".join(lines) + "\n"


@kept_by_identity
def value_names(graph: Graph) -> tuple[str, ...]:
    """Return a name for every value: inputs keep theirs, steps are t<position>."""
    taken = {port.name for port in graph.inputs}
    prefix = "t"
    while any(re.fullmatch(rf"{prefix}\d+", name) for name in taken):
        prefix += "_"
    steps = range(len(graph.inputs), len(graph.inputs) + len(graph.steps))
    return (*(port.name for port in graph.inputs), *(f"{prefix}{i}" for i in steps))


def print_step(step: Step, names: Sequence[str]) -> str:
    """Return one step as `op[attributes](inputs)`."""
    attrs = ""
    if step.value is not None:
        attrs = f"[{format_constant(step.value)}]"
    elif step.mapping:
        arrow = "=" if step.op == "select" else "->"
        attrs = "[" + ", ".join(f"{old}{arrow}{new}" for old, new in step.mapping) + "]"
    elif step.axes:
        attrs = "[" + ", ".join(step.axes) + "]"
    elif step.places:
        attrs = "[" + ", ".join(map(print_place, step.places)) + "]"
    return f"{step.op}{attrs}({', '.join(names[i] for i in step.inputs)})"


def format_constant(value: Fraction) -> str:
    """Return the shortest text that reads back as exactly this rational."""
    if value.denominator == 1 and abs(value.numerator) < 10**16:
        return str(value.numerator)
    try:
        number = float(value)
    except OverflowError:
        return str(value)
    return repr(number) if Fraction(number) == value else str(value)


def print_port(port: Port) -> str:
    """Return a tensor as `name: dtype[dimensions]`."""
    dims = [dim[0] if len(dim) == 1 else f"({' '.join(dim)})" if dim else "1" for dim in port.dims]
    text = f"{port.name}: {port.dtype}[{', '.join(dims)}]"
    if port.strides is not None:
        text += f" strides({', '.join(map(str, port.strides))})"
    return f"{text} constant" if port.constant else text
