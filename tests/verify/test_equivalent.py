"""equivalent: PyTorch programs against one another, from proof to counterexample."""

import json
import math

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from superopt.errors import InputError
from superopt.trace import trace
from superopt.verify import equivalent

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
    assert verdict.proven
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
    assert not verdict.equal
    assert verdict.witness is not None
    assert verdict.counterexample is not None
    assert f"= {verdict.counterexample.left!r} against" in str(verdict)
    assert str(verdict).startswith("not equal as exact algebra")
    json.dumps(verdict.to_json())


def test_a_difference_that_rounding_hides_is_called_that():
    verdict = equivalent(lambda x: x * 1.0, lambda x: x * 1.0000001, X)
    assert not verdict.equal
    assert verdict.counterexample is None
    assert "no float difference found above rounding" in str(verdict)


def test_opaque_operators_are_unknown_functions():
    index = torch.randint(0, 8, (5,))
    verdict = equivalent(lambda x, i: (2 * x)[i].exp(), lambda x, i: (x + x)[i].exp(), X, index)
    assert verdict.equal
    assert verdict.proven
    assert verdict.oracles
    assert not equivalent(lambda x, i: (2 * x)[i], lambda x, i: (3 * x)[i], X, index).equal


def test_different_opaque_operators_leave_only_floats():
    verdict = equivalent(lambda x: x.cumsum(-1), lambda x: x @ torch.ones(16, 16).triu(), X)
    assert verdict.equal
    assert not verdict.proven
    assert "no proof" in str(verdict)
    assert not equivalent(lambda x: x.cumsum(-1), lambda x: x.flip(-1), X).equal
    assert not equivalent(
        lambda x: x.cumsum(-1), lambda x: x @ torch.ones(16, 16).triu(), X, floats=False
    ).equal


def test_graphs_need_no_inputs():
    graph = trace(attention, Q, Q, Q).graph
    assert equivalent(graph, graph).equal
    assert equivalent(graph, late_attention, Q, Q, Q).equal


def test_different_tensors_are_not_equal():
    verdict = equivalent(lambda x: x.sum(-1), lambda x: x.sum(0), X)
    assert not verdict.equal
    assert "they return different tensors: f32[8] against f32[16]" in str(verdict)


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
