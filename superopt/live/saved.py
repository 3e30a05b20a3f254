"""Saved: a result that was read, as a program again, and its candidates proven equal again."""

import logging
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from superopt.candidates.candidate import SCHEDULED, Candidate, RegionCandidates
from superopt.candidates.proof import prove_by_graph
from superopt.errors import InputError, SuperoptError
from superopt.funnel.assembly import as_kernel
from superopt.live.binding import in_same_parts
from superopt.live.optimized import Optimized
from superopt.options import OptimizeOptions
from superopt.result.codec import read_result, tree_of, value_of
from superopt.result.result import Result
from superopt.rivals.rivals import EAGER, PEERS
from superopt.targets import Kernel, Target
from superopt.trace import Traced, trace
from superopt.trace.capture.tape import Ref

__all__ = ["load", "program_of", "prove_regions", "trace_again"]

log = logging.getLogger("superopt")


def load(path: str | Path, function: Callable[..., Any] | None = None, *, retune: bool = False) -> Optimized:
    """Return the optimized program of a file that `Optimized.save` wrote; what it runs is proven equal again.

    `function` is the original; it may be left out where the program is all algebra.
    """
    place = str(path)
    result = read_result(path)
    target = result.target
    best = program_of(
        result,
        function,
        place,
        options=OptimizeOptions(target=target.name, seed=result.seed, retune=retune),
    )
    if result.winner == "superopt" and not target.available:
        log.warning("%s: made for %s, which is not available: the original function runs", path, target.name)
    if result.device is not None and target.available and result.device != target.device_name:
        log.warning(
            "%s: measured on %s, here is %s; `superopt tune` measures again",
            path,
            result.device,
            target.device_name,
        )
    return best


def program_of(
    result: Result,
    function: Callable[..., Any] | None,
    place: str,
    *,
    options: OptimizeOptions,
    traced: Traced | None = None,
) -> Optimized:
    """Return the program of a result whose kernels are made anew and proven equal again.

    `traced` is the function as it was traced on inputs like those of the result.
    """
    traced = trace_again(result, function, place, traced)
    target, winner = result.target, result.winner
    regions = tuple(_proven(one, target, place) for one in result.regions)
    kernels: dict[str, Kernel] = {}
    if winner == "superopt" and target.available:
        for one in regions:
            if one.chosen is not None:
                try:
                    made = target.make(one.chosen.mugraph, one.chosen.configs)
                    kernels[one.goal.name] = as_kernel(one.goal, one.chosen, made)
                except SuperoptError as error:
                    log.warning("%s: the original function runs for %s: %s", place, one.goal.name, error)
    compiled = None
    if winner in PEERS and winner != EAGER.name and function is not None:
        compiled = PEERS[winner].make(function, [result.inputs], {})
    verdicts = tuple(str(one.chosen.verdict) for one in regions if one.chosen)
    return Optimized(
        function,
        replace(result, regions=regions, verdicts=verdicts),
        traced,
        kernels=kernels,
        options=options,
        compiled=compiled,
    )


def trace_again(
    result: Result, function: Callable[..., Any] | None, place: str, found: Traced | None = None
) -> Traced:
    """Return the program to run: the function's own where it is given, which must be the same one."""
    if function is None:
        return _alone(result, place)
    found = found or trace(function, *result.inputs, name=result.name, live=result.target.torch_device)
    traced = in_same_parts(found, [one.goal for one in result.regions], result.program)
    if traced is None:
        raise InputError(f"{place}: the given function is not the one that this result was made for")
    return traced


def _alone(result: Result, place: str) -> Traced:
    """Return a program that needs no function, or raise InputError."""
    program = result.program
    if program.opaque:
        listed = ", ".join(node.target for node in program.opaque)
        raise InputError(f"{place}: the program calls operators of PyTorch ({listed}); pass function=")
    if result.holds:
        listed = ", ".join(result.holds)
        raise InputError(f"{place}: the function holds tensors of its own ({listed}); pass function=")
    if result.returns is None:
        why = "what the function returns is not a plain structure, or is a view of an input"
        raise InputError(f"{place}: {why}; pass function=")
    names: dict[int, str] = {}
    memory: dict[int, int] = {}

    def leaf(data: Mapping[str, Any]) -> Any:
        if "tensor" not in data:
            return value_of(data)
        if "memory" in data:
            memory[len(names)] = int(data["memory"])
        names[len(names)] = str(data["tensor"])
        return Ref(len(names) - 1)

    try:
        returned = tree_of(result.returns, leaf)
    except (TypeError, KeyError, ValueError, AttributeError) as error:
        raise InputError(f"{place}: it is damaged: {type(error).__name__}: {error}") from error
    made = {port.name for port in program.inputs}
    made |= {name for node in program.nodes for name in node.outputs}
    if missing := [name for name in names.values() if name not in made]:
        raise InputError(f"{place}: it returns {missing[0]!r}, which nothing computes")
    inputs = tuple(port.name for port in program.inputs)
    return Traced(program, {}, inputs, {}, names, returned, eager=result.eager, memory=memory)


def prove_regions(result: Result, place: str, *, most: int) -> list[RegionCandidates]:
    """Return the first candidates of each region that are proven equal to it again, to be raced anew."""
    found = []
    for region in result.regions:
        good: list[Candidate] = []
        for one in region.candidates:
            verdict = prove_by_graph(region.goal, one.graph, one.mugraph, one.once)
            if verdict is None:
                log.warning("%s: %s of %s computes something else", place, one.name, region.goal.name)
            else:
                good.append(replace(one, fate=SCHEDULED, verdict=verdict, measurement=None))
        found.append(RegionCandidates(region.goal, tuple(good[:most]), region.dropped))
    return found


def _proven(region: RegionCandidates, target: Target, place: str) -> RegionCandidates:
    """Return a region whose chosen candidate is proven equal again, its sources written anew."""
    chosen = region.chosen
    if chosen is None:
        return region
    configs = chosen.configs or target.default_configs(chosen.mugraph)
    verdict = prove_by_graph(region.goal, chosen.graph, chosen.mugraph, chosen.once)
    if verdict is None:
        raise InputError(f"{place}: the kernel of {region.goal.name} computes something else than its region")
    try:
        sources = target.sources(chosen.mugraph, configs)
    except (KeyError, IndexError, ValueError, AssertionError) as error:
        raise InputError(f"{place}: a configuration of {chosen.name!r} does not fit its kernel") from error
    fresh = replace(chosen, configs=configs, verdict=verdict, sources=sources)
    return replace(region, candidates=tuple(fresh if one is chosen else one for one in region.candidates))
