"""Better: whether a region's kernels may be faster than Inductor's code, are so, or beat an earlier plan."""

from collections.abc import Sequence
from dataclasses import replace

from torch import Tensor

from superopt.backend.checks.elsewhere import HOPELESS
from superopt.backend.decision import Decision
from superopt.backend.region import Region
from superopt.backend.region_plan import calling
from superopt.candidates import RegionCandidates
from superopt.candidates.candidate import are_steady, fastest_us, why_none
from superopt.rivals.opponents import Opponents
from superopt.targets import Target
from superopt.tune import confirm
from superopt.tune.measure import HeadToHead

__all__ = ["BETTER", "choose_faster", "decide_before_race", "decide_by_race", "keep_nearer"]

BETTER = 1.02
"""A new plan takes the place of an old one if it is this many times as fast."""

_NEAR = 0.9  # kernels of at least this speed may still gain inside the whole graph


def decide_before_race(
    known: Decision,
    regions: Sequence[RegionCandidates],
    rival: Opponents,
    taken_us: float | None,
    win: float,
) -> Decision:
    """Return the time of the kernels that the funnel leaves, or why none is fast enough to be checked.

    `taken_us` is the time of the plan that is taken so far, if any.
    """
    after_us = fastest_us(regions)
    if after_us is None:
        return replace(known, why=f"no kernels: {why_none(regions)}")
    known = replace(known, after_us=after_us)
    if after_us * win > rival.most_us:
        told = f"{rival.most_us / after_us:.2f} times the speed of PyTorch as it is"
        return replace(known, why=told, open=not are_steady(regions))
    if 0 < HOPELESS * rival.least_us < after_us * win:
        told = f"{rival.least_us / after_us:.2f} times the speed of the library calls alone"
        return replace(known, before_us=rival.least_us, before_is_least=True, why=told)
    chosen = [part.chosen for part in regions if part.chosen is not None]
    if not chosen or len(chosen) < len(regions):
        return replace(known, why=f"no kernels: {why_none(regions)}")
    after_us = sum(one.us for one in chosen)
    known = replace(known, after_us=after_us)
    if taken_us is not None and after_us * min(win, BETTER) > taken_us:
        return replace(known, why="no faster than before the search", open=not are_steady(regions))
    return known


def decide_by_race(known: Decision, raced: HeadToHead, plan: str, call_us: float, win: float) -> Decision:
    """Return the decision after a race with Inductor's code, of which a call takes `call_us` beside its work.

    It stays open where a quieter moment may tell otherwise. Any kernels are wanted where `win` is 0. Kernels
    that come near are not taken, but keep their plan: the whole graph may be faster with them.
    """
    times = raced.measurements
    before_us = times["inductor"].median_us
    known = replace(known, before_us=before_us, after_us=times["superopt"].median_us)
    speed = raced.speed_of("superopt") * (1 - min(call_us / before_us, 1.0))
    told = f"{'at least ' if known.before_is_least else ''}{speed:.2f} times Inductor's speed"
    unclear = not raced.is_steady
    if speed < win:
        near = plan if speed >= _NEAR and not known.before_is_least else None
        return replace(known, plan=near, why=f"{told}, {win} is needed", open=unclear)
    if win and not raced.sure:
        why = f"{told}, but ahead in only {raced.share:.0%} of the rounds"
        return replace(known, plan=plan, why=why, open=True)
    return replace(known, taken=True, plan=plan, why=told, open=unclear)


def keep_nearer(made: Decision, before: Decision) -> Decision:
    """Return the decision that is taken, of two, or else the one whose kernels came nearest to that."""
    if made.taken:
        return made
    if before.taken:
        return replace(before, seconds=made.seconds)
    is_nearer = before.plan and (made.plan is None or (before.after_us or 0.0) < (made.after_us or 0.0))
    return replace(before, open=made.open, seconds=made.seconds) if is_nearer else made


def choose_faster(
    new: Decision,
    old: Decision,
    region: Region,
    target: Target,
    copies: Sequence[tuple[Tensor, ...]],
    *,
    seconds: float,
) -> Decision:
    """Return the new decision where its plan is surely faster, else the old one.

    The old one stays open where a machine was too busy for the race to tell anything.
    """
    if new.plan == old.plan:
        return new
    plans = {name: calling(region, str(one.plan)) for name, one in (("new", new), ("old", old))}
    raced = confirm(plans, "new", "old", copies, seconds=seconds, level=BETTER, times=target.times)
    if raced.winner == "new" and raced.sure and raced.speedup >= BETTER:
        return new
    return old if raced.is_steady else replace(old, open=True)
