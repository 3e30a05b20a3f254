"""Schedules: the graphs that a search found as candidates, in the ways they are estimated to run fastest."""

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, replace

from superopt.candidates.candidate import Candidate, RegionCandidates
from superopt.candidates.magnitudes import out_of_range
from superopt.candidates.steady import cancelling
from superopt.driver import Found
from superopt.fate import Fate, Kind
from superopt.ir import Graph, MuGraph, Split
from superopt.schedule import Dropped, Room, rank
from superopt.schedule.unrolled import unrolled
from superopt.targets import Target
from superopt.verify.verdict import combined
from superopt.weights.division import Weights, divided, once_values
from superopt.weights.joined import joined
from superopt.weights.packed import packed

__all__ = ["schedules"]

_REWRITTEN = 2  # graphs that are tried in each other form as well
_Rewrite = Callable[[Graph], tuple[Graph, tuple[int, ...]] | None]  # a graph, and what is made of it once

_LIVE = 2  # ways without anything that is made once, beside those with it


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
    goal: Graph,
    found: Sequence[Found],
    target: Target,
    *,
    graphs: int,
    weights: Weights = "live",
    entering: Collection[str] = (),
    late: Callable[[], bool] = lambda: False,
    room: Room | None = None,
) -> RegionCandidates:
    """Return the best ways to run the best graphs of a region on a target, and why others are dropped.

    Once it is `late`, only the first way that fits is tried for each graph. No way takes more memory than
    there is `room` for.

    Twice as many ways are kept as graphs are tried, the original graph among them; as many as graphs where
    estimates are times. Where tensors are made of weights once, some ways do without: what is made may be
    less accurate than what is computed, and weights may be such that nothing can be kept. Graphs are left out
    that round worse than the region, as far as its inputs are among those `entering` the program.
    """
    tried, unsteady = _steady(goal, found, graphs, entering)
    device = target.cost_device()
    keep = graphs if device.timed else 2 * graphs
    values = [_once(one, weights) for one in tried]
    whole = [_Way(one, one.graph) for one in tried]
    first = [
        _Way(one, divided(one.graph, once).run, once) if once else way
        for one, once, way in zip(tried, values, whole, strict=True)
    ]
    first += _rewritten(tried, weights, target)
    if not any(way.once for way in first):
        best = _ranked(goal, first, target, keep, late, room)
        return replace(best, dropped=(*best.dropped, *unsteady))
    best = _ranked(goal, first, target, keep, late, room)
    live = _ranked(goal, whole, target, min(_LIVE, keep), late, room, mark=", weights live")
    known = {str(one.mugraph) for one in best.candidates}
    others = [one for one in live.candidates if str(one.mugraph) not in known]
    return replace(
        best, candidates=(*best.candidates, *others), dropped=(*best.dropped, *live.dropped, *unsteady)
    )


def _steady(
    goal: Graph, found: Sequence[Found], graphs: int, entering: Collection[str]
) -> tuple[list[Found], list[Dropped]]:
    """Return the best graphs that round as the region does, in its range, and why others are left out."""
    tried: list[Found] = []
    dropped = []
    waiting = list(enumerate(found, 1))
    while waiting and len(tried) < graphs:
        some, waiting = waiting[: graphs - len(tried)], waiting[graphs - len(tried) :]
        others = [one.graph for _, one in some if not one.is_original]
        faults = cancelling(goal, others, entering, seed=0) if others else {}
        faults |= out_of_range(goal, [one for one in others if one not in faults], entering, seed=0)
        for number, one in some:
            if one.is_original or one.graph not in faults:
                tried.append(one)
            else:
                fate = Fate("schedule", Kind.REFUSED, faults[one.graph])
                dropped.append(Dropped(f"unsteady{number}", f"found {number}", fate))
    return [*tried, *(one for _, one in waiting if one.is_original)], dropped


def _rewritten(found: Sequence[Found], weights: Weights, target: Target) -> list[_Way]:
    """Return the best graphs written anew, where that is equal, each with what is made of it once.

    Weights are joined or, for processors, packed in panels, and short axes are taken apart.
    """
    from superopt.verify.graphs.equality import equal_graphs

    def as_whole(rewrite: Callable[[Graph], Graph | None]) -> _Rewrite:
        return lambda graph: None if (made := rewrite(graph)) is None else (made, once_values(made, weights))

    ways: list[_Way] = []
    cpu = target.torch_device == "cpu"
    rewrites = (
        as_whole(lambda graph: joined(graph, weights)),
        as_whole(unrolled),
        lambda graph: packed(graph, weights) if cpu else None,
        lambda graph: packed(apart, weights) if cpu and (apart := unrolled(graph)) else None,
    )
    for rewrite in rewrites:
        made = 0
        for one in found:
            other = None if one.splits or made >= _REWRITTEN else rewrite(one.graph)
            if other is None or not (verdict := equal_graphs(one.graph, other[0])).equal:
                continue
            made += 1
            graph, once = other
            known = verdict if one.verdict is None else combined([one.verdict, verdict])
            run = divided(graph, once).run if once else graph
            ways.append(_Way(replace(one, graph=graph, verdict=known, is_original=False), run, once))
    return ways


def _once(found: Found, weights: Weights) -> tuple[int, ...]:
    """Return the values of a graph that are made once; a graph with split axes runs whole."""
    return () if found.splits else once_values(found.graph, weights)


def _ranked(
    goal: Graph,
    ways: Sequence[_Way],
    target: Target,
    keep: int,
    late: Callable[[], bool],
    room: Room | None,
    *,
    mark: str = "",
) -> RegionCandidates:
    """Return the best of some ways; a mark tells their names and ids from those of other ways."""

    def misfit(mugraph: MuGraph) -> str | None:
        return target.misfit(mugraph) or (None if room is None else room.misfit(mugraph))

    ranked = rank(ways, target.cost_device(), keep=keep, misfit=misfit, late=late)
    candidates, crowded = list[Candidate](), list[Dropped]()
    for one in ranked.kept:
        # Where nothing fits, a default schedule is kept, since a device may be guessed wrong; memory is not.
        if room is not None and (why := room.misfit(one.mugraph)):
            crowded.append(Dropped(one.id, one.name, Fate("schedule", Kind.REFUSED, why)))
            continue
        way = ways[one.number - 1]
        candidates.append(
            Candidate(
                one.id + (".live" if mark else ""),
                way.found.graph,
                one.mugraph,
                schedule=one.name + mark,
                verdict=way.found.verdict,
                library=one.library,
                once=way.once,
                predicted_us=one.estimate.us,
            )
        )
    dropped = tuple(
        replace(one, id=f"{one.id}.live", name=one.name + mark) if mark else one for one in ranked.dropped
    )
    return RegionCandidates(goal, tuple(candidates), dropped)
