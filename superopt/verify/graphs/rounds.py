"""Rounds: random trials of two graphs, drawn until the chance of error is small enough."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from superopt.verify.field.arithmetic import Field
from superopt.verify.graphs.setting import Setting
from superopt.verify.graphs.trials import Tally, batches, compare
from superopt.verify.verdict import Witness

__all__ = ["Finding", "random_rounds"]

_MOST_DRAWS = 1 << 20  # trials that are drawn, times the elements of the cheapest root
_ROUNDS = 12
_ROOTLESS = 256  # trials with a root without a value, whose results may rest on no such root
_CAREFUL = 256  # where many trials of a batch disagree, only so many are judged


@dataclass(frozen=True, slots=True)
class Finding:
    """What the trials of one setting say: a place where the graphs differ, or a bound on the error."""

    witness: Witness | None = None
    error: float | None = None
    notes: tuple[str, ...] = ()


def random_rounds(setting: Setting, tally: Tally, trials: int | None) -> Finding:
    """Compare on numbers drawn at random, which are never equal by accident."""
    roots = setting.roots
    wanted = trials or setting.wanted(_per_trial(setting, tally, 1.0))
    count = 2 * wanted
    limit = max(count, _MOST_DRAWS // (setting.levels * roots.least_work))
    elsewhere = Tally()  # of trials in which some root has no value
    for number in range(_ROUNDS):
        found = tally.rooted
        drawn = setting.field(number, count)
        good = setting.roots.good(drawn)
        witness = _round(setting, drawn, good, tally, wanted, fixed=trials is not None)
        if witness is not None:
            return Finding(witness)
        there = trials or setting.wanted(_per_trial(setting, elsewhere, elsewhere.share))
        needed = there if tally.unseen else 0
        if roots.stages and _differs_elsewhere(setting, drawn, good, elsewhere, needed):
            return Finding(notes=("no proof: the programs differ where some root has no value",))
        if trials is None:
            wanted = setting.wanted(_per_trial(setting, tally, tally.share))
        if tally.kept >= wanted and _seen(tally, elsewhere, there):
            break
        if number and tally.rooted and not tally.kept:
            break
        if _hopeless(setting, tally, wanted - tally.kept):
            break
        scarce = tally.rooted - found < tally.lacking(wanted)
        count = min(limit, count * 8) if scarce else count
    if roots.stages and not tally.rooted:
        return Finding(notes=("no proof: too many square roots for random numbers to have them all",))
    if not _seen(tally, elsewhere, there):
        return Finding(notes=("no proof: where a condition leaves a root out, nothing was compared",))
    return _concluded(setting, tally)


def _round(
    setting: Setting, drawn: Field, good: NDArray[np.int64], tally: Tally, wanted: int, *, fixed: bool
) -> Witness | None:
    """Compare the good trials of one field; where not so many are asked for, until one is dismissed first.

    From then on each trial says less, and how many are wanted is worked out anew.
    """
    tally.drawn += drawn.trials
    tally.rooted += good.size
    tally.outcomes |= setting.roots.outcomes(drawn, np.arange(drawn.trials))
    tally.shown |= setting.roots.outcomes(drawn, good)
    dismissed = tally.dismissed > 0
    for batch in batches(setting, drawn, good[: tally.lacking(wanted)], _CAREFUL if dismissed else None):
        witness = compare(setting, batch, tally)
        if witness is not None:
            return witness
        if tally.kept >= wanted or (tally.dismissed and not dismissed and not fixed):
            break
    return None


def _differs_elsewhere(
    setting: Setting, drawn: Field, good: NDArray[np.int64], tally: Tally, wanted: int
) -> bool:
    """Whether results that rest on no root without a value differ in trials that have such a root.

    At least `wanted` trials with all results are looked at, where there are so many.
    """
    without = np.setdiff1d(np.arange(drawn.trials), good, assume_unique=True)
    tally.drawn += drawn.trials
    tally.rooted += without.size
    looked = 0
    for batch in batches(setting, drawn, without, _ROOTLESS):
        if looked >= _ROOTLESS and tally.kept >= wanted:
            break
        if compare(setting, batch, tally, rootless=True) is not None:
            return True
        looked += batch.trials
        if wanted:
            tally.shown |= setting.roots.outcomes(batch, np.flatnonzero(tally.whole))
    return False


def _seen(tally: Tally, elsewhere: Tally, wanted: int) -> bool:
    """Whether all outcomes of choices were seen, be it in enough trials in which some root has no value."""
    return not tally.unseen or (elsewhere.kept >= wanted and tally.unseen <= elsewhere.shown)


def _hopeless(setting: Setting, tally: Tally, wanted: int) -> bool:
    """Return whether squares for all roots are too rare to find as many trials as are wanted."""
    work = setting.levels * setting.roots.least_work
    if not tally.rooted:
        return tally.drawn * work > _MOST_DRAWS >> 3
    return wanted * tally.drawn * work > (_MOST_DRAWS << 2) * tally.rooted


def _per_trial(setting: Setting, tally: Tally, kept: float) -> float:
    """Return the bound for one trial when a fraction of all is kept."""
    return setting.bound.per_trial(kept=kept, dismissed=tally.dismissed > 0)


def _concluded(setting: Setting, tally: Tally) -> Finding:
    """Return the bound on the error of all trials, none of which told the graphs apart."""
    error = _per_trial(setting, tally, tally.share)
    if tally.kept <= 0:
        return Finding(notes=(_why_none(tally),))
    if error < 1:
        return Finding(error=error**tally.kept)
    reason = setting.bound.reason or "too many terms"
    return Finding(notes=(f"no proof: random tests agree, but no chance of error is known with {reason}",))


def _why_none(tally: Tally) -> str:
    """Return why no trial was defined everywhere."""
    always = [bool(count) and count >= tally.compared for count in tally.undefined]
    if always == [True, True]:
        return "no proof: both programs divide by zero on every input"
    if any(always):
        one, other = ("first", "second") if always[0] else ("second", "first")
        return f"no proof: the {one} program divides by zero on every input, the {other} does not"
    return "no proof: every random test met a division by zero, or an index that is out of range"
