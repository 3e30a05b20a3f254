"""Choice: which candidate of a result is exported, read from data that may hold anything.

Names become code in an exported module: whatever is no plain name is refused.
"""

import keyword
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from superopt.errors import InputError
from superopt.ir import Graph, MuGraph, parse_graph, parse_mugraph
from superopt.plans.record import check_configs
from superopt.targets import Configs, Target, pick_target

__all__ = ["Choice", "choose"]


@dataclass(frozen=True, slots=True)
class Choice:
    """One way to compute one region: what is exported."""

    name: str  # an identifier
    candidate: str
    target: Target
    device: str | None
    median_us: float | None
    goal: Graph
    graph: Graph  # that the muGraph is said to run
    mugraph: MuGraph
    configs: Configs


def choose(result: Mapping[str, Any], region: int | None, candidate: str | None) -> Choice:
    """Return a candidate of a result, by default the chosen one of its only region; regions count from 1."""
    target = pick_target(_text(result, "target"))
    number, chosen = _region(result, region)
    candidates = _objects(chosen, "candidates", f"region {number}")
    at = _candidate_at(chosen, candidates, number, candidate)
    one = candidates[at]
    goal = parse_graph(_text(chosen, "goal"))
    mugraph = parse_mugraph(_text(one, "mugraph"))
    name = _identifier(goal.name)
    _check_names(goal)
    _check_names(mugraph.graph)
    if _tensors(goal) != _tensors(mugraph.graph):
        raise InputError(
            f"region {number}: candidate {candidate or at} takes or gives other tensors than its goal"
        )
    configs = _configs(one.get("configs"), mugraph, target)
    median = one.get("median_us")
    return Choice(
        name,
        str(one.get("name", f"candidate {at}")),
        target,
        result["device"] if isinstance(result.get("device"), str) else None,
        float(median) if isinstance(median, (int, float)) else None,
        replace(goal, name=name),
        replace(parse_graph(_text(one, "graph")), name=name),
        replace(mugraph, graph=replace(mugraph.graph, name=name)),
        configs,
    )


def _region(result: Mapping[str, Any], number: int | None) -> tuple[int, Mapping[str, Any]]:
    regions = _objects(result, "regions", "the result")
    if not regions:
        raise InputError("the result has no region: nothing was optimized, so there is nothing to export")
    if number is None:
        if len(regions) > 1:
            names = (parse_graph(_text(one, "goal")).name for one in regions)
            listed = ", ".join(f"{at} ({name})" for at, name in enumerate(names, 1))
            raise InputError(f"the result has {len(regions)} regions; choose one with --region: {listed}")
        number = 1
    if not 1 <= number <= len(regions):
        raise InputError(f"there is no region {number}; the result has regions 1 to {len(regions)}")
    return number, regions[number - 1]


def _candidate_at(
    region: Mapping[str, Any], candidates: Sequence[Mapping[str, Any]], number: int, name: str | None
) -> int:
    names = [str(one.get("name")) for one in candidates]
    listed = ", ".join(repr(one) for one in names) or "none"
    if name is not None:
        if name not in names:
            raise InputError(f"region {number} has no candidate {name!r}; it has {listed}")
        return names.index(name)
    at = region.get("chosen")
    if at is None:
        raise InputError(
            f"region {number} runs in PyTorch, no candidate was chosen; name one with --candidate: {listed}"
        )
    if not isinstance(at, int) or isinstance(at, bool) or not 0 <= at < len(candidates):
        raise InputError(f"region {number}: 'chosen' is {at!r}, but there are {len(candidates)} candidates")
    return at


def _configs(data: Any, mugraph: MuGraph, target: Target) -> Configs:
    """Return a configuration for each kernel, the default ones where the result has none."""
    if not data:
        return target.default_configs(mugraph)
    if not isinstance(data, list):
        raise InputError("'configs' is no list of objects, one for each kernel")
    found = tuple(None if one is None else target.config_from_json(one) for one in data)
    check_configs(mugraph, found)
    return found


def _objects(data: Mapping[str, Any], key: str, where: str) -> list[Mapping[str, Any]]:
    found = data.get(key)
    if not isinstance(found, list) or not all(isinstance(one, Mapping) for one in found):
        raise InputError(f"{where} has no list of objects {key!r}; give a file that superopt saved")
    return found


def _text(data: Mapping[str, Any], key: str) -> str:
    found = data.get(key)
    if not isinstance(found, str):
        raise InputError(
            f"the result has no text {key!r} where one is needed; give a file that superopt saved"
        )
    return found


def _identifier(name: str) -> str:
    """Return a name that Python, Triton and C++ take, as near to a given one as can be."""
    plain = re.sub(r"[^A-Za-z0-9]+", "_", name).strip("_") or "program"
    is_free = plain.isidentifier() and not keyword.iskeyword(plain)
    return plain if is_free else f"program_{plain}"


def _check_names(graph: Graph) -> None:
    for axis in graph.axes:
        if re.fullmatch(r"[A-Za-z_][A-Za-z0-9_]*", axis.name) is None:
            raise InputError(f"axis {axis.name!r} is no plain name; an export writes names into code")


def _tensors(graph: Graph) -> list[object]:
    """Return what callers see of a graph."""
    ports = [*graph.inputs, *(output.port for output in graph.outputs)]
    return [(port.name, port.dtype, len(port.dims)) for port in ports]
