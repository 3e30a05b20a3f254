"""Split axes: ragged parts, masks and extents along them, and shifts of each part."""

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from superopt.errors import GraphError
from superopt.ir import (
    Graph,
    MuGraph,
    free_shifts,
    fuse,
    parse_graph,
    parse_mugraph,
    print_mugraph,
    release_shifts,
    split_axis,
    stabilize,
)
from superopt.trace import trace
from superopt.trace.run import run_graph
from superopt.verify.equality import equal_graphs
from superopt.verify.execute import execute

Function = Callable[[Tensor, Tensor], Tensor]

ROWS = 7


def mean(x, v):
    return x.mean(-1)


def product(x, v):
    return x @ v


def attention(x, v):
    return (x * 0.3).softmax(-1) @ v


def causal(x, v):
    keep = torch.ones(4, ROWS, dtype=torch.bool).tril()
    return x.masked_fill(~keep, float("-inf")).softmax(-1) @ v


def log_sum_exp(x, v):
    return x.logsumexp(-1)


def projected_log_sum_exp(x, v):
    return (x @ v @ v.T).logsumexp(-1)


def cross_entropy(x, v):
    return x.logsumexp(-1) - (x * torch.sigmoid(x)).sum(-1)


def differential(x, v):
    return (x.softmax(-1) - 0.5 * (x * 2).softmax(-1)) @ v


def with_a_sink(x, v):
    e = torch.exp(x)
    return (e @ v) / (e.sum(-1, keepdim=True) + torch.exp(x.square().mean(-1, keepdim=True)))


def squared_weights(x, v):
    e = torch.exp(x)
    return e.square().sum(-1) / e.sum(-1).square()


def rooted(x, v):
    e = torch.exp(x)
    return e.square().sum(-1).sqrt() / e.sum(-1)


def root_on_one_side(x, v):
    e = torch.exp(x)
    return e.sum(-1).sqrt() / e.sum(-1)


SHIFTED = [
    attention,
    causal,
    log_sum_exp,
    projected_log_sum_exp,
    cross_entropy,
    differential,
    with_a_sink,
    squared_weights,
    rooted,
]
ALL = [mean, product, *SHIFTED, root_on_one_side]


def graph_of(function: Function, rows: int = ROWS) -> Graph:
    x, v = torch.randn(4, rows, dtype=torch.float64), torch.randn(rows, 5, dtype=torch.float64)
    return release_shifts(trace(function, x, v, name="f").graph)


def tensors_for(graph: Graph, scale: float = 1.0) -> dict[str, Tensor]:
    torch.manual_seed(2)
    return {port.name: torch.randn(graph.shape(port), dtype=torch.float64) * scale for port in graph.inputs}


def reduced_axis(graph: Graph) -> str:
    """Return the axis of the first reduction that all rows of `x` lie along."""
    return next(axis for axis in graph.inputs[0].axes if graph.sizes[axis] in (ROWS, 6))


def parted(graph: Graph, parts: int, *, online: bool) -> MuGraph:
    made, split = split_axis(graph, reduced_axis(graph), parts)
    return fuse(stabilize(made, (split.outer,)), splits=(split,), online=online)


@pytest.mark.parametrize("online", [False, True])
@pytest.mark.parametrize("function", ALL)
def test_parts_of_any_number_compute_the_same(function: Function, online: bool) -> None:
    graph = graph_of(function)
    tensors = tensors_for(graph)
    expected = run_graph(graph, tensors)
    for parts in range(1, ROWS + 3):
        got = execute(parted(graph, parts, online=online), tensors)
        torch.testing.assert_close(got, expected, rtol=1e-9, atol=1e-12, msg=f"{parts} parts")


@pytest.mark.parametrize("function", SHIFTED)
def test_parts_do_not_overflow(function: Function) -> None:
    graph = graph_of(function)
    tensors = tensors_for(graph, 1e4)
    for tensor in execute(parted(graph, 3, online=True), tensors).values():
        assert tensor.isfinite().all()


@pytest.mark.parametrize(
    "function", [attention, differential, with_a_sink, squared_weights, rooted, mean, product]
)
def test_parts_are_proven_over_the_field(function: Function) -> None:
    graph = graph_of(function, rows=6)
    made, split = split_axis(graph, reduced_axis(graph), 3)
    assert equal_graphs(graph, stabilize(made, (split.outer,))).equal


@pytest.mark.parametrize(
    ("function", "shifts"),
    [
        (attention, 1),
        (log_sum_exp, 1),
        (differential, 2),
        (with_a_sink, 1),
        (squared_weights, 1),
        (rooted, 1),
    ],
)
def test_every_part_takes_its_own_maximum_and_they_meet_once(function: Function, shifts: int) -> None:
    graph = graph_of(function)
    made, split = split_axis(graph, reduced_axis(graph), 3)
    stable = stabilize(made, (split.outer,))
    maxima = [step.axes for step in stable.steps if step.op == "max"]
    assert maxima.count((split.inner,)) == shifts
    assert maxima.count((split.outer,)) == shifts


def test_what_has_no_degree_keeps_its_exponentials() -> None:
    graph = graph_of(root_on_one_side)
    assert free_shifts(graph) == ()
    made, split = split_axis(graph, reduced_axis(graph), 3)
    assert stabilize(made, (split.outer,)) is made


def test_the_extent_stays_that_of_the_axis() -> None:
    graph = graph_of(mean)
    axis = reduced_axis(graph)
    made, split = split_axis(graph, axis, 3)
    assert made.sizes[axis] == ROWS
    assert made.sizes[split.outer] * made.sizes[split.inner] == 9
    assert [step.axes for step in made.steps if step.op == "size"] == [(axis,)]


@pytest.mark.parametrize("function", [squared_weights, product])
def test_the_text_keeps_splits_and_what_runs(function: Function) -> None:
    mugraph = parted(graph_of(function), 3, online=True)
    text = print_mugraph(mugraph)
    assert f"split {mugraph.splits[0].axis} into" in text
    assert ("running" in text) == (function is squared_weights)
    assert parse_mugraph(text) == mugraph


SMALL = parse_graph(
    "graph g\naxes m=4 k=7 n=7\nin x: f32[m, k]\nt = sum[k](x)\nu = rename[k->n](x)\nv = sum[n](u)\n"
    "w = add(t, v)\nout y: f32[m] = w\n"
)


@pytest.mark.parametrize(
    ("axis", "parts", "reason"),
    [
        ("q", 2, "has no axis 'q'"),
        ("m", 2, "an output has it"),
        ("k", 2, "read at other places"),
        ("k", 0, "into 0 parts"),
    ],
)
def test_an_axis_that_cannot_be_split_is_refused(axis: str, parts: int, reason: str) -> None:
    with pytest.raises(GraphError, match=reason):
        split_axis(SMALL, axis, parts)


def test_a_sum_that_reads_no_tensor_is_not_shared_out() -> None:
    text = """graph positions
axes a=3 b=2
in x: f32[b]
in z: f32[a]
t2 = index[a]()
t3 = sum[a]({0})
t4 = mul(t3, x)
t5 = sum[a](z)
t6 = add(t4, t5)
out y: f32[b] = t6
"""
    with pytest.raises(GraphError, match="reads no tensor"):
        split_axis(parse_graph(text.format("t2")), "a", 3)
    graph, split = split_axis(
        parse_graph(text.format("z").replace("t2 = index[a]()", "t2 = size[a]()")), "a", 3
    )
    assert fuse(stabilize(graph, (split.outer,)), splits=(split,), online=True).kernels


def test_a_name_that_is_taken_is_not_taken_again() -> None:
    text = "graph g\naxes k=7 k_part=2\nin x: f32[k, k_part]\nt = sum[k](x)\nout y: f32[k_part] = t\n"
    made, split = split_axis(parse_graph(text), "k", 2)
    assert (split.outer, split.inner) == ("k_part_", "k_at")
    assert made.sizes["k_part"] == 2


def test_a_difference_before_the_shift_is_left_alone() -> None:
    def function(a: Tensor, b: Tensor, s: Tensor) -> tuple[Tensor, Tensor]:
        e = torch.exp(s - s.amax(-1, keepdim=True))
        return (a - b) * b, e / e.sum(-1, keepdim=True)

    inputs = [torch.randn(3, 4, dtype=torch.float64) for _ in range(3)]
    graph = trace(function, *inputs, name="f").graph
    released = release_shifts(graph)
    assert "max" in {step.op for step in graph.steps}
    assert "max" not in {step.op for step in released.steps}
    tensors = dict(zip(("a", "b", "s"), inputs, strict=True))
    for found, wanted in zip(run_graph(released, tensors).values(), function(*inputs), strict=True):
        torch.testing.assert_close(found, wanted)
