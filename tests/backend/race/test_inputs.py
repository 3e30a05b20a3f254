"""Inputs that regions are raced and checked with: of the strides that the model's own have."""

import time
from dataclasses import replace

import pytest
import torch
from torch import Tensor

from superopt.backend.checks import inputs
from superopt.backend.decision import Ledger
from superopt.backend.deferred.portable import data_of, subgraph_from
from superopt.backend.options import BackendOptions
from superopt.backend.pieces import pieces_of
from superopt.backend.region import region_of
from superopt.backend.region_race import RegionRace
from superopt.backend.subgraph import subgraph_of, weight_bytes_of
from superopt.cost import memory
from superopt.rivals.kinds import kinds_of
from superopt.targets import pick_target

from .test_pieces import functional

WIDE = torch.randn(4, 6)


class Positive:
    """A domain of positive numbers, which are made anew, one after another in memory."""

    def keep(self, tensors: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
        return tuple(one.abs().contiguous() for one in tensors)


@pytest.mark.parametrize("domain", [None, Positive()])
@pytest.mark.parametrize(
    "layout",
    [WIDE, WIDE[:, ::2], WIDE.T, WIDE[:, :4], WIDE[1:], WIDE[:1].expand(4, 6), WIDE[:, :1].expand(4, 6)],
)
def test_copies_have_the_layout_of_the_example(
    layout: Tensor, domain: Positive | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Code that Inductor compiles checks strides; a clone has others where memory has gaps."""
    monkeypatch.setattr(inputs, "positive_domain", lambda *unused: domain)
    graph = functional(lambda x: x.softmax(-1) * x, WIDE)
    kinds = kinds_of(graph, "cpu")
    [piece] = pieces_of(graph, kinds)
    target = pick_target("cpu")
    region = region_of(subgraph_of(piece, kinds), target, Ledger(BackendOptions()))
    example = torch.empty_strided(layout.shape, layout.stride(), device="meta")
    first, *others = inputs.RegionInputs(region, target, 0).copies((example,))
    assert others
    for copied in (first, *others):
        assert [one.stride() for one in copied] == [layout.stride()]
        assert torch.equal(copied[0], first[0])
        assert domain is None or bool((copied[0] >= 0).all())
    places = {one.untyped_storage().data_ptr() for [one] in (first, *others)}
    assert len(places) == 1 + len(others)


def test_weights_count_once_and_tables_not_at_all() -> None:
    def model(table: Tensor, places: Tensor, w: Tensor, other: Tensor) -> Tensor:
        x = torch.embedding(table, places)
        return ((x @ w).relu() @ w.t() @ w).softmax(-1) @ other

    given = (torch.randn(1000, 8), torch.arange(4), torch.randn(8, 6), torch.randn(6, 5))
    graph = functional(model, *given)
    assert weight_bytes_of(graph, kinds_of(graph, "cpu")) == 4 * (8 * 6 + 6 * 5)


@pytest.mark.parametrize(("times", "count"), [(None, 8), (100, 8), (4, 4), (3.5, 4), (1, 2), (0, 2)])
def test_copies_are_no_larger_than_the_model(times: float | None, count: int) -> None:
    graph = functional(lambda x, w: (x @ w).softmax(-1) * x, torch.randn(4, 16), torch.randn(16, 16))
    kinds = kinds_of(graph, "cpu")
    [piece] = pieces_of(graph, kinds)
    own = 4 * (4 * 16 + 16 * 16)
    found = replace(subgraph_of(piece, kinds), weight_bytes=None if times is None else int(times * own))
    target = pick_target("cpu")
    region = region_of(found, target, Ledger(BackendOptions()))
    assert len(inputs.RegionInputs(region, target, 0).copies()) == count
    assert subgraph_from(data_of(found), "cpu").weight_bytes == found.weight_bytes


def test_a_region_without_room_for_its_inputs_is_left(monkeypatch: pytest.MonkeyPatch) -> None:
    """Before: its inputs were drawn all the same, and the system ended the process that used them."""
    graph = functional(lambda x, w: (x @ w).softmax(-1) @ w.t(), torch.randn(4, 64), torch.randn(64, 64))
    kinds = kinds_of(graph, "cpu")
    [piece] = pieces_of(graph, kinds)
    target = pick_target("cpu")
    region = region_of(subgraph_of(piece, kinds), target, Ledger(BackendOptions()))
    own = 4 * (4 * 64 + 64 * 64)
    monkeypatch.setattr(memory, "available_bytes", lambda: 2 * own - 1)
    monkeypatch.delattr(inputs, "typical")
    race = RegionRace(region, target, Ledger(BackendOptions(budget_s=60.0)))
    race.measure_rivals()
    assert race.settled
    assert race.found is not None
    assert not race.found.taken
    assert "GB of memory" in race.found.why


def test_slow_functions_are_told_by_a_few_calls(monkeypatch: pytest.MonkeyPatch) -> None:
    graph = functional(lambda x, w: (x @ w).relu(), torch.randn(4, 8), torch.randn(8, 8))
    kinds = kinds_of(graph, "cpu")
    [piece] = pieces_of(graph, kinds)
    target = pick_target("cpu")
    region = region_of(subgraph_of(piece, kinds), target, Ledger(BackendOptions()))
    given = inputs.RegionInputs(region, target, 0)

    def fails(*tensors: torch.Tensor) -> None:
        raise RuntimeError("no")

    def slow(*tensors: torch.Tensor) -> None:
        time.sleep(0.006)

    assert given.are_slow_for(slow)
    assert not given.are_slow_for(region.subgraph.module)
    assert not given.are_slow_for(fails)
    monkeypatch.setattr(inputs, "_LOOKED_AT", 4 * (4 * 8 + 8 * 8) - 1)
    assert not given.are_slow_for(slow)
