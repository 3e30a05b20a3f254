"""Reach: all that a function reads besides its arguments."""

from superopt.live.reach.reached import Reached
from superopt.live.reach.walk import reach

__all__ = ["Reached", "reach"]
