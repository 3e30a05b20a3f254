"""Opaque calls: unknown functions of their tensors, in their places; matched by what they read."""

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from superopt.trace import trace
from superopt.verify.equivalent import equivalent

X, Y = torch.randn(4, 6), torch.randn(4, 6)
T = torch.randn(5, 5, 5)
ROW, COLUMN = torch.tensor([0, 3, 1]), torch.tensor([2, 2, 4])
IMAGE = torch.randn(1, 3, 8)
CONV = nn.Conv1d(3, 4, 3)
ROWS = torch.tensor([1])
LSTM, GRU, RNN = nn.LSTM(6, 3), nn.GRU(6, 3, bidirectional=True), nn.RNN(6, 3, nonlinearity="relu")

EQUAL = {
    "an index computed alike": (lambda t, i: (2 * t)[i, i], lambda t, i: (t + t)[i, i], (T, ROW)),
    "calls in another order": (
        lambda x, y: x.cumsum(1) - 2 * y.cumsum(1),
        lambda x, y: -2 * y.cumsum(1) + x.cumsum(1),
        (X, Y),
    ),
    "a call made once and twice": (
        lambda x: (x + x).cumsum(1) + (2 * x).cumsum(1),
        lambda x: 2 * (3 * x - x).cumsum(1),
        (X,),
    ),
    "one call behind another": (
        lambda x: ((2 * x).cumsum(0) * 3).cumsum(1),
        lambda x: (3 * (x + x).cumsum(0)).cumsum(1),
        (X,),
    ),
    "a call that nobody needs": (lambda x: (x.cumsum(0), 2 * x)[1], lambda x: x + x, (X,)),
    "several results": (
        lambda x: tuple((2 * x).sort(-1)),
        lambda x: ((x + x).sort(-1)[0], (3 * x - x).sort(-1)[1]),
        (X,),
    ),
    "a convolution": (lambda x: CONV(2 * x), lambda x: CONV(x + x), (IMAGE,)),
    "a recurrent net": (lambda x: LSTM(2 * x)[0] * 2, lambda x: 2 * LSTM(x + x)[0], (X[:1],)),
    "a call that writes": (
        lambda x: 2 * x.clone().index_fill_(0, ROWS, 3.0),
        lambda x: x.clone().index_fill_(0, ROWS, 3.0) * 2,
        (X,),
    ),
}

DIFFERENT = {
    "another argument twice": (lambda t, i, j: t[i, i, j], lambda t, i, j: t[i, j, j], (T, ROW, COLUMN)),
    "cat in another order": (lambda x, y: torch.cat([x, x, y]), lambda x, y: torch.cat([x, y, x]), (X, Y)),
    "a recurrent net of another kind": (lambda x: GRU(x)[1], lambda x: GRU(2 * x)[1], (X[:1],)),
    "stack of many": (
        lambda x, y: torch.stack([x, y] * 35),
        lambda x, y: torch.stack([x] * 35 + [y] * 35),
        (X, Y),
    ),
    "operands swapped": (
        lambda x, y: x.cumsum(1) - y.cumsum(1),
        lambda x, y: y.cumsum(1) - x.cumsum(1),
        (X, Y),
    ),
    "another dimension": (lambda x: x.cumsum(0), lambda x: x.cumsum(1), (X,)),
    "an affine map is not linear": (lambda x: CONV(2 * x), lambda x: 2 * CONV(x), (IMAGE,)),
    "another result": (lambda x: x.sort(-1)[0], lambda x: -(-x).sort(-1)[0], (X,)),
    "another number": (lambda x: F.pad(x.cumsum(0), (0, 0)) * 2, lambda x: x.cumsum(0) * 3, (X,)),
}

UNKNOWN = {
    "what the functions are": (
        lambda x: (2 * x).sort(0).values,
        lambda x: 2 * x.sort(0).values,
        (X,),
    ),
    "a sum in a call's stead": (lambda x: x.sort(-1).values.sum(-1), lambda x: x.sum(-1), (X,)),
}


@pytest.mark.parametrize(("f", "g", "inputs"), EQUAL.values(), ids=EQUAL)
def test_equal(f, g, inputs):
    verdict = equivalent(f, g, *inputs)
    assert verdict.equal, str(verdict)


@pytest.mark.parametrize(("f", "g", "inputs"), DIFFERENT.values(), ids=DIFFERENT)
def test_different_in_numbers(f, g, inputs):
    verdict = equivalent(f, g, *inputs)
    assert verdict.different, str(verdict)
    assert verdict.counterexample is not None


@pytest.mark.parametrize(("f", "g", "inputs"), UNKNOWN.values(), ids=UNKNOWN)
def test_unknown_functions_leave_it_open(f, g, inputs):
    verdict = equivalent(f, g, *inputs)
    assert verdict.unknown, str(verdict)
    assert "sort" in str(verdict)


@pytest.mark.parametrize(
    ("f", "g", "inputs"), [*DIFFERENT.values(), *UNKNOWN.values()], ids=[*DIFFERENT, *UNKNOWN]
)
def test_the_algebra_alone_never_calls_them_equal(f, g, inputs):
    assert not equivalent(f, g, *inputs, floats=False).equal
    for program in (f, g):
        assert equivalent(program, program, *inputs, floats=False).equal


STRIDED = {
    "from an offset": (
        lambda x: x[2:].as_strided((2, 3), (1, 1), 0),
        lambda x: x[2:].clone().as_strided((2, 3), (1, 1), 0),
    ),
    "beyond the end": (
        lambda x: x[:2].as_strided((4, 6), (6, 1)),
        lambda x: torch.cat([x[:2], -x[2:]])[:2].as_strided((4, 6), (6, 1)),
    ),
}


@pytest.mark.parametrize("name", STRIDED)
def test_memory_beside_a_tensor_is_not_known_by_its_elements(name):
    """Before: "equal"."""
    assert not equivalent(*STRIDED[name], X, floats=False).equal


def test_memory_within_a_tensor_is_known_by_its_elements():
    first, second = (
        (lambda x: (2 * x).as_strided((6, 4), (1, 6))),
        lambda x: (x + x).as_strided((6, 4), (1, 6)),
    )
    assert equivalent(first, second, X, floats=False).equal


@pytest.mark.parametrize("net", [LSTM, GRU, RNN])
def test_recurrent_nets_stay_calls(net):
    """Before: TraceError, as PyTorch found parameters on another device."""
    with torch.no_grad():
        traced = trace(lambda x: 2 * net(x)[0], X)
        torch.testing.assert_close(traced.run(X, dtype=torch.float32), 2 * net(X)[0])
    assert [node.target for node in traced.program.opaque] == [net.mode.lower()]


@pytest.mark.parametrize("trains", [False, True])
def test_recurrent_nets_draw_random_numbers_where_they_drop_some(trains):
    net = nn.GRU(6, 3, num_layers=2, dropout=0.5).train(trains)
    verdict = equivalent(lambda x: net(2 * x)[0], lambda x: net(x + x)[0], X, floats=False)
    assert verdict.equal != trains
    assert not trains or "draw random numbers (gru)" in str(verdict)


def test_calls_are_named_in_the_verdict():
    verdict = equivalent(lambda x: (2 * x).sort(0).values, lambda x: (x + x).sort(0).values, X)
    assert verdict.oracles == ("aten.sort.default",)
