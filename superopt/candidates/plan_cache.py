"""Plan cache: what earlier runs found best for a region, checked again when it is recalled.

Of measured candidates the best few are kept. A plan that was not measured is kept whole, with the reasons for
all that was rejected and dropped, so that a later tuning has as many candidates to race.
"""

import logging
from collections.abc import Sequence
from dataclasses import asdict, replace
from functools import cache
from typing import Any

from superopt.cache import Cache, Key, Record, key_of, program_text, versions
from superopt.candidates.candidate import SCHEDULED, Candidate, RegionCandidates
from superopt.candidates.codec import (
    VERSION,
    candidate_from_json,
    candidate_json,
    dropped_from_json,
)
from superopt.candidates.parts import find_parts, region_name
from superopt.candidates.proof import prove_by_graph
from superopt.errors import SuperoptError
from superopt.ir import Graph, Program, release_shifts
from superopt.options import OptimizeOptions
from superopt.targets import Target
from superopt.weights.division import divided

__all__ = ["PlanCache"]

log = logging.getLogger("superopt")

_KEPT = 3  # candidates of a region that were measured


class PlanCache:
    """Plans in the cache."""

    def __init__(self, options: OptimizeOptions, target: Target) -> None:
        self.cache = Cache.open() if options.cache else None
        self._options = options
        self._target = target
        self._measured = target.available and options.measure

    def recall(self, program: Program) -> list[RegionCandidates] | None:
        """Return the parts of all regions with the candidates that were best before, or None."""
        recalled = [self._recall(region.graph) for region in program.regions]
        if self.cache is None or not all(recalled):
            return None
        return [one for parts in recalled for one in parts or ()]

    def keep(self, program: Program, regions: Sequence[RegionCandidates]) -> None:
        """Save the candidates of every region, all of whose parts are computed by a candidate."""
        for region in program.regions:
            self._keep(region.graph, [one for one in regions if region_name(one.goal) == region.graph.name])

    def _recall(self, region: Graph) -> list[RegionCandidates] | None:
        record = self.cache.get(self._key(region)) if self.cache else None
        if record is None:
            return None
        saved, dropped = record.data.get("parts"), record.data.get("dropped")
        if not isinstance(saved, dict) or not saved:
            return None
        if record.data.get("version") != VERSION:
            _say_old()
            return None
        saved = {f"{region.name}{part}": one for part, one in saved.items()}
        parts = find_parts(release_shifts(region), saved)
        if parts is None or {part.name for part in parts} != set(saved):
            return None
        dropped = dropped if isinstance(dropped, dict) else {}
        cut = {f"{region.name}{part}": one for part, one in dropped.items()}
        found = [self._recalled(part, saved[part.name], cut.get(part.name)) for part in parts]
        return found if all(any(one.is_kept for one in part.candidates) for part in found) else None

    def _keep(self, region: Graph, parts: Sequence[RegionCandidates]) -> None:
        """Save the candidates of a region's parts: all of a plan, else the best, that in use first."""
        if self.cache is None or any(part.chosen is None for part in parts):
            return
        data = {
            "version": VERSION,
            "parts": {
                part.goal.name.removeprefix(region.name): [
                    candidate_json(replace(one, sources=()))
                    for one in (_best(part) if self._measured else part.candidates)
                ]
                for part in parts
            },
            "dropped": {
                part.goal.name.removeprefix(region.name): []
                if self._measured
                else [asdict(one) for one in part.dropped]
                for part in parts
            },
        }
        self.cache.put(self._key(region), Record(data, region.name))

    def _recalled(self, goal: Graph, saved: Any, dropped: Any) -> RegionCandidates:
        candidates: list[Candidate] = []
        for data in saved if isinstance(saved, list) else ():
            try:
                candidate = _named(candidate_from_json(data, self._target), goal.name)
                verdict = prove_by_graph(goal, candidate.graph, candidate.mugraph, candidate.once)
            except SuperoptError as error:
                log.warning("cache: a plan of %s is not used: %s", goal.name, error)
                continue
            if verdict is None:
                log.warning("cache: a plan of %s is not used: it computes something else", goal.name)
                continue
            if candidate.id in {one.id for one in candidates}:
                log.warning("cache: a plan of %s is not used: another has its id", goal.name)
                continue
            fate = SCHEDULED if candidate.fate.is_sound else candidate.fate
            candidates.append(replace(candidate, fate=fate, verdict=verdict, measurement=None))
        try:
            cut = dropped_from_json(dropped or [])
        except SuperoptError:  # only the reasons are lost
            cut = ()
        return RegionCandidates(goal, tuple(candidates), cut, recalled=True)

    def _key(self, region: Graph) -> Key:
        return key_of(
            "plan",
            program=program_text(region),
            options={
                "graphs": self._options.graphs,
                "preset": self._options.preset,
                "measured": self._measured,
                "kept": _KEPT if self._measured else "all",
                "search": self._options.searching.key_parts(),
            },
            **{**versions(), **self._target.key_parts()},
        )


def _named(candidate: Candidate, name: str) -> Candidate:
    """Return a candidate for a goal of another name: the text of a program does not depend on names."""
    old, run = candidate.graph.name, candidate.mugraph.graph
    if name == old or not run.name.startswith(old):
        return candidate
    graph = replace(candidate.graph, name=name)
    kept: dict[str, str] = {}  # tensors that are made once are named after the graph
    if candidate.once:
        before, after = (divided(one, candidate.once).once.outputs for one in (candidate.graph, graph))
        kept = {one.port.name: other.port.name for one, other in zip(before, after, strict=True)}
    inputs = tuple(replace(port, name=kept.get(port.name, port.name)) for port in run.inputs)
    run = replace(run, name=name + run.name.removeprefix(old), inputs=inputs)
    kernels = tuple(
        replace(one, name=name + one.name.removeprefix(old)) if one.name.startswith(old) else one
        for one in candidate.kernels
    )
    return replace(candidate, graph=graph, mugraph=replace(candidate.mugraph, graph=run), kernels=kernels)


def _best(part: RegionCandidates) -> list[Candidate]:
    """Return the best candidates that were measured, the one that is used first."""
    assert part.chosen is not None
    others = [one for one in part.candidates if one is not part.chosen and one.fate.is_sound]
    return [part.chosen, *(one for one in others if one.us < float("inf"))][:_KEPT]


@cache
def _say_old() -> None:
    """Say once in a process that plans of another version are in the cache."""
    log.warning("cache: its plans are those of another version of superopt and are not used")
