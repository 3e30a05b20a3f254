"""MuGraphs: how a graph runs, as kernels; their rules, their text form, and the default schedule."""

from superopt.ir.mugraph.check import check_mugraph
from superopt.ir.mugraph.facts import FusionChoices
from superopt.ir.mugraph.fusion import fuse, is_matmul
from superopt.ir.mugraph.kernels import (
    Block,
    Call,
    Kernel,
    Loop,
    MuGraph,
    Split,
    Tile,
    print_mugraph,
    running_path,
    walk,
)
from superopt.ir.mugraph.text import parse_mugraph

__all__ = [
    "Block",
    "Call",
    "FusionChoices",
    "Kernel",
    "Loop",
    "MuGraph",
    "Split",
    "Tile",
    "check_mugraph",
    "fuse",
    "is_matmul",
    "parse_mugraph",
    "print_mugraph",
    "running_path",
    "walk",
]
