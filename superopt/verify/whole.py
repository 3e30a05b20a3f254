"""Whole: a traced program as one graph, its opaque calls as tensors that enter and leave.

An opaque call is an unknown function of its input tensors. Two programs with the same calls in the
same order are equal if what enters each call is equal, given equal results of the calls before it,
and if what they return is equal, given equal results of all. That is the equality of two graphs
whose inputs include the calls' results and whose outputs begin with the calls' inputs.
"""

from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING

from superopt.errors import GraphError
from superopt.ir import Axis, Graph, Output, Port, Region, Step, check_graph

if TYPE_CHECKING:
    from superopt.trace import Traced

__all__ = ["add_inputs", "call_signatures", "rename_inputs", "whole_graph"]


def whole_graph(traced: "Traced", shapes: Mapping[str, tuple[int, ...]]) -> Graph:
    """Return the program as one graph; `shapes` are those of its inputs, by name.

    Outputs are named by position: equal tensors that leave twice are two outputs.
    """
    program = traced.program
    builder = _Whole(program.name)
    for port in program.inputs:
        builder.enter(port, shapes[port.name])
    for call in program.opaque:
        for name in call.outputs:
            builder.entering.add(name)
    for node in program.nodes:
        if isinstance(node, Region):
            builder.append(node.graph)
    leaving = [name for call in program.opaque for name in call.inputs]
    return builder.graph([*leaving, *program.outputs])


def call_signatures(traced: "Traced") -> tuple[str, ...]:
    """Return what each opaque call does, apart from what it reads: equal texts are one function."""
    from superopt.trace.tape import Ref, map_leaves

    found = []
    for node in traced.program.opaque:
        call = traced.calls[node.name].call
        args, kwargs = map_leaves(
            lambda leaf: "tensor" if isinstance(leaf, Ref) else leaf, (call.args, call.kwargs)
        )
        found.append(f"{node.target} {args!r} {kwargs!r} {len(node.inputs)} {len(node.outputs)}")
    return tuple(found)


def rename_inputs(graph: Graph, names: Mapping[str, str]) -> Graph:
    """Return the graph with inputs under other names."""
    ports = tuple(replace(port, name=names.get(port.name, port.name)) for port in graph.inputs)
    return check_graph(replace(graph, inputs=ports))


def add_inputs(graph: Graph, ports: Mapping[str, tuple[str, tuple[int, ...]]]) -> Graph:
    """Return the graph with more inputs, by name with dtype and shape, that nothing reads."""
    axes, inputs = list(graph.axes), list(graph.inputs)
    for name, (dtype, shape) in ports.items():
        dims = [Axis(f"{name}.{i}", size) for i, size in enumerate(shape)]
        axes += dims
        inputs.append(Port(name, dtype, tuple((axis.name,) for axis in dims)))
    shift = len(inputs) - len(graph.inputs)
    first = len(graph.inputs)

    def moved(value: int) -> int:
        return value if value < first else value + shift

    steps = (replace(step, inputs=tuple(map(moved, step.inputs))) for step in graph.steps)
    outputs = (replace(output, value=moved(output.value)) for output in graph.outputs)
    return check_graph(Graph(graph.name, tuple(axes), tuple(inputs), tuple(steps), tuple(outputs)))


class _Whole:
    """Regions put one behind the other; a tensor between two of them becomes a value."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.axes: dict[str, int] = {}
        self.entering: set[str] = set()  # names of tensors that enter
        self.ports: dict[str, Port] = {}  # those that some region reads, and the program's own
        self.shapes: dict[str, tuple[int, ...]] = {}
        self.made: dict[str, Output] = {}  # tensors that regions make; values count inputs from -1 down
        self.steps: list[Step] = []

    def enter(self, port: Port, shape: tuple[int, ...]) -> None:
        self.entering.add(port.name)
        self.shapes[port.name] = shape
        self.ports[port.name] = replace(port, dims=())

    def append(self, graph: Graph) -> None:
        for axis in graph.axes:
            if self.axes.setdefault(axis.name, axis.size) != axis.size:
                raise GraphError(f"program {self.name!r}: two regions disagree on the size of {axis.name!r}")
        # Inputs are numbered -1, -2, ... in the order of `ports`, steps from 0, until all are known.
        position: list[int] = []
        for port in graph.inputs:
            if port.name in self.made:
                if self.made[port.name].port.dims != port.dims:
                    raise GraphError(f"program {self.name!r}: two regions read {port.name!r} differently")
                position.append(self.made[port.name].value)
                continue
            known = self.ports.get(port.name)
            if known is None or not known.dims:
                self.ports[port.name] = port
            elif known.dims != port.dims:
                raise GraphError(f"program {self.name!r}: two regions read {port.name!r} differently")
            position.append(-1 - list(self.ports).index(port.name))
        for step in graph.steps:
            self.steps.append(replace(step, inputs=tuple(position[i] for i in step.inputs)))
            position.append(len(self.steps) - 1)
        for output in graph.outputs:
            self.made[output.port.name] = replace(output, value=position[output.value])

    def graph(self, leaving: list[str]) -> Graph:
        for name in [*self.ports, *sorted(self.entering - self.ports.keys())]:
            port = self.ports.get(name) or Port(name, "f32", ())
            # A tensor that no region reads keeps its shape, and one of unknown shape gets a stand-in.
            shape = self.shapes.get(name, () if name in self.ports else (2,))
            if not port.dims and shape:
                dims = [(f"{name}.{i}",) if size != 1 else () for i, size in enumerate(shape)]
                self.axes |= {f"{name}.{i}": size for i, size in enumerate(shape) if size != 1}
                port = replace(port, dims=tuple(dims))
            self.ports[name] = port
        names = list(self.ports)

        def settled(value: int) -> int:
            return -1 - value if value < 0 else len(names) + value

        outputs = []
        for number, name in enumerate(leaving):
            made = self.made.get(name) or Output(self.ports[name], -1 - names.index(name))
            outputs.append(Output(replace(made.port, name=f"out{number}", strides=None), settled(made.value)))
        return check_graph(
            Graph(
                self.name,
                tuple(Axis(name, size) for name, size in self.axes.items()),
                tuple(self.ports.values()),
                tuple(replace(step, inputs=tuple(map(settled, step.inputs))) for step in self.steps),
                tuple(outputs),
            )
        )
