"""Pieces: parts of a program as graphs of their own, which begin at its inputs and at inner tensors."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from math import prod

from superopt.errors import GraphError
from superopt.ir import Axis, Graph, Output, Port, Step, made_from, operands_first, rename_axes, value_axes
from superopt.ops import OPS, uses_of
from superopt.verify.programs.whole import OpaqueUse, Whole, add_inputs

__all__ = ["Ordered", "Target", "canonical", "cut_port", "piece", "with_same_inputs"]


@dataclass(frozen=True, slots=True)
class Target:
    """A value that a piece makes, and the dimensions it has there."""

    port: Port
    value: int


class Ordered:
    """A program's steps and opaque calls, in the order in which its results need them."""

    def __init__(self, whole: Whole, constants: frozenset[str] = frozenset()) -> None:
        self.graph: Graph = whole.graph
        self.calls: tuple[OpaqueUse, ...] = whole.calls
        self.constants = constants  # inputs that the caller does not give
        self.axes = value_axes(self.graph)
        self.sizes = self.graph.sizes
        self.first = len(self.graph.inputs)
        places = {port.name: value for value, port in enumerate(self.graph.inputs)}
        self.made_by = {
            places[name]: number for number, call in enumerate(self.calls) for name in call.results
        }
        self.results = tuple(self._target(number) for number in whole.results)
        self.order = self._needed()
        self.turns = frozenset(
            i for step in self.graph.steps if step.op in OPS and _bends(step.op) for i in step.inputs
        )

    def arguments(self, call: int) -> tuple[Target, ...]:
        """Return the tensors that a call reads, one for each place among its arguments."""
        return tuple(self._target(number) for number in self.calls[call].arguments)

    def _target(self, number: int) -> Target:
        output = self.graph.outputs[number]
        return Target(output.port, output.value)

    def reads(self, event: int) -> tuple[int, ...]:
        """Return the values that an event of the order reads: a step, or the call number -1 - event."""
        if event < 0:
            return tuple(target.value for target in self.arguments(-1 - event))
        return self.graph.step_at(event).inputs

    def _needed(self) -> tuple[int, ...]:
        """Return steps, by their values, and calls, as -1 - number, operands first."""
        roots = [event for target in self.results for event in self._event(target.value)]
        return tuple(
            operands_first(roots, lambda one: [i for at in self.reads(one) for i in self._event(at)])
        )

    def axes_at(self, value: int) -> frozenset[str]:
        """Return the axes that the step of a value deals with."""
        step = self.graph.step_at(value)
        renamed = frozenset(name for pair in step.mapping for name in pair if isinstance(name, str))
        return self.axes[value].union(step.axes, renamed, *(self.axes[i] for i in step.inputs))

    def is_mask(self, value: int) -> bool:
        """Return whether an operator makes a value that is always 0 or 1."""
        step = self.graph.step_of(value)
        return step is not None and step.op in OPS and OPS[step.op].mask

    def within(self, targets: Sequence[int], stops: Mapping[int, Port]) -> list[int]:
        """Return the steps that some values are made from behind the stops, in the order of the program."""

        def inside(values: Iterable[int]) -> list[int]:
            return [value for value in values if value >= self.first and value not in stops]

        found = made_from(inside(targets), lambda value: inside(self.reads(value)))
        return [event for event in self.order if event in found]

    def _event(self, value: int) -> tuple[int, ...]:
        """Return what makes a value, or nothing for an input."""
        if value >= self.first:
            return (value,)
        call = self.made_by.get(value)
        return () if call is None else (-1 - call,)


def _bends(op: str) -> bool:
    """Return whether an operator takes exponentials or applies unknown functions."""
    primitives, functions = uses_of(op)
    return bool(functions or primitives & {"exp", "sqrt"})


def cut_port(side: Ordered, value: int, name: str, *, dtype: str = "f64") -> Port:
    """Return the port of an inner tensor: a dimension for each of its axes, in alphabetical order."""
    return Port(name, dtype, tuple((axis,) for axis in sorted(side.axes[value])))


def piece(
    side: Ordered, targets: Sequence[Target], stops: Mapping[int, Port], names: Mapping[int, str]
) -> Graph:
    """Return what makes some values as a graph, whose inputs are those of the program and the stops.

    `stops` are inner values that enter instead of being computed, `names` inputs of the program that
    go by another name. Inputs of one name are one tensor. Steps stand in the order in which the targets
    need them, so that pieces that do the same are the same graph.
    """
    return _Piece(side, stops, names).graph(targets)


class _Piece:
    """One piece while it is written."""

    def __init__(self, side: Ordered, stops: Mapping[int, Port], names: Mapping[int, str]) -> None:
        self.side = side
        self.stops = stops
        self.names = names
        self.ports: dict[str, Port] = {}
        self.leaves: list[int] = []  # values that enter, in the order of their first use
        self.steps: dict[Step, int] = {}
        # From values of the program to those of the piece: inputs -1, -2, ..., steps from 0.
        self.position: dict[int, int] = {}

    def graph(self, targets: Sequence[Target]) -> Graph:
        """Return the piece that makes these targets."""
        for target in targets:
            self._write(target.value)
        count = len(self.ports)

        def settled(value: int) -> int:
            return -1 - value if value < 0 else count + value

        steps = tuple(step.reading(map(settled, step.inputs)) for step in self.steps)
        outputs = tuple(
            Output(
                replace(target.port, name=f"out{i}", strides=None, constant=False),
                settled(self.position[target.value]),
            )
            for i, target in enumerate(targets)
        )
        ports = tuple(self.ports.values())
        used = _axes_in_order(ports, steps, outputs)
        return Graph(
            "piece", tuple(Axis(axis, self.side.sizes[axis]) for axis in used), ports, steps, outputs
        )

    def _write(self, target: int) -> None:
        pending = [target]
        side = self.side
        while pending:
            value = pending[-1]
            if value in self.position:
                pending.pop()
                continue
            if value in self.stops:
                self._enter(value, self.stops[value])
                continue
            if value < side.first:
                port = side.graph.inputs[value]
                self._enter(value, replace(port, name=self.names.get(value, port.name), strides=None))
                continue
            step = side.graph.step_at(value)
            missing = [i for i in step.inputs if i not in self.position]
            if missing:
                pending.extend(reversed(missing))
                continue
            self.position[value] = self._step(step.reading(self.position[i] for i in step.inputs))

    def _step(self, step: Step) -> int:
        return self.steps.setdefault(step, len(self.steps))

    def _enter(self, value: int, port: Port) -> None:
        known = self.ports.setdefault(port.name, port)
        position = -1 - list(self.ports).index(port.name)
        sizes = self.side.sizes
        if [sizes[axis] for axis in known.axes] != [sizes[axis] for axis in port.axes]:
            raise GraphError(f"tensor {port.name!r} is read as {known.dims} and as {port.dims}")
        pairs = [pair for pair in zip(known.axes, port.axes, strict=True) if pair[0] != pair[1]]
        if pairs:  # the twin is the same tensor on other axes
            position = self._step(Step("rename", (position,), mapping=tuple(sorted(pairs))))
        self.position[value] = position


def _axes_in_order(
    ports: Iterable[Port], steps: Iterable[Step], outputs: Iterable[Output]
) -> dict[str, None]:
    used: dict[str, None] = {}
    for port in ports:
        used.update(dict.fromkeys(port.axes))
    for step in steps:
        used.update(dict.fromkeys(step.axes))
        for old, new in step.mapping:
            used.update(dict.fromkeys((old, new) if isinstance(new, str) else (old,)))
        for place in step.places:
            used.update(dict.fromkeys(place.named))
    for output in outputs:
        used.update(dict.fromkeys(output.port.axes))
    return used


def with_same_inputs(a: Graph, b: Graph) -> tuple[Graph, Graph]:
    """Return two pieces, each with the inputs of the other that it does not read."""

    def missing(graph: Graph, other: Graph) -> dict[str, tuple[str, tuple[int, ...]]]:
        known = {port.name for port in graph.inputs}
        sizes = other.sizes
        return {
            port.name: (port.dtype, tuple(prod(sizes[axis] for axis in dim) for dim in port.dims))
            for port in other.inputs
            if port.name not in known
        }

    return add_inputs(a, missing(a, b)), add_inputs(b, missing(b, a))


def canonical(a: Graph, b: Graph) -> tuple[Graph, Graph]:
    """Return two pieces with inputs and axes named by number: repeated layers give the same two graphs."""
    ports = dict.fromkeys(port.name for graph in (a, b) for port in graph.inputs)
    names = {name: f"i{number}" for number, name in enumerate(ports)}
    axes = dict.fromkeys(axis.name for graph in (a, b) for axis in graph.axes)
    numbers = {axis: f"a{number}" for number, axis in enumerate(axes)}

    def numbered(graph: Graph) -> Graph:
        inputs = tuple(replace(port, name=names[port.name]) for port in graph.inputs)
        return rename_axes(replace(graph, inputs=inputs), numbers)

    return numbered(a), numbered(b)
