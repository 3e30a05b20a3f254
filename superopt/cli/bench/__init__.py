"""Bench: what `superopt bench run` does, and the process that it measures in."""
