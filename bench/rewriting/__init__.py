"""Whole programs rewritten by discovered rules: the cheapest equal program on measured costs, and its time."""
