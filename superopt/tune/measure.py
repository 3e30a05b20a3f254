"""Measure: the times of several functions on the same inputs, taken in turns.

Contenders are interleaved call by call, so that a noisy moment meets all alike; every call gets
other copies of the inputs, enough of them that no cache holds them all; medians and quantiles are
what is reported.
"""

import gc
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

__all__ = ["Measurement", "measure_together"]

Contender = Callable[..., Any]

_LEAST_ROUNDS = 5
_MOST_ROUNDS = 400


@dataclass(frozen=True, slots=True)
class Measurement:
    """The time of one function: median, and the range in which 80% of its calls lie."""

    median_us: float
    low_us: float
    high_us: float
    rounds: int


def measure_together(
    contenders: Mapping[str, Contender],
    inputs: Sequence[tuple[Any, ...]],
    *,
    seconds: float,
    least_rounds: int = _LEAST_ROUNDS,
) -> dict[str, Measurement]:
    """Return the times of all contenders, measured in turns for about so many seconds in all.

    `inputs` are interchangeable tuples of arguments; each call takes the next one.
    """
    times: dict[str, list[float]] = {name: [] for name in contenders}
    for contender in contenders.values():  # a first call may compile, allocate, or start threads
        contender(*inputs[0])
        contender(*inputs[-1])
    number = 0
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        deadline = time.perf_counter() + seconds
        for done in range(_MOST_ROUNDS):
            if done >= least_rounds and time.perf_counter() >= deadline:
                break
            for name, contender in contenders.items():
                arguments = inputs[number % len(inputs)]
                number += 1
                start = time.perf_counter_ns()
                contender(*arguments)
                times[name].append((time.perf_counter_ns() - start) / 1e3)
    finally:
        if was_enabled:
            gc.enable()
    return {name: _summary(found) for name, found in times.items()}


def _summary(times: Sequence[float]) -> Measurement:
    ordered = sorted(times)
    tenth = len(ordered) // 10
    return Measurement(statistics.median(ordered), ordered[tenth], ordered[-1 - tenth], len(ordered))
