"""Comparisons: what optimize returns masks as the program does, or is the program itself."""

from collections.abc import Callable
from math import inf

import pytest
import torch
from torch import Tensor

import superopt
from superopt import OptimizeOptions


def masked_attention(s: Tensor, b: Tensor, v: Tensor) -> Tensor:
    return torch.softmax(s.masked_fill(b == 1, -inf), -1) @ v


def masked_product(s: Tensor, b: Tensor, v: Tensor) -> Tensor:
    return s.masked_fill(b == 1, 0.0) @ v


def chosen_product(s: Tensor, b: Tensor, v: Tensor) -> Tensor:
    return torch.where(b == 1, s, 2 * s) @ v


@pytest.mark.parametrize(
    "function", [pytest.param(masked_attention, marks=pytest.mark.slow), masked_product, chosen_product]
)
def test_masks_of_zeros_and_ones_are_kept(
    quick: OptimizeOptions, random: Callable[..., tuple[Tensor, ...]], function: Callable[..., Tensor]
) -> None:
    s, b, v = random((32, 24), (32, 24), (24, 16))
    b = (b > 0).float()
    best = superopt.optimize(function, s, b, v, options=quick)
    assert torch.allclose(best(s, b, v), function(s, b, v), atol=1e-4)
    for plan in best.regions:
        if plan.chosen is not None:
            made = [step.op for step in plan.chosen.graph.steps]
            assert "eq" in made or "ne" in made


def test_what_cannot_be_tested_is_left_to_pytorch(
    quick: OptimizeOptions, random: Callable[..., tuple[Tensor, ...]]
) -> None:
    def function(x: Tensor, w: Tensor) -> Tensor:
        return torch.where(x > 0, torch.where(x > -1, x, 2 * x), 3 * x) @ w

    x, w = random((32, 24), (24, 16))
    best = superopt.optimize(function, x, w, options=quick)
    [plan] = best.regions
    assert plan.chosen is None
    assert any("not tested enough: x > -1" in one.fate.reason for one in plan.candidates)
    assert torch.allclose(best(x, w), function(x, w), atol=1e-4)
