"""Races whose outcome is planted, on a machine that is busy: python -m bench.races."""
