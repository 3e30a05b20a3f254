"""Softmaxes written by hand: the shift that their author chose is left out, and the search finds the same."""

import pytest
import torch

from superopt.driver import SearchOptions, search
from superopt.ir import free_shifts
from superopt.trace import trace
from superopt.trace.run import run_graph


def softmax(x):
    return x.softmax(-1)


def softmax_by_hand(x):
    e = torch.exp(x - x.amax(-1, keepdim=True))
    return e / e.sum(-1, keepdim=True)


def logsumexp(x):
    return x.logsumexp(-1)


def logsumexp_by_hand(x):
    m = x.amax(-1, keepdim=True)
    return (torch.exp(x - m).sum(-1, keepdim=True).log() + m).squeeze(-1)


def log_softmax(x):
    return x.log_softmax(-1)


def log_softmax_by_hand(x):
    m = x.amax(-1, keepdim=True)
    return x - m - torch.exp(x - m).sum(-1, keepdim=True).log()


def attention(x):
    return (x * 0.5).softmax(-1) @ x


def attention_by_hand(x):
    s = x * 0.5
    e = torch.exp(s - s.amax(-1, keepdim=True))
    return (e @ x) / e.sum(-1, keepdim=True)


def shifted_by_something_else(x):
    return torch.exp(x - x.amax(-1, keepdim=True)).sum(-1)


PAIRS = [
    (softmax, softmax_by_hand),
    (logsumexp, logsumexp_by_hand),
    (log_softmax, log_softmax_by_hand),
    (attention, attention_by_hand),
]


def found_for(function, options=None):
    x = torch.randn(6, 6, dtype=torch.float64)
    return search(function, x, name="f", options=options or SearchOptions())


def texts(function):
    return {str(one.graph) for region in found_for(function).regions for one in region.found}


@pytest.mark.parametrize(("plain", "by_hand"), PAIRS)
def test_a_shift_chosen_by_hand_changes_nothing_that_is_found(plain, by_hand) -> None:
    assert texts(plain) & texts(by_hand)
    best = [found_for(one).regions[0].found[0] for one in (plain, by_hand)]
    assert best[0].bound == best[1].bound


@pytest.mark.parametrize("by_hand", [pair[1] for pair in PAIRS])
def test_the_goal_is_without_the_shift_and_means_the_same(by_hand) -> None:
    (region,) = found_for(by_hand).regions
    traced = trace(by_hand, torch.randn(6, 6, dtype=torch.float64), name="f").graph
    assert region.goal.name == traced.name
    assert all(step.op != "max" for step in region.goal.steps)
    assert free_shifts(region.goal)
    original = next(one for one in region.found if one.is_original)
    assert all(one.verdict.equal for one in region.found)
    given = {port.name: torch.randn(traced.shape(port), dtype=torch.float64) for port in traced.inputs}
    torch.testing.assert_close(run_graph(original.graph, given), run_graph(traced, given))


def test_a_shift_that_shows_in_the_result_stays() -> None:
    (region,) = found_for(shifted_by_something_else).regions
    assert any(step.op == "max" for step in region.goal.steps)
