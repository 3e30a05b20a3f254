"""The roofs above a case: the least time of its arithmetic, of its bytes from memory, and from the cache."""

from collections.abc import Iterable
from dataclasses import replace
from math import inf
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from superopt.cost import Device
    from superopt.ir import Graph

__all__ = ["roofs_of"]


def roofs_of(graphs: Iterable["Graph"], device: "Device") -> dict[str, float]:
    """Return the three least times in µs of graphs that run one after another."""
    from superopt.cost import floor_us

    no_memory = replace(device, memory_gbs=inf, l2_gbs=inf)
    no_arithmetic = replace(device, matrix_flops=dict.fromkeys(device.matrix_flops, inf), vector_flops=inf)
    cached = replace(no_arithmetic, l2_bytes=2**62)
    found = {"arithmetic_us": 0.0, "memory_us": 0.0, "cache_us": 0.0}
    for graph in graphs:
        found["arithmetic_us"] += floor_us(graph, no_memory)
        found["memory_us"] += floor_us(graph, no_arithmetic)
        found["cache_us"] += floor_us(graph, cached, cold=False)
    return found
