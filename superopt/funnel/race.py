"""Race: the kernels of one region against one another, by rounds that halve the field."""

import logging
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from torch import Tensor

from superopt.candidates.candidate import Candidate
from superopt.candidates.floors import is_too_fast, least_us
from superopt.fate import Kind
from superopt.funnel.state import LOST, Context, fail
from superopt.ir import Graph
from superopt.targets import Kernel, OrderedKernel, Target
from superopt.tune import Measurement, confirm, measure_together
from superopt.tune.halving import halve
from superopt.tune.measure import HeadToHead, bytes_of
from superopt.verify.floats.memory import laid_out, lying_apart
from superopt.weights.kept import KeptKernel, made_once

__all__ = ["by_time", "copies_for", "favor_live", "measure_candidates", "race"]

log = logging.getLogger("superopt")

_COPY_BYTES = 96 << 20  # inputs are copied until they are more than caches hold
_MOST_COPIES = 16
_TOGETHER = 6  # candidates measured in turns
_HALVED = 0.6  # share of the time before the last few are compared
_LEFT = 3  # candidates that are compared at last
_LEAST_ROUNDS = 3
_AGAINST_LIVE_S = 0.5  # the most seconds of the race between what keeps tensors of weights and what does not
_GAIN = 1.02  # how much faster the former must be
_LAST_ROUNDS, _LAST_S = 100, 1.5  # more rounds, or seconds, rarely change which of them is the fastest


def race(candidates: Sequence[Candidate], context: Context) -> list[Candidate]:
    """Measure all candidates that have a kernel, and note the times for later runs to learn from."""
    found = measure_candidates(candidates, context, context.seconds / 2)
    context.state.order.keep(context.goal, [one for one in found if len(one.configs) == 1], 0)
    return found


def measure_candidates(candidates: Sequence[Candidate], context: Context, seconds: float) -> list[Candidate]:
    """Return candidates with their times, the fastest first; a time that cannot be right refuses one."""
    state, goal = context.state, context.goal
    running = {one.id: one for one in candidates if one.is_kept and one.id in context.kernels}
    if running:
        state.tell(f"racing {len(running)} kernel{'s' if len(running) > 1 else ''} of {goal.name}")
    with state.clock.phase("race"):
        found, fates = _times(running, context, min(seconds, max(state.deadline - time.monotonic(), 0.0)))
    ranked = []
    for one in candidates:
        timing = found.get(one.id)
        floor = _least_us(state.target, goal, one.run) if timing is not None else None
        if timing is not None and is_too_fast(timing.median_us, floor):
            said = f"{timing.median_us:.2f} µs, but its data takes {floor:.2f} µs"
            one = fail(one, "race", said, Kind.REFUSED)
        elif timing is not None:
            one = replace(one, measurement=timing)
        elif one.is_kept and one.measurement is None:
            one = one.ended("race", *fates.get(one.id, (Kind.NO_TIME, "not measured")))
        ranked.append(one)
    return by_time(ranked)


def _times(
    candidates: Mapping[str, Candidate], context: Context, seconds: float
) -> tuple[dict[str, Measurement], dict[str, tuple[Kind, str]]]:
    """Return the times of candidates by id, the best once more in turns, and why others have none."""
    state = context.state
    deadline = time.monotonic() + seconds
    runs, copies = _runs(candidates, context)

    def measure(ids: tuple[str, ...], repeats: int) -> dict[str, Measurement]:
        left = max(deadline - time.monotonic(), 0.0)
        chosen = {id: runs[id] for id in ids}
        least = min(repeats, _LEAST_ROUNDS)
        return measure_together(
            chosen, copies, seconds=left, least_rounds=least, most_rounds=repeats, times=state.target.times
        )

    def on_best(id: str, timing: Measurement) -> None:
        if timing.median_us < context.best_us:  # a kernel measured again may have become slower
            context.best_us = timing.median_us
            state.tell(f"best so far {timing.median_us:.1f} µs: {candidates[id].name}")

    guesses = {
        id: one.us if one.us < float("inf") else float(at) for at, (id, one) in enumerate(candidates.items())
    }
    # Candidates whose kernels spill come after all others.
    if not all(one.spills for one in candidates.values()):
        guesses |= {id: float("inf") for id, one in candidates.items() if one.spills}
    halved = halve(
        guesses,
        measure,
        seconds=seconds * _HALVED,
        seed=state.options.seed,
        batch=_TOGETHER,
        on_best=on_best,
    )
    found = {one.trial: one.measurement for one in halved.standings}
    if halved.ended == "device lost":
        state.lost = True
        state.stop(LOST)
    elif halved.interrupted:
        state.stop()
    elif len(found) > 1:
        last = tuple(one.trial for one in halved.standings[:_LEFT])
        try:
            deadline = min(deadline, time.monotonic() + _LAST_S)
            found |= measure(last, _LAST_ROUNDS)
        except Exception as error:  # earlier measurements stay valid
            names = ", ".join(candidates[id].name for id in last)
            log.warning("the last of %s are not compared again: %s", names, state.fault(error))
            if state.lost:
                state.stop(LOST)
    late = dict.fromkeys(halved.untried, (Kind.NO_TIME, f"not tried: {halved.ended}"))
    return found, late | {id: (Kind.FAILED, why) for id, why in halved.failed.items()}


def favor_live(candidates: Sequence[Candidate], context: Context) -> list[Candidate]:
    """Put the fastest candidate that keeps nothing of weights before those that are not surely faster.

    What is kept takes memory, and each call asks whether it still holds: chance must not decide for it.
    """
    state = context.state
    ranked = [one for one in candidates if one.is_kept and one.id in context.kernels and one.measurement]
    live = next((one for one in ranked if not one.once), None)
    if live is None or ranked[0] is live or state.interrupted:
        return list(candidates)
    with state.clock.phase("race"):
        left = max(state.deadline - time.monotonic(), 0.0)
        raced = _head_to_head(ranked[0], live, context, min(_AGAINST_LIVE_S, left))
    state.unclear |= not raced.is_steady
    if raced.sure and raced.speed_of(ranked[0].id) >= _GAIN:
        return list(candidates)
    return [live, *(one for one in candidates if one is not live)]


def _head_to_head(first: Candidate, second: Candidate, context: Context, seconds: float) -> HeadToHead:
    runs, copies = _runs((first.id, second.id), context)
    return confirm(
        runs,
        first.id,
        second.id,
        copies,
        seconds=seconds,
        level=_GAIN,
        times=context.state.target.times,
    )


def _runs(
    ids: Iterable[str], context: Context
) -> tuple[dict[str, Callable[..., Any]], list[tuple[Tensor, ...]]]:
    """Return kernels by id as functions of the same tensors, and copies of these tensors.

    A kernel is timed without the tensors that it keeps: they are inputs like others, in copies like others.
    """
    tensors, kernels = context.tensors, {id: context.kernels[id] for id in ids}
    kept = {id: _kept(kernel, tensors) for id, kernel in kernels.items()}
    known = tensors | {f"{id} {name}": one for id, found in kept.items() for name, one in found.items()}
    copies = _cloned(tuple(known.values()), copies_for(tuple(tensors.values())))
    return {id: _called(kernel, tuple(known), id) for id, kernel in kernels.items()}, copies


def _least_us(target: Target, goal: Graph, graph: Graph) -> float | None:
    """Return the least time of a candidate, where no cache can make it shorter."""
    return least_us(target, (goal, graph), kept=True) if target.clears_caches else None


def _kept(kernel: Kernel, tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Return what a kernel reads that is made of weights."""
    if not isinstance(kernel, KeptKernel):
        return {}
    found = made_once(kernel.kept.once, tensors)
    return dict(zip(kernel.kept.names, found, strict=True))


def _called(kernel: Kernel, names: tuple[str, ...], id: str) -> Callable[..., Any]:
    """Return a kernel as a function of tensors, in the order of the input names `names`."""
    if isinstance(kernel, KeptKernel):
        places = [names.index(one if one in names else f"{id} {one}") for one in kernel.reads]
        inner = kernel.kernel
        return lambda *tensors: inner.in_order([tensors[at] for at in places])
    if isinstance(kernel, OrderedKernel):
        places = [names.index(one) for one in kernel.inputs]
        return lambda *tensors: kernel.in_order([tensors[at] for at in places])
    return lambda *tensors: kernel(**dict(zip(names, tensors, strict=True)))


def by_time(candidates: Iterable[Candidate]) -> list[Candidate]:
    """Return the measured candidates, the fastest first, and then the others."""
    return sorted(candidates, key=lambda one: one.measurement.median_us if one.measurement else float("inf"))


def copies_for(tensors: Sequence[Tensor]) -> int:
    """Return how many copies of tensors are more than caches hold."""
    return max(2, min(_MOST_COPIES, _COPY_BYTES // max(bytes_of(tensors), 1)))


def _cloned(tensors: tuple[Tensor, ...], count: int) -> list[tuple[Tensor, ...]]:
    """Return so many copies of tensors with their strides."""

    def clone(tensor: Tensor) -> Tensor:
        return laid_out(lying_apart(tensor).clone(), tensor)

    return [tensors] + [tuple(map(clone, tensors)) for _ in range(count - 1)]
