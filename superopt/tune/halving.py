"""Halving: asynchronous successive halving, which gives the better trials more and more measurement.

Every trial is measured a few times on the lowest rung; as soon as enough trials stand on a rung, the
best share of them goes on to the next, where each is measured more often. Nothing waits for a rung to
fill, so that the best so far is known at any moment and time may end anywhere.

    Li et al., "A system for massively parallel hyperparameter tuning", MLSys 2020
"""

import random
import time
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass
from math import ceil, inf, isfinite
from typing import Generic, Literal, TypeVar

from superopt.errors import InputError, kind_and_line
from superopt.tune.errors import DeviceLostError
from superopt.tune.measure import Measurement

__all__ = ["Ended", "Halving", "Ranked", "halve"]

K = TypeVar("K", bound=Hashable)
Ended = Literal["complete", "out of time", "interrupted", "device lost"]

_ETA = 3  # one in so many trials goes on to the next rung, to be measured as many times as often
_MOST_REPEATS = 400
_EXPLORED = 0.1  # share of trials taken at random, should the prediction mislead


@dataclass(frozen=True, slots=True)
class Ranked(Generic[K]):
    """How a trial did: its last measurement, and the rung it was made on."""

    trial: K
    measurement: Measurement
    rung: int


@dataclass(frozen=True, slots=True)
class Halving(Generic[K]):
    """The outcome of a race: the measured trials, the best first, and why the others have no time."""

    standings: tuple[Ranked[K], ...]
    failed: Mapping[K, str]
    untried: tuple[K, ...]
    ended: Ended

    @property
    def best(self) -> Ranked[K] | None:
        """The best trial; None where none could be measured."""
        return self.standings[0] if self.standings else None

    @property
    def interrupted(self) -> bool:
        """Whether the user ended it."""
        return self.ended == "interrupted"


def halve(
    trials: Mapping[K, float],
    measure: Callable[[tuple[K, ...], int], Mapping[K, Measurement]],
    *,
    seconds: float,
    seed: int,
    least_repeats: int = 3,
    batch: int = 1,
    on_best: Callable[[K, Measurement], None] | None = None,
    clock: Callable[[], float] = time.monotonic,
) -> Halving[K]:
    """Return how trials with predicted times rank by measured ones, within so many seconds.

    `measure` times a few trials, up to `batch` of them in turns, each so many times. A trial for which it
    raises has failed, with the error as the reason; KeyboardInterrupt and DeviceLostError end the race
    with the best so far. The order depends on the seed and the measured times alone.
    """
    if not 1 <= least_repeats <= _MOST_REPEATS:
        raise InputError(f"least_repeats is {least_repeats!r}; give 1 to {_MOST_REPEATS}")
    if batch < 1:
        raise InputError(f"batch is {batch!r}; give at least 1")
    ladder = _Ladder(_order(trials, seed), least_repeats)
    deadline = clock() + seconds
    ended: Ended = "complete"
    best: K | None = None
    try:
        while chosen := ladder.next(batch):
            rung, group = chosen
            if clock() >= deadline and ladder.found:  # once one trial has been measured
                ended = "out of time"
                break
            _measure(group, rung, measure, ladder)
            now = ladder.best()
            if now is not None and (now != best or now in group):
                best = now
                if on_best is not None:
                    on_best(best, ladder.found[best][1])
    except KeyboardInterrupt:
        ended = "interrupted"
    except DeviceLostError:
        ended = "device lost"
    rest = tuple(trial for trial in trials if trial not in ladder.found and trial not in ladder.failed)
    return Halving(ladder.standings(), dict(ladder.failed), rest, ended)


def _order(trials: Mapping[K, float], seed: int) -> list[K]:
    """Return the trials by predicted time, equal ones shuffled, some others drawn between them."""
    chance = random.Random(seed)
    names = list(trials)
    chance.shuffle(names)
    names.sort(key=lambda name: trials[name] if isfinite(trials[name]) else inf)
    order: list[K] = []
    while names:
        at = chance.randrange(len(names)) if order and chance.random() < _EXPLORED else 0
        order.append(names.pop(at))
    return order


def _measure(
    group: tuple[K, ...],
    rung: int,
    measure: Callable[[tuple[K, ...], int], Mapping[K, Measurement]],
    ladder: "_Ladder[K]",
) -> None:
    """Measure a group; where that fails, each alone, so that one fault is one trial's."""
    try:
        found = measure(group, ladder.repeats(rung))
        for trial in group:
            ladder.note(trial, rung, found[trial])
    except DeviceLostError as error:
        if len(group) == 1:
            ladder.fail(group[0], kind_and_line(error))
        raise
    except Exception as error:  # a kernel or its compiler may raise anything; only this trial fails
        if len(group) == 1:
            ladder.fail(group[0], kind_and_line(error))
            return
        for trial in group:
            _measure((trial,), rung, measure, ladder)


class _Ladder(Generic[K]):
    """The rungs, who stands on each, and who goes on next."""

    def __init__(self, untried: Sequence[K], least: int) -> None:
        self.untried = list(untried)
        self.least = least
        self.rungs: list[dict[K, float]] = [{}]
        self.promoted: list[set[K]] = [set()]
        self.found: dict[K, tuple[int, Measurement]] = {}  # the rung last measured on
        self.failed: dict[K, str] = {}

    def repeats(self, rung: int) -> int:
        """Return how often a trial is called on a rung."""
        return int(min(self.least * _ETA**rung, _MOST_REPEATS))

    def next(self, batch: int) -> tuple[int, tuple[K, ...]] | None:
        """Return the trials to measure next and the rung they go to; None at the end."""
        for rung in reversed(range(len(self.rungs))):
            if group := self._promotable(rung, len(self.rungs[rung]) // _ETA, batch):
                return self._promote(rung, group)
        if self.untried:
            group = tuple(self.untried[:batch])
            del self.untried[:batch]
            return 0, group
        for rung in range(len(self.rungs)):  # no more contenders come: even small groups send their best on
            few = len(self.rungs[rung])
            if few > 1 and (group := self._promotable(rung, ceil(few / _ETA), batch)):
                return self._promote(rung, group)
        return None

    def _promotable(self, rung: int, share: int, batch: int) -> tuple[K, ...]:
        if self.repeats(rung) >= _MOST_REPEATS:
            return ()
        times = self.rungs[rung]
        best = sorted(times, key=lambda trial: times[trial])[:share]
        return tuple(
            trial for trial in best if trial not in self.promoted[rung] and trial not in self.failed
        )[:batch]

    def _promote(self, rung: int, group: tuple[K, ...]) -> tuple[int, tuple[K, ...]]:
        self.promoted[rung].update(group)
        if rung + 1 == len(self.rungs):
            self.rungs.append({})
            self.promoted.append(set())
        return rung + 1, group

    def note(self, trial: K, rung: int, measurement: Measurement) -> None:
        """Place a trial on a rung by its time."""
        if not (isfinite(measurement.median_us) and measurement.median_us > 0):
            self.fail(trial, f"its time is {measurement.median_us} µs")
            return
        self.rungs[rung][trial] = measurement.median_us
        self.found[trial] = rung, measurement

    def fail(self, trial: K, reason: str) -> None:
        """Take a trial out for good."""
        self.failed[trial] = reason
        self.found.pop(trial, None)

    def best(self) -> K | None:
        """Return the best trial so far: the fastest of the highest rung."""
        return min(self.found, key=self._rank, default=None)

    def standings(self) -> tuple[Ranked[K], ...]:
        """Return all measured trials, the best first."""
        order = sorted(self.found, key=self._rank)
        return tuple(Ranked(trial, self.found[trial][1], self.found[trial][0]) for trial in order)

    def _rank(self, trial: K) -> tuple[int, float]:
        rung, measurement = self.found[trial]
        return -rung, measurement.median_us
