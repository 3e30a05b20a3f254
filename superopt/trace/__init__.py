"""Tracing: from a PyTorch function or module to a Program of regions of algebra."""
