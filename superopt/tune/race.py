"""Race: successive halving of candidates by measured time.

All candidates run a few times; the faster half runs twice as long, and so on until few are left.
The time a candidate is given grows with its chances, and the best so far is known at any moment.
"""

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from superopt.tune.measure import Measurement, measure_together

__all__ = ["Standing", "race"]

_LEFT = 3
_KEPT_SHARE = 0.4


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
    """Return all candidates, the fastest first; those dropped early come after those kept longer."""
    deadline = time.perf_counter() + seconds
    alive = dict(candidates)
    standings: dict[str, Standing] = {}
    turn = 0
    while alive:
        turn += 1
        left = max(deadline - time.perf_counter(), 0.0)
        final = len(alive) <= _LEFT
        found = measure_together(alive, inputs, seconds=left if final else left / 3, least_rounds=3)
        for name, measurement in found.items():
            standings[name] = Standing(name, measurement, turn)
        if final:
            break
        ranked = sorted(found, key=lambda name: found[name].median_us)
        alive = {name: candidates[name] for name in ranked[: max(_LEFT, int(len(ranked) * _KEPT_SHARE))]}
    return tuple(sorted(standings.values(), key=lambda one: (-one.rounds, one.measurement.median_us)))
