"""Idioms of numbers: of single ones, their order, masks and sums, each beside its near misses."""
