"""Optimize: search, schedule, and race; the fastest correct program is what comes back.

Every region of a function is searched; the best graphs become candidates, which go through the funnel:
kernels are made, raced against one another, and the whole is checked in floats and raced against PyTorch.
What is slower than PyTorch, or less accurate, or not finite where PyTorch is, is never returned: then PyTorch
is. For a device that is not here, a plan comes back: kernels compiled ahead of time, by predicted times.
"""

import json
import logging
from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal

import torch

from superopt.cache import Cache, versions
from superopt.candidates.candidate import Candidate, RegionCandidates
from superopt.candidates.floors import add_floors, is_too_fast, program_floor_us
from superopt.candidates.plan_cache import PlanCache
from superopt.candidates.schedules import schedules
from superopt.candidates.search_cache import keep_search, recall_search
from superopt.clock import Clock
from superopt.driver import Search, search
from superopt.errors import InputError
from superopt.funnel import Limits, State, run_regions
from superopt.funnel.assembly import assemble, in_parts
from superopt.funnel.race import copies_for
from superopt.funnel.warm_up import WarmUp
from superopt.ir import Program
from superopt.live.arguments import without_data
from superopt.live.optimized import Optimized
from superopt.live.recalled import ResultCache
from superopt.live.saved import prove_regions, trace_again
from superopt.options import OptimizeOptions
from superopt.result.codec import read_result, returned
from superopt.result.result import OpenAxes, Result
from superopt.rivals.ahead import Ahead
from superopt.rivals.final import FinalRace, copies_of, final_race, withdraw
from superopt.rivals.rivals import EAGER, Function, products_of
from superopt.schedule import Room
from superopt.targets import Target, pick_target
from superopt.trace import trace
from superopt.trace.traced import Traced
from superopt.tune import confirm
from superopt.tune.measure import Times, bytes_of, times_together
from superopt.tune.random_numbers import same_random_numbers
from superopt.verify.floats.compare import tensors_of
from superopt.weights.kept import keep_only
from superopt.workloads import WORKLOADS

__all__ = [
    "Candidate",
    "OptimizeOptions",
    "Optimized",
    "RegionCandidates",
    "candidates_of",
    "optimize",
    "tune",
]

log = logging.getLogger("superopt")

Tell = Callable[[str], None]

_SURELY_COLD = 2  # inputs of this many times the last cache, read in turns, find nothing of themselves there
# A call of ours takes a microsecond or two more than its races count, since it looks at modes and at what the
# function reads, and more yet where another program has used the caches. Only times below this show that;
# programs of so few are raced as they are called.
_SHORT_US, _CALLED_S, _CALLED_COPIES = 100.0, 0.4, 3
_TUNED = {"quick": 8, "full": 32}  # candidates of a region in a file, the best predicted or measured before


@same_random_numbers()
def optimize(
    function: Callable[..., Any],
    *inputs: Any,
    name: str | None = None,
    options: OptimizeOptions | None = None,
    on_progress: Tell | None = None,
    source: Mapping[str, Any] | None = None,
    traced: Traced | None = None,
) -> Optimized:
    """Return the fastest correct program for a function on inputs like these.

    Tensors on the meta device stand for normal random data of their shape. `source` says where the
    function comes from, for the result file. `traced` is the function as `trace` made it of such inputs.
    """
    options = options or OptimizeOptions()
    options.check()
    _check_source(source)
    target = target_for(options, inputs)
    tell, clock = on_progress or _silent, Clock()
    tell("tracing and searching")
    with clock.phase("trace"):
        traced = traced or trace(function, *inputs, name=name, live=target.torch_device)
    plans = PlanCache(options, target)
    results = ResultCache(plans.cache, traced, inputs, options, target)
    if options.recall and (known := results.recall(function, traced, source)) is not None:
        return known
    searched: Search | None = None
    with clock.phase("recall"):
        regions = plans.recall(traced.program)
    with WarmUp() as warm_up:
        if options.measure and target.available:
            _start_early(warm_up, traced.program, inputs, target, options)
        if regions is None:
            regions, searched = candidates_of(traced.program, target, options, clock, plans.cache)
        best = race(
            function,
            traced,
            regions,
            inputs,
            target,
            options,
            clock=clock,
            tell=tell,
            source=source,
            search=searched,
            warm_up=warm_up,
        )
    if not best.interrupted:
        plans.keep(traced.program, best.regions)
        results.keep(best)
    return best


def _check_source(source: Any) -> None:
    """Refuse what a result file cannot say of where a function comes from, before the work is done."""
    try:
        json.dumps(None if source is None else dict(source), allow_nan=False)
    except (TypeError, ValueError) as error:
        raise InputError(f"source is {source!r}; give a dict of text and numbers") from error


def _start_early(
    warm_up: WarmUp, program: Program, inputs: tuple[Any, ...], target: Target, options: OptimizeOptions
) -> None:
    """Start what all candidates need before there are any; on a GPU other programs have its memory."""
    if target.torch_device == "cpu" and options.guarded:
        if products_of(program):
            warm_up.share(target, tensors_of(inputs))
        warm_up.first_runs(target, options.limit_seconds)


def candidates_of(
    program: Program,
    target: Target,
    options: OptimizeOptions,
    clock: Clock,
    cache: Cache | None = None,
    late: Callable[[], bool] = lambda: False,
    room: Room | None = None,
) -> tuple[list[RegionCandidates], Search | None]:
    """Return the ways to run every region, ranked by cost, and the search unless an earlier one found them.

    An earlier search may have been for another target, or with other options; it comes from `cache`.
    No more ways than necessary are tried once it is `late`. A program of one region may have limited `room`.
    """
    with clock.phase("recall"):
        goals = recall_search(cache, program, options.searching) if cache else None
    found = None
    if goals is None:
        with clock.phase("search"):
            found = search(program, options=options.searching)
            goals = [(one.goal, one.found) for one in found.regions]
        if cache:
            keep_search(cache, found, options.searching)
    with clock.phase("schedule"):
        entering = {port.name for port in program.inputs}
        most, weights = options.graphs, options.weights
        rooms = room.of_parts([goal for goal, _ in goals], program.outputs) if room else [None] * len(goals)
        ways = [
            schedules(
                goal, graphs, target, graphs=most, weights=weights, entering=entering, late=late, room=beside
            )
            for (goal, graphs), beside in zip(goals, rooms, strict=True)
        ]
        return ways, found


def race(
    function: Callable[..., Any] | None,
    traced: Traced,
    regions: Sequence[RegionCandidates],
    inputs: tuple[Any, ...],
    target: Target,
    options: OptimizeOptions,
    *,
    clock: Clock,
    tell: Tell,
    source: Mapping[str, Any] | None = None,
    search: Search | None = None,
    open_axes: OpenAxes | None = None,
    warm_up: WarmUp | None = None,
) -> Optimized:
    """Return the program that comes of candidates for each region: what passes the funnel races PyTorch."""
    traced = in_parts(traced, [one.goal for one in regions])
    limits = Limits(seconds=options.seconds / 2)  # the other half is for the last race
    stopped = search is not None and search.interrupted
    original = function or assemble(traced, {})
    state = State(
        original, traced, inputs, target, options, limits, clock=clock, tell=tell, interrupted=stopped
    )
    if stopped and state.measures:
        log.warning("interrupted: nothing was compiled yet, so PyTorch's own program is what comes back")
    if warm_up is not None and target.torch_device == "cpu" and options.guarded and state.measures:
        state.first_runs = warm_up.first_runs(target, options.limit_seconds)
    regions, last = _run_all_races(state, regions, known=function is not None)
    best = _make_program(function, state, regions, last, inputs, source, search, open_axes)
    if last is not None and not state.interrupted:
        best = race_as_called(best, last, state)
    if best.winner != "superopt":
        keep_only((), state.kernels.values())
    return best


def _run_all_races(
    state: State, regions: Sequence[RegionCandidates], *, known: bool
) -> tuple[list[RegionCandidates], FinalRace | None]:
    """Return regions as the funnel leaves them, and the last race; None where the device is not here.

    `known` says whether the function is the original, not the program as it was traced.
    """
    if not state.measures:
        return run_regions(regions, state), None
    with Ahead(known=known) if state.options.torch_compile else nullcontext() as ahead:
        state.meanwhile = ahead
        regions = run_regions(regions, state)
        return regions, final_race(state, regions, known=known, made=ahead.rivals if ahead else None)


def race_as_called(best: Optimized, last: FinalRace, state: State) -> Optimized:
    """Return a program, or PyTorch's where kernels win by less than it takes to call them on a CPU.

    Both are called as a user calls them: with gradients on where nothing wants any, and between calls of
    other programs, which leave in the caches what is theirs.
    """
    rival, ours = last.best_rival, last.measurements.get("superopt")
    if best.winner != "superopt" or best.function is None or state.target.torch_device != "cpu":
        return best
    if ours is None or ours.median_us > _SHORT_US:
        return best
    pair: dict[str, Function] = {"superopt": best, rival: last.contenders[rival]}
    others = {name: torch.no_grad()(one) for name, one in last.contenders.items() if name not in pair}

    def among_others(
        pair: Mapping[str, Function], copies: Sequence[tuple[Any, ...]], *, seconds: float
    ) -> dict[str, Times]:
        times = times_together({**pair, **others}, copies, seconds=seconds)
        return {name: times[name] for name in pair}

    # PyTorch's compiled programs are compiled anew in a mode that they have not seen. Where weights want
    # gradients, PyTorch computes while these are on: there is nothing to race.
    enabled = rival == EAGER.name and not best.wants_gradients(tensors_of(state.typical))
    with torch.set_grad_enabled(enabled), state.clock.phase("race"), state.stoppable():
        copies = copies_of(state)[:_CALLED_COPIES]
        raced = confirm(pair, "superopt", rival, copies, seconds=_CALLED_S, level=1.0, times=among_others)
        if raced.winner == rival:
            measured = {**best.measurements, **raced.measurements}
            result = replace(best.result, winner=rival, measurements=measured, ratio=None, interval=None)
            return Optimized(
                best.function,
                result,
                best.traced,
                kernels=state.kernels,
                options=best.options,
                compiled=last.contenders[rival],
                search=best.search,
            )
    return best


def _add_floors(
    state: State, regions: Sequence[RegionCandidates], last: FinalRace | None
) -> tuple[tuple[RegionCandidates, ...], str]:
    """Return regions with their floors, or without them and with the reason if a time is below them."""
    times = [one.median_us for one in last.measurements.values()] if last else []
    cold = not (last and _may_be_cached(state))
    for again in (False, True):
        found = add_floors(state.target, regions, cold=cold)
        floor = program_floor_us(state.traced.program, {one.goal.name: one.floor_us for one in found})
        if not times or not is_too_fast(min(times), floor):
            return found, ""
        if not again:  # the rates of the device may be of a moment when it was busy
            state.target.renew()
    assert floor is not None
    doubt = (
        f"{min(times):.1f} µs are less than the {floor:.1f} µs that its bytes and arithmetic take at least on"
        " this machine: one of the two is wrong"
    )
    log.warning("%s: %s, and no floor is shown", state.traced.program.name, doubt)
    return tuple(replace(one, floor_us=None) for one in regions), doubt


def _may_be_cached(state: State) -> bool:
    """Whether a cache may hold all inputs of the race, as it may for a program that is called in a loop."""
    if state.target.clears_caches:
        return False
    tensors = tensors_of(state.typical)
    return bytes_of(tensors) * copies_for(tensors) < _SURELY_COLD * state.target.cost_device().l2_bytes


def _make_program(
    function: Callable[..., Any] | None,
    state: State,
    regions: Sequence[RegionCandidates],
    last: FinalRace | None,
    inputs: tuple[Any, ...],
    source: Mapping[str, Any] | None,
    search: Search | None,
    open_axes: OpenAxes | None,
) -> Optimized:
    """Return what came of the races as a program, or a plan where there was none."""
    kernels, floats = state.kernels, state.floats
    if last is not None and last.fault:
        regions, kernels, floats = [withdraw(one, last.fault) for one in regions], {}, None
    found, doubt = _add_floors(state, regions, last)
    won = last.confirmed if last else None
    result = Result(
        state.traced.program,
        state.target,
        without_data(inputs),
        found,
        state.options.seed,
        last.winner if last else None,
        measurements=last.measurements if last else {},
        floats=floats,
        device=state.target.device_name if last else None,
        source=source,
        returns=returned(state.traced),
        holds=tuple(sorted(state.traced.constants)),
        open_axes=open_axes,
        verdicts=tuple(str(one.chosen.verdict) for one in found if one.chosen),
        phases_ms=state.clock.ms,
        ranked_by=state.order.used if last else None,
        versions=versions(),
        interrupted=state.interrupted,
        stood_in=last is not None and function is None,
        ratio=won.speed_of("superopt") if won else None,
        interval=won.interval if won and won.winner == "superopt" else None,
        unsettled=last.unsettled if last else "",
        doubt=doubt,
        eager=state.traced.eager,
    )
    compiled = last.contenders.get(last.winner) if last and function else None
    return Optimized(
        function,
        result,
        state.traced,
        kernels=kernels,
        options=state.options,
        compiled=compiled,
        search=search,
    )


@same_random_numbers()
def tune(
    path: str | Path,
    function: Callable[..., Any] | None = None,
    *,
    seconds: float = 20.0,
    preset: Literal["quick", "full"] = "quick",
    torch_compile: bool = True,
    cache: bool = True,
    on_progress: Tell | None = None,
) -> Optimized:
    """Return the measured program of a result file: its candidates raced anew; nothing is searched.

    The race is against `function`, or the named workload that the file says it comes from, or else a
    stand-in: the program as it was traced, computed by PyTorch in the dtypes of its tensors, which the result
    says. What is measured is kept in the cache, to rank by.
    """
    tell, clock, place = on_progress or _silent, Clock(), str(path)
    with clock.phase("read"):
        result = read_result(path)
    if not result.target.available:
        raise InputError(f"{path}: it was made for {result.target.name}, which is not on this machine")
    options = OptimizeOptions(
        target=result.target.name,
        seed=result.seed,
        seconds=seconds,
        preset=preset,
        torch_compile=torch_compile,
        cache=cache,
    )
    options.check()
    function = function or _workload(result)
    if function is None:
        tell("the original is not known: racing against a stand-in, the program as it was traced")
    with clock.phase("verify"):
        traced = trace_again(result, function, place)
        regions = prove_regions(result, place, most=_TUNED[preset])
    return race(
        function,
        traced,
        regions,
        result.inputs,
        result.target,
        options,
        clock=clock,
        tell=tell,
        source=result.source,
        open_axes=result.open_axes,
    )


def _workload(result: Result) -> Callable[..., Any] | None:
    """Return the named workload that a result says it comes from: the only code that a file may name."""
    name = result.source.get("workload") if isinstance(result.source, dict) else None
    return WORKLOADS[name].function if isinstance(name, str) and name in WORKLOADS else None


def target_for(options: OptimizeOptions, inputs: tuple[Any, ...]) -> Target:
    """Return the target that options name; "auto" is where the inputs are."""
    if options.target == "auto":
        places = {tensor.device.type for tensor in tensors_of(inputs)} - {"meta"}
        if places == {"cpu"}:
            return pick_target("cpu")
    return pick_target(options.target)


def _silent(message: str) -> None:
    """Show no progress."""
