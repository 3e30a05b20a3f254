"""Joined: a goal in which axes that always occur together are one axis, as sentences and words are.

axes b=8 s=512 k=64 n=32000        axes b_s=4096 k=64 n=32000
in x: f32[b, s, k]                 in x: f32[b_s, k]
in y: i64[b, s]                    in y: i64[b_s]
t3 = contract[k](x, w)             t3 = contract[k](x, w)
t9 = sum[b, s](t8)                 t9 = sum[b_s](t8)

Chunks take some positions of one axis, here and there. So they may take any words of any sentences.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from math import prod

from torch import Tensor

from superopt.ir import Graph, Port, Step, check_graph, merge_axes, value_axes
from superopt.ir.graph import kept_by_identity
from superopt.ir.split import fresh_name

__all__ = ["Joined", "joined"]


@dataclass(frozen=True, slots=True)
class Joined:
    """A program, what it is with joined axes, and the axes of the program that each joined one stands for."""

    program: Graph
    goal: Graph
    parts: Mapping[str, tuple[str, ...]]

    def enter(self, tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Return inputs of the program as inputs of the goal: views, or copies where their axes lie apart."""
        ports = {port.name: port for port in self.program.inputs}
        joined_ports = {port.name: port for port in self.goal.inputs}
        found = dict[str, Tensor]()
        for name, tensor in tensors.items():
            apart, order = self._axes(ports[name], joined_ports[name])
            lying = tensor.reshape([self.program.sizes[axis] for axis in apart])
            lying = lying.permute([apart.index(axis) for axis in order])
            found[name] = lying.reshape(self.goal.shape(joined_ports[name]))
        return found

    def leave(self, tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Return results of the goal as results of the program."""
        ports = {one.port.name: one.port for one in self.program.outputs}
        joined_ports = {one.port.name: one.port for one in self.goal.outputs}
        found = dict[str, Tensor]()
        for name, tensor in tensors.items():
            apart, order = self._axes(ports[name], joined_ports[name])
            lying = tensor.reshape([self.program.sizes[axis] for axis in order])
            lying = lying.permute([order.index(axis) for axis in apart])
            found[name] = lying.reshape(self.program.shape(ports[name]))
        return found

    def _axes(self, port: Port, joined_port: Port) -> tuple[list[str], list[str]]:
        """Return the program's axes of a tensor: as they lie there, and as they lie in the goal."""
        order = [part for axis in joined_port.axes for part in self.parts.get(axis, (axis,))]
        return list(port.axes), order


@kept_by_identity
def joined(program: Graph) -> Joined:
    """Return a program with joined axes; axes of which one occurs without the others stay as they are."""
    goal, parts = program, dict[str, tuple[str, ...]]()
    for group in _groups(program):
        name = fresh_name("_".join(group), goal.sizes)
        merged = merge_axes(_side_by_side(_without_sizes(goal, group), group), group, name)
        if merged is not None:
            goal, parts[name] = check_graph(merged), group
    return Joined(program, goal, parts)


def _groups(graph: Graph) -> list[tuple[str, ...]]:
    """Return the axes that the same values have, in the order in which the largest tensor has them."""
    ports = [*graph.inputs, *(one.port for one in graph.outputs)]
    found = dict[tuple[int, ...], list[str]]()
    for axis in graph.axes:
        values = tuple(at for at, axes in enumerate(value_axes(graph)) if axis.name in axes)
        if values:
            found.setdefault(values, []).append(axis.name)
    return [_in_order(graph, ports, group) for group in found.values() if len(group) > 1]


def _in_order(graph: Graph, ports: Sequence[Port], group: Sequence[str]) -> tuple[str, ...]:
    having = [port for port in ports if group[0] in port.axes]
    largest = max(having, key=lambda port: prod(graph.shape(port)), default=None)
    return tuple(group) if largest is None else tuple(axis for axis in largest.axes if axis in group)


def _without_sizes(graph: Graph, group: Sequence[str]) -> Graph:
    """Return a graph with numbers in place of the sizes of some axes."""
    steps = (
        Step("const", value=Fraction(graph.sizes[step.axes[0]]))
        if step.op == "size" and step.axes[0] in group
        else step
        for step in graph.steps
    )
    return replace(graph, steps=tuple(steps))


def _side_by_side(graph: Graph, group: tuple[str, ...]) -> Graph:
    """Return a graph whose tensors have the axes of a group in one dimension, all others in their own."""

    def moved(port: Port) -> Port:
        if group[0] not in port.axes:
            return port
        first = next(axis for axis in port.axes if axis in group)
        left = [axis for axis in port.axes if axis == first or axis not in group]
        return replace(port, dims=tuple(group if axis == first else (axis,) for axis in left), strides=None)

    return replace(
        graph,
        inputs=tuple(map(moved, graph.inputs)),
        outputs=tuple(replace(one, port=moved(one.port)) for one in graph.outputs),
    )
