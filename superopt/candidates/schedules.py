"""Schedules: the graphs that a search found as candidates, in the ways they are estimated to run fastest."""

from collections.abc import Callable, Sequence

from superopt.candidates.candidate import Candidate, RegionCandidates
from superopt.driver import Found
from superopt.ir import Graph
from superopt.schedule import rank
from superopt.targets import Target

__all__ = ["schedules"]


def schedules(
    goal: Graph,
    found: Sequence[Found],
    target: Target,
    *,
    graphs: int,
    late: Callable[[], bool] = lambda: False,
) -> RegionCandidates:
    """Return the best ways to run the best graphs of a region on a target, and why others are dropped.

    Once it is `late`, only the first way that fits is tried for each graph.

    Twice as many ways are kept as graphs are tried, the original graph among them; as many as graphs where
    estimates are times.
    """
    tried = [*found[:graphs], *(one for one in found[graphs:] if one.is_original)]
    device = target.cost_device()
    keep = graphs if device.timed else 2 * graphs
    ranked = rank(tried, device, keep=keep, misfit=target.misfit, late=late)
    candidates = [
        Candidate(
            one.id,
            tried[one.number - 1].graph,
            one.mugraph,
            schedule=one.name,
            verdict=tried[one.number - 1].verdict,
            library=one.library,
            predicted_us=one.estimate.us,
        )
        for one in ranked.kept
    ]
    return RegionCandidates(goal, tuple(candidates), ranked.dropped)
