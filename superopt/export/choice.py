"""Choice: which candidate of a result is exported.

Names become code in an exported module: whatever is no plain name is refused.
"""

import re
from collections.abc import Callable
from dataclasses import dataclass, replace

from superopt.candidates import Candidate, RegionCandidates
from superopt.candidates.proof import prove_by_graph
from superopt.errors import InputError
from superopt.export.limits import Limits, limits_of
from superopt.export.names import function_name
from superopt.ir import Graph, MuGraph
from superopt.result import Result
from superopt.targets import Configs, Target

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
    mugraph: MuGraph
    once: Graph | None  # what makes the tensors of weights that the muGraph reads
    is_proven: Callable[[], bool]  # proves once more that it computes what its region does
    configs: Configs
    limits: Limits


def choose(result: Result, region: int | None, candidate: str | None) -> Choice:
    """Return a candidate of a result, by default the chosen one of its only region; regions count from 1."""
    number, chosen = _region(result, region)
    one = _candidate(chosen, number, candidate)
    goal, name = chosen.goal, function_name(chosen.goal.name)
    _check_names(goal)
    _check_names(one.mugraph.graph)
    if _tensors(goal) != _tensors(one.graph) or _tensors(one.run) != _tensors(one.mugraph.graph):
        raise InputError(
            f"region {number}: candidate {one.name!r} takes or gives other tensors than its goal"
        )
    once = one.parts.once if one.parts is not None else None
    graphs = [*(region.graph for region in result.program.regions), goal, one.mugraph.graph]
    return Choice(
        name,
        one.name,
        result.target,
        result.device,
        None if one.measurement is None else one.measurement.median_us,
        replace(goal, name=name),
        replace(one.mugraph, graph=replace(one.mugraph.graph, name=name)),
        once,
        lambda: prove_by_graph(goal, one.graph, one.mugraph, one.once) is not None,
        one.configs or result.target.default_configs(one.mugraph),
        limits_of(result.open_axes or {}, graphs if once is None else [*graphs, once]),
    )


def _region(result: Result, number: int | None) -> tuple[int, RegionCandidates]:
    regions = result.regions
    if not regions:
        raise InputError("the result has no region: nothing was optimized, so there is nothing to export")
    if number is None:
        if len(regions) > 1:
            listed = ", ".join(f"{at} ({one.goal.name})" for at, one in enumerate(regions, 1))
            raise InputError(f"the result has {len(regions)} regions; choose one with --region: {listed}")
        number = 1
    if not 1 <= number <= len(regions):
        raise InputError(f"there is no region {number}; the result has regions 1 to {len(regions)}")
    return number, regions[number - 1]


def _candidate(region: RegionCandidates, number: int, wanted: str | None) -> Candidate:
    """Return the candidate of an id, or else of a name, by default the chosen one."""
    listed = ", ".join(f"{one.id} ({one.name})" for one in region.candidates) or "none"
    if wanted is not None:
        found = next((one for one in region.candidates if one.id == wanted), None)
        found = found or next((one for one in region.candidates if one.name == wanted), None)
        if found is None:
            raise InputError(f"region {number} has no candidate {wanted!r}; it has {listed}")
        return found
    if region.chosen is None:
        raise InputError(
            f"region {number} runs in PyTorch, no candidate was chosen; name one with --candidate: {listed}"
        )
    return region.chosen


def _check_names(graph: Graph) -> None:
    for axis in graph.axes:
        if re.fullmatch(r"[A-Za-z_][A-Za-z0-9_]*", axis.name) is None:
            raise InputError(f"axis {axis.name!r} is no plain name; an export writes names into code")


def _tensors(graph: Graph) -> list[object]:
    """Return what callers see of a graph."""
    ports = [*graph.inputs, *(output.port for output in graph.outputs)]
    return [(port.name, port.dtype, len(port.dims)) for port in ports]
