"""Predict: every candidate's time by the cost model, in its default configurations and in the likeliest ones.

Where kernels run, the configurations that are predicted to be much better than the defaults race beside
them; elsewhere they take their place. Of many candidates the likeliest go on.
"""

from collections.abc import Sequence
from dataclasses import replace
from math import inf

from superopt.candidates.candidate import Candidate, total_us
from superopt.candidates.order import in_likeliest_configurations
from superopt.errors import SuperoptError
from superopt.fate import Kind
from superopt.funnel.state import Context, fail
from superopt.options import PRESETS
from superopt.targets import Target

__all__ = ["predict", "predict_times"]

_GUESSES = 4  # candidates that also race in the configurations predicted to be best,
_GUESSES_TIMED = 2  # where estimates are times
_NEAR = 1.2  # a candidate whose predicted time is within this many times another's may be faster
_PROMISING = 0.9  # a guess below this share of the default's predicted time is worth compiling


def predict(candidates: Sequence[Candidate], context: Context) -> list[Candidate]:
    """Predict all times; add or take the configurations that are predicted to be best."""
    state = context.state
    with state.clock.phase("predict"):
        known = [predict_times(one, state.target) if one.is_kept else one for one in candidates]
        if context.recalled:  # the configurations are those that were best
            return known
        if not state.measures:
            most = 2 * PRESETS[state.options.preset].compiled
            return [
                _likeliest(one, context) if at < most and one.is_kept else one for at, one in enumerate(known)
            ]
        return _with_guesses(candidates, known, context)


def predict_times(candidate: Candidate, target: Target) -> Candidate:
    """Return a candidate with its configurations and the predictions for its kernels."""
    try:
        configs = candidate.configs or target.default_configs(candidate.mugraph)
        kernels = candidate.kernels or target.reports(candidate.mugraph, configs)
    except SuperoptError as error:
        return fail(candidate, "predict", str(error))
    return replace(candidate, configs=configs, kernels=kernels, predicted_us=total_us(kernels))


def _likeliest(candidate: Candidate, context: Context) -> Candidate:
    """Return a candidate, each kernel in the configuration that is predicted to be best."""
    best = in_likeliest_configurations(candidate, context.state.target, context.state.order)
    return predict_times(replace(best, kernels=()), context.state.target)


def _with_guesses(
    scheduled: Sequence[Candidate], known: Sequence[Candidate], context: Context
) -> list[Candidate]:
    """Return candidates with their promising variants in other configurations; only the likeliest stay."""
    limits = context.state.limits
    alone = limits.most == 1 and not limits.tune  # there is no place for a guess
    promising = []
    for one in known:
        us = one.predicted_us
        if one.is_kept and us is not None and not alone:
            guess = _likeliest(replace(one, id=context.new_id(one), variant="as predicted"), context)
            if guess.is_kept and guess.us < _PROMISING * us:
                promising.append(guess)
    promising.sort(key=lambda one: one.us)
    timed = context.state.target.cost_device().timed
    entered = [*known, *promising[: _GUESSES_TIMED if timed else _GUESSES]]
    if limits.most is None:
        return entered
    if alone:
        first = sorted(entered, key=lambda one: (not one.is_kept, one.us))[:1]
    elif not limits.tune:  # the first candidates as they come, and one in its predicted best configurations
        count = max(limits.most - 1, 1)
        first = [*entered[:count], *(promising or _rivals(known[:count], known[count:]))][: limits.most]
    else:  # the estimate of a schedule is a bound for all its configurations
        bounds = {one.id: one.us for one in scheduled}
        first = sorted(entered, key=lambda one: bounds.get(one.id, one.us))[: limits.most]
    first = _with_live(first, entered)
    kept = {one.id for one in first}
    why = f"predicted to be slower; {len(kept)} others are compiled"
    return [
        *first,
        *(
            one.ended("predict", Kind.SLOWER, why) if one.is_kept else one
            for one in entered
            if one.id not in kept
        ),
    ]


def _rivals(first: Sequence[Candidate], others: Sequence[Candidate]) -> list[Candidate]:
    """Return other candidates that may be faster than the first ones, as predictions err; the best first."""
    best = min((one.us for one in first if one.is_kept), default=inf)
    return sorted((one for one in others if one.is_kept and one.us < _NEAR * best), key=lambda one: one.us)


def _with_live(first: Sequence[Candidate], entered: Sequence[Candidate]) -> list[Candidate]:
    """Return candidates, and the first of all that keeps nothing of weights, where each of them does.

    So whatever may be kept, there is the choice that there is where nothing may be.
    """
    live = [one for one in entered if one.is_kept and not one.once]
    return [*first, *live[:1]] if all(one.once for one in first) else list(first)
