"""Gatherings: an axis has as many positions as maxima, and sums of what is chosen, may rest on."""

from collections.abc import Callable
from math import inf

import pytest
import torch
from torch import Tensor

from superopt import equivalent
from superopt.ir import parse_graph
from superopt.verify.evaluation.tiny import tiny_sizes

_X, _Y = torch.randn(3, 10), torch.randn(3, 10)


def _kth(x: Tensor, k: int) -> Tensor:
    for _ in range(k - 1):
        x = torch.where(x == x.amax(-1, keepdim=True), -inf, x)
    return x.amax(-1, keepdim=True)


def _parts(x: Tensor, count: int) -> list[Tensor]:
    return [(x > at) & (x < at + 1) for at in range(1, count + 1)]


_DIFFERENT: dict[str, tuple[Callable[[Tensor, Tensor], Tensor], Callable[[Tensor, Tensor], Tensor]]] = {
    "the second largest of two": (lambda x, y: torch.where(x >= _kth(x, 2), x, 0.0), lambda x, y: x * 1),
    "the third largest of two": (lambda x, y: _kth(x, 3).exp(), lambda x, y: 0 * x[:, :1]),
    "a softmax of the largest": (
        lambda x, y: torch.where(x >= _kth(x, 3), x, -inf).softmax(-1),
        lambda x, y: x.softmax(-1),
    ),
    "a number in each of three": (
        lambda x, y: y * 1,
        lambda x, y: torch.where(torch.stack([one.any(-1) for one in _parts(x, 3)]).all(0)[:, None], 0, y),
    ),
    "sums of parts": (
        lambda x, y: torch.stack([one.float().sum(-1) for one in _parts(x, 4)]).prod(0),
        lambda x, y: 0 * x.sum(-1),
    ),
    "sums by masks": (
        lambda x, y: (
            ((x > 0) & (y > 0)).float().sum(-1)
            * ((x > 0) & (y < 0)).float().sum(-1)
            * ((x < 0) & (y > 0)).float().sum(-1)
            * ((x < 0) & (y < 0)).float().sum(-1)
        ),
        lambda x, y: 0 * x.sum(-1),
    ),
}


@pytest.mark.parametrize("name", _DIFFERENT)
def test_what_takes_many_positions_is_seen(name: str) -> None:
    f, g = _DIFFERENT[name]
    for seed in range(2):
        assert equivalent(f, g, _X, _Y, floats=False, seed=seed).outcome == "unknown"
    assert equivalent(g, g, _X, _Y, floats=False).outcome == "equal"


@pytest.mark.parametrize(
    ("steps", "places"),
    [
        ("t1 = max[n](x)\nt2 = mul(t1, t1)", 2),
        ("t1 = sum[n](x)\nt2 = square(x)\nt3 = sum[n](t2)\nt4 = mul(t1, t3)", 2),
        ("t1 = max[n](x)\nt2 = eq(x, t1)\nt3 = mul(t2, x)\nt4 = max[n](t3)\nt5 = mul(t4, t1)", 3),
        ("t1 = relu(x)\nt2 = sum[n](t1)\nt3 = neg(x)\nt4 = relu(t3)\nt5 = sum[n](t4)\nt6 = mul(t2, t5)", 3),
    ],
)
def test_an_axis_has_one_position_more_than_gatherings(steps: str, places: int) -> None:
    last = steps.rpartition("\n")[2].partition(" ")[0]
    graph = parse_graph(f"graph g\naxes m=4 n=90\nin x: f32[m, n]\n{steps}\nout o: f32[m] = {last}\n")
    assert tiny_sizes(graph, smallest=True).sizes["n"] == places


@pytest.mark.parametrize(
    ("steps", "places"),
    [
        ("t1 = sum[n](x)\nt2 = square(t1)", 2),
        ("t1 = sum[n](x)\nt2 = square(t1)\nt3 = mul(t1, t2)", 3),
        ("t1 = sum[n](x)\nt2 = square(t1)\nt3 = square(t2)", 4),
        ("t1 = sum[n](x)\nt2 = eq(t1, t1)\nt3 = guard(t2, t1)\nt4 = square(t3)\nt5 = square(t4)", 4),
    ],
)
def test_the_smallest_axis_has_a_position_for_each_sum_of_a_product(steps: str, places: int) -> None:
    """Before: two positions for three sums, and for any number of sums that a condition guards."""
    last = steps.rpartition("\n")[2].partition(" ")[0]
    graph = parse_graph(f"graph g\naxes m=4 n=90\nin x: f32[m, n]\n{steps}\nout o: f32[m] = {last}\n")
    assert tiny_sizes(graph, smallest=True).sizes["n"] == places
