"""equivalent: PyTorch programs against one another, from proof to counterexample."""

import itertools
import json
import math
import sys

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from superopt.errors import InputError
from superopt.trace import trace
from superopt.verify.decide import DISAGREEMENT
from superopt.verify.equivalent import equivalent
from superopt.verify.verdict import ENOUGH

X = torch.randn(8, 16)
Q = torch.randn(2, 3, 6, 16)
W = torch.randn(16, 16)


def attention(q, k, v):
    return F.scaled_dot_product_attention(q, k, v, is_causal=True)


def late_attention(q, k, v):
    scores = q @ k.transpose(-1, -2) / math.sqrt(16)
    hidden = torch.ones(6, 6, dtype=torch.bool).triu(1)
    e = torch.where(hidden, 0.0, scores.exp())
    return (e @ v) / e.sum(-1, keepdim=True)


def merged_heads(q, k, v):
    return attention(q, k, v).transpose(1, 2).reshape(2, 6, 48)


def merged_heads_by_hand(q, k, v):
    return torch.cat(late_attention(q, k, v).unbind(1), -1)


def one_pass_norm(x):
    mean = x.mean(-1, keepdim=True)
    return (x - mean) * torch.rsqrt(x.square().mean(-1, keepdim=True) - mean**2 + 1e-5)


LINEAR = nn.Linear(16, 4)

EQUAL = {
    "softmax": (lambda x: x.softmax(-1), lambda x: x.exp() / x.exp().sum(-1, keepdim=True), (X,)),
    "softmax of anything shifted": (
        lambda x: x.softmax(-1),
        lambda x: (x - x.amax(-1, keepdim=True)).softmax(-1),
        (X,),
    ),
    "layer norm": (lambda x: F.layer_norm(x, (16,)), one_pass_norm, (X,)),
    "rms norm": (
        lambda x: F.rms_norm(x, (16,), eps=1e-6),
        lambda x: x / (x.square().sum(-1, keepdim=True) / 16 + 1e-6).sqrt(),
        (X,),
    ),
    "a gram matrix": (lambda x: x @ x.T, lambda y: (y @ y.T).T, (X,)),
    "gelu": (F.gelu, lambda x: 0.5 * x * (1 + torch.erf(x / 2**0.5)), (X,)),
    "causal attention": (attention, late_attention, (Q, Q, Q)),
    "heads merged": (merged_heads, merged_heads_by_hand, (Q, Q, Q)),
    "a module and its parameters": (LINEAR, lambda x: x @ LINEAR.weight.T + LINEAR.bias, (X,)),
    "a root squared": (lambda x: x.square().sum().sqrt() ** 2, lambda x: (x * x).sum(), (X,)),
    "the same input in another order": (lambda x, w: x @ w, lambda a, b: (b.T @ a.T).T, (X, W)),
    "an input nothing reads": (lambda x, w: x + x, lambda x, w: 2 * x, (X, W)),
    "several outputs": (lambda x: (x + x, x.exp()), lambda x: (2 * x, x.exp()), (X,)),
    "an input returned": (lambda x: (x, x * 1), lambda x: (x * 1, x), (X,)),
    "a broadcast": (lambda x, b: x * b, lambda x, b: (x.T * b[:, None]).T, (X, torch.randn(16))),
    "log sum exp": (lambda x: x.logsumexp(-1), lambda x: x.exp().sum(-1).log(), (X,)),
}


@pytest.mark.parametrize(("f", "g", "inputs"), EQUAL.values(), ids=EQUAL)
def test_equal(f, g, inputs):
    verdict = equivalent(f, g, *inputs)
    assert verdict.equal, str(verdict)
    assert verdict.error_bound is not None
    assert verdict.error_bound <= ENOUGH
    assert verdict.counterexample is None
    assert verdict.floats is not None
    json.dumps(verdict.to_json())


WRONG = {
    "softmax over rows": (lambda x: x.softmax(-1), lambda x: x.softmax(0), (X,)),
    "a matrix transposed": (lambda w: w @ w, lambda w: (w @ w).T, (W,)),
    "another operand transposed": (lambda x, w: x @ w, lambda x, w: x @ w.T, (X, W)),
    "a dropped bound": (lambda x: x.clamp(-1, 1), lambda x: x.clamp(min=-1), (X,)),
    "a dropped 1/n": (lambda x: x.square().mean(-1).sqrt(), lambda x: x.square().sum(-1).sqrt(), (X,)),
    "another scale": (
        attention,
        lambda q, k, v: F.scaled_dot_product_attention(q, k, v, is_causal=True, scale=0.3),
        (Q, Q, Q),
    ),
    "no mask": (attention, F.scaled_dot_product_attention, (Q, Q, Q)),
    "swapped operands": (torch.div, lambda a, b: b / a, (X, X)),
    "another module": (LINEAR, nn.Linear(16, 4), (X,)),
    "another gelu": (F.gelu, lambda x: F.gelu(x, approximate="tanh"), (X,)),
}


@pytest.mark.parametrize(("f", "g", "inputs"), WRONG.values(), ids=WRONG)
def test_unequal_with_a_counterexample(f, g, inputs):
    verdict = equivalent(f, g, *inputs)
    assert verdict.different, str(verdict)
    assert verdict.witness is not None
    assert verdict.counterexample is not None
    assert f"= {verdict.counterexample.left!r} against" in str(verdict)
    assert str(verdict).startswith("different")
    json.dumps(verdict.to_json())


@pytest.mark.parametrize(("f", "g", "inputs"), [*EQUAL.values(), *WRONG.values()], ids=[*EQUAL, *WRONG])
def test_a_program_is_equal_to_itself(f, g, inputs):
    for program in (f, g):
        verdict = equivalent(program, program, *inputs, floats=False)
        assert verdict.equal, str(verdict)
        assert "both programs take the same steps" in str(verdict)


def test_a_difference_that_rounding_hides_is_shown_by_algebra():
    verdict = equivalent(lambda x: x * 1.0, lambda x: x * 1.0000001, X)
    assert verdict.different
    assert verdict.witness is not None
    assert verdict.counterexample is None
    assert "in float64 they agree on all inputs that were tried" in str(verdict)


def _of_choices(x, count):
    """Return the sum of all products of so many different numbers."""
    made = x
    for _ in range(count - 1):
        made = x * (made.cumsum(0) - made)
    return made.sum()


def _by_power_sums(x):
    """Return the sum of all products of four different numbers, without a running total."""
    a, b, c, d = ((x**power).sum() for power in range(1, 5))
    return (a**4 - 6 * a**2 * b + 3 * b**2 + 8 * a * c - 6 * d) / 24


@pytest.mark.parametrize("size", [12, 100])
@pytest.mark.parametrize("count", [4, 6])
def test_an_axis_shows_as_many_places_as_sums_over_parts_of_it_are_multiplied(count, size):
    """Before: "equal", as products of five different numbers are 0 where there are four."""
    x = torch.randn(size)
    assert not equivalent(lambda x: _of_choices(x, count), lambda x: 0 * x.sum(), x, floats=False).equal
    assert not equivalent(lambda x: x[0] * _by_power_sums(x), lambda x: 0 * x[0], x, floats=False).equal
    assert equivalent(lambda x: _of_choices(x, 4), _by_power_sums, x, floats=False).equal


def _volume(a, b, c):
    """Return the determinant of all scalar products of three vectors: 0 where they have two places."""
    (aa, ab, ac), (_, bb, bc), (_, _, cc) = ([(x * y).sum(-1) for y in (a, b, c)] for x in (a, b, c))
    return aa * (bb * cc - bc * bc) - ab * (ab * cc - bc * ac) + ac * (ab * bc - bb * ac)


def test_beside_many_comparisons_an_axis_shows_as_many_places_as_well():
    """Before: "equal", as axes were evaluated on two places to make up for the comparisons."""
    vectors, x = torch.randn(3, 5, 16).unbind(0), torch.randn(9, 5)
    added = lambda a, b, c, x: _volume(a, b, c) + x.relu().prod(0)  # noqa: E731
    assert not equivalent(added, lambda a, b, c, x: x.relu().prod(0), *vectors, x, floats=False).equal


def test_a_closed_over_tensor_is_what_it_is():
    weight = torch.randn(16, 4)
    assert equivalent(lambda x: (2 * x) @ weight, lambda x: 2 * (x @ weight.clone()), X).equal
    verdict = equivalent(lambda x: x @ weight, lambda x: x @ (weight + 0.001), X)
    assert verdict.different
    assert verdict.counterexample is not None


def test_a_difference_for_other_constants_alone_is_no_difference():
    # Half of the weights are zero, so what the algebra sees for arbitrary weights never happens.
    mask = (torch.rand(16) < 0.5).float()
    verdict = equivalent(lambda x: x * mask * mask, lambda x: x * mask, X)
    assert verdict.unknown, str(verdict)
    assert "constants are taken as any numbers" in str(verdict)


def test_numbers_decide_over_the_algebra(monkeypatch):
    from superopt.verify.programs.proof import Proof
    from superopt.verify.verdict import Verdict

    module = sys.modules["superopt.verify.equivalent"]
    said = Proof(Verdict("equal", trials=9, error_bound=2.0**-60))
    monkeypatch.setattr(module, "prove", lambda *args, **settings: said)
    verdict = equivalent(lambda x: F.gelu(x)[:, :7].sum(-1), lambda x: F.gelu(x)[:, :6].sum(-1), X)
    assert verdict.different
    assert verdict.counterexample is not None
    assert "please report it" in str(verdict)
    verdict = equivalent(lambda x: x * (1 + 1e-6), lambda x: x * 1, X)
    assert verdict.unknown
    assert verdict.counterexample is not None
    assert equivalent(lambda x: x + x, lambda x: x * 2, X).equal


def test_rounding_in_the_own_dtype_is_no_difference_and_a_lost_result_no_equality():
    x = torch.randn(4, 64)
    assert equivalent(lambda x: F.layer_norm(x, (64,)), one_pass_norm, x).equal
    lossy = equivalent(lambda x: x * 2, lambda x: (x.to(torch.bfloat16) * 2).to(torch.float32), x)
    assert lossy.unknown
    assert "equal as algebra, and not in floats" in str(lossy)


def test_where_only_one_of_them_is_defined_nothing_differs():
    hidden = equivalent(lambda x: x.cumsum(0).log(), lambda x: (-x).cumsum(0).neg().log() + 0 * x.log(), X)
    assert hidden.unknown, str(hidden)
    assert "only where one program makes NaN or infinity and the other does not" in str(hidden)


def test_programs_that_draw_random_numbers_are_unknown():
    verdict = equivalent(lambda x: x + torch.rand(16), lambda x: torch.rand(16) + x, X)
    assert verdict.unknown
    assert "draw random numbers (aten.rand.default)" in str(verdict)
    for dropped in (
        lambda q: F.scaled_dot_product_attention(q, q, q, dropout_p=0.5),
        lambda q: F.scaled_dot_product_attention(q, q, q, None, 0.5),
    ):  # before: "different", though both take the same steps
        verdict = equivalent(dropped, dropped, Q)
        assert verdict.unknown
        assert "draw random numbers (scaled_dot_product_attention)" in str(verdict)
    kept = lambda q: F.scaled_dot_product_attention(q, q, q, dropout_p=0.0)  # noqa: E731
    assert equivalent(kept, kept, Q).equal


def test_graphs_need_no_inputs():
    graph = trace(attention, Q, Q, Q).graph
    assert equivalent(graph, graph).equal
    assert equivalent(graph, late_attention, Q, Q, Q).equal


def test_different_tensors_are_not_equal():
    verdict = equivalent(lambda x: x.sum(-1), lambda x: x.sum(0), X)
    assert verdict.different
    assert "result: f32[8] against f32[16]" in str(verdict)


def test_bad_input_is_named():
    with pytest.raises(InputError, match="take 2 and 1 tensors"):
        equivalent(trace(lambda x, w: x @ w, X, W).graph, trace(lambda x: x @ x.T, X).graph)
    with pytest.raises(InputError, match="give example inputs"):
        equivalent(trace(attention, Q, Q, Q).graph, attention)


def test_big_inputs_on_the_meta_device_are_proven_without_floats():
    x, w = (torch.empty(shape, device="meta", dtype=torch.float16) for shape in ((2048, 4096), (4096, 14336)))
    verdict = equivalent(lambda x, w: (2 * x) @ w, lambda x, w: (x @ w) * 2, x, w)
    assert verdict.equal
    assert "floats not compared" in str(verdict)


def test_a_seed_gives_the_same_verdict():
    verdicts = [equivalent(lambda x: x.softmax(-1), lambda x: x.softmax(0), X, seed=3) for _ in range(2)]
    assert verdicts[0].witness == verdicts[1].witness
    assert verdicts[0].counterexample == verdicts[1].counterexample
    assert "seed 3" in str(verdicts[0])


@pytest.mark.parametrize("seed", [2**64, 10**30, -1])
def test_any_whole_number_is_a_seed(seed):
    """Before: with such a seed no floats were compared, and the programs were equal."""
    verdict = equivalent(lambda x: x.softmax(-1), lambda x: x.exp() / x.exp().sum(-1, True), X, seed=seed)
    assert verdict.seed == seed
    assert verdict.floats is not None
    assert any(one.nonfinite for one in verdict.floats.distributions)  # which large numbers show


def test_without_a_seed_verdicts_are_fresh():
    verdicts = [equivalent(lambda x: x.softmax(-1), lambda x: x.softmax(0), X) for _ in range(2)]
    assert verdicts[0].seed != verdicts[1].seed
    assert f"seed {verdicts[0].seed}" in str(verdicts[0])


@pytest.mark.parametrize("seed", range(4))
def test_rounding_of_what_is_taken_away_again_is_no_difference(seed: int) -> None:
    """Sorting keeps the algebra from an answer; 1 that comes and goes leaves 1e-16 of a number of 1e-4."""
    x = torch.randn(1, 1, dtype=torch.float64)
    assert not equivalent(
        lambda x: x.sort(0).values, lambda x: (x + 1).sort(0).values - 1, x, seed=seed
    ).different
    assert equivalent(
        lambda x: x.sort(0).values, lambda x: (x + 1).sort(0).values - 2, x, seed=seed
    ).different


SIGNS = {p: round(float(torch.eye(4)[list(p)].det())) for p in itertools.permutations(range(4))}


def determinant(x):
    g = x @ x.T
    return sum(sign * g[0, p[0]] * g[1, p[1]] * g[2, p[2]] * g[3, p[3]] for p, sign in SIGNS.items())


UNLIKE = {
    "a cast to 8 bits": (lambda x: x.to(torch.float8_e4m3fn).float(), lambda x: x, X),
    "whole numbers in 8 bits": (
        lambda i: torch.empty(i.shape, dtype=torch.int8).copy_(i).to(torch.int64),
        lambda i: i.clone(),
        torch.arange(4),
    ),
    "what a cast rounds away": (lambda x: x - x.bfloat16().float(), torch.zeros_like, X),
    "what a cast of whole numbers rounds away": (
        lambda i: i.bfloat16().float() - i.float(),
        lambda i: i.float() * 0,
        torch.arange(16),
    ),
    "memory that the second program does not fill": (
        lambda x: torch.cat([x, torch.zeros(x.shape)]),
        lambda x: torch.cat([x, torch.empty(x.shape)]),
        X,
    ),
    "labels that the second program refuses": (
        lambda i: (i[:, None] == torch.arange(5)).long(),
        lambda i: F.one_hot(i, 5),
        torch.arange(4),
    ),
    "a determinant of more columns than are drawn": (
        determinant,
        lambda x: x.new_zeros(()),
        torch.randn(4, 64),
    ),
}


@pytest.mark.parametrize(("f", "g", "x"), UNLIKE.values(), ids=UNLIKE)
def test_what_is_not_equal_for_all_numbers_is_not_proven(f, g, x):
    assert not equivalent(f, g, x, floats=False).equal


def test_memory_that_is_filled_later_holds_what_it_is_filled_with():
    def filled(a, b):
        made = torch.empty(3, 6)
        made[:, :4], made[:, 4:] = a, b
        return made

    a, b = torch.randn(3, 4), torch.randn(3, 2)
    assert equivalent(lambda a, b: torch.cat([a, b], 1), filled, a, b).equal


def test_a_program_may_refuse_fewer_labels():
    i, w = torch.arange(4), torch.randn(5, 3)
    assert equivalent(lambda i: F.one_hot(i, 5), lambda i: (i[:, None] == torch.arange(5)).long(), i).equal
    assert equivalent(lambda i, w: F.one_hot(i, 5).float() @ w, lambda i, w: F.embedding(i, w), i, w).equal


def test_labels_of_a_vectorized_function():
    """Before: a proof that kept `one_hot` whole could not look into what `vmap` gives it."""
    i = torch.tensor([[0, 1], [2, 3]])
    each = lambda i: torch.vmap(lambda one: F.one_hot(one, 5))(i)  # noqa: E731
    assert equivalent(lambda i: F.one_hot(i, 5), each, i).equal


def test_attention_over_tensors_of_several_ranks():
    """Before: it ended in a ValueError."""
    q, k, v = torch.randn(4, 8, 16), torch.randn(2, 4, 12, 16), torch.randn(4, 12, 16)
    by_hand = lambda q, k, v: ((q @ k.mT) / 4).softmax(-1) @ v  # noqa: E731
    assert equivalent(F.scaled_dot_product_attention, by_hand, q, k, v).equal


def test_a_number_wraps_around_as_its_dtype_does():
    x = torch.randn(4)
    assert equivalent(lambda x: x + torch.full((4,), -1, dtype=torch.uint8), lambda x: x + 255.0, x).equal


def test_the_algebra_alone_does_not_refute_what_agrees_to_the_last_digit():
    tiny = equivalent(lambda x: x * 1.0, lambda x: x + 2.0**-80, X)
    assert tiny.unknown, str(tiny)
    assert DISAGREEMENT in tiny.notes


def test_another_infinity_is_shown():
    x, mask = torch.randn(4, 4), torch.rand(4, 4) > 0.5
    f, g = (lambda m, x, end=end: x.masked_fill(m, end) for end in (math.inf, -math.inf))
    verdict = equivalent(f, g, mask, x)
    assert verdict.unknown
    assert {verdict.counterexample.left, verdict.counterexample.right} == {math.inf, -math.inf}
    assert "another infinity" in str(verdict)


def test_a_graph_that_reads_windows_against_a_function():
    x, w = torch.randn(1, 2, 4, 4), torch.randn(2, 2, 3, 3)
    graph = trace(lambda x, w: F.conv2d(x, w).abs(), x, w).graph
    assert any(step.op == "window" for step in graph.steps)
    assert equivalent(graph, lambda x, w: F.conv2d(x, w.neg()).abs(), x, w).equal
    assert equivalent(graph, lambda x, w: F.conv2d(x, w).abs().sqrt(), x, w).different
