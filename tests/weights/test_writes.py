"""Writes that PyTorch does not count: seen as long as tensors are watched. Then PyTorch is left alone."""

import gc

import pytest
import torch
from torch import Tensor, nn

from superopt.weights import writes
from superopt.weights.writes import writes_to


@pytest.fixture
def unwatched(monkeypatch: pytest.MonkeyPatch) -> None:
    """Forgets what other tests watch."""
    monkeypatch.setattr(writes, "_watched", {})


def is_plain() -> bool:
    return vars(Tensor).get("data") is not writes._data


@pytest.mark.usefixtures("unwatched")
def test_data_is_pytorchs_own_again_once_nothing_is_watched() -> None:
    one, two = nn.Parameter(torch.randn(8)), nn.Parameter(torch.randn(8))
    records = [*writes_to([one]), *writes_to([two])]
    assert not is_plain()
    one.data.mul_(2)
    assert [record.count() for record in records] == [1, 0]
    del one
    gc.collect()
    assert not is_plain()
    two.data.mul_(2)
    assert records[1].count() == 1
    del two
    gc.collect()
    assert is_plain()

    three = nn.Parameter(torch.randn(8))
    [record] = writes_to([three])
    three.data[2] = 7
    assert record.count() == 1


@pytest.mark.usefixtures("unwatched")
def test_another_ones_property_is_left_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    one = nn.Parameter(torch.randn(8))
    writes_to([one])
    theirs = property(lambda self: writes._data.fget(self))
    monkeypatch.setattr(Tensor, "data", theirs)
    del one
    gc.collect()
    assert vars(Tensor)["data"] is theirs


@pytest.mark.parametrize("fused", [False, True])
def test_steps_of_optimizers_are_seen(fused: bool) -> None:
    one = nn.Parameter(torch.randn(64))
    [record] = writes_to([one])
    before = record.count(), one._version
    one.grad = torch.randn(64)
    torch.optim.Adam([one], fused=fused).step()
    assert (record.count(), one._version) != before
