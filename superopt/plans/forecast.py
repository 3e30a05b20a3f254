"""Forecast: a plan for a device that is not here: kernels written, compiled ahead of time, and predicted."""

import logging
import time
from collections.abc import Callable, Collection, Sequence
from dataclasses import replace
from typing import Any

from superopt.clock import Clock
from superopt.errors import SuperoptError
from superopt.plans.plan import (
    PRESETS,
    Candidate,
    OptimizeOptions,
    RegionPlan,
    Work,
    as_compiled,
    spills,
    total_us,
)
from superopt.plans.ranking import Ranking, as_predicted, likely
from superopt.plans.rehearsal import rehearsed
from superopt.targets import KernelReport, Target

__all__ = ["forecast"]

log = logging.getLogger("superopt")

_COMPILED = {"quick": 3, "full": 8}  # muGraphs of a region
_TRIED = 4  # candidates that are looked at for one that does not spill
_ASSURED_S = 120.0  # of compiling each of them, at most
_CONFIGS = {"quick": 2, "full": 8}  # of each of their kernels, the one predicted to be best among them


def forecast(
    work: Sequence[Work],
    target: Target,
    options: OptimizeOptions,
    clock: Clock,
    tell: Callable[[str], None],
    entering: Collection[str] = (),
) -> list[RegionPlan]:
    """Return a plan for each region, its candidates by predicted time; no kernel is run.

    Regions that read nothing but the `entering` tensors are rehearsed: their graphs run in floats.
    """
    seconds = PRESETS[options.preset].compile_seconds / max(len(work), 1)
    return [_region(one, target, options, clock, tell, seconds, entering) for one in work]


def _region(
    work: Work,
    target: Target,
    options: OptimizeOptions,
    clock: Clock,
    tell: Callable[[str], None],
    seconds: float,
    entering: Collection[str],
) -> RegionPlan:
    with clock.phase("emit"):
        candidates = [_written(one, target) for one in work.candidates]
    if not work.recalled:  # else they are in the order that they had
        with clock.phase("floats"):
            candidates = rehearsed(work.goal, candidates, entering, seed=options.seed)
        with clock.phase("predict"):
            ranking = Ranking(target)
            candidates = _as_predicted(candidates, 2 * _COMPILED[options.preset], target, ranking)
        candidates.sort(key=_place)
        with clock.phase("compile"):
            best = [one for one in candidates if one.rejected is None][: _COMPILED[options.preset]]
            tell(f"compiling kernels of {work.goal.name} for {target.name}")
            compiled = _compiled(best, target, ranking, _CONFIGS[options.preset], seconds)
        candidates = [compiled.get(one.name, one) for one in candidates]
        candidates.sort(
            key=lambda one: (one.rejected is not None, one.name not in compiled, spills(one), one.us)
        )
        with clock.phase("compile"):
            candidates = _assured(candidates, target)
    chosen = next((one for one in candidates if one.rejected is None), None)
    return RegionPlan(work.goal, tuple(candidates), chosen, work.dropped)


def _as_predicted(
    candidates: Sequence[Candidate], count: int, target: Target, ranking: Ranking
) -> list[Candidate]:
    """Return the candidates, the likeliest in the configurations that are predicted to be best."""
    first = [
        one
        if one.rejected is not None
        else _written(replace(as_predicted(one, target, ranking), kernels=()), target)
        for one in candidates[:count]
    ]
    return [*first, *candidates[count:]]


def _assured(candidates: list[Candidate], target: Target) -> list[Candidate]:
    """Return the candidates, the first of which the compiler has seen whole, and without a spill if it can.

    Of the best few, kernels that spill or that no time was left for are compiled in their default
    configurations, too.
    """
    for at, one in enumerate(candidates[:_TRIED]):
        unsure = [number for number in range(len(one.configs)) if not _is_sound(one, number)]
        if one.rejected is None and unsure:
            defaults = target.default_configs(one.mugraph)
            jobs = [
                (one, number, config)
                for number in unsure
                for config in dict.fromkeys((defaults[number], one.configs[number]))
            ]
            one = candidates[at] = _compiled_jobs(jobs, target, _ASSURED_S)[one.name]
        if one.rejected is None and all(_is_sound(one, number) for number in range(len(one.configs))):
            return [one, *candidates[:at], *candidates[at + 1 :]]
    return sorted(candidates, key=lambda one: one.rejected is not None)


def _is_sound(candidate: Candidate, number: int) -> bool:
    """Return whether a kernel is a library's, or compiled without a spill."""
    return candidate.configs[number] is None or candidate.kernels[number].spill_bytes == 0


def _place(candidate: Candidate) -> tuple[bool, float]:
    return candidate.rejected is not None, candidate.us


def _written(candidate: Candidate, target: Target) -> Candidate:
    """Return a candidate with its configurations, sources and predictions, or rejected."""
    mugraph = candidate.mugraph
    try:
        configs = candidate.configs or target.default_configs(mugraph)
        sources = target.sources(mugraph, configs)
    except SuperoptError as error:
        return replace(candidate, rejected=str(error).splitlines()[0])
    kernels = candidate.kernels or target.reports(mugraph, configs)
    return replace(
        candidate, configs=configs, sources=sources, kernels=kernels, predicted_us=total_us(kernels)
    )


def _compiled(
    candidates: Sequence[Candidate], target: Target, ranking: Ranking, count: int, seconds: float
) -> dict[str, Candidate]:
    """Return candidates with the compiler's word on their kernels, each kernel's best configuration taken."""
    jobs = [
        (candidate, number, config)
        for candidate in candidates
        for number, default in enumerate(target.default_configs(candidate.mugraph))
        if default is not None
        for config in _worth_compiling(candidate, number, default, ranking, count)
    ]
    # Every kernel's first choice before all others: with little time, each has one report.
    jobs.sort(key=lambda job: job[2] != job[0].configs[job[1]])
    return {one.name: one for one in candidates} | _compiled_jobs(jobs, target, seconds)


def _worth_compiling(
    candidate: Candidate, number: int, default: Any, ranking: Ranking, count: int
) -> list[Any]:
    """Return the configuration that a kernel has, the default one, and the likeliest others."""
    found = dict.fromkeys((candidate.configs[number], default))
    return list(dict.fromkeys((*found, *likely(candidate, number, ranking, count))))[:count]


def _compiled_jobs(
    jobs: Sequence[tuple[Candidate, int, Any]], target: Target, seconds: float
) -> dict[str, Candidate]:
    """Return the candidates of some kernels in some configurations, each kernel in the best of its own."""
    answers: dict[int, KernelReport | str] = {}
    start = time.monotonic()
    target.compile_ahead(
        [(candidate.mugraph, number, config) for candidate, number, config in jobs],
        seconds=seconds,
        on_done=answers.__setitem__,
    )
    log.info("compiled %d kernels in %.1f s", len(answers), time.monotonic() - start)
    tried: dict[tuple[str, int], list[tuple[object, KernelReport | str]]] = {}
    for at, (candidate, number, config) in enumerate(jobs):
        if at in answers:
            tried.setdefault((candidate.name, number), []).append((config, answers[at]))
    done = {candidate.name: candidate for candidate, _, _ in jobs}
    for (name, number), found in tried.items():
        done[name] = _decided(done[name], number, found, target)
    return done


def _decided(
    candidate: Candidate, number: int, tried: Sequence[tuple[object, KernelReport | str]], target: Target
) -> Candidate:
    """Return a candidate with the best of the configurations tried for one kernel."""
    fine: list[tuple[tuple[bool, float], object, KernelReport]] = []
    for config, answer in tried:
        if isinstance(answer, str):
            continue
        configs = (*candidate.configs[:number], config, *candidate.configs[number + 1 :])
        guess = target.reports(candidate.mugraph, configs)[number]
        report = as_compiled(guess, answer)
        us = float("inf") if guess.predicted_us is None else guess.predicted_us
        fine.append(((bool(answer.spill_bytes), us), config, report))
    if not fine:
        reasons = [answer for _, answer in tried if isinstance(answer, str)]
        return replace(candidate, rejected=candidate.rejected or reasons[0]) if reasons else candidate
    _, config, report = min(fine, key=lambda item: item[0])
    configs = (*candidate.configs[:number], config, *candidate.configs[number + 1 :])
    kernels = (*candidate.kernels[:number], report, *candidate.kernels[number + 1 :])
    sources = target.sources(candidate.mugraph, configs)
    return replace(
        candidate, configs=configs, kernels=kernels, sources=sources, predicted_us=total_us(kernels)
    )
