"""Free shifts of exponentials: found where degrees work out, refused where they don't, right either way."""

import pytest
import torch
from programs import attention, differential, log_sum_exp, rooted, squared_weights

from superopt.ir import (
    Graph,
    check_graph,
    describe_shifts,
    free_shifts,
    parse_graph,
    release_shifts,
    stabilize,
)
from superopt.trace import trace
from superopt.trace.run import run_graph
from superopt.verify.evaluation.orders import nonnegative_values
from superopt.verify.graphs.equality import equal_graphs


def softmax(x, v):
    return x.softmax(-1)


def delayed_attention(x, v):
    e = torch.exp(x)
    return (e @ v) / e.sum(-1, keepdim=True)


def log_softmax(x, v):
    return x.log_softmax(-1)


def cross_entropy(x, v):
    return -(x.log_softmax(-1) * torch.sigmoid(x)).sum(-1)


def causal(x, v):
    keep = torch.ones(x.shape, dtype=torch.bool).tril()
    return x.masked_fill(~keep, float("-inf")).softmax(-1) @ v


def soft_capped(x, v):
    return (torch.tanh(x / 5) * 5).softmax(-1) @ v


def with_a_sink(x, v):
    e = torch.exp(x)
    return (e @ v) / (e.sum(-1, keepdim=True) + torch.exp(v[:1, :1]))


def one_is_added(x, v):
    e = torch.exp(x)
    return e / (1 + e.sum(-1, keepdim=True))


def softplus_of_a_sum(x, v):
    return torch.log(torch.exp(x).sum(-1) + 1)


def a_null_key(x, v):
    e = torch.exp(x)
    return (2 * v[:1] - e @ v) / (2 + e.sum(-1, keepdim=True))


FREE = [
    softmax,
    attention,
    delayed_attention,
    log_sum_exp,
    log_softmax,
    cross_entropy,
    causal,
    soft_capped,
    with_a_sink,
    differential,
    squared_weights,
    rooted,
    one_is_added,
    softplus_of_a_sum,
    a_null_key,
]

LOGARITHMS = [log_sum_exp, log_softmax, cross_entropy, softplus_of_a_sum]


def not_in_a_ratio(x, v):
    return torch.exp(x).sum(-1)


def sigmoid_attention(x, v):
    return torch.sigmoid(x) @ v


def one_and_the_other(x, v):
    e = torch.exp(x)
    return (1 + e.sum(-1)) / (1 + e.square().sum(-1))


def root_on_one_side(x, v):
    e = torch.exp(x)
    return e.sum(-1).sqrt() / e.sum(-1)


def through_a_tanh(x, v):
    e = torch.exp(x)
    return torch.tanh(e).sum(-1) / e.sum(-1)


FIXED = [not_in_a_ratio, sigmoid_attention, one_and_the_other, root_on_one_side, through_a_tanh]


def graph_of(function) -> Graph:
    return trace(
        function, torch.randn(6, 6, dtype=torch.float64), torch.randn(6, 4, dtype=torch.float64)
    ).graph


def tensors(graph: Graph, scale: float = 1.0) -> dict[str, torch.Tensor]:
    torch.manual_seed(0)
    return {port.name: torch.randn(graph.shape(port), dtype=torch.float64) * scale for port in graph.inputs}


@pytest.mark.parametrize("function", FREE)
def test_free_shifts_are_found_and_keep_the_meaning(function) -> None:
    graph = graph_of(function)
    shifted = stabilize(graph)
    assert free_shifts(graph)
    assert any(step.op in ("max", "maximum") for step in shifted.steps)
    given = tensors(graph)
    for name, expected in run_graph(graph, given).items():
        torch.testing.assert_close(run_graph(shifted, given)[name], expected, rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("function", FREE)
def test_no_overflow_where_pytorch_makes_none(function) -> None:
    graph = graph_of(function)
    given = tensors(graph, scale=1e4)
    for tensor in run_graph(stabilize(graph), given, torch.float64).values():
        assert tensor.isfinite().all()


@pytest.mark.parametrize("function", [f for f in FREE if f not in LOGARITHMS])
def test_the_shift_is_proven_over_the_field(function) -> None:
    graph = graph_of(function)
    assert equal_graphs(graph, stabilize(graph)).equal


@pytest.mark.parametrize("function", FIXED)
def test_exponentials_whose_degrees_do_not_work_out_stay(function) -> None:
    graph = graph_of(function)
    assert free_shifts(graph) == ()
    assert stabilize(graph) is graph


@pytest.mark.parametrize("function", FIXED)
def test_why_an_exponential_is_taken_as_it_is(function) -> None:
    lines = describe_shifts(graph_of(function))
    assert all(": taken as it is: t" in line or "output" in line for line in lines)


def test_over_what_a_shift_is_free() -> None:
    lines = describe_shifts(graph_of(with_a_sink))
    assert lines == (
        "t2: any value that is constant over k may be subtracted from its argument, the same as in t7",
        "t7: any value that is constant over k may be subtracted from its argument, the same as in t2",
    )


def test_two_softmaxes_have_shifts_of_their_own() -> None:
    assert len(free_shifts(graph_of(differential))) == 2


def test_a_shift_is_constant_along_what_is_reduced() -> None:
    (shift,) = free_shifts(graph_of(attention))
    graph = stabilize(graph_of(attention))
    reduced = [step.axes for step in graph.steps if step.op == "max"]
    assert reduced == [tuple(shift.reduced)]


def test_hidden_positions_do_not_set_the_maximum() -> None:
    graph = graph_of(causal)
    given = tensors(graph)
    given["x"] = given["x"] + torch.triu(torch.full((6, 6), 1e5, dtype=torch.float64), 1)
    for name, expected in run_graph(stabilize(graph), given).items():
        torch.testing.assert_close(causal(given["x"], given["v"]), expected, msg=name)


def test_a_graph_without_exponentials_is_returned_as_it_is() -> None:
    graph = parse_graph("graph g\naxes k=4\nin x: f32[k]\nt = square(x)\nout y: f32[k] = t\n")
    assert stabilize(graph) is graph


def layers(count, x, w):
    """Return layers of attention and a gate, whose exponentials meet in sums and are all normalized away."""

    def normal(x):
        return x * torch.rsqrt(x.square().mean(-1, keepdim=True) + 1e-5)

    for _ in range(count):
        h = normal(x)
        x = x + ((h @ w @ h.T) * 0.3).softmax(-1) @ h
        gate = normal(x) @ w
        x = x + (gate / (1 + torch.exp(-gate))) @ w
    return normal(x)


@pytest.mark.parametrize("count", [1, 2, 15])
def test_many_exponentials_that_depend_on_each_other(count):
    torch.manual_seed(0)
    x, w = torch.randn(5, 6), torch.randn(6, 6) / 2
    traced = trace(lambda x, w: layers(count, x, w), x, w)
    inputs = {port.name: one.double() for port, one in zip(traced.graph.inputs, (x, w), strict=True)}
    stable = stabilize(traced.graph)
    assert sum(step.op == "max" for step in stable.steps) >= count
    [found], [wanted] = (run_graph(graph, inputs).values() for graph in (stable, traced.graph))
    torch.testing.assert_close(found, wanted)
    why = "".join(describe_shifts(traced.graph))
    assert ("its shift would be made from itself" in why) == (count > 1)


def hidden_by_its_own_shift(x, v):
    """Return weights of two kinds in one row; the second ones count where the first are large."""
    one, other = torch.exp(x), torch.exp(2 * x)
    large = one / one.sum(-1, keepdim=True) > 0.2
    return one / (one.sum(-1, keepdim=True) + (other * large).sum(-1, keepdim=True))


def hidden_by_each_other(x, v):
    one, other = torch.exp(x), torch.exp(x.sin())
    first, second = one / one.sum(-1, keepdim=True) > 0.2, other / other.sum(-1, keepdim=True) > 0.2
    more, most = torch.exp(x + 1), torch.exp(x.sin() + 2)
    return (
        one / (one.sum(-1, keepdim=True) + (more * second).sum(-1, keepdim=True)),
        other / (other.sum(-1, keepdim=True) + (most * first).sum(-1, keepdim=True)),
    )


def hidden_by_another(x, v):
    weights = torch.exp(x) * (v.softmax(0)[:, 0] > 0.2)
    return weights / weights.sum(-1, keepdim=True)


@pytest.mark.parametrize(
    ("function", "hidden"), [(hidden_by_its_own_shift, 0), (hidden_by_each_other, 1), (hidden_by_another, 1)]
)
def test_a_mask_that_is_made_from_the_same_shift_does_not_hide_what_it_is_made_of(function, hidden) -> None:
    graph = graph_of(function)
    given = tensors(graph)
    stable = stabilize(graph)
    assert len({step.inputs[0] for step in stable.steps if step.op == "where"}) == hidden
    assert sum(step.op == "max" for step in stable.steps) >= 1
    torch.testing.assert_close(run_graph(stable, given), run_graph(graph, given))


def graph_with(function, *shapes) -> Graph:
    return trace(function, *(torch.randn(shape, dtype=torch.float64) for shape in shapes)).graph


def of_two_rows(x, y):
    one, other = torch.exp(x), torch.exp(y)
    first, second = one.sum(-1), other.sum(-1)
    return (
        one / first[:, None],
        first[:, None] / (first[:, None] + second[None, :]),
        (x * x).softmax(-1),
    )


def test_a_shift_of_rows_along_two_axes_is_left_out() -> None:
    graph = graph_with(of_two_rows, (4, 6), (5, 7))
    assert len(free_shifts(graph)) == 2
    stable = stabilize(graph)
    assert sum(step.op == "max" for step in stable.steps) == 1  # of the softmax
    given = tensors(graph)
    torch.testing.assert_close(run_graph(stable, given), run_graph(graph, given))


def of_one_maximum(x, y):
    """Return the same two ratios, less a maximum that all rows share."""
    common = torch.maximum(x.max(), y.max())
    first, second = torch.exp(x - common).sum(-1), torch.exp(y - common).sum(-1)
    return torch.exp(x - common) / first[:, None], first[:, None] / (first[:, None] + second[None, :])


def test_a_shift_that_could_not_be_chosen_again_is_not_released() -> None:
    graph = graph_with(of_one_maximum, (4, 6), (5, 7))
    assert release_shifts(graph) is graph
    large = {name: one + 1e4 for name, one in tensors(graph).items()}
    torch.testing.assert_close(run_graph(stabilize(graph), large), run_graph(graph, large))


def differences(a, b):
    return torch.softmax(b[None, :] - a[:, None], -1)


def summed_differences(a, b):
    return differences(a, b).sum(0)


def log_of_differences(a, b):
    d = b[None, :] - a[:, None]
    return (torch.log(torch.exp(d).sum(-1)) + a).sum()


@pytest.mark.parametrize("function", [differences, summed_differences, log_of_differences])
def test_a_released_graph_keeps_its_rules_and_its_meaning(function) -> None:
    graph = graph_with(function, (2,), (6,))
    released = check_graph(release_shifts(graph))
    given = tensors(graph)
    torch.testing.assert_close(run_graph(released, given), run_graph(graph, given))
    torch.testing.assert_close(run_graph(stabilize(released), given), run_graph(graph, given))
    assert equal_graphs(graph, released).equal


def test_a_sum_over_an_axis_that_the_exponentials_lack_counts_it() -> None:
    graph = graph_with(summed_differences, (2,), (6,))
    assert equal_graphs(graph, graph_with(lambda a, b: 2 * b.softmax(-1) + 0 * a.sum(), (2,), (6,))).equal
    assert not equal_graphs(graph, graph_with(lambda a, b: b.softmax(-1) + 0 * a.sum(), (2,), (6,))).equal


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_rows_of_the_least_number_are_taken_less_it(dtype) -> None:
    lowest = torch.finfo(dtype).min
    graph = trace(softmax, torch.randn(6, 6, dtype=dtype), torch.randn(6, 4, dtype=dtype)).graph
    rows = torch.full((6, 6), lowest, dtype=dtype)
    for one in run_graph(stabilize(graph), {"x": rows, "v": torch.zeros(6, 4, dtype=dtype)}, dtype).values():
        torch.testing.assert_close(one, torch.full_like(rows, 1 / 6))


def less(shift):
    """Return a softmax of x less a shift that is made of x and y."""

    def function(x, y):
        e = torch.exp(x - shift(x, y))
        return e / e.sum(-1, keepdim=True)

    return function


def of_roots(x, y):
    return less(lambda s, y: s.amax(-1, keepdim=True))(x.sqrt(), y)


def of_roots_that_are_hidden(x, y):
    s = x.sqrt()
    e = torch.exp(s - s.amax(-1, keepdim=True)) * (x > 0)
    return e / e.sum(-1, keepdim=True)


def of_masked_scores(x, y):
    s = x.masked_fill(torch.ones(x.shape, dtype=torch.bool).triu(1), float("-inf"))
    return less(lambda s, y: s.amax(-1, keepdim=True))(s, y)


def of_roots_less_one_for_all_rows(x, y):
    return less(lambda s, y: s.amax())(x.sqrt(), y)


@pytest.mark.parametrize(
    "function",
    [
        less(lambda x, y: x.amax(-1, keepdim=True)),
        less(lambda x, y: (y * y + 1).sqrt() / y),
        less(lambda x, y: y.abs().log()),
        of_roots,
        of_masked_scores,
    ],
)
def test_a_shift_that_is_a_number_wherever_the_rest_is_one_is_released_for_a_proof(function) -> None:
    graph = graph_with(function, (4, 4), (4, 1))
    assert release_shifts(graph, nonnegative_values) == release_shifts(graph) != graph


@pytest.mark.parametrize(
    "function",
    [
        less(lambda x, y: y.log()),
        less(lambda x, y: (y - 3).sqrt().sin()),
        less(lambda x, y: torch.where(y > 3, float("inf"), y)),
        of_roots_that_are_hidden,
        of_roots_less_one_for_all_rows,
    ],
)
def test_a_shift_that_may_be_no_number_is_not_released_for_a_proof(function) -> None:
    """Before: what such a shift makes NaN of was proven equal to what is a number."""
    graph = graph_with(function, (4, 4), (4, 1))
    assert release_shifts(graph, nonnegative_values) is graph
    assert release_shifts(graph) != graph
