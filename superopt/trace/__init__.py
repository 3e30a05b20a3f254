"""Tracing: from a PyTorch function or module to a Program of regions of algebra."""

from superopt.trace.run import run_graph
from superopt.trace.traced import Traced, trace

__all__ = ["Traced", "run_graph", "trace"]
