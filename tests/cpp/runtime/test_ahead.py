"""What one program reads again is fetched ahead for the next one, where caches hold both."""

import pytest
import torch

from superopt.codegen.cpp import CppMuGraph
from superopt.codegen.cpp.config import CppConfig
from superopt.ir import fuse, parse_graph

CENTERED = """
graph centered
axes m={m} n={n}
in x: f32[m, n]
in g: f32[n]
t2 = sum[n](x)
t3 = mul(x, t2)
t4 = mul(t3, g)
out y: f32[m, n] = t4
"""
PLAIN = """
graph plain
axes m=64 n=512
in x: f32[m, n]
t1 = exp(x)
out y: f32[m, n] = t1
"""


def source(text: str, tile: int = 1, schedule: str = "static") -> str:
    mugraph = fuse(parse_graph(text))
    whole = () if text == PLAIN else ("n",)
    config = CppConfig((("m", tile), ("n", 512)), schedule=schedule, whole=whole)
    return CppMuGraph(mugraph, {0: config}).sources[0]


@pytest.mark.parametrize(("tile", "step"), [(1, "x_stride_m"), (4, "m_tile * x_stride_m")])
def test_the_rows_of_the_next_program_are_fetched_once(tile: int, step: str) -> None:
    [line] = [one for one in source(CENTERED.format(m=64, n=512), tile).splitlines() if "prefetch" in one]
    assert line.strip().startswith("prefetch(x_tile + ")
    assert line.endswith(f" + {step});")


@pytest.mark.parametrize(
    ("text", "schedule"),
    [
        (PLAIN, "static"),  # read once, in order: the processor sees it coming
        (CENTERED.format(m=64, n=512), "dynamic"),  # nobody knows which program is the next
        (CENTERED.format(m=64, n=1 << 17), "static"),  # rows that fill a cache alone
    ],
)
def test_nothing_else_is(text: str, schedule: str) -> None:
    assert "prefetch" not in source(text, schedule=schedule)


@pytest.mark.parametrize("shape", [(1, 512), (7, 129), (64, 33)])
def test_fetching_past_the_last_row_changes_nothing(shape: tuple[int, int]) -> None:
    torch.manual_seed(0)
    x, g = torch.randn(shape), torch.randn(shape[1])
    config = CppConfig((("m", 1), ("n", 512)), whole=("n",))
    kernel = CppMuGraph(fuse(parse_graph(CENTERED.format(m=shape[0], n=shape[1]))), {0: config})
    assert "prefetch" in kernel.sources[0]
    exact = x.double() * x.double().sum(-1, keepdim=True) * g.double()
    torch.testing.assert_close(kernel(x=x, g=g)["y"].double(), exact, rtol=1e-4, atol=1e-4)
