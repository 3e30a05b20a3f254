"""Sizes: the same program at other sizes, and the kernels that serve them.

Whether a program is the same at other sizes is not guessed: the function is traced again, and its
graphs must agree in all but the sizes of axes. A tensor that is 1 long somewhere has no axis there: then
what was built, at these sizes, is compared with the new trace as exact algebra.
"""

import sys
from collections.abc import Mapping
from dataclasses import replace
from math import prod
from typing import Any

from superopt.candidates.sizes import resized, without_strides
from superopt.dtypes import tensor_text
from superopt.errors import GraphError, InputError
from superopt.ir import Axis, Graph, Program, Region, fixed_axes
from superopt.result.result import OpenAxes
from superopt.trace.capture.tape import Ref, map_leaves, refs
from superopt.trace.traced import Traced
from superopt.verify.floats.compare import tensors_of
from superopt.verify.graphs.equality import equal_graphs
from superopt.verify.programs.whole import whole_graph

__all__ = [
    "axis_sizes",
    "built_at",
    "described",
    "program_at",
    "read_sizes",
    "same_at_one",
    "same_program",
    "structure_of",
]


def same_program(first: Program, second: Program) -> bool:
    """Return whether two programs differ in nothing but the sizes of axes and the strides of tensors."""
    return _unsized(first) == _unsized(second)


def _unsized(program: Program) -> object:
    nodes = tuple(
        Region(_without_sizes(node.graph)) if isinstance(node, Region) else node for node in program.nodes
    )
    return nodes, tuple(map(without_strides, program.inputs)), program.outputs


def _without_sizes(graph: Graph) -> Graph:
    fixed = fixed_axes(graph)
    return replace(
        graph,
        axes=tuple(axis if axis.name in fixed else Axis(axis.name, 0) for axis in graph.axes),
        inputs=tuple(map(without_strides, graph.inputs)),
    )


def built_at(traced: Traced, sizes: Mapping[str, int]) -> Traced:
    """Return a program at other sizes of some axes."""
    return replace(traced, program=program_at(traced.program, sizes))


def program_at(program: Program, sizes: Mapping[str, int]) -> Program:
    """Return a program at other sizes of some axes, and of axes renamed from them; without strides."""
    found = _renamed_alike(program, sizes)
    nodes = tuple(
        Region(resized(node.graph, found)) if isinstance(node, Region) else node for node in program.nodes
    )
    return replace(program, nodes=nodes, inputs=tuple(map(without_strides, program.inputs)))


def same_at_one(built: Traced, found: Traced, inputs: tuple[Any, ...]) -> Traced | None:
    """Return a program at the sizes of inputs that are 1 long somewhere, or None.

    It must compute the same as the one that was traced there, for all inputs, and in the same structure.
    """
    if built.program.opaque or found.program.opaque or structure_of(built) != structure_of(found):
        return None
    if built.input_names != found.input_names or built.constants.keys() != found.constants.keys():
        return None
    if built.depends_on_requires_grad != found.depends_on_requires_grad:
        return None
    everything = {axis: (0, sys.maxsize) for port in built.program.inputs for axis in port.axes}
    tensors = dict(zip(found.input_names, tensors_of(inputs), strict=True)) | found.constants
    shapes = {name: tuple(tensor.shape) for name, tensor in tensors.items()}
    try:
        sizes = read_sizes(built, inputs, everything, ones=True)
        there = built_at(built, sizes)
        verdict = equal_graphs(whole_graph(found, shapes), whole_graph(there, shapes))
    except (InputError, GraphError):  # a tensor is broadcast: one axis would have two sizes
        return None
    if not verdict.equal:
        return None
    pairs = list(zip(refs(built.result), refs(found.result), strict=True))
    orders = {mine: found.orders[its] for mine, its in pairs if its in found.orders}
    views = {mine: found.views[its] for mine, its in pairs if its in found.views}
    return replace(there, constants=found.constants, orders=orders, views=views)


def structure_of(traced: Traced) -> str:
    """Return the structure of what a function returns, its tensors by their places among the outputs."""
    places = {name: at for at, name in enumerate(traced.program.outputs)}

    def leaf(value: Any) -> str:
        if not isinstance(value, Ref):
            return repr(value)
        view = traced.views.get(value.index)
        return f"view of {view.source}" if view else f"output {places.get(traced.names[value.index])}"

    return repr(map_leaves(leaf, traced.result))


def _renamed_alike(program: Program, sizes: Mapping[str, int]) -> dict[str, int]:
    """Return the sizes of axes, and of the axes that a step renames them to."""
    found = dict(sizes)
    pairs = [pair for region in program.regions for step in region.graph.steps for pair in step.mapping]
    for old, new in pairs:
        if isinstance(new, str) and old in found:
            found.setdefault(new, found[old])
    return found


def read_sizes(
    traced: Traced, inputs: tuple[Any, ...], changing: OpenAxes, *, ones: bool = False
) -> dict[str, int]:
    """Return the sizes of axes as tensors have them; InputError where one differs that may not.

    `changing` says between which sizes axes may change. The tensors are the inputs, and those that the
    program holds.
    """
    known = axis_sizes(traced.program)
    tensors = traced.constants | dict(zip(traced.input_names, tensors_of(inputs), strict=True))
    found: dict[str, int] = {}
    for port in traced.program.inputs:
        tensor = tensors[port.name]
        for dim, size in zip(port.dims, tensor.shape, strict=True):
            if size == prod(found.get(axis, known.get(axis, 1)) for axis in dim):
                found.update({axis: found.get(axis, known[axis]) for axis in dim if axis in known})
                continue
            free = [axis for axis in dim if axis in changing and axis not in found]
            rest = prod(found.get(axis, known[axis]) for axis in dim if axis not in free[:1])
            least, most = changing[free[0]] if free and rest else (1, 0)
            if not least * rest <= size <= most * rest or size % rest or (size == rest and not ones):
                fixed = ", ".join(f"{axis}={found.get(axis, known.get(axis))}" for axis in dim) or "1"
                tried = ", ".join(f"{axis} from {low} to {high}" for axis, (low, high) in changing.items())
                tried = f"{tried}, and never at 1" if tried else "no other sizes"
                raise InputError(
                    f"{traced.program.name}: {port.name!r} is {list(tensor.shape)}; it was built for {fixed}"
                    f" there, and tried with {tried};"
                    " give the function to load() for any sizes"
                )
            found[free[0]] = size // rest
    return found


def axis_sizes(program: Program) -> dict[str, int]:
    """Return the size of each axis of a program."""
    return {axis: size for region in program.regions for axis, size in region.graph.sizes.items()}


def described(inputs: tuple[Any, ...]) -> str:
    """Return the tensors of arguments in words, as `f32[5, 64], f32[64]`."""
    return ", ".join(map(tensor_text, tensors_of(inputs)))
