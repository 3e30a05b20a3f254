"""The intermediate representation: graphs of tensor algebra on named axes, and their text form."""

from superopt.ir.check import check_graph
from superopt.ir.cut import closed_values, cut_graph
from superopt.ir.extents import extents, fitting_extents, measured_axes
from superopt.ir.graph import (
    COMMUTATIVE,
    COMPARISONS,
    REDUCTIONS,
    STRUCTURAL,
    Axis,
    Graph,
    Output,
    Port,
    Step,
    live_graph,
    needed_order,
    step_axes,
    value_axes,
)
from superopt.ir.masks import mask_values, selects
from superopt.ir.mugraph import (
    Block,
    Call,
    FusionChoices,
    Kernel,
    Loop,
    MuGraph,
    Split,
    Tile,
    check_mugraph,
    fuse,
    is_matmul,
    parse_mugraph,
    print_mugraph,
)
from superopt.ir.program import (
    Opaque,
    Program,
    Region,
    check_program,
    parse_program,
    print_program,
)
from superopt.ir.release import release_shifts
from superopt.ir.rewrite import merge_axes, refine_axes, refine_axis, rename_axes
from superopt.ir.running import Growth, growths
from superopt.ir.shift import describe_shifts, free_shifts
from superopt.ir.split import split_axis, uneven
from superopt.ir.stabilize import stabilize
from superopt.ir.text import format_constant, parse_graph, print_graph, print_step, value_names

__all__ = [
    "COMMUTATIVE",
    "COMPARISONS",
    "REDUCTIONS",
    "STRUCTURAL",
    "Axis",
    "Block",
    "Call",
    "FusionChoices",
    "Graph",
    "Growth",
    "Kernel",
    "Loop",
    "MuGraph",
    "Opaque",
    "Output",
    "Port",
    "Program",
    "Region",
    "Split",
    "Step",
    "Tile",
    "check_graph",
    "check_mugraph",
    "check_program",
    "closed_values",
    "cut_graph",
    "describe_shifts",
    "extents",
    "fitting_extents",
    "format_constant",
    "free_shifts",
    "fuse",
    "growths",
    "is_matmul",
    "live_graph",
    "mask_values",
    "measured_axes",
    "merge_axes",
    "needed_order",
    "parse_graph",
    "parse_mugraph",
    "parse_program",
    "print_graph",
    "print_mugraph",
    "print_program",
    "print_step",
    "refine_axes",
    "refine_axis",
    "release_shifts",
    "rename_axes",
    "selects",
    "split_axis",
    "stabilize",
    "step_axes",
    "uneven",
    "value_axes",
    "value_names",
]
