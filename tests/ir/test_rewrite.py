"""Rewrites of axes: they undo each other, and a refined graph means the same."""

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from superopt.errors import GraphError
from superopt.ir import Axis, Graph, live_graph, merge_axes, parse_graph, refine_axis, rename_axes
from superopt.workloads import WORKLOADS

GRAPHS = {
    "mean": """
        graph mean
        axes m=3 k=12
        in x: f32[m, k]
        t1 = sum[k](x)
        t2 = size[k]()
        t3 = div(t1, t2)
        out y: f32[m] = t3
    """,
    "index": """
        graph index
        axes m=3 k=12
        in x: f32[k, m]
        t1 = index[k]()
        t2 = index[m]()
        t3 = ge(t1, t2)
        t4 = mul(x, t3)
        t5 = mul(t1, t4)
        t6 = max[k](t5)
        out n: f32[m] = t6
        out y: f32[m, k] = t5
    """,
    "matmul": """
        graph matmul
        axes m=3 k=12 n=2
        in x: f32[(m k)]
        in w: f32[k, n]
        t2 = contract[k](x, w)
        out y: f32[(n m), 1] = t2
    """,
    "scaled index": """
        graph scaled
        axes k=12
        in x: f32[k]
        t1 = index[k]()
        t2 = size[k]()
        t3 = div(t1, t2)
        t4 = contract[k](x, t3)
        out y: f32[] = t4
    """,
}  # fmt: skip
PARTS = {
    "two": (Axis("ko", 4), Axis("ki", 3)),
    "three": (Axis("a", 2), Axis("b", 2), Axis("c", 3)),
    "with one": (Axis("ko", 1), Axis("ki", 12)),
}


@pytest.mark.parametrize("parts", PARTS)
@pytest.mark.parametrize("name", GRAPHS)
def test_refined_means_the_same(
    name: str, parts: str, evaluate: Callable[[Graph], dict[str, Tensor]]
) -> None:
    graph = parse_graph(GRAPHS[name])
    refined = refine_axis(graph, "k", PARTS[parts])
    assert set(refined.sizes) == set(graph.sizes) - {"k"} | {part.name for part in PARTS[parts]}
    torch.testing.assert_close(evaluate(refined), evaluate(graph))


@pytest.mark.parametrize("parts", PARTS)
@pytest.mark.parametrize("name", GRAPHS)
def test_merging_undoes_refining(name: str, parts: str) -> None:
    graph = parse_graph(GRAPHS[name])
    refined = refine_axis(graph, "k", PARTS[parts])
    merged = merge_axes(refined, [part.name for part in PARTS[parts]], "k")
    assert merged is not None
    assert live_graph(merged) == live_graph(graph)


@pytest.mark.parametrize(
    "steps",
    [
        ["t1 = sum[a](x)", "t2 = sum[b](t1)"],  # reduced one by one
        ["t1 = index[a]()", "t2 = contract[a, b](x, t1)"],  # only one half is told apart
        ["t1 = size[b]()", "t9 = sum[a, b](x)", "t2 = mul(t9, t1)"],
        ["t1 = select[a=0](x)", "t2 = sum[b](t1)"],
    ],
)  # fmt: skip
def test_halves_that_are_told_apart_stay(steps: list[str]) -> None:
    graph = parse_graph(
        "\n".join(["graph g", "axes a=2 b=3", "in x: f32[a, b]", *steps, "out y: f32[] = t2"])
    )
    assert merge_axes(graph, ["a", "b"], "k") is None


def test_halves_in_the_other_order_stay() -> None:
    graph = parse_graph("graph g\naxes a=2 b=3\nin x: f32[b, a]\nt1 = sum[a, b](x)\nout y: f32[] = t1")
    assert merge_axes(graph, ["a", "b"], "k") is None


def test_refining_says_what_is_wrong() -> None:
    graph = parse_graph("""
        graph g
        axes i=4 j=4
        in x: f32[i]
        t1 = rename[i->j](x)
        out y: f32[j] = t1
    """)
    with pytest.raises(GraphError, match="graph 'g' has no axis 'k'"):
        refine_axis(graph, "k", (Axis("a", 2), Axis("b", 2)))
    with pytest.raises(GraphError, match="axis 'i' of size 4 is not the product"):
        refine_axis(graph, "i", (Axis("a", 2), Axis("b", 3)))
    for axis in "ij":
        with pytest.raises(GraphError, match="renamed"):
            refine_axis(graph, axis, (Axis("a", 2), Axis("b", 2)))


@pytest.mark.parametrize("name", ["rmsnorm-linear", "mha", "gqa-decode", "llama-layer"])
def test_renaming_axes_goes_there_and_back(name: str) -> None:
    from superopt.trace import trace

    item = WORKLOADS[name]
    graph = trace(item.function, *item.inputs()).graph
    there = {axis: f"{axis}_new" for axis in graph.sizes}
    renamed = rename_axes(graph, there)
    assert list(renamed.sizes) == list(there.values())
    assert not set(renamed.sizes) & set(graph.sizes)
    assert rename_axes(renamed, {new: old for old, new in there.items()}) == graph


def test_swapping_names_keeps_the_meaning(evaluate: Callable[[Graph], dict[str, Tensor]]) -> None:
    graph = parse_graph(GRAPHS["index"])
    swapped = rename_axes(graph, {"m": "k", "k": "m"})
    assert swapped.sizes == {"k": 3, "m": 12}
    torch.testing.assert_close(evaluate(swapped), evaluate(graph))
