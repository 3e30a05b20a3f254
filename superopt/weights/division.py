"""Division: a graph as what is made of its constant inputs once, and what runs in each call.

    in x: f32[m, k]                          in g: f32[k] constant        in x: f32[m, k]
    in g: f32[k] constant                    in w: f32[k, n] constant     in rest_v4: f32[k, n] constant
    in w: f32[k, n] constant       becomes   t2 = mul(g, w)         and   t2 = contract[k](x, rest_v4)
    t3 = mul(g, w)                           out rest_v4 = t2             out out: f32[m, n] = t2
    t4 = contract[k](x, t3)
    out out: f32[m, n] = t4

Both parts follow from the graph and the numbers of the values that are made once, so that a graph that is
equal to a goal needs no further proof when it runs in parts.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from math import prod
from typing import Literal, get_args

from superopt.dtypes import DTYPES, FLOATS
from superopt.errors import GraphError, InputError
from superopt.ir import (
    Graph,
    Output,
    Port,
    Step,
    check_graph,
    made_from,
    mask_values,
    only_used,
    tensorless_values,
    value_axes,
)

__all__ = [
    "Divided",
    "Weights",
    "check_weights",
    "constant_values",
    "divided",
    "is_small",
    "made_of",
    "once_values",
    "port_bytes",
    "run_part",
    "source_ports",
    "weight_bytes",
]

Weights = Literal["live", "default", "frozen"]
"""What may be made of weights ahead of the calls: nothing, small tensors, or whatever makes calls faster."""

_SMALL = 256 << 10  # bytes of a tensor that is kept beside the weights that it is made from
_PANELS = (32, 64)  # columns that kernels read as one panel
_VIEWS = ("rename", "select", "window")
_LAID = (*_VIEWS, "add")  # what lays tensors side by side; sums that are no integer of theirs are never kept


@dataclass(frozen=True, slots=True)
class Divided:
    """A graph in two: what is made once, and what runs in each call."""

    once: Graph
    run: Graph

    @property
    def kept_bytes(self) -> int:
        """The bytes of what is made once."""
        return sum(port_bytes(self.once, output.port) for output in self.once.outputs)

    @property
    def unread(self) -> tuple[Port, ...]:
        """The large weights that no call reads any more, where large tensors are kept in their place."""
        if is_small(self.kept_bytes):
            return ()
        read = {port.name for port in self.run.inputs}
        others = (port for port in self.once.inputs if port.name not in read)
        return tuple(port for port in others if not is_small(port_bytes(self.once, port)))

    @property
    def unread_bytes(self) -> int:
        """The bytes of these weights."""
        return sum(port_bytes(self.once, port) for port in self.unread)


def check_weights(weights: str) -> None:
    """Refuse a policy that does not exist."""
    if weights not in get_args(Weights):
        raise InputError(f"weights is {weights!r}; choose {', '.join(get_args(Weights))}")


def is_small(count: float) -> bool:
    """Whether a tensor of so many bytes may be kept without being asked for."""
    return count <= _SMALL


def constant_values(graph: Graph) -> tuple[bool, ...]:
    """Return for each value whether it is made of constant inputs, and of no others."""
    tensorless = tensorless_values(graph)
    constant = [port.constant for port in graph.inputs]
    for value, step in graph.numbered:
        held = all(constant[i] or tensorless[i] for i in step.inputs)
        constant.append(held and not tensorless[value])
    return tuple(constant)


def once_values(graph: Graph, weights: Weights) -> tuple[int, ...]:
    """Return the values of a graph that are made once under a policy, each as late as that is possible.

    Masks are made in each call, since kernels make use of knowing that they are masks; so is what a result
    is by itself, since results are fresh tensors.
    """
    if weights == "live":
        return ()
    constant, masks = constant_values(graph), mask_values(graph)
    leaving = {output.value for output in graph.outputs}
    found: set[int] = set()
    seen: set[int] = set()
    pending = list(leaving)
    while pending:
        value = pending.pop()
        step = graph.step_of(value)
        if value in seen or step is None:
            continue
        seen.add(value)
        takes = constant[value] and value not in leaving and step.op not in _VIEWS and not masks[value]
        if takes and _can_be_kept(graph, value, weights):
            found.add(value)
        else:
            pending += step.inputs
    return tuple(sorted(found))


def _can_be_kept(graph: Graph, value: int, weights: Weights) -> bool:
    """Whether a value is one of floats, the same at all sizes of other tensors, and not too large to keep.

    Integers are kept where they are as they were, side by side.
    """
    sources = source_ports(graph, value)
    steps = [step for one in made_of(graph, value) if (step := graph.step_of(one)) is not None]
    moved = all(step.op in _LAID for step in steps) and len({port.dtype for port in sources}) == 1
    if not moved and any(port.dtype not in FLOATS for port in sources):
        return False
    axes = frozenset[str]().union(*(port.axes for port in sources))
    if any(step.op in ("size", "index") and not axes.issuperset(step.axes) for step in steps):
        return False
    sizes = graph.sizes
    count = prod(sizes[axis] for axis in value_axes(graph)[value])
    return weights == "frozen" or is_small(count * DTYPES[_dtype(graph, sources)].bytes)


def made_of(graph: Graph, value: int) -> set[int]:
    """Return a value and all that it is made of."""
    return made_from([value], graph.operands_of)


def source_ports(graph: Graph, value: int) -> list[Port]:
    """Return the inputs that a value is made from."""
    return [graph.inputs[one] for one in sorted(made_of(graph, value)) if one < len(graph.inputs)]


def _largest(graph: Graph, sources: Sequence[Port]) -> Port:
    return max(sources, key=lambda port: prod(graph.shape(port)))


def _dtype(graph: Graph, sources: Sequence[Port]) -> str:
    """Return the dtype in which a tensor is kept: that of the largest tensor that it is made from."""
    return _largest(graph, sources).dtype


def weight_bytes(graph: Graph) -> int:
    """Return the bytes of the constant tensors that a graph reads."""
    read = {i for step in graph.steps for i in step.inputs} | {output.value for output in graph.outputs}
    return sum(
        port_bytes(graph, port) for at, port in enumerate(graph.inputs) if port.constant and at in read
    )


def port_bytes(graph: Graph, port: Port) -> int:
    """Return the bytes of a tensor that enters or leaves."""
    return prod(graph.shape(port)) * DTYPES[port.dtype].bytes


def divided(graph: Graph, values: Sequence[int]) -> Divided:
    """Return a graph in parts, the first of which makes these values; raise GraphError where it cannot.

    An input among them is made once as it is, in another order.
    """
    constant = constant_values(graph)
    first = len(graph.inputs)
    for value in values:
        if not 0 <= value < first + len(graph.steps) or not constant[value]:
            raise GraphError(f"graph {graph.name!r}: value {value} is not made of constant inputs alone")
    ports = {value: _kept_port(graph, value) for value in values}
    once = replace(
        graph,
        name=f"{graph.name}_once",
        outputs=tuple(Output(replace(ports[value], constant=False), value) for value in ports),
    )
    inputs = (*graph.inputs, *ports.values())
    position = {value: value for value in range(first)}
    position |= {value: first + at for at, value in enumerate(ports)}
    steps: list[Step] = []
    for value, step in graph.numbered:
        if value not in position:
            position[value] = len(inputs) + len(steps)
            steps.append(step.reading(position[i] for i in step.inputs))
    outputs = tuple(replace(output, value=position[output.value]) for output in graph.outputs)
    run = replace(graph, inputs=inputs, steps=tuple(steps), outputs=outputs)
    return Divided(check_graph(only_used(once)), check_graph(only_used(run)))


def _kept_port(graph: Graph, value: int) -> Port:
    """Return a value as a tensor that is kept: laid out as the largest tensor that it is made from.

    An input, and what has columns in panels, is laid out in the order in which a contraction reads it.
    """
    sources = source_ports(graph, value)
    like = _largest(graph, sources)
    axes = value_axes(graph)[value]
    order = [axis.name for axis in graph.axes if axis.name in axes and axis.name not in like.axes]
    order += [axis for axis in _in_memory(like) if axis in axes]
    as_read = _as_read(graph, value, order)
    if value < len(graph.inputs) or (as_read and graph.sizes[as_read[-1]] in _PANELS):
        order = as_read
    names = {port.name for port in graph.inputs} | {output.port.name for output in graph.outputs}
    name = f"{graph.name}_v{value}"
    while name in names:
        name += "_"
    dims = tuple((axis,) for axis in order)
    return Port(name, _dtype(graph, sources), dims, constant=True)


def _as_read(graph: Graph, value: int, order: list[str]) -> list[str]:
    """Return the axes of a weight as a contraction reads it: its own ones, the last behind what is summed.

    An input may become a matrix on the way.
    """
    axes, constant, entering = value_axes(graph), constant_values(graph), value < len(graph.inputs)
    for step in graph.steps:
        for matrix in step.inputs if step.op == "contract" else ():
            if matrix != value and not (entering and constant[matrix] and value in made_of(graph, matrix)):
                continue
            other = next((axes[one] for one in step.inputs if one != matrix), frozenset(order))
            own = [axis for axis in order if axis in axes[matrix] and axis not in other]
            return [*own[:-1], *(axis for axis in order if axis not in own), *own[-1:]]
    return order


def _in_memory(port: Port) -> tuple[str, ...]:
    """Return the axes of a tensor from the largest stride to the smallest one."""
    if port.strides is None:
        return port.axes
    ranked = sorted(zip(port.strides, port.dims, strict=True), key=lambda pair: -abs(pair[0]))
    return tuple(axis for _, dim in ranked for axis in dim)


def run_part(graph: Graph, weights: Weights) -> Graph:
    """Return the part of a graph that runs in each call under a policy."""
    values = once_values(graph, weights)
    return divided(graph, values).run if values else graph
