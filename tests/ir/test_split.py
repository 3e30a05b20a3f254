"""Split axes: ragged parts, masks and extents along them, and shifts of each part."""

from collections.abc import Callable
from dataclasses import replace

import pytest
import torch
from interpreter import execute
from programs import attention, differential, log_sum_exp, rooted, squared_weights
from torch import Tensor

from superopt.errors import GraphError
from superopt.ir import (
    Graph,
    MuGraph,
    Split,
    free_shifts,
    fuse,
    parse_graph,
    parse_mugraph,
    print_mugraph,
    release_shifts,
    split_axis,
    stabilize,
    uneven,
)
from superopt.trace import trace
from superopt.trace.run import run_graph
from superopt.verify.graphs.equality import equal_graphs

Function = Callable[[Tensor, Tensor], Tensor]

ROWS = 7


def mean(x, v):
    return x.mean(-1)


def product(x, v):
    return x @ v


def causal(x, v):
    keep = torch.ones(4, ROWS, dtype=torch.bool).tril()
    return x.masked_fill(~keep, float("-inf")).softmax(-1) @ v


def projected_log_sum_exp(x, v):
    return (x @ v @ v.T).logsumexp(-1)


def cross_entropy(x, v):
    return x.logsumexp(-1) - (x * torch.sigmoid(x)).sum(-1)


def with_a_sink(x, v):
    e = torch.exp(x)
    return (e @ v) / (e.sum(-1, keepdim=True) + torch.exp(x.square().mean(-1, keepdim=True)))


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


@pytest.mark.parametrize("online", [pytest.param(False, marks=pytest.mark.slow), True])
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


HALVED = """graph halved
axes m=3 t_outer=2 t_inner=3 n=4
in x: f32[m, (t_outer t_inner)]
in w: f32[(t_outer t_inner), n]
{}
out o: f32[m, n] = {}
"""
HALVES = Split("t", "t_outer", "t_inner")


def halved(steps: str, out: str) -> Graph:
    return parse_graph(HALVED.format(steps.strip(), out))


MEAN = """
t2 = contract[t_outer, t_inner](x, w)
t3 = size[t_outer]()
t4 = size[t_inner]()
t5 = mul(t3, t4)
t6 = div(t2, t5)
"""
MASKED = """
t2 = index[m]()
t3 = index[t_outer]()
t4 = size[t_inner]()
t5 = mul(t3, t4)
t6 = index[t_inner]()
t7 = add(t5, t6)
t8 = ge(t2, t7)
t9 = mul(t8, x)
t10 = contract[t_inner](t9, w)
t11 = sum[t_outer](t10)
"""


@pytest.mark.parametrize(("steps", "out"), [(MEAN, "t6"), (MASKED, "t11")])
@pytest.mark.parametrize(("length", "parts"), [(1, 1), (1, 4), (5, 2), (7, 3), (9, 3)])
def test_halves_of_equal_length_may_differ_from_then_on(
    steps: str, out: str, length: int, parts: int
) -> None:
    graph = uneven(halved(steps, out), HALVES)
    sizes = {**graph.sizes, "t": length, "t_outer": parts, "t_inner": -(-length // parts)}
    graph = replace(graph, axes=tuple(replace(one, size=sizes[one.name]) for one in graph.axes))
    tensors = {"x": torch.randn(3, length).double(), "w": torch.randn(length, 4).double()}
    got = execute(fuse(graph, splits=(HALVES,)), tensors)["o"]
    x = tensors["x"].tril() if steps is MASKED else tensors["x"] / length
    torch.testing.assert_close(got, x @ tensors["w"])


@pytest.mark.parametrize(
    ("steps", "out", "reason"),
    [
        (MEAN.replace("mul(t3, t4)", "mul(t3, t3)"), "t6", "the size of one half"),
        (MASKED.replace("ge(t2, t7)", "ge(t2, t3)"), "t11", "the index of one half"),
        ("t2 = sum[t_outer](x)\nt3 = sum[t_outer](w)\nt4 = contract[t_inner](t2, t3)", "t4", "put together"),
        (MEAN.replace("div(t2, t5)", "div(t2, t5)\nt7 = index[t_inner]()\nt8 = sum[t_inner](t7)\n"
                      "t9 = mul(t6, t8)"), "t9", "the index of one half"),
    ],
)  # fmt: skip
def test_what_needs_parts_of_equal_length_is_refused(steps: str, out: str, reason: str) -> None:
    with pytest.raises(GraphError, match=reason):
        uneven(halved(steps, out), HALVES)


def test_an_axis_of_an_output_keeps_its_halves_equal() -> None:
    text = "graph g\naxes t_outer=2 t_inner=3\nin x: f32[(t_outer t_inner)]\nt1 = exp(x)\n"
    with pytest.raises(GraphError, match="an output has it"):
        uneven(parse_graph(text + "out o: f32[(t_outer t_inner)] = t1\n"), HALVES)


def test_halves_that_are_not_there_are_refused() -> None:
    with pytest.raises(GraphError, match="does not have 't' as two axes"):
        uneven(graph_of(mean), HALVES)
