"""Whole programs: all that rules make of one in an e-graph, and the cheapest program in it."""
