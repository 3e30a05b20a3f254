"""Checks: what a plan must pass besides the race of its region."""
