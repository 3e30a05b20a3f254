"""More workers than there are here, by a simulation from measured rates.

Assumptions: each level grows as the last measured one did, until so many states are found; a worker expands,
keys and deduplicates candidates at the rate of one worker here; keys are mixed, so shares are binomial, and a
level takes as long as the largest one; all candidates but those of the owner itself cross the network once,
after the sender has thinned its own duplicates, at the bandwidth of a node that its workers share; a barrier
costs a latency for each doubling of the workers.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import log, log2, sqrt

__all__ = ["Assumptions", "Rates", "simulated"]


@dataclass(frozen=True, slots=True)
class Rates:
    """What one worker does here, and how the levels of the space grow."""

    candidates_per_second: float
    candidates_per_state: float
    growth: float  # new states of a level over those of the level before
    bytes_per_candidate: int


@dataclass(frozen=True, slots=True)
class Assumptions:
    """The machines of the simulation."""

    workers_per_node: int = 16
    node_bytes_per_second: float = 1.25e9  # 10 Gbit/s
    latency_s: float = 5e-5
    thinned: float = 0.8  # the share of candidates left once a sender has dropped its own duplicates


def simulated(rates: Rates, workers: int, states: float, machines: Assumptions) -> dict[str, float]:
    """Return the seconds of a search until so many states are found, by what they are spent on."""
    levels = _levels(rates, states)
    work = skew = exchange = barrier = 0.0
    for new in levels:
        candidates = new * rates.candidates_per_state
        share = candidates / workers
        largest = share + sqrt(2 * share * log(workers)) if workers > 1 else share
        work += share / rates.candidates_per_second
        skew += (largest - share) / rates.candidates_per_second
        if workers > 1:
            sent = share * machines.thinned * (1 - 1 / workers) * rates.bytes_per_candidate
            exchange += sent * min(workers, machines.workers_per_node) / machines.node_bytes_per_second
            barrier += machines.latency_s * log2(workers)
    total = work + skew + exchange + barrier
    return {"seconds": total, "work": work, "skew": skew, "exchange": exchange, "barrier": barrier}


def _levels(rates: Rates, states: float) -> Sequence[float]:
    """Return the new states of each level: a geometric series with this sum."""
    growth = max(rates.growth, 1.5)
    found, last = [1.0], 1.0
    while sum(found) < states:
        last *= growth
        found.append(last)
    scale = states / sum(found)
    return [new * scale for new in found]
