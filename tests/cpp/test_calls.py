"""Library calls between kernels of our own."""

import torch

from superopt.codegen.cpp import CppMuGraph
from superopt.ir import parse_mugraph

TEXT = """
graph calls
axes m=7 k=33 n=17
in x: f32[m, k]
in w: f32[k, n]
kernel grid[m, k]
  t2 = exp(x)
kernel call
  t3 = contract[k](t2, w)
kernel grid[m, n]
  t4 = neg(t3)
out y: f32[m, n] = t4
"""


def test_a_call_runs_in_torch() -> None:
    x, w = torch.randn(7, 33), torch.randn(33, 17)
    run = CppMuGraph(parse_mugraph(TEXT), flags=("-O1",))
    assert len(run.sources) == 2
    torch.testing.assert_close(run(x=x, w=w)["y"], -(x.exp() @ w))
    x = torch.randn(3, 33)
    torch.testing.assert_close(run(x=x, w=w)["y"], -(x.exp() @ w))
