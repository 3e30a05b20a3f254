"""Kernels that are compiled while other regions are measured and scheduled: which, and when they race."""

from concurrent.futures import Future
from dataclasses import replace
from typing import Any

import pytest

from superopt.backend import budget
from superopt.backend.region_race import RegionRace
from superopt.candidates import Candidate, RegionCandidates
from superopt.funnel.warm_up import Ahead, WarmUp
from superopt.ir import fuse
from superopt.targets import Target, pick_target
from superopt.tune.first_runs import FirstRuns

from .test_budget import Slow, ledger, regions_of_sizes


@pytest.fixture
def target() -> Target:
    return pick_target("cpu")


@pytest.mark.parametrize(
    ("expected", "first"),
    [
        ({2: 300.0, 6: 250.0, 4: 880.0}, 6),  # the largest region
        ({2: 300.0, 6: 599.0, 4: 880.0}, 6),  # though another one promises more by then
        ({2: 300.0, 6: 999.0, 4: 1200.0}, 2),  # the larger ones are predicted to lose
        ({2: 999.0, 6: 999.0, 4: 1200.0}, None),  # no kernels promise a gain: nothing is compiled ahead
    ],
)
def test_kernels_that_promise_a_gain_are_compiled_ahead(
    expected: dict[int, float], first: int | None, monkeypatch: pytest.MonkeyPatch, target: Target
) -> None:
    """The region that the floor puts first has its kernels compiled, unless they are predicted to lose."""
    monkeypatch.setattr(FirstRuns, "start", lambda self: None)
    least, prepared, order = {2: 900.0, 6: 600.0, 4: 950.0}, [], []

    def rows(contest: RegionRace) -> int:
        return contest.region.goal.sizes[contest.region.goal.axes[0].name]

    def measure(self: RegionRace) -> None:
        self.floor_us, self.before_us, self.rival = 90.0, 1000.0, Slow(1000.0)
        self.rival.least_us = least[rows(self)]

    def expect(self: RegionRace) -> None:
        draft = Candidate("1", self.region.goal, fuse(self.region.goal))
        known = replace(draft, predicted_us=expected[rows(self)])
        self.ahead = Ahead([RegionCandidates(self.region.goal, (known,))])

    def tried(self: RegionRace, seconds: float, guard: Any, *, search: bool, **more: Any) -> Any:
        order.append(rows(self))
        return self.draft

    def prepare(self: WarmUp, target: Target, mugraph: Any, configs: Any, limit: float) -> Any:
        prepared.append(mugraph)
        return Future()

    for name, made in (("measure_rivals", measure), ("schedule_ahead", expect), ("try_kernels", tried)):
        monkeypatch.setattr(RegionRace, name, made)
    monkeypatch.setattr(WarmUp, "prepare", prepare)
    owner = ledger(budget_s=100.0, cache=False)
    budget.decisions_of(regions_of_sizes(target, owner, 2, 6, 4), target, owner, WarmUp())
    assert len(prepared) == (first is not None)
    assert len(order) == 6
    assert first is None or order[0] == first
