"""MuGraphs: how a graph runs, as kernels; their rules, their text form, and the default schedule."""

from superopt.ir.mugraph.apart import kernels_apart
from superopt.ir.mugraph.check import check_mugraph
from superopt.ir.mugraph.facts import FusionChoices
from superopt.ir.mugraph.fusion import fuse, leaving_products
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
from superopt.ir.mugraph.library import (
    Convolution,
    Slid,
    called_order,
    convolution_of,
    is_called,
    is_matmul,
    shown_to,
)
from superopt.ir.mugraph.text import parse_mugraph

__all__ = [
    "Block",
    "Call",
    "Convolution",
    "FusionChoices",
    "Kernel",
    "Loop",
    "MuGraph",
    "Slid",
    "Split",
    "Tile",
    "called_order",
    "check_mugraph",
    "convolution_of",
    "fuse",
    "is_called",
    "is_matmul",
    "kernels_apart",
    "leaving_products",
    "parse_mugraph",
    "print_mugraph",
    "running_path",
    "shown_to",
    "walk",
]
