"""Schedules: how the graphs that a search found may run, as candidates."""

from collections.abc import Sequence

from superopt.driver import Found
from superopt.ir import Call, Graph, fuse, is_matmul, stabilize
from superopt.plans.plan import Candidate, Work
from superopt.targets import Target

__all__ = ["schedules"]


def schedules(goal: Graph, found: Sequence[Found], target: Target, *, graphs: int) -> Work:
    """Return how the best graphs of a region may run: fused, and with matmuls as calls of a library."""
    candidates: list[Candidate] = []
    for number, one in enumerate(found[:graphs], 1):
        candidates.append(_schedule(f"graph {number}", one, library=False))
        called = _schedule(f"graph {number} + library", one, library=True)
        if any(isinstance(kernel, Call) for kernel in called.mugraph.kernels):
            candidates.append(called)
    return Work(goal, tuple(candidates))


def _schedule(name: str, found: Found, *, library: bool) -> Candidate:
    graph = stabilize(found.graph)
    mugraph = fuse(graph, library=is_matmul) if library else fuse(graph)
    return Candidate(name, found.graph, mugraph, verdict=found.verdict, library=library)
