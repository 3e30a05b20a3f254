"""Tuning: measurement that can be trusted, and the race of candidates by it.

Compiling in a pool (`tune.pool`), first runs in a process of their own (`tune.probe`) and the learned order
(`tune.learned_order`) are imported by themselves: they need more than a race does.
"""

from superopt.tune.measure import Measurement, confirm, measure_together

__all__ = [
    "Measurement",
    "confirm",
    "measure_together",
]
