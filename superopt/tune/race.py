"""Race: candidates on the CPU by measured time; successive halving, then the last few once more in turns."""

import logging
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from superopt.tune.halving import halve
from superopt.tune.measure import Measurement, measure_together

__all__ = ["Standing", "race"]

log = logging.getLogger("superopt")

_LEFT = 3
_TOGETHER = 6  # candidates measured in turns
_HALVED = 0.6  # share of the time before the last few are compared
_LEAST_ROUNDS = 3


@dataclass(frozen=True, slots=True)
class Standing:
    """How a candidate did: its last measurement, and the round after which it was dropped."""

    name: str
    measurement: Measurement
    rounds: int


def race(
    candidates: Mapping[str, Callable[..., Any]],
    inputs: Sequence[tuple[Any, ...]],
    *,
    seconds: float,
) -> tuple[Standing, ...]:
    """Return the candidates, the fastest first; those dropped early come after those kept longer.

    They are tried in the order given. One that raises is left out, and so is one that there was no time
    for.
    """
    start = time.perf_counter()

    def measure(names: tuple[str, ...], repeats: int) -> dict[str, Measurement]:
        return measure_together(
            {name: candidates[name] for name in names},
            inputs,
            seconds=start + seconds * _HALVED - time.perf_counter(),
            least_rounds=min(repeats, _LEAST_ROUNDS),
            most_rounds=repeats,
        )

    order = {name: float(place) for place, name in enumerate(candidates)}
    halved = halve(order, measure, seconds=seconds * _HALVED, seed=0, batch=_TOGETHER)
    if halved.interrupted:
        raise KeyboardInterrupt
    for name, reason in halved.failed.items():
        log.info("race: %s is out: %s", name, reason)
    standings = [Standing(one.trial, one.measurement, one.rung + 1) for one in halved.standings]
    if not standings:
        return ()
    last = [one.name for one in standings[:_LEFT]]
    turn = max(one.rounds for one in standings) + 1
    found = measure_together(
        {name: candidates[name] for name in last},
        inputs,
        seconds=start + seconds - time.perf_counter(),
        least_rounds=_LEAST_ROUNDS,
    )
    final = [Standing(name, measurement, turn) for name, measurement in found.items()]
    return (*sorted(final, key=lambda one: one.measurement.median_us), *standings[_LEFT:])
