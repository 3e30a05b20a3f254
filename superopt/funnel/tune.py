"""Tune: other configurations of the fastest candidates, one kernel at a time."""

import time
from collections.abc import Iterator, Sequence
from dataclasses import replace

from superopt.candidates.alike import alike_last
from superopt.candidates.candidate import Candidate
from superopt.candidates.order import likely
from superopt.funnel.build import build
from superopt.funnel.predict import predict_times
from superopt.funnel.race import by_time, measure_candidates
from superopt.funnel.state import Context
from superopt.funnel.write import write
from superopt.options import PRESETS

__all__ = ["tune", "worth_tuning"]

# Where predictions are times, no variant is compiled that is predicted this many times slower.
_WORSE = 1.05
_FEWER = 2  # there so many times fewer are tried
_NEAR = 1.25  # kernels of ours gain so much by tuning, a call of a library gains nothing
_HOPELESS = 1.5  # a candidate this many times as slow as what there is to beat is not tuned


def tune(candidates: Sequence[Candidate], context: Context) -> list[Candidate]:
    """Return the candidates, by time, with the configurations of the fastest that were raced."""
    state, limits = context.state, context.state.limits
    preset = PRESETS[state.options.preset]
    deadline = time.monotonic() + min(context.seconds / 2, state.seconds_left)
    ranked = {one.id: one for one in candidates}
    different, _ = alike_last(one for one in candidates if one.is_kept and one.measurement is not None)
    fastest = worth_tuning(different, preset.tuned)
    hopeless = not fastest or fastest[0].us > _HOPELESS * limits.beat_us
    if context.recalled or hopeless or not limits.tune:
        return list(candidates)
    count = preset.configs // (_FEWER if state.target.cost_device().timed else 1)
    for first in fastest:
        base = first
        for number, config in enumerate(first.configs):
            left = deadline - time.monotonic()
            if config is None or left <= 0 or state.interrupted:
                continue
            state.tell(f"tuning kernel {number} of {context.goal.name}, {first.name}")
            with state.clock.phase("tune"):
                known = [one for one in ranked.values() if _differs_in(number, one, base)]
                built = list(_variants(base, known, number, count, context, deadline))
                found = measure_candidates([base, *known, *built], context, max(left / 4, 0.05))
            state.order.keep(context.goal, found, number)
            ranked |= {one.id: one for one in found}
            base = next(one for one in found if one.id in context.kernels)
    return by_time(ranked.values())


def worth_tuning(ranked: Sequence[Candidate], count: int) -> list[Candidate]:
    """Return the fastest of candidates by time, and one without a library's calls that may overtake them."""
    fastest = list(ranked[:count])
    if not fastest or not all(one.library for one in fastest):
        return fastest
    own = (one for one in ranked if not one.library and one.us <= _NEAR * fastest[0].us)
    return [*fastest, *list(own)[:1]]


def _differs_in(number: int, one: Candidate, base: Candidate) -> bool:
    """Say whether a raced candidate differs from another in the configuration of one kernel alone."""
    if one.id == base.id or not one.is_kept or one.measurement is None or one.mugraph != base.mugraph:
        return False
    return one.configs == base.configured(number, one.configs[number]).configs


def _variants(
    base: Candidate, known: Sequence[Candidate], number: int, count: int, context: Context, deadline: float
) -> Iterator[Candidate]:
    """Yield the candidate with other configurations of a kernel than the known, the likeliest first."""
    state = context.state
    roundings = None if context.roundings is None else context.roundings[number]
    had = [one.configs[number] for one in known]
    likeliest = likely(base, number, state.order, count + len(had), roundings=roundings)
    configs = [config for config in likeliest if config not in had][:count]
    variants = [
        predict_times(
            replace(
                base.configured(number, config),
                id=context.new_id(base),
                variant=f"kernel {number} tuned {at}",
            ),
            state.target,
        )
        for at, config in enumerate(configs, 1)
    ]
    if state.target.cost_device().timed and base.predicted_us is not None:
        variants = [one for one in variants if one.us <= _WORSE * base.predicted_us]
    for start in range(0, len(variants), state.builders):
        if time.monotonic() >= deadline or state.interrupted:
            return
        yield from build(write(variants[start : start + state.builders], context), context)
