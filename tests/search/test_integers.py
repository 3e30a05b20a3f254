"""Programs that read integers: what holds of some integers alone is never taken to hold of all."""

import pytest
import torch
from torch import Tensor
from torch.nn.functional import cross_entropy

import superopt


def loss(x: Tensor, w: Tensor, classes: Tensor) -> Tensor:
    return cross_entropy(x @ w.T, classes)


@pytest.mark.slow
def test_cross_entropy_is_found_in_several_ways() -> None:
    """A class is one of the axis, or the ignored one, or neither: all three occur among the draws."""
    x, w = torch.empty(64, 8, device="meta"), torch.empty(32000, 8, device="meta")
    classes = torch.empty(64, dtype=torch.int64, device="meta")
    (region,) = superopt.search(loss, x, w, classes).regions
    assert len(region.found) >= 8
    assert not region.notes
