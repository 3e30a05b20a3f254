"""Whether weights are the same: compiled code and Python give the same answer, whatever has changed.

Writes that PyTorch does not count are seen as long as tensors are watched; then PyTorch is left alone.
"""

import gc
from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn

from superopt.weights import compiled_check, sources, writes
from superopt.weights.sources import Sources, can_be_watched
from superopt.weights.writes import watch_writes


def weights() -> list[Tensor]:
    torch.manual_seed(0)
    return [
        nn.Parameter(torch.randn(256, 96)),
        nn.Parameter(torch.randn(31)),
        torch.randint(-128, 128, (70, 512), dtype=torch.int8),
        torch.randn(96, 256).bfloat16().t(),
        torch.randn(64, 3, 80)[:, 1:, ::2],
        torch.tensor(3.0, dtype=torch.float64),
        torch.empty(0, 4),
    ]


def swap(given: list[Tensor]) -> None:
    given[0], given[1] = given[1], given[0]


def to_shared_memory(given: list[Tensor]) -> None:
    given[0].share_memory_()


CHANGES: dict[str, Callable[[list[Tensor]], object]] = {
    "in place": lambda given: given[0].mul_(1),
    "the last one": lambda given: given[5].fill_(4),
    "by numpy": lambda given: given[0].detach().numpy().fill(1),
    "one byte by numpy": lambda given: given[2].numpy().__setitem__((0, 0), given[2][0, 0] ^ 1),
    "one of a few by numpy": lambda given: given[1].detach().numpy().__setitem__(30, 9),
    "a part by numpy": lambda given: given[4].numpy().fill(1),
    "in its data": lambda given: given[0].data.__setitem__((1, 1), 5),
    "other data": lambda given: setattr(given[3], "data", given[3].clone()),
    "other memory": lambda given: given[1].data.set_(torch.randn(31)),
    "shared": to_shared_memory,
    "another tensor": lambda given: given.__setitem__(2, given[2].clone()),
    "exchanged": swap,
}


@torch.no_grad()
@pytest.mark.parametrize("compiled", [True, False])
@pytest.mark.parametrize("change", CHANGES.values(), ids=list(CHANGES))
def test_every_change_is_seen(change, compiled: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    if not compiled:
        monkeypatch.setattr(sources, "compiled_check", lambda *unused: compiled_check.ask_python)
    given = weights()
    found = Sources(given)
    before = list(given)
    for _ in range(3):
        assert found.same(given)
        assert found.same(tuple(given))
    assert (found._check(given) is not None) is compiled
    change(given)
    assert not found.same(given)
    assert found._check(given) is None
    assert before
    assert Sources(given).same(given)


@torch.no_grad()
def test_reading_is_no_change() -> None:
    given = weights()
    found = Sources(given)
    for one in given:
        one.sum()
        one.detach().clone().zero_()
        one.data.abs()
    assert found.same(given)


@torch.no_grad()
def test_each_weight_alone_is_told_from_a_copy() -> None:
    for one in weights():
        found = Sources([one])
        assert found._check((one,)) == ()
        assert not found.same((one.clone(),))
        assert found._check(()) is None


def test_without_a_compiler_python_asks(monkeypatch: pytest.MonkeyPatch) -> None:
    def compile_nothing(*unused: object, **named: object) -> None:
        raise compiled_check.CompileError("no compiler")

    monkeypatch.setattr(compiled_check, "functions", compile_nothing)
    monkeypatch.setattr(compiled_check, "_compiled", compiled_check._compiled.__wrapped__)
    given = weights()
    found = Sources(given)
    assert found.same(given)
    given[0].detach().numpy().fill(1)
    assert not found.same(given)


@pytest.fixture
def unwatched(monkeypatch: pytest.MonkeyPatch) -> None:
    """Forgets what other tests watch."""
    monkeypatch.setattr(writes, "_watched", {})


def is_plain() -> bool:
    return vars(Tensor).get("data") is not writes._data


@pytest.mark.usefixtures("unwatched")
def test_data_is_pytorchs_own_again_once_nothing_is_watched() -> None:
    one, two = nn.Parameter(torch.randn(8)), nn.Parameter(torch.randn(8))
    records = [*watch_writes([one]), *watch_writes([two])]
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
    [record] = watch_writes([three])
    three.data[2] = 7
    assert record.count() == 1


@pytest.mark.usefixtures("unwatched")
def test_another_ones_property_is_left_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    one = nn.Parameter(torch.randn(8))
    watch_writes([one])
    theirs = property(lambda self: writes._data.fget(self))
    monkeypatch.setattr(Tensor, "data", theirs)
    del one
    gc.collect()
    assert vars(Tensor)["data"] is theirs


@pytest.mark.parametrize("fused", [False, True])
def test_steps_of_optimizers_are_seen(fused: bool) -> None:
    one = nn.Parameter(torch.randn(64))
    [record] = watch_writes([one])
    before = record.count(), one._version
    one.grad = torch.randn(64)
    torch.optim.Adam([one], fused=fused).step()
    assert (record.count(), one._version) != before


class Named(nn.Parameter):
    """A parameter of a class of its own that changes nothing."""


@torch.no_grad()
def test_parameters_of_other_classes_are_watched() -> None:
    weight = Named(torch.randn(31, 8))
    assert can_be_watched(weight)
    found = Sources([weight])
    assert found.same([weight])
    weight.data[3, 5] = 7
    assert not found.same([weight])
