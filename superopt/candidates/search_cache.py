"""Search cache: the graphs that complete searches found, kept in the cache, and compared again when recalled.

A search knows nothing of devices, so its graphs serve every target, preset and number of kernels. They depend
on the sizes and dtypes of a program, by which graphs are ranked. If a graph does not parse, or is not equal,
the region is searched anew.
"""

import logging
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from superopt.cache import Cache, Key, Record, key_of, program_text, versions
from superopt.cache.keys import version_of
from superopt.candidates.codec import checked_graph, member
from superopt.candidates.parts import find_parts, region_name
from superopt.driver import Found, RegionSearch, Search, SearchOptions
from superopt.errors import GraphError, InputError
from superopt.frontier.tensors.bound import bound_of
from superopt.frontier.tensors.graphs import canonical
from superopt.ir import Graph, Program, Split, release_shifts
from superopt.ir.extents import whole_dims
from superopt.verify.graphs.all_equal import equal_to_all
from superopt.weights.division import Weights

__all__ = ["keep_search", "recall_search"]

log = logging.getLogger("superopt")

Parts = list[tuple[Graph, tuple[Found, ...]]]

_ELSEWHERE = ("workers", "checkpoint", "resume")  # options that do not change what is found
_SEARCHERS = ("egglog", "z3-solver")


def recall_search(cache: Cache, program: Program, options: SearchOptions) -> Parts | None:
    """Return the parts of a program and the graphs found for each, or None where all is to be searched."""
    if options.checkpoint is not None:
        return None
    found: Parts = []
    for region in program.regions:
        record = cache.get(_key(region.graph, options))
        if record is None:
            return None
        try:
            found += _parts(region.graph, record.data, options.weights)
        except (InputError, GraphError) as error:
            log.warning("cache: a search of %s is not used: %s", region.graph.name, error)
            return None
    return found


def keep_search(cache: Cache, search: Search, options: SearchOptions) -> None:
    """Save what was found for every region whose search no limit stopped."""
    if search.interrupted:
        return
    for region in search.program.regions:
        name = region.graph.name
        parts = [one for one in search.regions if region_name(one.goal) == name]
        if all(one.found and not one.truncated for one in parts):
            data = {"parts": [_part_json(one, name) for one in parts]}
            cache.put(_key(region.graph, options), Record(data, name))


def _key(region: Graph, options: SearchOptions) -> Key:
    settings = {name: value for name, value in options.key_parts().items() if name not in _ELSEWHERE}
    return key_of(
        "search",
        program=program_text(region),
        device="any",
        options=settings | {name: version_of(name) for name in _SEARCHERS},
        **{name: value for name, value in versions().items() if name != "compiler"},
    )


def _part_json(part: RegionSearch, region: str) -> dict[str, Any]:
    return {
        "part": part.goal.name.removeprefix(region),
        "graphs": [
            {
                "graph": str(one.graph),
                "splits": [[s.axis, s.outer, s.inner] for s in one.splits],
                "correction": one.correction,
            }
            for one in part.found
        ],
    }


def _parts(region: Graph, data: Any, weights: Weights) -> Parts:
    """Return the parts of a region with the graphs that a record has, or raise InputError."""
    saved = {
        region.name + member(one, "part", str, "a search"): member(one, "graphs", list, "a search")
        for one in member(data, "parts", list, "a search")
    }
    goals = find_parts(release_shifts(region), saved)
    if goals is None or [goal.name for goal in goals] != list(saved):
        raise InputError("its parts are not those of the program")
    return [(goal, _found(goal, saved[goal.name], weights)) for goal in goals]


def _found(goal: Graph, saved: Sequence[Any], weights: Weights) -> tuple[Found, ...]:
    # A program's text does not depend on the name of its function.
    graphs = [replace(checked_graph(member(one, "graph", str, "a search")), name=goal.name) for one in saved]
    splits = [_splits(member(one, "splits", list, "a search")) for one in saved]
    corrections = [member(one, "correction", str, "a search") for one in saved]
    for graph, halves in zip(graphs, splits, strict=True):
        _check_ports(goal, graph, halves)
    verdicts = equal_to_all(goal, graphs)
    if not graphs or not all(verdict.equal for verdict in verdicts):
        raise InputError("a graph computes something else")
    original = canonical(goal)
    return tuple(
        Found(graph, bound_of(graph, halves, weights), verdict, halves, graph == original, correction)
        for graph, verdict, halves, correction in zip(graphs, verdicts, splits, corrections, strict=True)
    )


def _splits(saved: Sequence[Any]) -> tuple[Split, ...]:
    for one in saved:
        if not isinstance(one, list) or len(one) != 3 or not all(isinstance(name, str) for name in one):
            raise InputError(f"a split is {one!r}, which is not an axis and its two parts")
    return tuple(Split(*one) for one in saved)


def _check_ports(goal: Graph, graph: Graph, splits: Sequence[Split]) -> None:
    """Refuse a graph whose tensors are not the goal's, or that has an axis in other parts than it says."""
    sizes = graph.sizes
    for split in splits:
        if sizes.get(split.outer, 0) * sizes.get(split.inner, 0) != goal.sizes.get(split.axis):
            raise InputError(f"the parts of axis {split.axis!r} are not as long as it is")

    def ports(one: Graph) -> list[tuple[str, str, tuple[tuple[str, ...], ...]]]:
        tensors = (*one.inputs, *(output.port for output in one.outputs))
        return [(port.name, port.dtype, whole_dims(port, splits)) for port in tensors]

    if ports(graph) != ports(goal):
        raise InputError("its tensors are not those of the program")
