"""Tuning: measurement that can be trusted, and the race of candidates by it."""

from superopt.tune.measure import Measurement, confirm, measure_together
from superopt.tune.race import Standing, race

__all__ = ["Measurement", "Standing", "confirm", "measure_together", "race"]
