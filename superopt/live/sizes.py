"""Sizes: the same program at other sizes, and the kernels that serve them.

Whether a program is the same at other sizes is not guessed: the function is traced again, and its
graphs must agree in all but the sizes of axes. A tensor that is 1 long somewhere has no axis there: then
what was built, at these sizes, is compared with the new trace as exact algebra.
"""

from collections.abc import Callable, Mapping
from dataclasses import replace
from math import prod
from typing import Any

import torch
from torch.utils._pytree import tree_map

from superopt.candidates.sizes import resized, without_strides
from superopt.dtypes import tensor_text
from superopt.errors import GraphError, InputError
from superopt.ir import Axis, Graph, Program, Region, fixed_axes
from superopt.trace import trace
from superopt.trace.capture.tape import Ref, map_leaves
from superopt.trace.traced import Traced
from superopt.verify.floats.compare import tensors_of
from superopt.verify.graphs.equality import equal_graphs
from superopt.verify.programs.whole import whole_graph

__all__ = [
    "built_at",
    "described",
    "open_axes",
    "read_sizes",
    "same_at_one",
    "same_program",
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
    nodes = tuple(
        Region(resized(node.graph, sizes)) if isinstance(node, Region) else node
        for node in traced.program.nodes
    )
    return replace(traced, program=replace(traced.program, nodes=nodes))


def same_at_one(built: Traced, found: Traced, inputs: tuple[Any, ...]) -> Traced | None:
    """Return a program at the sizes of inputs that are 1 long somewhere, or None.

    It must compute the same as the one that was traced there, for all inputs, and in the same structure.
    """
    if built.program.opaque or found.program.opaque or _returned(built) != _returned(found):
        return None
    if built.input_names != found.input_names or built.constants.keys() != found.constants.keys():
        return None
    everything = frozenset(axis for port in built.program.inputs for axis in port.axes)
    tensors = dict(zip(found.input_names, tensors_of(inputs), strict=True)) | found.constants
    shapes = {name: tuple(tensor.shape) for name, tensor in tensors.items()}
    try:
        sizes = read_sizes(built, inputs, everything, ones=True)
        there = built_at(built, _renamed_alike(built.program, sizes))
        verdict = equal_graphs(whole_graph(found, shapes), whole_graph(there, shapes))
    except (InputError, GraphError):  # a tensor is broadcast: one axis would have two sizes
        return None
    return replace(there, constants=found.constants) if verdict.equal else None


def _returned(traced: Traced) -> str:
    """Return the structure of what a function returns, its tensors by their places among the outputs."""
    places = {name: at for at, name in enumerate(traced.program.outputs)}

    def leaf(value: Any) -> str:
        return f"output {places.get(traced.names[value.index])}" if isinstance(value, Ref) else repr(value)

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
    traced: Traced, inputs: tuple[Any, ...], changing: frozenset[str], *, ones: bool = False
) -> dict[str, int]:
    """Return the sizes of axes as tensors have them; InputError where one that is fixed differs.

    The tensors are the inputs, and those that the program holds.
    """
    known = _axis_sizes(traced.program)
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
            if not free or rest == 0 or size % rest or (size == rest and not ones):
                fixed = ", ".join(f"{axis}={found.get(axis, known.get(axis))}" for axis in dim) or "1"
                others = ", ".join(sorted(changing)) or "no axis"
                raise InputError(
                    f"{traced.program.name}: {port.name!r} is {list(tensor.shape)}; it was built for {fixed}"
                    f" there, and only {others} may be of another size above 1"
                )
            found[free[0]] = size // rest
    return found


def open_axes(
    function: Callable[..., Any], program: Program, inputs: tuple[Any, ...], live: str | None = None
) -> frozenset[str]:
    """Return the axes of inputs whose sizes may change without making another program of the function."""
    known = _axis_sizes(program)
    wanted = {axis for port in program.inputs for axis in port.axes if known.get(axis, 0) > 1}

    def stays(axes: set[str]) -> bool:
        sizes = {axis: size + 3 if axis in axes else size for axis, size in known.items()}
        return _same_at(function, program, inputs, sizes, live)

    if not wanted or stays(wanted):
        return frozenset(wanted)
    alone = {axis for axis in wanted if stays({axis})}
    return frozenset(alone) if stays(alone) else frozenset()


def _same_at(
    function: Callable[..., Any],
    program: Program,
    inputs: tuple[Any, ...],
    sizes: Mapping[str, int],
    live: str | None,
) -> bool:

    ports = iter(program.inputs)

    def sized(value: Any) -> Any:
        if not isinstance(value, torch.Tensor):
            return value
        dims = next(ports).dims
        shape = [prod(sizes.get(axis, 1) for axis in dim) for dim in dims]
        return torch.empty(shape, dtype=value.dtype, device="meta")

    other = tree_map(sized, inputs)
    try:
        return same_program(trace(function, *other, name=program.name, live=live).program, program)
    except Exception:  # a function of the user's may raise anything at sizes it is not made for
        return False


def _axis_sizes(program: Program) -> dict[str, int]:
    return {axis: size for region in program.regions for axis, size in region.graph.sizes.items()}


def described(inputs: tuple[Any, ...]) -> str:
    """Return the tensors of arguments in words, as `f32[5, 64], f32[64]`."""
    return ", ".join(map(tensor_text, tensors_of(inputs)))
