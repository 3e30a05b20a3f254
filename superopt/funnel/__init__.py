"""Funnel: what every candidate goes through, stage by stage, until one is chosen for each region."""

from superopt.funnel.funnel import FUNNEL, RETUNING, Stage, run, run_regions, write_regions
from superopt.funnel.state import Context, Limits, State

__all__ = [
    "FUNNEL",
    "RETUNING",
    "Context",
    "Limits",
    "Stage",
    "State",
    "run",
    "run_regions",
    "write_regions",
]
