"""Compile ahead: kernels for a device that is not here, in the configurations that its compiler likes best.

No kernel runs. The compiler says which kernels fit the device, and which need more registers than there are.
"""

import logging
import time
from collections.abc import Sequence
from dataclasses import replace
from itertools import zip_longest
from typing import Any

from superopt.candidates.candidate import Candidate, as_compiled, total_us
from superopt.candidates.order import ConfigurationOrder, likely
from superopt.funnel.state import Context, fail
from superopt.options import PRESETS
from superopt.targets import KernelReport, Target

__all__ = ["compile_ahead", "ensure_compiled", "worth_compiling"]

log = logging.getLogger("superopt")

_SPARE = 3  # more candidates that are looked at where one of the first spills
_OTHERS = 3  # configurations that are compiled where the best one spills
_ALL = 1 << 16  # more configurations than a kernel has
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
        return ensure_compiled(found, target, state.order, 1)


def ensure_compiled(
    candidates: Sequence[Candidate], target: Target, order: ConfigurationOrder, count: int
) -> list[Candidate]:
    """Return the candidates, the first `count` of which the compiler has seen whole, and without a spill.

    Kernels that no time was left for are compiled; those that spill also in the configurations that come
    next, and in their default one. Candidates whose kernels spill even so come after all others.
    """
    waiting = list(candidates)
    sound: list[Candidate] = []
    spilling: list[Candidate] = []
    tries = count + _SPARE
    while tries and waiting and len(sound) < count:
        some = waiting[: min(count - len(sound), tries)]
        del waiting[: len(some)]
        tries -= len(some)
        for others in (0, _OTHERS):
            some = _seen(some, target, order, others)
        for one in some:
            (sound if one.is_kept and not _unsure(one) else spilling).append(one)
    return [*sound, *sorted([*waiting, *spilling], key=lambda one: (not one.is_kept, one.spills))]


def _seen(
    candidates: list[Candidate], target: Target, order: ConfigurationOrder, others: int
) -> list[Candidate]:
    """Return candidates, each kernel that was not yet compiled, or spills, in the best of a few more ways."""
    jobs = []
    for one in candidates:
        defaults = target.default_configs(one.mugraph) if others else one.configs
        for number in _unsure(one):
            more = likely(one, number, order, others, apart=True) if others else []
            jobs += [(one, number, config) for config in dict.fromkeys((*more, defaults[number]))]
    done = _compiled_jobs(jobs, target, _ASSURED_S) if jobs else {}
    return [done.get(one.id, one) for one in candidates]


def _unsure(candidate: Candidate) -> list[int]:
    """Return the kernels that are no library's and that the compiler has not seen, or has seen spill."""
    if not candidate.is_kept:
        return []
    return [
        number
        for number, config in enumerate(candidate.configs)
        if config is not None and candidate.kernels[number].spill_bytes != 0
    ]


def _compiled(
    candidates: Sequence[Candidate], target: Target, order: ConfigurationOrder, count: int, seconds: float
) -> dict[str, Candidate]:
    """Return candidates with the compiler's word on their kernels, each kernel's best configuration taken."""
    jobs = [
        (candidate, number, config)
        for candidate in candidates
        for number, default in enumerate(target.default_configs(candidate.mugraph))
        if default is not None
        for config in worth_compiling(candidate, number, default, order, count)
    ]
    # Every kernel's first choice before all others: with little time, each has one report.
    jobs.sort(key=lambda job: job[2] != job[0].configs[job[1]])
    return {one.id: one for one in candidates} | _compiled_jobs(jobs, target, seconds)


def worth_compiling(
    candidate: Candidate, number: int, default: Any, order: ConfigurationOrder, count: int
) -> list[Any]:
    """Return the configuration that a kernel has, the default one, and the likeliest others.

    Every second one of the others has the tiles that the kernel has: the model knows least of what warps and
    ways to memory change in the machine code.
    """
    current = candidate.configs[number]
    every = likely(candidate, number, order, _ALL)
    alike = [one for one in every if one.tiles == current.tiles]
    turns = (one for pair in zip_longest(alike[:count], every[:count]) for one in pair if one is not None)
    return list(dict.fromkeys((current, default, *turns)))[:count]


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
        us = float("inf") if report.predicted_us is None else report.predicted_us
        fine.append(((bool(answer.spill_bytes), us), config, report))
    if not fine:
        reasons = [answer for _, answer in tried if isinstance(answer, str)]
        if not reasons or not candidate.is_kept:
            return candidate
        return fail(candidate, "compile", reasons[0])
    _, config, report = min(fine, key=lambda item: item[0])
    configs = (*candidate.configs[:number], config, *candidate.configs[number + 1 :])
    kernels = (*candidate.kernels[:number], report, *candidate.kernels[number + 1 :])
    sources = target.sources(candidate.mugraph, configs)
    return replace(
        candidate, configs=configs, kernels=kernels, sources=sources, predicted_us=total_us(kernels)
    )
