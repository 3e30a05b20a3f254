"""Liveness: what a step is expected to hold at once, and choices that would hold more than Inductor's."""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, fx
from torch.fx.experimental.proxy_tensor import make_fx

from superopt.backend.joint import choice
from superopt.backend.joint.choice import Choice
from superopt.backend.joint.limits import changed
from superopt.backend.joint.liveness import expected_peak

from .test_kept import Seen, attention

KIB = 1 << 10
SQUARE = 4 * 64 * 64  # bytes


@pytest.fixture(autouse=True)
def small(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[None]:
    monkeypatch.setenv("SUPEROPT_CACHE_DIR", str(tmp_path))
    with changed(kept_bytes=1):
        yield


def traced(program: Callable[..., Any], *names: str) -> fx.GraphModule:
    """Return the graph of a program over squares, whose inputs have these names."""
    module = make_fx(program, tracing_mode="fake")(*(torch.empty(64, 64) for _ in names))
    for node, name in zip(module.graph.find_nodes(op="placeholder"), names, strict=True):
        node.name = name
    return module


def held(forward: fx.GraphModule, backward: fx.GraphModule, turns_bytes: int = 0) -> float:
    """Return the squares that a step with one result is expected to hold."""
    return expected_peak((forward, backward), 1, turns_bytes) // SQUARE


def nothing(x: Tensor) -> tuple[Tensor]:
    return (x.sum(),)


def test_what_is_read_no_more_is_dropped() -> None:
    chain = traced(lambda x: ((((x @ x) @ x) @ x).sum(),), "x")
    assert held(chain, traced(nothing, "y")) == 2


def test_what_is_computed_where_it_is_read_takes_no_memory() -> None:
    fused = traced(lambda x: (((x @ x).exp() + 1).square().sum(),), "x")
    assert held(fused, traced(nothing, "y")) == 1
    read_by_library = traced(lambda x: ((x.exp() @ x).sum(),), "x")
    assert held(read_by_library, traced(nothing, "y")) == 2


def test_a_result_takes_the_place_of_what_is_read_for_the_last_time() -> None:
    over = traced(lambda x: (((x @ x).exp() @ x).sum(),), "x")
    assert held(over, traced(nothing, "y")) == 2
    beside = traced(lambda x: ((a := x @ x).exp() @ x + a,), "x")
    assert held(beside, traced(nothing, "y")) == 3


def test_what_the_backward_pass_reads_is_held_until_then() -> None:
    def forward(x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        first, second = x @ x, x @ x
        return (first @ second).sum(), first, second.t()

    given = traced(forward, "x")
    names = [str(one) for one in given.graph.find_nodes(op="output")[0].args[0][1:]]
    keeps = traced(lambda a, b: (a @ b, b @ a), *names)
    drops = traced(lambda a, b: ((a @ b) @ (b @ b),), *names)
    assert held(given, keeps) == 4  # two that are read to the end, and two gradients
    assert held(given, drops) == 3
    assert held(given, traced(lambda a, b: (((a @ b) @ a) @ a,), *names)) == 3


def test_views_take_nothing() -> None:
    views = traced(lambda x: ((x @ x).t()[:32].reshape(-1).sum(),), "x")
    assert held(views, traced(nothing, "y")) == 1


@pytest.mark.parametrize(("ours", "taken"), [(99, True), (100, True), (101, False)])
def test_without_time_a_choice_is_dropped_that_would_hold_more(
    ours: int, taken: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Before: only where a step was compiled both ways was its peak compared."""
    monkeypatch.setattr(Choice, "expected_peak", lambda one: ours if one.is_ours else 100)
    monkeypatch.setattr(choice, "MORE_TIME", 10.0)
    for memory in ("balanced", SQUARE // 2):
        seen = Seen(attention, memory, torch.randn(64, 4), torch.randn(4, 12))
        assert any(one.taken for one in seen.ledger.decisions) == taken
