"""Coverage: comparisons are seen both ways, wrong masks and thresholds are refused by floats alone."""

from collections.abc import Callable, Iterable, Sequence
from math import inf

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

from superopt.ir import Graph, parse_graph
from superopt.trace import trace
from superopt.trace.traced import Traced
from superopt.verify.counterexample import find_counterexample
from superopt.verify.floats.compare import (
    DIRECTED,
    DISTRIBUTIONS,
    compare_floats,
    sample,
)
from superopt.verify.floats.coverage import Coverage, Watch
from superopt.verify.floats.focus import focus_of
from superopt.verify.floats.samples import MISSING
from superopt.verify.floats.seek import seek

Function = Callable[..., Tensor]

X, B, W = torch.empty(6, 8), torch.empty(6, 8), torch.empty(8, 8)
V, MASK = torch.empty(8, 5), torch.ones(6, 8, dtype=torch.bool)
IDS = torch.zeros(6, dtype=torch.int64)
ONE = torch.ones(())
TRIL = torch.ones(6, 6).tril()


def softmax(x: Tensor) -> Tensor:
    return torch.softmax(x, -1)


def coverage(program: Graph | Traced, draws: Iterable[Sequence[Tensor]]) -> Coverage:
    watch = Watch(focus_of(program))
    for drawn in draws:
        watch.record(watch.see(drawn))
    return watch.coverage


WRONG: dict[str, tuple[Function, Function, tuple[Tensor, ...]]] = {
    "the mask of a softmax is dropped": (
        lambda s, b, v: softmax(s.masked_fill(b == 1, -inf)) @ v,
        lambda s, b, v: softmax(s) @ v,
        (X, B, V),
    ),
    "a mask is dropped": (lambda s, b, v: s.masked_fill(b == 1, 0.0) @ v, lambda s, b, v: s @ v, (X, B, V)),
    "the branch of an equality is dropped": (
        lambda c, x, w: torch.where(c == 1, x, 2 * x) @ w,
        lambda c, x, w: 2 * x @ w,
        (B, X, W),
    ),
    "50 for 60": (lambda x: torch.where(x > 50, x, 2 * x), lambda x: torch.where(x > 60, x, 2 * x), (X,)),
    "255 for 127": (lambda x: (x > 255) * x, lambda x: (x > 127) * x, (X,)),
    "9 for 10": (lambda x: torch.where(x > 9, x, 2 * x), lambda x: torch.where(x > 10, x, 2 * x), (X,)),
    "a tie": (lambda x: torch.where(x > 0, x, 1.0), lambda x: torch.where(x >= 0, x, 1.0), (X,)),
    "a tie with a constant": (
        lambda x: torch.where(x > 3, x, -x),
        lambda x: torch.where(x >= 3, x, -x),
        (X,),
    ),
    "a guard against zero": (lambda x, n: x / torch.where(n == 0, 1, n), lambda x, n: x / n, (X, B)),
    "inputs are equal": (lambda x, y: torch.where(x == y, x, 3 * x), lambda x, y: 3 * x, (X, B)),
    "equal for at least": (
        lambda x, b: torch.where(b == 1, x, 2 * x),
        lambda x, b: torch.where(b >= 1, x, 2 * x),
        (X, B),
    ),
    "a threshold of a product": (
        lambda x, w: torch.where(x @ w > 50, 1.0, x @ w),
        lambda x, w: x @ w,
        (X, W),
    ),
    "a threshold of a moved input": (
        lambda x: torch.where(2 * x - 100 > 31, x, 0 * x),
        lambda x: torch.where(2 * x - 100 > 30, x, 0 * x),
        (X,),
    ),
    "an upper bound": (lambda x: x.clamp(0, 30000), torch.relu, (X,)),
    "segments": (
        lambda x, s: softmax((x @ x.T).masked_fill(s[:, None] != s[None], -inf)),
        lambda x, s: softmax(x @ x.T),
        (X, IDS),
    ),
    "token ids": (lambda x, s: x * (s != 7)[:, None], lambda x, s: x, (X, IDS)),
    "an infinity": (lambda x: torch.where(x == -inf, 0, x), lambda x: x, (X,)),
    "one flag": (lambda x, s: torch.where(s > 3, x, 2 * x), lambda x, s: 2 * x, (X, torch.empty(()))),
    "the norm of a zero": (
        lambda x: functional.normalize(x, dim=-1),
        lambda x: x / x.square().sum(-1, keepdim=True).sqrt(),
        (X,),
    ),
}

LOST_WITH_NAN: dict[str, tuple[Function, Function, tuple[Tensor, ...]]] = {
    "a comparison that sorts out NaN": (
        lambda x: torch.where(x >= 0, x, 1.0),
        lambda x: torch.where(x < 0, 1.0, x),
        (X,),
    ),
    "NaN times a mask": (
        lambda x, b: torch.where(x == x, x, 0) + b,
        lambda x, b: x * (x == x) + b,
        (X, B),
    ),
    "NaN of the second input": (
        lambda x, b: x + (b <= 2),
        lambda x, b: x + 1 - (b > 2).float(),
        (X, B),
    ),
    "a factor of what booleans select": (
        lambda m, p, v: torch.where(m, p * v, 0).sum(-1),
        lambda m, p, v: ((m * p) * v).sum(-1),
        (torch.rand(32, 24) < 0.5, torch.randn(32, 24), torch.randn(32, 24)),
    ),
    "a factor of what booleans select, before a sort": (
        lambda m, p, v: torch.where(m, p * v, 0).sum(-1).sort().values,
        lambda m, p, v: ((m * p) * v).sum(-1).sort().values,
        (torch.rand(32, 24) < 0.5, torch.randn(32, 24), torch.randn(32, 24)),
    ),
    "rows of minus infinity": (
        lambda x, b: torch.ops.aten._safe_softmax(x + b, -1),
        lambda x, b: softmax(x + b),
        (X, X),
    ),
    "a logarithm of exponentials less the first": (
        lambda x: x.logsumexp(-1),
        lambda x: x[:, 0] + (x - x[:, :1]).exp().sum(-1).log(),
        (X / 8,),
    ),
}
"""What agrees on all numbers, but not where one is missing and something sorts it out."""

RIGHT: dict[str, tuple[Function, Function, tuple[Tensor, ...]]] = {
    "the mask of a softmax": (
        lambda s, b, v: softmax(s.masked_fill(b == 1, -inf)) @ v,
        lambda s, b, v: softmax(torch.where(b != 1, s, -inf)) @ v,
        (X, B, V),
    ),
    "a mask of booleans": (
        lambda s, m, v: softmax(s.masked_fill(m, -inf)) @ v,
        lambda s, m, v: softmax(torch.where(m, -inf, s)) @ v,
        (X, MASK, V),
    ),
    "causal attention": (
        lambda x: softmax((x @ x.T).masked_fill(TRIL == 0, -inf)) @ x,
        lambda x: softmax(torch.where(TRIL == 1, x @ x.T, -inf)) @ x,
        (X,),
    ),
    "a clamp": (lambda x: x.clamp(-1, 6), lambda x: torch.minimum(torch.maximum(x, -ONE), 6 * ONE), (X,)),
    "layers of relu": (
        lambda x, w: torch.relu(torch.relu(x @ w) @ w),
        lambda x, w: (torch.relu(x @ w) @ w).clamp(min=0),
        (X, W),
    ),
    "a leaky relu": (
        lambda x, w: functional.leaky_relu(x @ w),
        lambda x, w: torch.maximum(x @ w, 0.01 * (x @ w)),
        (X, W),
    ),
    "gelu": (lambda x, w: functional.gelu(x @ w), lambda x, w: functional.gelu(x @ w), (X, W)),
    "dropout": (
        lambda x, m: functional.layer_norm(x * m * 2, (8,)),
        lambda x, m: functional.layer_norm(x * m * 2, (8,)),
        (X, MASK),
    ),
    "a jump of a product": (
        lambda x, w: torch.where(x @ w > 0.3, 1.0, x @ w),
        lambda x, w: torch.where((w.T @ x.T).T > 0.3, 1.0, x @ w),
        (X, W),
    ),
    "a jump of a softmax": (
        lambda x: torch.where(softmax(x) > 0.25, 1.0, x),
        lambda x: torch.where(x.exp2() ** 1.4426950408889634 > 0.25 * x.exp().sum(-1, keepdim=True), 1.0, x),
        (X,),
    ),
    "a constant that float32 rounds": (
        lambda x: torch.where(x > 0.1, x, 2 * x),
        lambda x: torch.where(10 * x > 1, x, 2 * x),
        (X,),
    ),
    "experts": (
        lambda x, w, g: torch.relu(x @ w) * (g[:, :1] > 0),
        lambda x, w, g: torch.where(g[:, :1] > 0, torch.relu(x @ w), 0),
        (X, W, B),
    ),
    "segments": (
        lambda x, s: softmax((x @ x.T).masked_fill(s[:, None] != s[None], -inf)),
        lambda x, s: softmax(torch.where(s[:, None] == s[None], x @ x.T, -inf)),
        (X, IDS),
    ),
    "softplus": (
        functional.softplus,
        lambda x: torch.where(x > 20, x, torch.log1p(torch.exp(x.clamp(max=20)))),
        (X,),
    ),
    "a one-hot maximum": (
        lambda x: torch.where(x == x.amax(-1, keepdim=True), x, 0),
        lambda x: torch.where(x >= x.amax(-1, keepdim=True), x, 0),
        (X,),
    ),
}


def check_wrong(name: str, seed: int) -> None:
    right, wrong, inputs = (WRONG | LOST_WITH_NAN)[name]
    focus = focus_of(trace(right, *inputs))
    report = compare_floats(right, wrong, inputs, focus=focus, seed=seed)
    assert not report.accurate, report
    assert not report.uncovered, report


def check_right(name: str, seed: int) -> None:
    right, other, inputs = RIGHT[name]
    focus = focus_of(trace(right, *inputs))
    for candidate in (other, right):
        report = compare_floats(right, candidate, inputs, focus=focus, seed=seed)
        assert report.ok, report
    both = focus_of(trace(right, *inputs), trace(other, *inputs))
    assert find_counterexample(right, other, inputs, focus=both, seed=seed) is None


@pytest.mark.parametrize("name", WRONG | LOST_WITH_NAN)
def test_a_wrong_candidate_is_refused(name: str) -> None:
    check_wrong(name, 0)


@pytest.mark.parametrize("name", RIGHT)
def test_a_right_candidate_is_accepted(name: str) -> None:
    check_right(name, 0)


def test_numbers_are_missing_where_operators_take_that() -> None:
    """A Cholesky decomposition refuses NaN: where PyTorch fails there is nothing to compare."""

    def function(m: Tensor, x: Tensor) -> Tensor:
        x = torch.where(m, x, 0)
        found: Tensor = torch.linalg.cholesky(x @ x.mT + torch.eye(len(x), dtype=x.dtype))
        return found

    m, x = torch.rand(4, 4) < 0.5, torch.randn(4, 4)
    focus = focus_of(trace(function, m, x))
    report = compare_floats(function, function, (m, x), focus=focus, distributions=["normal"])
    assert focus.sorts_out_nan
    assert not focus.is_algebra
    assert report.ok, report
    assert MISSING not in [one.name for one in report.distributions]


def test_minus_infinities_are_drawn_where_they_may_come_to_numbers() -> None:
    focus = focus_of(trace(lambda x, w, b: softmax(x @ w + b) @ w.mT, X, V, torch.zeros(V.shape[1])))
    assert focus.minus_infinities == {2}
    assert not focus_of(trace(lambda x, w: (x @ w).square(), X, V)).minus_infinities


@pytest.mark.slow
@pytest.mark.parametrize("name", WRONG)
def test_a_wrong_candidate_is_refused_by_chance_of_no_seed(name: str) -> None:
    for seed in range(1, 21):
        check_wrong(name, seed)


@pytest.mark.slow
@pytest.mark.parametrize("name", RIGHT)
def test_a_right_candidate_is_accepted_on_all_seeds(name: str) -> None:
    for seed in range(1, 21):
        check_right(name, seed)


@pytest.mark.parametrize("name", [name for name in WRONG if name != "an upper bound"])
def test_a_wrong_candidate_has_a_counterexample(name: str) -> None:
    right, wrong, inputs = WRONG[name]
    focus = focus_of(trace(right, *inputs), trace(wrong, *inputs))
    assert find_counterexample(right, wrong, inputs, focus=focus) is not None


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float64], ids=str)
@pytest.mark.parametrize("name", ["the mask of a softmax", "a clamp", "a leaky relu", "a jump of a product"])
def test_other_dtypes(name: str, dtype: torch.dtype) -> None:
    right, other, inputs = RIGHT[name]
    inputs = tuple(one.to(dtype) if one.dtype.is_floating_point else one for one in inputs)
    report = compare_floats(right, other, inputs, focus=focus_of(trace(right, *inputs)))
    assert report.ok, report
    right, wrong, inputs = WRONG["the mask of a softmax is dropped"]
    inputs = tuple(one.to(dtype) for one in inputs)
    assert not compare_floats(right, wrong, inputs, focus=focus_of(trace(right, *inputs))).ok


def covered(function: Function, *inputs: Tensor) -> tuple[str, ...]:
    """Return what all distributions and a search leave uncovered."""
    watch = Watch(focus_of(trace(function, *inputs)))
    for name in (*DIRECTED, *DISTRIBUTIONS):
        watch.record(watch.see(sample(name, inputs, focus=watch.focus)))
    for drawn in seek(watch, inputs):
        watch.record(watch.see(drawn))
    return watch.coverage.uncovered


@pytest.mark.parametrize(
    "function",
    [
        lambda x: torch.where(torch.exp(x) > -1, x, 2 * x),
        lambda x: torch.where(x.square() + 1 > 0, x, 2 * x),
        lambda x: torch.where(torch.sigmoid(x) < 1, x, 2 * x),
        lambda x: torch.relu(x.exp()) + x.square().clamp(min=-3),
        lambda x: x * (torch.arange(8) < 3),
        lambda x: x * TRIL[:, :1],
        lambda x: x @ torch.ones(8, 8).triu(),
    ],
)
def test_what_is_decided_for_all_inputs_needs_no_coverage(function: Function) -> None:
    assert focus_of(trace(function, X)).is_empty


def test_a_branch_that_is_never_taken_is_not_tested() -> None:
    def function(x: Tensor) -> Tensor:
        return torch.where(x > 0, torch.where(x > -1, x, 2 * x), 3 * x)

    assert covered(function, X) == ("x > -1 was tried with x less than -1 only where no result shows it",)
    report = compare_floats(function, function, (X,), focus=focus_of(trace(function, X)))
    assert report.accurate
    assert not report.ok
    assert "not tested enough: x > -1 was tried with x less than -1" in str(report)


def test_what_is_hidden_anyhow_has_not_been_tested() -> None:
    def function(x: Tensor, b: Tensor, c: Tensor) -> Tensor:
        return torch.where((b == 1) & (c > 0), x, 2 * x)

    x = torch.randn(4, 8)
    b, c = torch.ones(4, 8), torch.ones(4, 8)
    b[:2] = 0
    c[1:] = -1
    traced = trace(function, x, b, c)
    hidden = "c > 0 was tried with c less than 0 only where no result shows it"
    assert hidden not in coverage(traced, [(x, b, c)]).uncovered
    c[2:] = 1  # it is less than 0 only where b is 0
    assert hidden in coverage(traced, [(x, b, c)]).uncovered


def test_a_mask_of_booleans_must_be_seen_both_ways() -> None:
    x, m = torch.randn(6, 8), torch.ones(6, 8, dtype=torch.bool)
    traced = trace(lambda x, m: x.masked_fill(m, 0.0), x, m)
    assert coverage(traced, [(x, m)]).uncovered == ("m was never false",)
    assert coverage(traced, [(x, m), (x, ~m)]).complete
    assert coverage(traced, [(torch.zeros(6, 8), m), (x, ~m)]).uncovered == (
        "m was true only where no result shows it",
    )


def test_a_search_finds_inputs_that_no_distribution_holds() -> None:
    def function(x: Tensor, w: Tensor) -> Tensor:
        return torch.where((x @ w).sum() > 1e9, x, 2 * x)

    assert covered(function, X, W) == ()


def test_a_graph_has_a_focus_as_well() -> None:
    text = "graph g\naxes k=64\nin x: f32[k]\nc = const[7]()\nm = gt(x, c)\ny = mul(m, x)\nout o: f32[k] = y"
    graph = parse_graph(text)
    focus = focus_of(graph)
    assert focus.constants == (7.0,)
    assert [str(one) for one in focus.comparisons] == ["x > 7"]
    assert coverage(graph, [(torch.full((64,), 8.0),)]).uncovered == (
        "x > 7 was never tried with x less than 7",
        "x > 7 was never tried with x equal to 7",
    )


def test_integers_are_drawn_only_where_any_are_valid() -> None:
    ids, table = torch.arange(40), torch.empty(40, 8)

    def function(i: Tensor, s: Tensor, table: Tensor) -> Tensor:
        return functional.embedding(i, table) * ((i != 3) & (s == 5))[:, None]

    focus = focus_of(trace(function, ids, ids, table))
    for name in (*DIRECTED, *DISTRIBUTIONS):
        drawn = sample(name, (ids, ids, table), focus=focus)
        assert set(drawn[0].tolist()) <= set(range(40))
        assert (drawn[1] == 5).any()
        assert (drawn[1] != 5).any()
    assert covered(function, ids, ids, table) == ()


@pytest.mark.parametrize("ignored", [-100, 0, 3, 7])
@pytest.mark.parametrize("reduction", ["mean", "sum"])
def test_labels_need_not_be_what_names_no_class(reduction: str, ignored: int) -> None:
    def loss(x: Tensor, labels: Tensor) -> Tensor:
        return functional.cross_entropy(x, labels, reduction=reduction, ignore_index=ignored)

    def other(x: Tensor, labels: Tensor) -> Tensor:
        return functional.cross_entropy(x, labels, reduction=reduction)

    assert covered(loss, X, IDS) == ()
    focus = focus_of(trace(loss, X, IDS))
    assert compare_floats(loss, loss, (X, IDS), focus=focus).ok
    assert compare_floats(loss, other, (X, IDS), focus=focus).ok is (ignored == -100)


def test_a_program_without_comparisons_is_judged_as_before() -> None:
    focus = focus_of(trace(functional.gelu, X))
    assert focus.is_empty
    with_focus = compare_floats(functional.gelu, functional.gelu, (X,), focus=focus)
    assert with_focus == compare_floats(functional.gelu, functional.gelu, (X,))


def test_numbers_at_the_edge_of_a_comparison_are_not_judged() -> None:
    def function(x: Tensor) -> Tensor:
        return torch.where(softmax(x) >= 0.5, 1.0, x)

    def turned(x: Tensor) -> Tensor:
        return torch.where(softmax(x) > 0.5 + 1e-7, 1.0, x)

    x = torch.empty(64, 2)
    focus = focus_of(trace(function, x))
    report = compare_floats(function, turned, (x,), focus=focus)
    assert report.ok, report
    assert any(one.doubtful for one in report.distributions)
    assert "at the edge of a comparison" in "".join(map(str, report.distributions))
    assert find_counterexample(function, turned, (x,), focus=focus) is None
    gross = compare_floats(function, lambda x: torch.where(softmax(x) > 0.6, 1.0, x), (x,), focus=focus)
    assert not gross.ok


def test_modules_and_their_masks() -> None:
    class Block(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.lin = nn.Linear(8, 8)
            self.register_buffer("mask", torch.ones(6, 6, dtype=torch.bool).tril())

        def forward(self, x: Tensor) -> Tensor:
            scores = (x @ x.T).masked_fill(~self.mask, -inf)
            return torch.relu(self.lin(softmax(scores) @ x))

    block = Block()
    focus = focus_of(trace(block, X))
    assert [one.op for one in focus.comparisons] == ["relu"]
    assert compare_floats(block, block, (X,), focus=focus).ok
    assert not compare_floats(block, lambda x: block.lin(x), (X,), focus=focus).ok
