"""The reference of an exported module selects by masks, as the meaning of a graph does."""

import math
from typing import Any

import pytest
import torch

from superopt.export.limits import EXPECT_SIZE, limits_of
from superopt.export.masked import SOURCE, masked_sum
from superopt.export.reference import reference_lines
from superopt.ir import parse_graph
from superopt.trace import run_graph

INF, NAN = math.inf, math.nan
X = torch.tensor([[INF, 1.0, -2.0, 0.5], [NAN, 1.0, INF, -INF], [1.0, -INF, 2.0, 4.0]])
P = torch.tensor([[False, True, True, True], [False, True, True, False], [True, False, True, True]])
Q = torch.tensor([True, False, False, True])

GRAPH = """
graph masked
axes m=3 n=4 r=2 o=6
in x: f32[m, n]
in p: bool[m, n]
in q: bool[n]
{steps}
out y: f32[{axes}] = {last}
"""
GRAPHS = {
    "a mask of the same axes": ("t3 = contract[n](p, x)", "m"),
    "a mask of one axis": ("t3 = contract[n](x, q)", "m"),
    "columns that a mask selects": (
        "t3 = index[n]()\nt4 = index[r]()\nt5 = const[2]()\nt6 = add(t4, t5)\nt7 = eq(t3, t6)\n"
        "t8 = contract[n](x, t7)",
        "m, r",
    ),
    "either of two masks": ("t3 = maximum(p, q)\nt4 = mul(t3, x)", "m, n"),
    "any of a row": ("t3 = max[n](q)\nt4 = mul(p, t3)\nt5 = mul(t4, x)", "m, n"),
    "a mask seen through a window": (
        "t3 = window[n = o - 1](p)\nt4 = window[n = o - 1](x)\nt5 = mul(t3, t4)",
        "m, o",
    ),
}


@pytest.mark.parametrize("name", GRAPHS)
def test_a_reference_selects(name: str) -> None:
    steps, axes = GRAPHS[name]
    last = steps.rpartition("\n")[2].partition(" ")[0]
    graph = parse_graph(GRAPH.format(steps=steps, axes=axes, last=last))
    scope: dict[str, Any] = {"torch": torch, "math": math}
    exec("\n".join([EXPECT_SIZE, SOURCE, *reference_lines(graph, limits=limits_of({}, [graph]))]), scope)
    tensors = {"x": X, "p": P, "q": Q}
    wanted = run_graph(graph, tensors)["y"].float()
    made = scope["reference"](*(tensors[port.name] for port in graph.inputs))
    torch.testing.assert_close(made, wanted, equal_nan=True)
    assert made.isfinite().any()


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16])
def test_what_a_mask_leaves_is_summed(dtype: torch.dtype) -> None:
    masks = torch.rand(4, 5, generator=torch.Generator().manual_seed(0)) < 0.4
    made = masked_sum("nr,mn->mr", masks, X.to(dtype))
    wanted = torch.where(masks, X.to(dtype)[:, :, None], 0.0).sum(1)
    assert made.dtype == dtype
    torch.testing.assert_close(made, wanted, equal_nan=True)
