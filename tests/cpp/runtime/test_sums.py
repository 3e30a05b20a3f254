"""Long sums are as accurate as PyTorch's: blocks of terms are added up on their own."""

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from quick import few

from superopt.codegen.cpp import CppMuGraph, default_config, emit, sums
from superopt.codegen.cpp.nests import nest
from superopt.codegen.statements import lower_block
from superopt.ir import Graph, fuse, parse_graph
from superopt.trace import run_graph

from ..test_programs import check, graphs

FACTOR, FLOOR = 2.0, 4.0  # times PyTorch's own error, and units in the last place

COLUMNS = """
graph columns
axes m=20000 n=100
in x: f32[m, n]
s = sum[m](x)
out y: f32[n] = s
"""

SQUARES = """
graph squares
axes m=4096 n=200
in x: f32[m, n]
a = square(x)
s = sum[m](a)
out y: f32[n] = s
"""

EVERYTHING = """
graph everything
axes m=1500 n=2048
in x: f32[m, n]
s = sum[m, n](x)
out y: f32[] = s
"""

ROWS = """
graph rows
axes m=5 n=300000
in x: f32[m, n]
s = sum[n](x)
out y: f32[m] = s
"""

ONE_ROW = """
graph row_times_matrix
axes k=30000 n=72
in x: f32[k]
in w: f32[k, n]
s = contract[k](x, w)
out y: f32[n] = s
"""

LONG = {"columns": COLUMNS, "squares": SQUARES, "everything": EVERYTHING, "rows": ROWS, "one row": ONE_ROW}

KINDS = {
    "normal": torch.randn,
    "positive": torch.rand,
    "sparse": lambda *shape: torch.randn(*shape) * (torch.rand(*shape) < 0.01),
    "one large": lambda *shape: torch.cat(
        [torch.full((1, *shape[1:]), 1e4), torch.randn(shape[0] - 1, *shape[1:])]
    ),
}


def kernel(text: str) -> CppMuGraph:
    return CppMuGraph(fuse(parse_graph(text)))


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("name", LONG)
def test_as_accurate_as_pytorch(name: str, kind: str) -> None:
    torch.manual_seed(0)
    graph = parse_graph(LONG[name])
    tensors = {port.name: KINDS[kind](*graph.shape(port)) for port in graph.inputs}
    exact = run_graph(graph, tensors)["y"]
    eager = run_graph(graph, tensors, torch.float32)["y"].double()
    made = kernel(LONG[name])(**tensors)["y"].double()
    unit = FLOOR * torch.finfo(torch.float32).eps * exact.abs().max()
    assert (made - exact).abs().max() <= FACTOR * (eager - exact).abs().max() + unit


@pytest.mark.parametrize(("first", "second", "wanted"), [
    ("inf", "1", "inf"), ("-inf", "1", "-inf"), ("inf", "-inf", "nan"), ("nan", "1", "nan"),
    ("3e38", "3e38", "inf"),
])  # fmt: skip
@pytest.mark.parametrize(
    ("name", "place"), [("columns", (10_000, 0)), ("everything", (700, 5)), ("rows", (0, 200_000))]
)
def test_what_is_not_finite_stays(
    name: str, place: tuple[int, int], first: str, second: str, wanted: str
) -> None:
    graph = parse_graph(LONG[name])
    x = torch.ones(graph.shape(graph.inputs[0]))
    x[0, 0], x[place] = float(first), float(second)
    found = kernel(LONG[name])(x=x)["y"].flatten()[0]
    assert str(float(found)) == wanted


def test_short_sums_stay_plain() -> None:
    short = COLUMNS.replace("20000", "64")
    programs = [(lower_block(fuse(parse_graph(text)), 0), parse_graph(text)) for text in (short, COLUMNS)]
    plain, blocked = (emit(one, default_config(one, graph.sizes)).code for one, graph in programs)
    for name in ("Sums", "_rest"):
        assert name not in plain
        assert name in blocked


LATER = {
    "columns": (COLUMNS.replace("m=20000 n=100", "m=64 n=8"), (2_000_000, 8), (0,)),
    "rows": (ROWS.replace("n=300000", "n=512"), (2, 8_000_000), (1,)),
    "everything": (EVERYTHING.replace("m=1500 n=2048", "m=8 n=8"), (3000, 2048), (0, 1)),
    "in small tiles": (COLUMNS.replace("m=20000 n=100", "m=16 n=8"), (2_000_000, 8), (0,)),
}


@pytest.mark.parametrize("name", few(LATER, *list(LATER)[:2]))
def test_sums_that_become_long_later_are_as_accurate(name: str) -> None:
    text, shape, dims = LATER[name]
    made = kernel(text)
    short, long = torch.rand(*parse_graph(text).shape(parse_graph(text).inputs[0])), torch.full(shape, 0.1)
    for x in (short, long, short):
        exact = x.double().sum(dims)
        assert ((made(x=x)["y"] - exact).abs() / exact).max() < 2e-6
    for name in ("Sums", "LongSum"):
        assert name not in made.sources[0]  # short ones stay as fast


@pytest.mark.parametrize("size", [16, 64])
def test_sums_of_small_tiles_are_as_accurate_before_they_are_long(size: int) -> None:
    made = kernel(COLUMNS.replace("m=20000 n=100", f"m={size} n=8"))
    x = torch.full((16_000, 8), 0.1)
    exact = x.double().sum(0)
    assert ((made(x=x)["y"] - exact).abs() / exact).max() < 1e-6


@pytest.mark.slow
@settings(max_examples=40, deadline=None, derandomize=True, suppress_health_check=list(HealthCheck))
@given(graphs(), st.integers(0, 71))
def test_drawn_programs_in_blocks(graph: Graph, number: int) -> None:
    """Every sum in blocks, and every rest kept: nothing but accuracy may change."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(nest, "BLOCKED", 1)
        patch.setattr(nest, "LONG", 1)
        patch.setattr(sums, "BLOCKED", 1)
        check(graph, number, ("-O0",))
