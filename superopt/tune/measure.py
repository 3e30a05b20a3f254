"""Measure: the times of several functions on the same inputs, taken in turns.

Contenders are interleaved call by call, so that a noisy moment meets all alike, in another order in
each round, so that none has what another leaves in the caches each time; every call gets other copies
of the inputs, enough of them that no cache holds them all; medians and quantiles are what is reported.
"""

import gc
import random
import statistics
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from math import exp, floor, inf, log, sqrt
from typing import TYPE_CHECKING, Any, Literal

from superopt.errors import InputError

if TYPE_CHECKING:
    from torch import Tensor

__all__ = [
    "HeadToHead",
    "Measurement",
    "Method",
    "Times",
    "bytes_of",
    "confirm",
    "measure_together",
    "shortest_call_us",
    "times_together",
]

Contender = Callable[..., Any]
Method = Literal["clock", "events", "graph", "unrolled"]

_LEAST_ROUNDS = 5
_MOST_ROUNDS = 400
_QUANTILES = (0.1, 0.25, 0.5, 0.75, 0.9)
_FEWEST = 5  # rounds whose ratios tell anything
# Standard errors by which a mean is off by chance, at most as often as _SURE: from 7 rounds on, and of fewer.
_APART, _FEW_APART = 10.0, {5: 17.5, 6: 12.3}
_LARGEST_LOG = 700.0  # of a number that a float can hold
_ENOUGH = 16  # rounds from which on an interval is sure
_FAR = 2.0  # so many times beyond a level, fewer rounds tell that a speed is above or below it
_EARLY = 0.2  # the share of a race's time after which it may be decided
_UNSTEADY = 2.0  # on a busy machine, slow calls take this many times as long as fast ones
_SURE = 4.0  # standard deviations of a fair coin by which the rounds won must differ from a half


@dataclass(frozen=True, slots=True)
class Measurement:
    """The time of one function: median, and the range in which 80% of its calls lie."""

    median_us: float
    low_us: float
    high_us: float
    rounds: int
    quantiles_us: tuple[tuple[float, float], ...] = ()
    method: Method = "clock"  # the host's clock, or events around a call, a CUDA graph of it, or one of many
    note: str = ""  # a doubt about the measurement, in words

    @property
    def spread(self) -> float:
        """How many times as long the slow calls take as the fast ones."""
        return self.high_us / self.low_us if self.low_us else 1.0

    @property
    def is_steady(self) -> bool:
        """Whether the times vary less than on a busy machine."""
        return self.spread < _UNSTEADY


@dataclass(frozen=True, slots=True)
class Times:
    """The times of one function call by call, and how they were taken."""

    us: list[float]
    method: Method = "clock"
    note: str = ""

    def summary(self) -> Measurement:
        """Return the measurement that the times make."""
        ordered = sorted(self.us)
        tenth = len(ordered) // 10
        quantiles = tuple((share, ordered[round(share * (len(ordered) - 1))]) for share in _QUANTILES)
        return Measurement(
            statistics.median(ordered),
            ordered[tenth],
            ordered[-1 - tenth],
            len(ordered),
            quantiles,
            self.method,
            self.note,
        )


def bytes_of(tensors: "Iterable[Tensor]") -> int:
    """Return how many bytes the elements of some tensors take."""
    return sum(tensor.numel() * tensor.element_size() for tensor in tensors)


def shortest_call_us(
    contender: Contender, arguments: Sequence[Any], calls: int, synchronize: Callable[[], None]
) -> float:
    """Return the time of the shortest of a few calls, which is enough to time a long one."""
    times = []
    for _ in range(calls):
        start = time.perf_counter()
        contender(*arguments)
        synchronize()
        times.append(time.perf_counter() - start)
    return min(times) * 1e6


def measure_together(
    contenders: Mapping[str, Contender],
    inputs: Sequence[tuple[Any, ...]],
    *,
    seconds: float,
    least_rounds: int = _LEAST_ROUNDS,
    most_rounds: int = _MOST_ROUNDS,
    times: Callable[..., Mapping[str, Times]] | None = None,
) -> dict[str, Measurement]:
    """Return the times of all contenders, measured in turns for about so many seconds in all.

    `inputs` are interchangeable tuples of arguments; each call takes the next one. `times` takes the times,
    as those of a target do; by default those of this process on the CPU.
    """
    taken = (times or times_together)(
        contenders, inputs, seconds=seconds, least_rounds=least_rounds, most_rounds=most_rounds
    )
    return {name: found.summary() for name, found in taken.items()}


def times_together(
    contenders: Mapping[str, Contender],
    inputs: Sequence[tuple[Any, ...]],
    *,
    seconds: float,
    least_rounds: int = _LEAST_ROUNDS,
    most_rounds: int = _MOST_ROUNDS,
    untimed: int = 0,
) -> dict[str, Times]:
    """Return every single time that `measure_together` takes; one round's times stand at one position.

    In each round so many `untimed` calls of a contender come before the one that is timed, where a program is
    called again and again: then it finds in the caches what it left there, and not what others did.
    """
    times = {name: Times([]) for name in contenders}
    for contender in contenders.values():  # a first call may compile, allocate, or start threads
        contender(*inputs[0])
        contender(*inputs[-1])
    number = 0
    order, draw = list(contenders.items()), random.Random(0)
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        deadline = time.perf_counter() + seconds
        for done in range(max(least_rounds, most_rounds)):
            if done >= least_rounds and time.perf_counter() >= deadline:
                break
            draw.shuffle(order)
            for name, contender in order:
                arguments = inputs[number % len(inputs)]
                number += 1
                for _ in range(untimed):
                    contender(*arguments)
                start = time.perf_counter_ns()
                contender(*arguments)
                times[name].us.append((time.perf_counter_ns() - start) / 1e3)
    finally:
        if was_enabled:
            gc.enable()
    return times


@dataclass(frozen=True, slots=True)
class HeadToHead:
    """Two contenders measured against each other alone, round by round."""

    winner: str
    loser: str
    speedup: float  # the median of the loser's time over the winner's in the same round
    share: float  # the share of the rounds that the winner won
    sure: bool  # whether chance would hardly give that share, or these ratios
    measurements: Mapping[str, Measurement]
    interval: tuple[float, float] = (0.0, inf)  # the interval in which the speedup surely lies

    def speed_of(self, name: str) -> float:
        """Return how fast one of the two is, in speeds of the other."""
        return self.speedup if name == self.winner else 1 / self.speedup

    def is_apart(self, name: str, level: float) -> bool:
        """Whether the speed of one of the two, in speeds of the other, is surely above a level or below."""
        low, high = self.interval
        if name != self.winner:
            low, high = 1 / high, 1 / low if low else inf
        rounds = min(one.rounds for one in self.measurements.values())
        margin = 1.0 if rounds >= _ENOUGH else _FAR if rounds >= _FEWEST else inf
        return low > margin * level or margin * high < level

    @property
    def spread(self) -> float:
        """How many times as long the slow calls take as the fast ones, of the contender that varies less."""
        return min(one.spread for one in self.measurements.values())

    @property
    def is_steady(self) -> bool:
        """Whether the times vary less than on a busy machine, where a race may have any end."""
        return self.spread < _UNSTEADY


def confirm(
    contenders: Mapping[str, Contender],
    first: str,
    second: str,
    inputs: Sequence[tuple[Any, ...]],
    *,
    seconds: float,
    most_seconds: float = 0.0,
    level: float | None = None,
    times: Callable[..., Mapping[str, Times]] = times_together,
) -> HeadToHead:
    """Return which of two contenders is faster, from a new measurement of the two in turns by `times`.

    Where chance may have decided, the two are measured again, up to `most_seconds` in all. With a `level`,
    all ends as soon as the speed of the first is surely above it or below, and takes more than `seconds` only
    where one of both is ahead by as much as the level.
    """
    if first == second or not {first, second} <= set(contenders):
        raise InputError(f"cannot confirm {first!r} against {second!r}; there are {', '.join(contenders)}")
    pair = {name: contenders[name] for name in (first, second)}
    asked = seconds if level is None else _EARLY * seconds
    taken = times(pair, inputs, seconds=asked)
    spent = max(asked, _seconds_of(taken))  # the least rounds of long calls take longer than was asked for
    found = _head_to_head(first, second, taken)
    while not (level is not None and found.is_apart(first, level)):
        goes_on = not found.sure and (level is None or found.speedup >= level)
        end = max(seconds, most_seconds) if goes_on else seconds
        if spent >= end:
            break
        missing = max(_ENOUGH - len(taken[first].us), 0) / len(taken[first].us)  # of rounds, in those so far
        asked = min(max(spent, missing * _seconds_of(taken)), end - spent)
        again = times(pair, inputs, seconds=asked)
        taken = {name: replace(one, us=one.us + again[name].us) for name, one in taken.items()}
        found, spent = _head_to_head(first, second, taken), spent + max(asked, _seconds_of(again))
    return found


def _seconds_of(taken: Mapping[str, Times]) -> float:
    """Return the seconds that calls took."""
    return sum(sum(one.us) for one in taken.values()) / 1e6


def _head_to_head(first: str, second: str, taken: Mapping[str, Times]) -> HeadToHead:
    """Return what the times of two contenders say, round by round."""
    ratios = sorted(b / a for a, b in zip(taken[first].us, taken[second].us, strict=True))
    if statistics.median(ratios) < 1:
        first, second, ratios = second, first, [1 / one for one in reversed(ratios)]
    count, ratio = len(ratios), statistics.median(ratios)
    won = sum(one > 1 for one in ratios)
    low, high = _mean_between(ratios) if count >= _FEWEST else (0.0, inf)
    if count >= _FEWEST and ratios[0] >= _FAR:  # no round was near a tie
        low = max(low, ratios[0])
    sure = won - count / 2 >= _SURE * sqrt(count) / 2 or low > 1
    if not _FEWEST <= count < _ENOUGH:
        # So many of the ratios lie, by chance alone, on one side of their true median.
        least = max(0, floor(count / 2 - _SURE * sqrt(count) / 2))
        low, high = ratios[least], ratios[count - 1 - least]
    measured = {name: one.summary() for name, one in taken.items()}
    interval = min(low, ratio), max(high, ratio)
    return HeadToHead(first, second, ratio, won / count, sure, measured, interval)


def _mean_between(ratios: Sequence[float]) -> tuple[float, float]:
    """Return between which numbers the mean of ratios surely lies: a few rounds of long calls tell that."""
    logs = [log(one) for one in ratios]
    mean, error = statistics.fmean(logs), statistics.stdev(logs) / sqrt(len(logs))
    off = _FEW_APART.get(len(logs), _APART) * error
    return exp(mean - off), exp(min(mean + off, _LARGEST_LOG))
