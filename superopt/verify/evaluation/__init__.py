"""Evaluation: graphs on tiny axes in the field, and what sizes, levels and orders make such numbers count."""
