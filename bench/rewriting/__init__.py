"""Whole programs rewritten by discovered rules: the cheapest one on measured costs, and its time."""
