"""Shelf: what earlier runs found best for a region, kept in the cache, and checked again when recalled.

Of what was measured the best few are kept. A plan that was not measured is kept whole, with the reasons of
what was rejected and dropped, so that whoever tunes it has as much to race.
"""

import logging
from collections.abc import Mapping, Sequence
from dataclasses import asdict, replace
from typing import TYPE_CHECKING, Any

from superopt.errors import SuperoptError
from superopt.ir import Graph, cut_graph, release_shifts
from superopt.plans.plan import Candidate, Dropped, OptimizeOptions, RegionPlan, Work
from superopt.plans.proof import proven_by_graph
from superopt.plans.record import candidate_from_json, candidate_json
from superopt.targets import Target

if TYPE_CHECKING:
    from superopt.cache import Key

__all__ = ["Shelf", "parts_of"]

log = logging.getLogger("superopt")

_KEPT = 3  # candidates of a region that were measured


class Shelf:
    """The cache as far as plans go."""

    def __init__(self, options: OptimizeOptions, target: Target, *, measured: bool) -> None:
        from superopt.cache import Cache

        self.cache = Cache.open() if options.cache else None
        self._options = options
        self._target = target
        self._measured = measured

    def recall(self, region: Graph) -> list[Work] | None:
        """Return the parts of a region with the candidates that were best before, or None."""
        record = self.cache.get(self._key(region)) if self.cache else None
        saved = record.data.get("parts") if record else None
        if not isinstance(saved, dict) or not saved:
            return None
        parts = parts_of(release_shifts(region), saved)
        if parts is None or {part.name for part in parts} != set(saved):
            return None
        dropped = record.data.get("dropped") if record else None
        dropped = dropped if isinstance(dropped, dict) else {}
        found = [self._work(part, saved[part.name], dropped.get(part.name)) for part in parts]
        usable = all(any(one.rejected is None for one in work.candidates) for work in found)
        return found if usable else None

    def keep(self, region: Graph, plans: Sequence[RegionPlan]) -> None:
        """Save the candidates of the parts of a region: all of a plan, else the best, that in use first."""
        from superopt.cache import Record

        if self.cache is None or any(plan.chosen is None for plan in plans):
            return
        parts: dict[str, list[dict[str, Any]]] = {}
        dropped: dict[str, list[dict[str, Any]]] = {}
        for plan in plans:
            kept = _best(plan) if self._measured else plan.candidates
            parts[plan.goal.name] = [candidate_json(replace(one, sources=())) for one in kept]
            dropped[plan.goal.name] = [] if self._measured else [asdict(one) for one in plan.dropped]
        self.cache.put(self._key(region), Record({"parts": parts, "dropped": dropped}, region.name))

    def _work(self, goal: Graph, saved: Any, dropped: Any) -> Work:
        candidates = []
        for number, data in enumerate(saved if isinstance(saved, list) else (), 1):
            try:
                candidate = candidate_from_json(data, self._target)
                verdict = proven_by_graph(goal, candidate.graph, candidate.mugraph, seed=self._options.seed)
            except SuperoptError as error:
                log.warning("cache: a plan of %s is not used: %s", goal.name, error)
                continue
            if verdict is None:
                log.warning("cache: a plan of %s is not used: it computes something else", goal.name)
                continue
            name = f"earlier {number}" if self._measured else candidate.name
            candidates.append(replace(candidate, name=name, verdict=verdict, measurement=None))
        return Work(goal, tuple(candidates), _dropped(dropped), recalled=True)

    def _key(self, region: Graph) -> "Key":
        from superopt.cache import key_of, program_text, versions

        return key_of(
            "plan",
            program=program_text(region),
            options={
                "graphs": self._options.graphs,
                "preset": self._options.preset,
                "measured": self._measured,
                "kept": _KEPT if self._measured else "all",
                "search": {name: str(value) for name, value in asdict(self._options.search).items()},
            },
            **{**versions(), **self._target.key_parts()},
        )


def _best(plan: RegionPlan) -> list[Candidate]:
    """Return the best candidates that were measured, the one that is used first."""
    assert plan.chosen is not None
    others = [one for one in plan.candidates if one is not plan.chosen and not one.rejected]
    return [plan.chosen, *(one for one in others if one.us < float("inf"))][:_KEPT]


def _dropped(saved: Any) -> tuple[Dropped, ...]:
    """Return why schedules were dropped, as far as a record says so."""
    return tuple(
        Dropped(str(one["name"]), str(one["reason"]))
        for one in (saved if isinstance(saved, list) else ())
        if isinstance(one, dict) and {"name", "reason"} <= one.keys()
    )


def parts_of(graph: Graph, wanted: Mapping[str, Any]) -> list[Graph] | None:
    """Return the parts of these names that the search cut a graph into, or None."""
    if graph.name in wanted:
        return [graph]
    if not any(name.startswith(f"{graph.name}.") for name in wanted):
        return None
    halves = cut_graph(graph)
    found = [parts_of(half, wanted) for half in halves or ()]
    if not found or any(parts is None for parts in found):
        return None
    return [part for parts in found if parts is not None for part in parts]
