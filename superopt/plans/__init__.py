"""Plans: candidates for every region of a program, raced or predicted, and the program that comes of it."""

from superopt.plans.optimized import Optimized
from superopt.plans.plan import Candidate, Dropped, OptimizeOptions, RegionPlan, Work

__all__ = ["Candidate", "Dropped", "OptimizeOptions", "Optimized", "RegionPlan", "Work"]
