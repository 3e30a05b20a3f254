"""Idioms of tensors: places, windows, attention, layers and losses; and the equations of graph rewriters."""
