"""Extents: how long axes are, read off the shapes of tensors.

A dimension of one axis says how long that is. One of several axes says how long the last unknown one of
them is: of `x: f32[b, k]` and `y: f32[(b t), n]`, b and k are read first, and t is what is left of b t.
Where two are unknown, the inner one keeps the size that the graph was made with.
"""

from collections.abc import Iterable, Mapping, Sequence
from math import prod
from typing import Any

from superopt.errors import InputError
from superopt.ir.graph import Graph, Port, fixed_axes, follow_renames
from superopt.ir.mugraph.kernels import Split

__all__ = ["extents", "fitting_extents", "measured_axes", "whole_dims"]

_Dims = tuple[tuple[str, ...], ...]


def whole_dims(port: Port, splits: Sequence[Split]) -> _Dims:
    """Return the axes of each dimension of a port; a part of a split axis has its own name."""
    dims = []
    for dim in port.dims:
        for split in splits:
            at = dim.index(split.outer) if split.outer in dim else len(dim)
            if dim[at : at + 2] == (split.outer, split.inner):
                dim = (*dim[:at], split.axis, *dim[at + 2 :])
        dims.append(dim)
    return tuple(dims)


def measured_axes(dims: Iterable[tuple[str, ...]]) -> frozenset[str]:
    """Return the axes whose sizes follow from the sizes of dimensions alone."""
    known: set[str] = set()
    left = list(dims)
    while found := {axis for dim in left for axis in dim if known.issuperset(set(dim) - {axis})} - known:
        known |= found
    return frozenset(known)


def extents(
    graph: Graph,
    shapes: Sequence[Sequence[Any]],
    splits: Sequence[Split] = (),
    *,
    given: Mapping[str, Any] | None = None,
) -> dict[str, Any]:
    """Return the size of every axis where the inputs have these shapes, whose sizes may be symbols.

    InputError where an axis whose size never changes has another size than the graph says.
    A split axis is as long as its tensors say; its parts keep their sizes. Sizes that are known otherwise
    may be given. Whether all shapes fit these sizes is not asked: `fitting_extents` does.
    """
    pairs = [
        (dim, size)
        for port, shape in zip(graph.inputs, shapes, strict=True)
        for dim, size in zip(whole_dims(port, splits), shape, strict=True)
    ]
    known: dict[str, Any] = dict(given or {})
    for dim, size in pairs:
        if len(dim) == 1:
            known.setdefault(dim[0], size)
    left = [pair for pair in pairs if len(pair[0]) > 1]
    while left:
        left.sort(key=lambda pair: sum(axis not in known for axis in pair[0]))
        dim, size = left.pop(0)
        unknown = [axis for axis in dim if axis not in known]
        known.update({axis: graph.sizes[axis] for axis in unknown[1:]})
        for axis in unknown[:1]:
            rest = prod(known[other] for other in dim if other != axis)
            known[axis] = size // rest if _surely(rest) else graph.sizes[axis]
    found = follow_renames(graph, {axis: known.get(axis, size) for axis, size in graph.sizes.items()})
    for axis in fixed_axes(graph):
        if not isinstance(found[axis], int) or found[axis] != graph.sizes[axis]:
            raise InputError(
                f"{graph.name}: positions along axis {axis!r} are read apart;"
                f" it was built for {graph.sizes[axis]} there"
            )
    return found


def fitting_extents(
    graph: Graph,
    shapes: Sequence[Sequence[int]],
    splits: Sequence[Split] = (),
    *,
    given: Mapping[str, int] | None = None,
) -> dict[str, int]:
    """Return the size of every axis as `extents` does, or raise InputError where shapes contradict these."""
    found = extents(graph, shapes, splits, given=given)
    for port, shape in zip(graph.inputs, shapes, strict=True):
        for at, (dim, size) in enumerate(zip(whole_dims(port, splits), shape, strict=True)):
            if prod(found[axis] for axis in dim) == size:
                continue
            place = f"dimension {at} of {port.name!r}"
            if len(dim) == 1:
                raise InputError(
                    f"{graph.name}: axis {dim[0]!r} is {found[dim[0]]} long, but {place} has {size}"
                )
            sizes = ", ".join(f"{axis}={found[axis]}" for axis in dim)
            raise InputError(
                f"{graph.name}: {place} is {size} long, which is no {' * '.join(dim) or '1'}"
                + (f" with {sizes}" if sizes else "")
            )
    return found


def _surely(size: Any) -> bool:
    """Whether a size is not 0; one that is a symbol is not asked, as its answer would be fixed."""
    return bool(size) if isinstance(size, int) else True
