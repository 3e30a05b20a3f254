"""Weights: tensors that stay the same from call to call, and what is made of them once, before the calls."""
