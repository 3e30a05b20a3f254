"""Parts: the goals that a region is cut into for the search; `layer` has parts `layer.0` and `layer.1.0`."""

from collections.abc import Mapping
from typing import Any

from superopt.ir import Graph
from superopt.ir.windows.apart import halves_of

__all__ = ["find_parts", "region_name"]


def region_name(part: Graph) -> str:
    """Return the name of the region that a goal is, or is a part of."""
    return part.name.partition(".")[0]


def find_parts(graph: Graph, wanted: Mapping[str, Any]) -> list[Graph] | None:
    """Return the parts of these names that the search cut a graph into, or None."""
    if graph.name in wanted:
        return [graph]
    if not any(name.startswith(f"{graph.name}.") for name in wanted):
        return None
    halves = halves_of(graph)
    found = [find_parts(half, wanted) for half in halves or ()]
    if not found or any(parts is None for parts in found):
        return None
    return [part for parts in found if parts is not None for part in parts]
