"""Turns: calls timed one after another, by the clock or by the time that the processor spent on them.

The processor's time of one thread is not lengthened by other programs, but for what they do to the caches.
"""

import random
import time
from collections.abc import Callable, Mapping
from typing import Any

from superopt.tune.measure import Times

__all__ = ["clock_for", "in_turns"]


def clock_for(threads: int) -> Callable[[], float]:
    """Return the clock, in seconds, by which calls on so many threads are timed."""
    return time.thread_time if threads == 1 else time.perf_counter


def in_turns(
    runs: Mapping[str, Callable[[], Any]],
    clock: Callable[[], float],
    *,
    seconds: float,
    least_rounds: int,
) -> dict[str, Times]:
    """Return the times of some calls, each called once before, for so long and in so many rounds at least."""
    times: dict[str, list[float]] = {name: [] for name in runs}
    for run in runs.values():
        run()
    order, draw, rounds = list(runs.items()), random.Random(0), 0
    end = time.perf_counter() + seconds
    while rounds < least_rounds or time.perf_counter() < end:
        draw.shuffle(order)
        rounds += 1
        for name, run in order:
            start = clock()
            run()
            times[name].append((clock() - start) * 1e6)
    return {name: Times(us) for name, us in times.items()}
