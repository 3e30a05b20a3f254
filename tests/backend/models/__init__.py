"""Whole models and random modules through the backend, compared with PyTorch and Inductor."""
