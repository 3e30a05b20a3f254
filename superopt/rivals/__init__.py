"""Rivals: PyTorch's programs, and the last race against them."""
