"""The space of small operator programs."""

from superopt.frontier.programs.space import OPERATORS, Programs

__all__ = ["OPERATORS", "Programs"]
