"""Tuning: measurement that can be trusted, and the race of candidates by it.

Compiling in a pool (`tune.pool`), first runs in a process of their own (`tune.probe`) and the learned order
(`tune.learned_order`) are imported by themselves: they need more than a race does.
"""

from superopt.tune.errors import DeviceLostError, KernelFaultError, MeasurementError, TuneError
from superopt.tune.gpu import times_on_cuda
from superopt.tune.halving import Halving, halve
from superopt.tune.measure import HeadToHead, Measurement, confirm, measure_together

__all__ = [
    "DeviceLostError",
    "Halving",
    "HeadToHead",
    "KernelFaultError",
    "Measurement",
    "MeasurementError",
    "TuneError",
    "confirm",
    "halve",
    "measure_together",
    "times_on_cuda",
]
