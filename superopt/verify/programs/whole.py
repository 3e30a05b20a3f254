"""Whole: a traced program as one graph, whose opaque calls read some of its outputs and make inputs of it.

An opaque call is an unknown function of its tensors. What it computes apart from them is its signature:
two calls of one signature make the same of the same tensors, in the same places among its arguments.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from math import prod
from typing import Any

import torch

from superopt.dtypes import DTYPES
from superopt.errors import GraphError
from superopt.ir import Axis, Graph, Output, Port, Region, Step, check_graph
from superopt.trace import Traced
from superopt.trace.algebra import OpaqueCall
from superopt.trace.capture.tape import Ref, is_view, map_leaves, refs
from superopt.trace.run import dtype_name

__all__ = ["OpaqueUse", "Whole", "add_inputs", "rename_inputs", "whole_graph", "whole_program"]


@dataclass(frozen=True, slots=True)
class OpaqueUse:
    """One opaque call of a program: where in the graph its arguments and its results are."""

    name: str
    target: str
    signature: str  # calls of equal signatures make the same of the same tensors
    arguments: tuple[int, ...]  # outputs of the graph, one for each place of a tensor among the arguments
    results: tuple[str, ...]  # inputs of the graph
    random: bool = False  # whether it draws random numbers
    unwritten: bool = False  # whether it hands out memory as it finds it


@dataclass(frozen=True, slots=True)
class Whole:
    """A program as one graph: first what its opaque calls read, then what it returns."""

    graph: Graph
    calls: tuple[OpaqueUse, ...] = ()
    results: tuple[int, ...] = ()  # outputs of the graph that the program returns

    @staticmethod
    def of_graph(graph: Graph) -> "Whole":
        """Return a graph as a program without opaque calls."""
        return Whole(graph, (), tuple(range(len(graph.outputs))))


def whole_program(traced: Traced, shapes: Mapping[str, tuple[int, ...]]) -> Whole:
    """Return the program as one graph around its opaque calls; `shapes` has each input's shape by name."""
    leaving: list[str] = []
    calls: list[OpaqueUse] = []
    for node in traced.program.opaque:
        made = traced.calls[node.name]
        reads = [traced.names[index] for index in refs((made.call.args, made.call.kwargs))]
        places = tuple(range(len(leaving), len(leaving) + len(reads)))
        leaving += reads
        kinds = _is_random(made), _is_unwritten(made)
        calls.append(OpaqueUse(node.name, node.target, _signature(made), places, node.outputs, *kinds))
    outputs = tuple(range(len(leaving), len(leaving) + len(traced.program.outputs)))
    return Whole(whole_graph(traced, shapes, tuple(leaving)), tuple(calls), outputs)


def whole_graph(
    traced: Traced, shapes: Mapping[str, tuple[int, ...]], leaving: tuple[str, ...] = ()
) -> Graph:
    """Return the program as one graph, into which the results of opaque calls enter.

    Outputs are the `leaving` tensors, then what the program returns, named by position: equal tensors
    that leave twice are two outputs.
    """
    program = traced.program
    builder = _Builder(program.name)
    for port in program.inputs:
        builder.enter(replace(port, dtype=_known(port.dtype)), shapes[port.name])
    for call in program.opaque:
        opaque = traced.calls[call.name]
        for name, (index, _) in zip(call.outputs, opaque.outputs, strict=True):
            meta = opaque.metas[index]
            builder.enter(Port(name, _known(dtype_name(meta.dtype) or ""), ()), meta.shape)
    for node in program.nodes:
        if isinstance(node, Region):
            builder.append(node.graph)
    return builder.graph([*leaving, *program.outputs])


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

    steps = (step.reading(map(moved, step.inputs)) for step in graph.steps)
    outputs = (replace(output, value=moved(output.value)) for output in graph.outputs)
    return check_graph(Graph(graph.name, tuple(axes), tuple(inputs), tuple(steps), tuple(outputs)))


def _known(dtype: str) -> str:
    """Return the dtype where the algebra has it; others only pass from one opaque call to the next."""
    return dtype if dtype in DTYPES else "f64"


def _signature(opaque: OpaqueCall) -> str:
    """Return what a call does apart from the numbers in its tensors."""
    call = opaque.call
    read = list(refs((call.args, call.kwargs)))
    views = is_view(call.function)

    def text(leaf: Any) -> str:
        if not isinstance(leaf, Ref):
            return f"{type(leaf).__name__} {leaf!r}"
        meta = opaque.metas[leaf.index]
        # A view reads the memory behind a tensor, so there the strides are part of what it does.
        return f"tensor {meta} {meta.strides}" if views else f"tensor {meta}"

    arguments = map_leaves(text, (call.args, call.kwargs))
    made = [None if index is None else str(opaque.metas.get(index)) for index in call.outputs]
    # What is written into is also read under its other names, so there it counts which are the same.
    written = [[read.index(index) for index in (*call.mutated, *read)]] if call.mutated else []
    # A call that may read beyond its tensor, or memory that nobody wrote, is equal to no other call.
    alone = _reads_elsewhere(opaque) or _is_unwritten(opaque)
    elsewhere = f" in the memory of {id(opaque)}" if alone else ""
    return f"{call.target} {arguments!r} -> {made} {written}{elsewhere}"


def _reads_elsewhere(opaque: OpaqueCall) -> bool:
    """Whether a call may read memory beyond the elements of the tensor that it is given."""
    call = opaque.call
    if not call.target.startswith("aten.as_strided"):
        return False
    operator: Any = call.function
    names = (argument.name for argument in operator._schema.arguments)
    given = dict(zip(names, call.args, strict=False)) | dict(call.kwargs)
    meta = opaque.metas[given["self"].index]
    last = sum((size - 1) * stride for size, stride in zip(given["size"], given["stride"], strict=True))
    return given.get("storage_offset") is not None or not meta.contiguous or last >= prod(meta.shape)


_RANDOM = ("bernoulli", "dropout", "rand", "multinomial", "normal", "uniform", "exponential_", "poisson")
_UNWRITTEN = ("empty", "new_empty")
_RECURRENT = ("lstm", "gru", "rnn_tanh", "rnn_relu")


def _is_random(opaque: OpaqueCall) -> bool:
    """Return whether a call draws random numbers."""
    call = opaque.call
    if torch.Tag.nondeterministic_seeded in getattr(call.function, "tags", ()):
        return True
    if call.target == "scaled_dot_product_attention":
        return bool(call.kwargs.get("dropout_p", call.args[4] if len(call.args) > 4 else 0.0))
    if call.target in _RECURRENT:
        first = next(at for at, one in enumerate(call.args) if isinstance(one, bool))
        _, _, dropout, trains = call.args[first : first + 4]  # whether there are biases, how many layers
        return bool(dropout and trains)
    return _plain_name(opaque).startswith(_RANDOM)


def _is_unwritten(opaque: OpaqueCall) -> bool:
    """Return whether a call makes a tensor of memory that nobody has written, so that each is another one."""
    if _plain_name(opaque).startswith("resize"):
        before = max(prod(opaque.metas[index].shape) for index, _ in opaque.inputs)
        return any(prod(opaque.metas[index].shape) > before for index, _ in opaque.outputs)
    return _plain_name(opaque).startswith(_UNWRITTEN)


def _plain_name(opaque: OpaqueCall) -> str:
    """Return the name of the operator that is called, without its library and overload."""
    target = opaque.call.target
    return target.split(".")[1 if "." in target else 0]


class _Builder:
    """Regions put one behind the other; a tensor between two of them becomes a value."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.axes: dict[str, int] = {}
        self.entering: dict[str, Port] = {}  # tensors that enter, with the shape of their own
        self.shapes: dict[str, tuple[int, ...]] = {}
        self.ports: dict[str, Port] = {}  # tensors that some region reads, on that region's axes
        self.made: dict[str, Output] = {}  # tensors that regions make; values count inputs from -1 down
        self.steps: list[Step] = []

    def enter(self, port: Port, shape: tuple[int, ...]) -> None:
        """Note a tensor that enters the program, or comes out of an opaque call."""
        self.entering[port.name] = port
        self.shapes[port.name] = shape

    def append(self, graph: Graph) -> None:
        """Add the steps of a region, whose inputs enter or were made by regions before it."""
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
            self.steps.append(step.reading(position[i] for i in step.inputs))
            position.append(len(self.steps) - 1)
        for output in graph.outputs:
            self.made[output.port.name] = replace(output, value=position[output.value])

    def graph(self, leaving: list[str]) -> Graph:
        """Return all regions as one graph with these outputs."""
        for name in [*self.ports, *sorted(self.entering.keys() - self.ports.keys())]:
            port = self.ports.get(name) or replace(self.entering[name], dims=(), strides=None)
            shape = self.shapes.get(name, ())
            if not port.dims and shape:  # no region reads this tensor
                dims = [(f"{name}.{i}",) if size != 1 else () for i, size in enumerate(shape)]
                self.axes |= {f"{name}.{i}": size for i, size in enumerate(shape) if size != 1}
                port = replace(port, dims=tuple(dims))
            self.ports[name] = port
        names = list(self.ports)
        places = {name: i for i, name in enumerate(names)}

        def settled(value: int) -> int:
            return -1 - value if value < 0 else len(names) + value

        outputs = []
        for number, name in enumerate(leaving):
            made = self.made.get(name) or Output(self.ports[name], -1 - places[name])
            outputs.append(
                Output(
                    replace(made.port, name=f"out{number}", strides=None, constant=False), settled(made.value)
                )
            )
        return check_graph(
            Graph(
                self.name,
                tuple(Axis(name, size) for name, size in self.axes.items()),
                tuple(self.ports.values()),
                tuple(step.reading(map(settled, step.inputs)) for step in self.steps),
                tuple(outputs),
            )
        )
