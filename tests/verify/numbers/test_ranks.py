"""Maxima of many numbers: random ranks show what the signs of differences cannot."""

from collections.abc import Callable
from dataclasses import replace
from itertools import permutations

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

from superopt.ir import parse_graph
from superopt.verify.bounds.ranks import rank_bits, ranks_only
from superopt.verify.equivalent import equivalent
from superopt.verify.evaluation.tiny import tiny_sizes

_Program = Callable[..., Tensor]


def _pool(x: Tensor) -> Tensor:
    return F.max_pool2d(x, 3, padding=1)


_EQUAL: dict[str, tuple[_Program, _Program, tuple[int, ...], int]] = {
    "halves": (
        lambda x: torch.maximum(x[:, :5].amax(-1), x[:, 5:].amax(-1)), lambda x: x.amax(-1), (3, 10), 1,
    ),
    "parts that overlap": (
        lambda x: torch.maximum(x[:, :7].amax(-1), x[:, 4:].amax(-1)), lambda x: x.amax(-1), (3, 10), 1,
    ),
    "minima": (
        lambda x: x.amin((0, 1)), lambda x: torch.minimum(x[:2].amin((0, 1)), x[2:].amin((0, 1))), (5, 7), 1,
    ),
    "a pool of a maximum": (
        lambda x, y: _pool(torch.maximum(x, y)),
        lambda x, y: torch.maximum(_pool(x), _pool(y)), (1, 2, 4, 6), 2,
    ),
    "relu after a pool": (lambda x: _pool(F.relu(x)), lambda x: F.relu(_pool(x)), (1, 2, 4, 6), 1),
    "a pool of a pool": (
        lambda x: F.max_pool2d(F.max_pool2d(x, 2), 2), lambda x: F.max_pool2d(x, 4), (1, 2, 8, 8), 1,
    ),
    "a sum of two": (
        lambda x: x.amax(0) + x.amin(0),
        lambda x: torch.maximum(x[:2].amax(0), x[2:].amax(0)) + x.amin(0), (5, 7), 1,
    ),
}  # fmt: skip
_DIFFERENT: dict[str, tuple[_Program, _Program, tuple[int, ...], int]] = {
    "one left out": (
        lambda x: torch.maximum(x[:, :4].amax(-1), x[:, 5:].amax(-1)), lambda x: x.amax(-1), (3, 10), 1,
    ),
    "one more": (
        lambda x, y: torch.maximum(x.amax(-1), y[:, 9]), lambda x, y: x.amax(-1), (3, 10), 2,
    ),
    "a pool without its edge": (
        lambda x: _pool(F.relu(x)), lambda x: F.relu(F.max_pool2d(x, 3, padding=1, stride=3, dilation=1))
        .index_fill(3, torch.tensor([1]), 0.0), (1, 2, 4, 6), 1,
    ),
    "a minimum among maxima": (
        lambda x: torch.minimum(x[:, :5].amax(-1), x[:, 5:].amax(-1)), lambda x: x.amax(-1), (3, 10), 1,
    ),
    "relu inside a minimum": (
        lambda x: -_pool(-F.relu(x)), lambda x: -F.relu(_pool(-x)), (1, 2, 4, 6), 1,
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", _EQUAL)
def test_maxima_of_many_numbers_are_equal(name: str) -> None:
    f, g, shape, count = _EQUAL[name]
    verdict = equivalent(f, g, *(torch.randn(shape) for _ in range(count)))
    assert verdict.equal, verdict.notes
    assert (verdict.error_bound or 1) < 2.0**-40


@pytest.mark.parametrize("name", _DIFFERENT)
def test_mistakes_among_maxima_are_not_equal(name: str) -> None:
    f, g, shape, count = _DIFFERENT[name]
    assert equivalent(f, g, *(torch.randn(shape) for _ in range(count)), seed=5).different


_CHOICES: dict[str, tuple[str, Callable[[tuple[int, ...]], bool], int]] = {
    "the largest of five": ("t1 = max[i](x)\n", lambda ranks: ranks[0] == 4, 1),
    "two of five": (
        "t1 = max[i](x)\nt2 = neg(x)\nt3 = max[i](t2)\nt4 = mul(t1, t3)\n",
        lambda ranks: ranks[0] == 4 or ranks[0] == 0, 2,
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", _CHOICES)
def test_the_chance_is_no_better_than_counted(name: str) -> None:
    """Of all orders of five numbers, those that show a missing one are as many as the bound says or more."""
    steps, shows, choices = _CHOICES[name]
    last = steps.rsplit(" = ", 1)[0].rsplit("\n", 1)[-1]
    graph = parse_graph(f"graph g\naxes i=5\nin x: f32[i]\n{steps}out y: f32[] = {last}\n")
    tiny = replace(tiny_sizes(graph, graph, variant=0), sizes={"i": 5}, extents={"i": 5})
    bits, numbers = rank_bits(graph, graph, tiny)
    assert numbers == 10 * choices
    orders = list(permutations(range(5)))
    assert 2.0**-bits <= sum(map(shows, orders)) / len(orders)


def test_ranks_are_for_maxima_alone() -> None:
    head = "graph g\naxes i=4\nin x: f32[i]\nin y: f32[i]\n"
    assert ranks_only(parse_graph(head + "t2 = maximum(x, y)\nout z: f32[i] = t2\n"))
    assert not ranks_only(parse_graph(head + "t2 = add(x, y)\nout z: f32[i] = t2\n"))
    assert not ranks_only(
        parse_graph(head + "t2 = lt(x, y)\nt3 = maximum(x, y)\nt4 = mul(t2, t3)\nout z: f32[i] = t4\n")
    )
