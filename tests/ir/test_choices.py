"""What a schedule may decide otherwise than `fuse` does by default."""

import pytest
import torch
from interpreter import execute

from superopt.ir import FusionChoices, Graph, MuGraph, fuse, is_matmul, parse_graph
from superopt.trace.run import run_graph

NORMED = parse_graph(
    """graph normed
axes m=64 k=4096 n=512
in x: f32[m, k]
in w: f32[k, n]
t2 = square(x)
t3 = sum[k](t2)
t4 = rsqrt(t3)
t5 = mul(x, t4)
t6 = contract[k](t5, w)
out y: f32[m, n] = t6
"""
)
PARTIAL = parse_graph(
    """graph partial
axes m=4 a=64 b=2048
in x: f32[m, a, b]
t1 = sum[b](x)
t2 = sum[a](t1)
out y: f32[m] = t2
"""
)
PAIR = parse_graph(
    """graph pair
axes m=4096 k=64 r=2048 n=2048
in x: f32[m, k]
in u: f32[k, r]
in v: f32[r, n]
t3 = contract[k](x, u)
t4 = contract[r](t3, v)
out y: f32[m, n] = t4
"""
)


def kernels(mugraph: MuGraph) -> list[str]:
    """Return the lines of the kernels without the steps."""
    lines = str(mugraph).splitlines()
    return [line.strip() for line in lines if line.startswith("kernel") or "loop[" in line]


def assert_computes(graph: Graph, mugraph: MuGraph) -> None:
    small = {axis.name: 3 for axis in graph.axes}
    torch.manual_seed(0)

    def short(one: Graph) -> Graph:
        text = str(one)
        for axis in graph.axes:
            text = text.replace(f" {axis.name}={axis.size}", f" {axis.name}={small[axis.name]}")
        return parse_graph(text)

    reference = short(graph)
    tensors = {port.name: torch.rand(reference.shape(port), dtype=torch.float64) for port in graph.inputs}
    got = execute(MuGraph(short(mugraph.graph), mugraph.kernels, mugraph.splits), tensors)
    torch.testing.assert_close(got, run_graph(reference, tensors))


DEFAULT = ["kernel grid[m, n]", "loop[k]", "loop[k]"]
CHOICES = {
    "nothing": (NORMED, FusionChoices(), DEFAULT),
    "after the statistics": (
        NORMED,
        FusionChoices(cuts=frozenset({4})),
        ["kernel grid[m]", "loop[k]", "kernel grid[m, n]", "loop[k]"],
    ),
    "after what enters the product": (
        NORMED,
        FusionChoices(cuts=frozenset({5})),
        ["kernel grid[m]", "loop[k]", "loop[k]", "kernel grid[m, n]", "loop[k]"],
    ),
    "after a value that is no step's": (NORMED, FusionChoices(cuts=frozenset({0, 99})), DEFAULT),
    "two cuts": (
        NORMED,
        FusionChoices(cuts=frozenset({3, 5})),
        ["kernel grid[m]", "loop[k]", "kernel grid[m, k]", "kernel grid[m, n]", "loop[k]"],
    ),
    "columns walked along": (
        NORMED,
        FusionChoices(looped=frozenset({"n"})),
        ["kernel grid[m]", "loop[k]", "loop[n]", "loop[k]"],
    ),
    "parts combined": (
        PARTIAL,
        FusionChoices(),
        ["kernel grid[m, a]", "loop[b]", "kernel grid[m]", "loop[a]"],
    ),
    "reductions joined": (PARTIAL, FusionChoices(joined=True), ["kernel grid[m]", "loop[b]"]),
    "an axis that would be whole is looped": (
        PARTIAL,
        FusionChoices(joined=True, looped=frozenset({"a"})),
        ["kernel grid[m]", "loop[a]", "loop[b]"],
    ),
    "two products apart": (
        PAIR,
        FusionChoices(),
        ["kernel grid[m, r]", "loop[k]", "kernel grid[m, n]", "loop[r]"],
    ),
    "two products, one computed for every tile": (
        PAIR,
        FusionChoices(tile=4096),
        ["kernel grid[m, n]", "loop[r]"],
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", CHOICES)
def test_a_choice_makes_these_kernels(name: str) -> None:
    graph, choices, expected = CHOICES[name]
    mugraph = fuse(graph, choices=choices)
    assert kernels(mugraph) == expected
    assert_computes(graph, mugraph)


def test_a_cut_ends_a_kernel_before_a_call_too() -> None:
    mugraph = fuse(NORMED, library=is_matmul, choices=FusionChoices(cuts=frozenset({4})))
    assert kernels(mugraph) == ["kernel grid[m]", "loop[k]", "kernel grid[m, k]", "kernel call"]
    assert_computes(NORMED, mugraph)


ONE_ROW = """
graph one_row
axes k=2048
in x: f32[1, k]
t1 = exp(x)
t2 = sum[k](t1)
t3 = div(t1, t2)
out y: f32[1, k] = t3
"""


@pytest.mark.parametrize(
    ("size", "choices", "count"),
    [
        (2048, FusionChoices(), 1),
        (1 << 15, FusionChoices(), 1),
        ((1 << 15) + 1, FusionChoices(), 3),  # else one program would do much alone
        (1 << 17, FusionChoices(looped=frozenset({"k"})), 1),
    ],
)
def test_a_row_without_a_grid_is_one_kernel_where_it_is_short_or_so_chosen(size, choices, count) -> None:
    graph = parse_graph(ONE_ROW.replace("2048", str(size)))
    mugraph = fuse(graph, choices=choices)
    assert len(mugraph.kernels) == count
    assert count > 1 or mugraph.kernels[0].grid == ()
