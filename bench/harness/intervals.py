"""Ratios of times with the interval in which they lie, from blocks of several launches.

A launch is one process. Memory is laid out anew in each, which changes times by itself; so the bootstrap
draws launches first, then the blocks of each. The time of a launch is the median of its blocks; the time of
several launches is their lower quartile, since a launch may be disturbed from its beginning to its end and
never becomes faster by that.

Between two results the machine may have become slower as a whole; the baseline, measured in turns with
ours, shows that. But the baseline has noise of its own, which would be added if all of its change were
taken off. So only the share that explains something is taken off: all of it where baseline and ours differ
alike between launches, or where the baseline changed by far more than its launches differ; none of it where
the baseline differs from launch to launch by itself.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from math import exp
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import numpy as np

__all__ = ["Interval", "Launch", "change", "speed", "verdict"]

_DRAWS = 2000
_QUARTER = 0.25
_SHARE = 0.95
_BETWEEN_LAUNCHES = 0.01  # the standard deviation between launches that is assumed where few are known
_WEIGHT = 2  # how many launches that assumption is worth
_EVIDENCE = 2  # how many times its noise the square of the baseline's change must be to be the machine's


@dataclass(frozen=True, slots=True)
class Launch:
    """The times of one process, block by block: the same position was measured in turns."""

    ours: Sequence[float]
    baseline: Sequence[float]  # empty where there is none


@dataclass(frozen=True, slots=True)
class Interval:
    """A ratio, and the limits between which it lies with 95% probability."""

    ratio: float
    low: float
    high: float


def speed(run: Sequence[Launch], *, seed: int = 0) -> Interval:
    """Return how many times as long as ours the baseline takes."""
    import numpy as np

    random = np.random.default_rng(seed)
    ours, baseline = _logs(run)
    drawn_ours, drawn_baseline = _drawn(ours, baseline, random)
    spread = random.normal(0.0, _unknown(run), _DRAWS)
    point = _typical(_medians(baseline)) - _typical(_medians(ours))
    return _interval(point, drawn_baseline - drawn_ours + spread)


def change(old: Sequence[Launch], new: Sequence[Launch], *, seed: int = 0) -> Interval:
    """Return how many times as long as in the old run ours takes in the new one, the machine being the same.

    Where a run has no baseline, all of the change counts as ours.
    """
    import numpy as np

    random = np.random.default_rng(seed)
    has_baseline = all(len(one.baseline) for run in (old, new) for one in run)
    points, draws = [], []  # for each run, of ours and of the baseline
    for run in (old, new):
        logs = _logs(run)
        points.append([_typical(_medians(one)) for one in logs])
        draws.append(_drawn(*logs, random))
    ours, base = (points[1][which] - points[0][which] for which in (0, 1))
    drawn_ours, drawn_base = (draws[1][which] - draws[0][which] for which in (0, 1))
    share = _share(base, drawn_ours, drawn_base, _unknown(old, new)) if has_baseline else 0.0
    spread = random.normal(0.0, _unknown(old, new), _DRAWS)
    return _interval(ours - share * base, drawn_ours - share * drawn_base + spread)


def verdict(found: Interval, tolerance: float) -> str:
    """Return faster or slower where the whole interval is beyond the tolerance, same where it is within."""
    most = 1.0 + tolerance
    if found.low > most:
        return "slower"
    if found.high < 1 / most:
        return "faster"
    return "same" if found.low >= 1 / most and found.high <= most else "unclear"


def _share(
    changed: float, ours: "np.ndarray[Any, Any]", base: "np.ndarray[Any, Any]", unknown: float
) -> float:
    """Return the share of the baseline's change to take off, for which the noise of the rest is least."""
    import numpy as np

    noise = float(np.var(base)) + unknown**2
    common = min(max(float(np.cov(ours, base)[0, 1]), 0.0), noise)
    drift = max(changed**2 - _EVIDENCE * noise, 0.0)
    return (common + drift) / (noise + drift)


def _unknown(*runs: Sequence[Launch]) -> float:
    """Return by how much launches may differ beyond the differences that so few of them show."""
    shown = sum(len(run) - 1 for run in runs)
    return float(_BETWEEN_LAUNCHES * (sum(1 / len(run) for run in runs) * _WEIGHT / (_WEIGHT + shown)) ** 0.5)


def _logs(run: Sequence[Launch]) -> tuple[list["np.ndarray[Any, Any]"], list["np.ndarray[Any, Any]"]]:
    import numpy as np

    ours, baseline = [], []
    for one in run:
        count = min(len(one.ours), len(one.baseline)) if len(one.baseline) else len(one.ours)
        ours.append(np.log(np.asarray(one.ours[:count], dtype=float)))
        base = np.asarray(one.baseline[:count], dtype=float)
        baseline.append(np.log(base) if len(base) else np.zeros(count))
    return ours, baseline


def _medians(launches: Sequence["np.ndarray[Any, Any]"]) -> "np.ndarray[Any, Any]":
    import numpy as np

    return np.array([np.median(one) for one in launches])


def _typical(launches: "np.ndarray[Any, Any]") -> float:
    """Return the time of several launches: their lower quartile."""
    import numpy as np

    return float(np.quantile(launches, _QUARTER, method="lower"))


def _drawn(
    ours: Sequence["np.ndarray[Any, Any]"],
    baseline: Sequence["np.ndarray[Any, Any]"],
    random: "np.random.Generator",
) -> tuple["np.ndarray[Any, Any]", "np.ndarray[Any, Any]"]:
    """Return the times of ours and of the baseline on launches and blocks drawn from the measured ones."""
    import numpy as np

    found = []
    for one, base in zip(ours, baseline, strict=True):
        blocks = random.integers(0, len(one), (_DRAWS, len(one)))
        found.append((np.median(one[blocks], axis=1), np.median(base[blocks], axis=1)))
    launches = random.integers(0, len(found), (len(found), _DRAWS))
    at = np.arange(_DRAWS)
    by_launch = np.array(found)  # launch, ours or baseline, draw
    ours_drawn, baseline_drawn = (by_launch[launches, which, at] for which in (0, 1))
    return (
        np.quantile(ours_drawn, _QUARTER, axis=0, method="lower"),
        np.quantile(baseline_drawn, _QUARTER, axis=0, method="lower"),
    )


def _interval(point: float, draws: "np.ndarray[Any, Any]") -> Interval:
    import numpy as np

    outside = (1 - _SHARE) / 2
    low, high = np.quantile(draws, [outside, 1 - outside])
    return Interval(exp(point), exp(min(float(low), point)), exp(max(float(high), point)))
