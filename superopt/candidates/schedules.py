"""Schedules: the graphs that a search found as candidates, in the ways they are estimated to run fastest."""

from collections.abc import Sequence
from dataclasses import dataclass

from superopt.candidates.candidate import Candidate, RegionCandidates
from superopt.driver import Found
from superopt.ir import Graph, Split
from superopt.schedule import rank
from superopt.targets import Target
from superopt.weights.division import Weights, divided, once_values

__all__ = ["schedules"]


@dataclass(frozen=True, slots=True)
class _Way:
    """A graph that was found, to be run whole, or but for what is made of weights once."""

    found: Found
    graph: Graph
    once: tuple[int, ...] = ()

    @property
    def splits(self) -> tuple[Split, ...]:
        return self.found.splits

    @property
    def is_original(self) -> bool:
        return self.found.is_original and not self.once


def schedules(
    goal: Graph, found: Sequence[Found], target: Target, *, graphs: int, weights: Weights = "live"
) -> RegionCandidates:
    """Return the best ways to run the best graphs of a region on a target, and why others are dropped.

    Twice as many ways are kept as graphs are tried, the original graph among them; as many as graphs where
    estimates are times. What may be made of weights once is not part of a way.
    """
    tried = [*found[:graphs], *(one for one in found[graphs:] if one.is_original)]
    ways = [way for one in tried for way in _ways(one, weights)]
    device = target.cost_device()
    keep = graphs if device.timed else 2 * graphs
    ranked = rank(ways, device, keep=keep, misfit=target.misfit)
    candidates = [
        Candidate(
            one.id,
            ways[one.number - 1].found.graph,
            one.mugraph,
            schedule=one.name,
            verdict=ways[one.number - 1].found.verdict,
            library=one.library,
            once=ways[one.number - 1].once,
            predicted_us=one.estimate.us,
        )
        for one in ranked.kept
    ]
    return RegionCandidates(goal, tuple(candidates), ranked.dropped)


def _ways(found: Found, weights: Weights) -> list[_Way]:
    """Return a graph without what is made of weights once, and the original one whole as well.

    A graph with split axes runs whole.
    """
    once = () if found.splits else once_values(found.graph, weights)
    whole = [_Way(found, found.graph)] if found.is_original or not once else []
    return [*([_Way(found, divided(found.graph, once).run, once)] if once else []), *whole]
