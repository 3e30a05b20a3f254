"""Derived: what is found beyond the search of a goal with windows.

Windows are taken apart along new axes, and each goal with these is searched again. Last come programs that
compute a value in a way that is right at most of its positions, and the others again.
"""

import time
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Protocol

from superopt.driver.found import Found, RegionSearch, SearchOptions, by_bound, prove_found, select_best
from superopt.frontier.interrupts import interrupts_noted
from superopt.frontier.tensors.bound import bound_of
from superopt.frontier.tensors.graphs import canonical
from superopt.ir import Graph, only_used
from superopt.ir.windows.partly import corrected
from superopt.rules.derivations import Refinement, refinements

__all__ = ["Along", "search_further"]

Along = Callable[[Graph, Refinement], RegionSearch | None]
"""Searches a graph along new axes; None where that would be too large."""

_SHARE = 0.1  # of the time of a search, for what comes after the search of one goal

_COUNTED = ("e_nodes", "e_classes", "rounds", "tensors", "derivations", "graphs", "levels")
"""The statistics of several searches of one goal that add up."""


class _Running(Protocol):
    """A search: its options, whether Ctrl-C asked it to stop, and whether its time is over."""

    options: SearchOptions
    interrupted: bool

    @property
    def limit(self) -> str:
        """What ends the search when `out_of_time` says so."""

    @property
    def proving_seconds_left(self) -> float:
        """The time until the deadline."""

    def out_of_time(self) -> bool:
        """Whether to stop and give the best so far."""


def search_further(region: RegionSearch, along: Along, run: _Running) -> RegionSearch:
    """Return a search of a goal with all that is found beyond it, up to a first Ctrl-C."""
    try:
        for more in _further(region, along, run):
            region = more
    except KeyboardInterrupt:
        if run.interrupted:
            raise
        run.interrupted = True
        region = _cut(region, run.limit)
    return region


def _further(region: RegionSearch, along: Along, run: _Running) -> Iterator[RegionSearch]:
    """Yield a search of a goal with more and more of what is found beyond it."""
    end = time.perf_counter() + _SHARE * run.options.seconds
    region = _cut(region, f"corrections: {run.limit}") if run.out_of_time() else _corrected(region, run)
    yield region
    for kind in dict.fromkeys(one.name for one in refinements(region.goal)):
        for more in _refined(region, kind, along, run, end):
            region = more
            yield region


def _refined(
    region: RegionSearch, kind: str, along: Along, run: _Running, end: float
) -> Iterator[RegionSearch]:
    """Yield a search with what is found once windows are taken apart in one way, one after another."""
    graph, done = region.goal, set[str]()
    while True:
        again = (one for one in refinements(graph) if one.name == kind and one.window not in done)
        refinement = next(again, None)
        if refinement is None:
            break
        if run.out_of_time() or time.perf_counter() > end:
            yield _cut(region, f"{kind}: not all tried, its time was over")
            return
        done.add(refinement.window)
        more = along(graph, refinement)
        if more is None:
            yield replace(region, notes=(*region.notes, f"{kind}: not tried, it is too large a search"))
            return
        names = {axis.name for axis in refinement.axes}
        used = [replace(one, graph=only_used(one.graph), is_original=False) for one in more.found]
        used = [one for one in used if names & one.graph.sizes.keys()]
        region = _joined(region, replace(more, found=tuple(used)), run)
        yield region
        if not used:
            break
        graph = used[0].graph


def _corrected(region: RegionSearch, run: _Running) -> RegionSearch:
    """Return a search with programs that compute most of a value in another way, and the rest again."""
    proven: list[Found] = []
    left_out, late = 0, False
    with interrupts_noted(run):
        for one in corrected(region.goal):
            if run.out_of_time():
                region = _cut(region, f"corrections: {run.limit}")
                break
            graph = canonical(one.graph)
            bound = bound_of(graph, (), run.options.weights)
            tried = (Found(graph, bound, None, correction=str(one)),)
            seconds = min(_SHARE * run.options.seconds, run.proving_seconds_left)
            found, short = prove_found(region.goal, tried, run.options.seed, seconds)
            late |= short
            proven += found
            left_out += not found
    if late:
        region = _cut(region, f"corrections: {left_out} not proven, its time was over")
    notes = (f"{left_out} corrected graphs are left out: not shown to be equal",) if left_out else ()
    return replace(
        region,
        found=select_best(sorted((*region.found, *proven), key=by_bound), run.options.max_graphs),
        statistics=replace(region.statistics, graphs=region.statistics.graphs + len(proven)),
        notes=(*region.notes, *notes),
    )


def _cut(region: RegionSearch, why: str) -> RegionSearch:
    """Return a search that a limit has stopped."""
    return replace(region, truncated=(*region.truncated, why))


def _joined(region: RegionSearch, more: RegionSearch, run: _Running) -> RegionSearch:
    """Return two searches of one goal as one."""
    found = {str(one.graph): one for one in (*more.found, *region.found)}
    one, other = region.statistics, more.statistics
    statistics = replace(
        other,
        **{name: getattr(one, name) + getattr(other, name) for name in _COUNTED},
        pruned=Counter(one.pruned) + Counter(other.pruned),
    )
    return replace(
        region,
        found=select_best(sorted(found.values(), key=by_bound), run.options.max_graphs),
        statistics=statistics,
        notes=(*region.notes, *more.notes),
        truncated=tuple(dict.fromkeys((*region.truncated, *more.truncated))),
    )
