"""Capture: one run of a function on tensors without data, recorded as a tape of ATen calls."""
