"""Graphs: whether two graphs are equal, by random tests over the field with a bound on their error."""
