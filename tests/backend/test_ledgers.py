"""Ledgers: each call of torch.compile has its own budget and report, whichever dict of options it gets."""

import gc
import time
from collections.abc import Callable, Mapping
from typing import Any

import pytest
import torch
from torch import Tensor, fx

from superopt.backend import entry
from superopt.backend.decision import Decision, Ledger
from superopt.backend.options import BackendOptions


@pytest.fixture
def ledgers(monkeypatch: pytest.MonkeyPatch) -> list[Ledger]:
    """Compile nothing; return the ledgers that graphs come with."""
    found: list[Ledger] = []

    def host(module: fx.GraphModule, inputs: Any, patches: Mapping[str, Any]) -> Callable[..., Any]:
        found.append(patches[entry.PASS].ledger)
        return module.forward

    monkeypatch.setattr(entry, "with_inductor", host)
    return found


def first(x: Tensor) -> Tensor:
    made = x.sin()
    torch._dynamo.graph_break()
    return made.cos()


def second(x: Tensor) -> Tensor:
    return x.tanh()


def test_two_calls_with_one_dict_share_nothing(ledgers: list[Ledger]) -> None:
    options: dict[str, Any] = {"budget_s": 0}
    x = torch.ones(3)
    compiled = [torch.compile(one, backend="superopt", options=options) for one in (first, second)]
    for one in compiled:
        one(x)
    assert ledgers[0] is ledgers[1]  # of the graphs of one call
    assert ledgers[2] is not ledgers[0]
    assert entry.ledger_of(options) is ledgers[2]


def test_options_that_change_are_read_again(ledgers: list[Ledger]) -> None:
    options: dict[str, Any] = {"budget_s": 0}
    compiled = torch.compile(second, backend="superopt", options=options, dynamic=False)
    compiled(torch.ones(3))
    compiled(torch.ones(4))
    options["budget_s"] = 5
    compiled(torch.ones(5))
    assert [one.options.budget_s for one in ledgers] == [0, 0, 5]
    assert ledgers[0] is ledgers[1]


def test_without_options_each_graph_has_its_own(ledgers: list[Ledger]) -> None:
    torch.compile(first, backend="superopt")(torch.ones(3))
    assert len(ledgers) == 2
    assert ledgers[0] is not ledgers[1]


def test_settings_of_the_whole_program_are_among_the_options(ledgers: list[Ledger]) -> None:
    """Races depend on them, and so do the keys under which their outcomes are kept."""
    x = torch.ones(3)
    with torch._inductor.config.patch({"max_fusion_size": 7, "cpp.simdlen": 8}):
        torch.compile(second, backend="superopt", options={"inductor": {"cpp.simdlen": 4}})(x)
    told = {"max_fusion_size": 7, "cpp.simdlen": 4}
    assert {**ledgers[0].options.inductor, **told} == ledgers[0].options.inductor
    torch._dynamo.reset()
    torch.compile(second, backend="superopt")(x)
    assert "max_fusion_size" not in ledgers[1].options.inductor


def test_what_is_no_longer_compiled_is_forgotten(ledgers: list[Ledger]) -> None:
    before = len(entry._CALLS)
    compiled = torch.compile(second, backend="superopt", options={"budget_s": 0})
    compiled(torch.ones(3))
    assert len(entry._CALLS) == before + 1
    del compiled
    torch._dynamo.reset()
    gc.collect()
    assert len(entry._CALLS) <= before


@pytest.mark.parametrize(
    ("told", "said"),
    [
        ({"before_us": 100.0, "floor_us": 93.0}, "this is 93% of the machine's peak"),
        ({"before_us": 100.0, "floor_us": 60.0}, None),
        ({"before_us": 100.0, "floor_us": 93.0, "flops": 0}, None),  # no matmul
        ({"before_us": 100.0, "floor_us": 93.0, "taken": True}, None),
        ({"before_us": None, "floor_us": 93.0}, None),
        ({"before_us": 100.0, "floor_us": None}, None),
    ],
)
def test_a_library_at_the_peak_is_said_to_be(told: dict[str, Any], said: str | None) -> None:
    fields: dict[str, Any] = {"taken": False, "flops": 1000, **told}
    text = Decision("mm x1", "f32[8,8]", why="a test", **fields).text()
    assert ("of the machine's peak" in text) == (said is not None)
    assert said is None or said in text


def test_a_forward_pass_leaves_time_for_its_backward_pass() -> None:
    for one, all_s in ((Ledger(BackendOptions(budget_s=10.0)), 10.0), (Ledger(BackendOptions()), 60.0)):
        one.inductor_s, one.spent_s = 1e6, 1.0
        with one.leaving_for_backward("inference"):
            assert one.left_s == all_s - 1
        with one.leaving_for_backward("forward"):
            assert one.left_s == pytest.approx(0.4 * (all_s - 1))
            one.spent_s += 2.0
            assert one.left_s == pytest.approx(0.4 * (all_s - 1) - 2)
        assert one.left_s == all_s - 3
    little = Ledger(BackendOptions())
    little.inductor_s = 4.0
    with little.leaving_for_backward("forward"):  # the backward pass adds to the default itself
        assert little.left_s == little.budget_s


def test_a_gain_pays_for_the_time_it_takes() -> None:
    """What a hundred calls gain may be spent; what is gained no more is granted no more."""
    told, free = Ledger(BackendOptions(budget_s=9.0)), Ledger(BackendOptions())
    for one in (told, free):
        one.inductor_s = 2.0
        one.grant("a", 1.0, 50_000.0)
        one.grant("b", 0.0, 20_000.0)
        one.grant("none", 4.0, 0.0)
    assert told.budget_s == 9.0
    assert free.budget_s == pytest.approx(1.7 + 5.0 + 2.0)
    for spent_s in (3.0, 4.0):
        free.grant("a", spent_s, 0.0)
        assert free.budget_s == pytest.approx(1.7 + 3.0 + 2.0)
    free.grant("a", 3.0, 1e7)
    assert free.budget_s == 60.0


def test_what_is_spent_is_left_no_more() -> None:
    one = Ledger(BackendOptions(budget_s=9.0))
    with one.spending():
        time.sleep(0.01)
    assert one.spent_s >= 0.01
    assert one.left_s == 9.0 - one.spent_s
