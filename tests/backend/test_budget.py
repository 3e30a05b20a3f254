"""The budget: how much there is, what is kept of regions it did not reach, and that it binds all steps."""

import time
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.nn import functional as F

from superopt import optimize
from superopt.backend import choice, graphpass
from superopt.backend.choice import Contest, Region, known_decision, region_of
from superopt.backend.decision import Ledger
from superopt.backend.generation import generation
from superopt.backend.nodes import kinds_of
from superopt.backend.options import BackendOptions
from superopt.backend.pieces import pieces_of
from superopt.backend.subgraph import subgraph_of
from superopt.codegen.cpp import find_compiler
from superopt.plans.plan import OptimizeOptions, Within
from superopt.targets import Target, pick_target
from superopt.tune import Measurement
from superopt.tune.measure import HeadToHead

from .conftest import plan_of
from .test_pieces import functional, ones


def mlp(x: torch.Tensor, up: torch.Tensor, down: torch.Tensor) -> torch.Tensor:
    return F.silu(x @ up) @ down


SHAPES = ((4, 8), (8, 16), (16, 8))


@pytest.fixture
def target() -> Target:
    return pick_target("cpu")


@pytest.fixture
def region(target: Target) -> Region:
    graph = functional(mlp, *(ones(*shape) for shape in SHAPES))
    kinds = kinds_of(graph, "cpu")
    [piece] = pieces_of(graph, kinds)
    return region_of(subgraph_of(piece, kinds), target, Ledger(BackendOptions()))


def ledger(**options: Any) -> Ledger:
    return Ledger(BackendOptions(**options))


def test_a_budget_is_as_told_or_follows_inductor() -> None:
    told, free = ledger(budget_s=9.0), ledger()
    for one in (told, free):
        one.inductor_s = 20.0
    assert told.budget_s == 9.0
    assert free.budget_s == 14.0
    free.inductor_s = 1e6
    assert free.budget_s == 60.0
    assert ledger().budget_s == 5.0


def test_only_a_told_budget_pays_for_inductor() -> None:
    for one, paid in ((ledger(budget_s=9.0), True), (ledger(), False)):
        with one.inductors():
            time.sleep(0.01)
        assert one.inductor_s >= 0.01
        assert (one.spent_s > 0) == paid
        with one.spending():
            time.sleep(0.01)
        assert one.spent_s >= 0.01


def test_what_there_was_no_time_for_is_kept(region: Region, target: Target) -> None:
    first = ledger(budget_s=9.0)
    assert known_decision(region, target, first) is None
    found = Contest(region, target, first).decided(0.5, None)
    assert found.open
    assert found.why.startswith("no time: 9 of 9 s")
    assert known_decision(region, target, first) is found
    for again in (ledger(), ledger(budget_s=0.0), ledger(budget_s=9.0)):
        recalled = known_decision(region, target, again)
        assert recalled is not None
        assert recalled.recalled
        assert recalled.open
    for more in (ledger(budget_s=10.0), ledger(retry=True), ledger(cache=False)):
        assert known_decision(region, target, more) is None


def test_a_region_that_is_taken_later_renews_what_inductor_keeps(region: Region, target: Target) -> None:
    late = Contest(region, target, ledger(budget_s=9.0))
    late.decided(0.5, None)
    before = generation()
    taken = replace(late.blank, taken=True, plan=plan_of(region, target), why="a test")
    more = Contest(region, target, ledger(budget_s=90.0))
    more._kept(taken)
    assert generation() == before + 1
    more._kept(taken)
    assert generation() == before + 1
    recalled = known_decision(region, target, ledger())
    assert recalled is not None
    assert recalled.taken


@pytest.mark.parametrize(
    ("before_us", "why"), [(3.0, "too short"), (105.0, "Inductor is at the floor"), (500.0, None)]
)
def test_what_cannot_win_is_not_searched(
    before_us: float, why: str | None, region: Region, target: Target, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Timed:
        median_us = before_us

    monkeypatch.setattr(choice, "compiled_by_inductor", lambda module, inputs, patches: module)
    monkeypatch.setattr(type(target), "measure", lambda *unused, **more: {"inductor": Timed()})
    contest = Contest(replace(region, floor_us=100.0), target, ledger())
    found = contest.opened()
    assert (found is None) == (why is None)
    if found is not None:
        assert found.why.startswith(str(why))
        assert not found.open
    else:
        assert contest.gain_us == 400.0


def test_a_floor_of_a_busy_moment_is_not_believed(
    region: Region, target: Target, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Timed:
        median_us = 50.0

    asked = []
    monkeypatch.setattr(choice, "compiled_by_inductor", lambda module, inputs, patches: module)
    monkeypatch.setattr(type(target), "measure", lambda *unused, **more: {"inductor": Timed()})
    monkeypatch.setattr(type(target), "renew", lambda self: asked.append(1))
    monkeypatch.setattr(type(target), "floor_us", lambda self, goal: 90.0 if len(asked) > 1 else 10.0)
    for gain in (40.0, 50.0):
        contest = Contest(replace(region, floor_us=100.0), target, ledger())
        assert contest.opened() is None
        assert contest.gain_us == gain
    assert len(asked) == 2


def test_the_hottest_region_comes_first(monkeypatch: pytest.MonkeyPatch, target: Target) -> None:
    order = []

    def decided(self: Contest, seconds: float, guard: Any) -> Any:
        order.append((self.before_us, seconds))
        return self._without_time(self.blank)

    def opened(self: Contest) -> None:
        self.before_us = 1e3 * self.region.goal.sizes[self.region.goal.axes[0].name]

    monkeypatch.setattr(Contest, "opened", opened)
    monkeypatch.setattr(Contest, "decided", decided)
    monkeypatch.setattr(graphpass, "_guard", lambda target: nullcontext())
    owner = graphpass.RegionPass(ledger(budget_s=100.0, cache=False))
    regions = []
    for rows in (2, 6, 4):
        graph = functional(mlp, ones(rows, 8), ones(8, 16), ones(16, 8))
        kinds = kinds_of(graph, "cpu")
        regions += [region_of(subgraph_of(p, kinds), target, owner.ledger) for p in pieces_of(graph, kinds)]
    owner._decided(regions, target, "a test")
    assert [before for before, _ in order] == sorted((before for before, _ in order), reverse=True)
    assert order[0][1] >= 100 / 3


@pytest.mark.parametrize(
    ("speedup", "sure", "taken", "why"),
    [
        (2.0, True, True, "2.00 times Inductor's speed"),
        (1.02, True, False, "1.02 times Inductor's speed, 1.03 is needed"),
        (2.0, False, False, "2.00 times Inductor's speed, but ahead in 55% of the rounds only"),
        (0.5, True, False, "0.50 times Inductor's speed, 1.03 is needed"),
    ],
)
def test_what_a_race_decides(
    speedup: float, sure: bool, taken: bool, why: str, region: Region, target: Target
) -> None:
    won = speedup > 1
    names = ("superopt", "inductor") if won else ("inductor", "superopt")
    times = {name: Measurement(9.0, 8.0, 10.0, 5) for name in names}
    raced = HeadToHead(*names, speedup if won else 1 / speedup, 0.55, sure, times)
    contest = Contest(region, target, ledger())
    found = contest._judged(contest.blank, raced, "a plan")
    assert (found.taken, found.why) == (taken, why)
    assert found.open == (not sure)


def inputs() -> tuple[torch.Tensor, ...]:
    return tuple(ones(*shape) for shape in SHAPES)


def test_after_the_deadline_nothing_is_compiled() -> None:
    options = OptimizeOptions(target="cpu", guarded=False, cache=False)
    best = optimize(mlp, *inputs(), options=options, within=Within(time.monotonic(), 1.0))
    assert {one.rejected for plan in best.regions for one in plan.candidates} == {
        "no time was left to compile it"
    }
    assert not best.measurements


@pytest.mark.slow
def test_a_compiler_that_hangs_ends_with_the_deadline(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    slow = tmp_path / "slow-g++"
    slow.write_text('#!/bin/sh\nif [ "$1" = --version ]; then echo slow 1; else sleep 600; fi\n')
    slow.chmod(0o755)
    monkeypatch.setenv("CXX", str(slow))
    find_compiler.cache_clear()
    try:
        start = time.monotonic()
        within = Within(start + 10.0, 1.0)
        best = optimize(mlp, *inputs(), options=OptimizeOptions(target="cpu", cache=False), within=within)
        assert time.monotonic() - start < 60
    finally:
        find_compiler.cache_clear()
    assert all(plan.chosen is None for plan in best.regions)
