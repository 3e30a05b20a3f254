"""Split reduction axes in an outer and an inner half, so that partial reductions are tensors too.

A kernel may spread the outer half over its grid (split-K, flash decoding), and loops over the inner half.
Halves that a found graph does not use separately become one axis again.
"""

from collections.abc import Mapping

from superopt.ir import Axis, Graph, Split, merge_axes, refine_axis
from superopt.ir.split import fresh_name

__all__ = ["merge_halves", "split_reductions"]

_WANTED = 16  # positions of the outer half, where the size allows
_MOST = 64  # positions of the outer half at most


def split_reductions(graph: Graph) -> tuple[Graph, Mapping[str, tuple[str, str]]]:
    """Return the graph with every reduced axis in two halves, where its size has a fitting divisor."""
    mapped = {
        name
        for step in graph.steps
        for old, new in step.mapping
        for name in (old, new)
        if isinstance(name, str)
    }
    reduced = {axis for step in graph.steps if step.op in ("sum", "contract") for axis in step.axes}
    halves: dict[str, tuple[str, str]] = {}
    names = set(graph.sizes)
    for axis in graph.axes:
        outer = _outer_size(axis.size)
        if axis.name not in reduced or axis.name in mapped or outer is None:
            continue
        pair = (fresh_name(f"{axis.name}_outer", names), fresh_name(f"{axis.name}_inner", names))
        names |= set(pair)
        graph = refine_axis(graph, axis.name, (Axis(pair[0], outer), Axis(pair[1], axis.size // outer)))
        halves[axis.name] = pair
    return graph, halves


def merge_halves(graph: Graph, halves: Mapping[str, tuple[str, str]]) -> tuple[Graph, tuple[Split, ...]]:
    """Return the graph with halves joined where nothing tells them apart, and the axes that stay split."""
    left = []
    for axis, pair in halves.items():
        merged = merge_axes(graph, pair, axis)
        if merged is None:
            left.append(Split(axis, *pair))
        else:
            graph = merged
    return graph, tuple(left)


def _outer_size(size: int) -> int | None:
    """Return the largest power of two up to the wanted size that divides, else the least odd divisor."""
    parts = _WANTED
    while parts > 1:
        if size % parts == 0 and size > parts:
            return parts
        parts //= 2
    return next((d for d in range(3, min(_MOST, size - 1) + 1, 2) if size % d == 0), None)
