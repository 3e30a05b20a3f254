"""Compile ahead: kernels for a device that is not here, in the configurations that its compiler likes best.

No kernel runs. The compiler says which kernels fit the device, and which need more registers than there are.
"""

import logging
import time
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from superopt.candidates.candidate import Candidate, as_compiled, total_us
from superopt.candidates.order import ConfigurationOrder, likely
from superopt.funnel.state import Context, failed
from superopt.options import PRESETS
from superopt.targets import KernelReport, Target

__all__ = ["compile_ahead"]

log = logging.getLogger("superopt")

_TRIED = 4  # candidates that are tried in search of one without a spill
_ASSURED_S = 120.0  # the most seconds that compiling one of these candidates may take


def compile_ahead(candidates: Sequence[Candidate], context: Context) -> list[Candidate]:
    """Compile the candidates with the least predicted times; candidates with the best kernels come first."""
    if context.recalled:  # recalled candidates keep the order that they had
        return list(candidates)
    state, target = context.state, context.state.target
    preset = PRESETS[state.options.preset]
    found = sorted(candidates, key=lambda one: (not one.is_kept, one.us))
    with state.clock.phase("compile"):
        best = [one for one in found if one.is_kept][: preset.compiled]
        state.tell(f"compiling kernels of {context.goal.name} for {target.name}")
        seconds = preset.compile_seconds * context.share
        compiled = _compiled(best, target, state.order, preset.compiled_configs, seconds)
        found = [compiled.get(one.id, one) for one in found]
        found.sort(key=lambda one: (not one.is_kept, one.id not in compiled, one.spills, one.us))
        return _assured(found, target)


def _assured(candidates: list[Candidate], target: Target) -> list[Candidate]:
    """Return the candidates; of the first the compiler has seen all kernels, if possible without a spill.

    Kernels of the best few candidates that spill, or were not compiled in time, are compiled in their default
    configurations, too.
    """
    for at, one in enumerate(candidates[:_TRIED]):
        unsure = [number for number in range(len(one.configs)) if not _is_sound(one, number)]
        if one.is_kept and unsure:
            defaults = target.default_configs(one.mugraph)
            jobs = [
                (one, number, config)
                for number in unsure
                for config in dict.fromkeys((defaults[number], one.configs[number]))
            ]
            one = candidates[at] = _compiled_jobs(jobs, target, _ASSURED_S)[one.id]
        if one.is_kept and all(_is_sound(one, number) for number in range(len(one.configs))):
            return [one, *candidates[:at], *candidates[at + 1 :]]
    return sorted(candidates, key=lambda one: not one.is_kept)


def _is_sound(candidate: Candidate, number: int) -> bool:
    """Return whether a kernel is a library's, or compiled without a spill."""
    return candidate.configs[number] is None or candidate.kernels[number].spill_bytes == 0


def _compiled(
    candidates: Sequence[Candidate], target: Target, order: ConfigurationOrder, count: int, seconds: float
) -> dict[str, Candidate]:
    """Return candidates with the compiler's word on their kernels, each kernel's best configuration taken."""
    jobs = [
        (candidate, number, config)
        for candidate in candidates
        for number, default in enumerate(target.default_configs(candidate.mugraph))
        if default is not None
        for config in _worth_compiling(candidate, number, default, order, count)
    ]
    # Every kernel's first choice before all others: with little time, each has one report.
    jobs.sort(key=lambda job: job[2] != job[0].configs[job[1]])
    return {one.id: one for one in candidates} | _compiled_jobs(jobs, target, seconds)


def _worth_compiling(
    candidate: Candidate, number: int, default: Any, order: ConfigurationOrder, count: int
) -> list[Any]:
    """Return the configuration that a kernel has, the default one, and the likeliest others."""
    found = dict.fromkeys((candidate.configs[number], default))
    return list(dict.fromkeys((*found, *likely(candidate, number, order, count))))[:count]


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
            tried.setdefault((candidate.id, number), []).append((config, answers[at]))
    done = {candidate.id: candidate for candidate, _, _ in jobs}
    for (id, number), found in tried.items():
        done[id] = _decided(done[id], number, found, target)
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
        if not reasons or not candidate.is_kept:
            return candidate
        return failed(candidate, "compile", reasons[0])
    _, config, report = min(fine, key=lambda item: item[0])
    configs = (*candidate.configs[:number], config, *candidate.configs[number + 1 :])
    kernels = (*candidate.kernels[:number], report, *candidate.kernels[number + 1 :])
    sources = target.sources(candidate.mugraph, configs)
    return replace(
        candidate, configs=configs, kernels=kernels, sources=sources, predicted_us=total_us(kernels)
    )
