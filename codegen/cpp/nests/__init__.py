"""Nests in C++: loops of fused steps, line by line."""
