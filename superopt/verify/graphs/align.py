"""Align: give two graphs the same axes and input names, by matching their inputs and outputs."""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from typing import TypeAlias

from superopt.errors import InputError
from superopt.ir import Axis, Graph, Port, refine_axes, rename_axes

__all__ = ["Aligned", "PortPairs", "align_graphs", "align_ports", "name_alike"]

PortPairs: TypeAlias = Callable[[Graph, Graph], list[tuple[Port, Port]]]
"""Finds the tensors that two graphs have in common, as ports of both."""


class Aligned:
    """Two graphs with comparable ports; `links` are pairs of axes that must be evaluated alike."""

    def __init__(self, left: Graph, right: Graph, links: tuple[tuple[str, str], ...]) -> None:
        self.left = left
        self.right = right
        self.links = links


def align_graphs(a: Graph, b: Graph) -> Aligned:
    """Return the graphs refined until all dimensions factor alike, inputs of b named as in a.

    Inputs are matched by name where the names are the same, else by position. Axes of b take the
    names that the same dimensions have in a; where that is not one to one, they are only linked.
    """
    b = _match_inputs(a, b)
    _check_outputs(a, b)
    return align_ports(a, b, _ports)


def align_ports(a: Graph, b: Graph, ports: PortPairs) -> Aligned:
    """Return the graphs refined until all dimensions of the paired ports factor alike, on common axes.

    `ports` finds the pairs in the graphs as they are refined; the tensors of a pair have one shape.
    """
    b = rename_axes(b, {axis.name: f"{axis.name}'" for axis in b.axes})
    while (split := _some_split(a, b, ports(a, b))) is not None:
        axis, sizes, left = split
        a, b = (_refine(a, axis, sizes), b) if left else (a, _refine(b, axis, sizes))
    of_a, of_b = a.sizes, b.sizes
    pairs = {
        (x, y)
        for p, q in ports(a, b)
        for dim_a, dim_b in zip(p.dims, q.dims, strict=True)
        for (x, _), (y, _) in zip(_factors(of_a, dim_a), _factors(of_b, dim_b), strict=True)
    }
    lefts: dict[str, set[str]] = {}
    rights: dict[str, set[str]] = {}
    for x, y in pairs:
        lefts.setdefault(x, set()).add(y)
        rights.setdefault(y, set()).add(x)
    names = {y: x for x, y in pairs if len(lefts[x]) == len(rights[y]) == 1}
    b = rename_axes(b, names)
    links = tuple(sorted((x, names.get(y, y)) for x, y in pairs))
    return Aligned(a, b, links)


def name_alike(a: Graph, b: Graph) -> Graph:
    """Return b with its inner axes named as in a, where both programs use the same name for an inner axis.

    The axes within a program may have any names, so this changes no meaning; two programs that were written
    alike then have the same steps on the same axes.
    """
    known, taken = a.sizes, set(b.sizes)
    names: dict[str, str] = {}
    for axis in b.axes:
        name = axis.name.replace("'", "")
        if "'" in axis.name and known.get(name) == axis.size and name not in taken:
            names[axis.name] = name
            taken.add(name)
    return rename_axes(b, names)


def _refine(graph: Graph, axis: str, sizes: tuple[int, ...]) -> Graph:
    """Return the graph with an axis, and all that renames relate to it, as a product."""
    alike = {axis}
    while True:
        pairs = [pair for step in graph.steps for pair in step.mapping if isinstance(pair[1], str)]
        more = {str(name) for pair in pairs if alike & {*pair} for name in pair} - alike
        if not more:
            break
        alike |= more
    return refine_axes(
        graph, {name: [Axis(f"{name}.{i}", size) for i, size in enumerate(sizes)] for name in alike}
    )


def _match_inputs(a: Graph, b: Graph) -> Graph:
    if len(a.inputs) != len(b.inputs):
        raise InputError(f"{a.name!r} takes {len(a.inputs)} tensors and {b.name!r} {len(b.inputs)}")
    if {port.name for port in a.inputs} == {port.name for port in b.inputs}:
        places = {port.name: port for port in a.inputs}
        twins = [places[port.name] for port in b.inputs]
    else:
        twins = list(a.inputs)
    for p, q in zip(twins, b.inputs, strict=True):
        if a.shape(p) != b.shape(q) or (p.dtype == "bool") != (q.dtype == "bool"):
            shapes = f"{p.dtype}{list(a.shape(p))} and {q.dtype}{list(b.shape(q))}"
            raise InputError(f"input {p.name!r} differs between the programs: {shapes}")
    return replace(b, inputs=tuple(replace(q, name=p.name) for p, q in zip(twins, b.inputs, strict=True)))


def _check_outputs(a: Graph, b: Graph) -> None:
    left = [(a.shape(output.port), output.port.dtype) for output in a.outputs]
    right = [(b.shape(output.port), output.port.dtype) for output in b.outputs]
    if left != right:

        def show(outputs: Iterable[tuple[tuple[int, ...], str]]) -> str:
            return ", ".join(f"{dtype}{list(shape)}" for shape, dtype in outputs)

        raise InputError(f"the programs return different tensors: {show(left)} and {show(right)}")


def _ports(a: Graph, b: Graph) -> list[tuple[Port, Port]]:
    named = {port.name: port for port in b.inputs}
    inputs = [(port, named[port.name]) for port in a.inputs]
    return inputs + [(x.port, y.port) for x, y in zip(a.outputs, b.outputs, strict=True)]


def _some_split(
    a: Graph, b: Graph, pairs: list[tuple[Port, Port]]
) -> tuple[str, tuple[int, int], bool] | None:
    """Return an axis to split, its factors, and whether it is of a; None when all dimensions agree."""
    of_a, of_b = a.sizes, b.sizes
    for p, q in pairs:
        for dim_a, dim_b in zip(p.dims, q.dims, strict=True):
            split = _first_split(_factors(of_a, dim_a), _factors(of_b, dim_b), f"{p.name!r} / {q.name!r}")
            if split is not None:
                return split
    return None


def _factors(sizes: Mapping[str, int], dim: tuple[str, ...]) -> list[tuple[str, int]]:
    return [(axis, sizes[axis]) for axis in dim if sizes[axis] != 1]


def _first_split(
    left: list[tuple[str, int]], right: list[tuple[str, int]], where: str
) -> tuple[str, tuple[int, int], bool] | None:
    """Return the first axis to split in two factorisations, its factors, and whether it is on the left."""
    for (x, m), (y, n) in zip(left, right, strict=False):
        if m == n:
            continue
        axis, large, small, is_left = (x, m, n, True) if m > n else (y, n, m, False)
        if large == 0 or small == 0 or large % small:
            raise InputError(f"tensor {where}: its dimension is read as {left} and as {right}")
        return axis, (small, large // small), is_left
    return None
