"""Sharing: how the seconds of a model are shared among its regions, as written and after a search."""

from dataclasses import replace
from typing import Any

import pytest

from superopt.backend import budget
from superopt.backend.decision import Decision
from superopt.backend.region_race import RegionRace
from superopt.funnel.warm_up import WarmUp
from superopt.targets import Target, pick_target
from superopt.tune.first_runs import FirstRuns

from .test_budget import Slow, ledger, regions_of_sizes


@pytest.fixture
def target() -> Target:
    return pick_target("cpu")


@pytest.fixture
def no_guard(monkeypatch: pytest.MonkeyPatch) -> None:
    """Start no processes, and measure nothing."""
    monkeypatch.setattr(FirstRuns, "start", lambda self: None)
    monkeypatch.setattr(RegionRace, "measure", lambda self: None)


@pytest.mark.usefixtures("no_guard")
def test_all_regions_try_as_written_before_any_is_searched(
    monkeypatch: pytest.MonkeyPatch, target: Target
) -> None:
    order = []

    def tried(self: RegionRace, seconds: float, guard: Any, *, search: bool) -> Any:
        order.append((self.region.goal.sizes[self.region.goal.axes[0].name], search, seconds))
        self.ledger.spent_s += 2.0
        return self.blank

    monkeypatch.setattr(RegionRace, "tried", tried)
    monkeypatch.setattr(
        RegionRace, "gain_us", property(lambda self: 1e3 * sum(self.region.goal.sizes.values()))
    )
    owner = ledger(budget_s=100.0, cache=False)
    found = budget.decisions_of(regions_of_sizes(target, owner, 2, 6, 4), target, owner, WarmUp())
    assert [(rows, search) for rows, search, _ in order] == [
        *((rows, False) for rows in (6, 4, 2)),
        *((rows, True) for rows in (6, 4, 2)),
    ]
    assert order[0][2] >= 100 / 3
    assert len(found) == 3


def test_who_may_gain_most_comes_first(monkeypatch: pytest.MonkeyPatch, target: Target) -> None:
    monkeypatch.setattr(FirstRuns, "start", lambda self: None)
    least = {2: 500.0, 6: 100.0, 4: 900.0}
    order = []

    def rows(contest: RegionRace) -> int:
        return contest.region.goal.sizes[contest.region.goal.axes[0].name]

    def opened(self: RegionRace) -> Decision | None:
        self.floor_us, self.before_us, self.rival = 90.0, 1000.0, Slow(1000.0)
        self.rival.least_us = least[rows(self)]
        if rows(self) != 6:
            return None
        self.settled = True
        return replace(self.blank, why="settled")

    def tried(self: RegionRace, seconds: float, guard: Any, *, search: bool) -> Any:
        order.append(rows(self))
        return replace(self.blank, taken=True)

    monkeypatch.setattr(RegionRace, "_opened", opened)
    monkeypatch.setattr(RegionRace, "tried", tried)
    owner = ledger(budget_s=100.0, cache=False)
    owner.node_s = 0.001
    found = budget.decisions_of(regions_of_sizes(target, owner, 2, 6, 4), target, owner, WarmUp())
    assert order == [4, 2, 6] * 2
    assert [one.why for one in found.values()].count("settled") == 1
    assert owner.saved_s > 0


@pytest.mark.usefixtures("no_guard")
def test_what_would_not_be_ended_is_not_begun(monkeypatch: pytest.MonkeyPatch, target: Target) -> None:
    given = []

    def tried(self: RegionRace, seconds: float, guard: Any, *, search: bool) -> Any:
        given.append(seconds)
        self.ledger.spent_s += 5.0 if seconds else 0.0
        return self.blank

    monkeypatch.setattr(RegionRace, "tried", tried)
    owner = ledger(budget_s=7.0, cache=False)
    budget.decisions_of(regions_of_sizes(target, owner, 2, 6, 4), target, owner, WarmUp())
    assert given[0] >= 5.0
    assert given[1:] == [0.0] * 5


@pytest.mark.usefixtures("no_guard")
def test_what_the_first_region_waits_for_leaves_no_other_unsearched(
    monkeypatch: pytest.MonkeyPatch, target: Target
) -> None:
    given = []

    def tried(self: RegionRace, seconds: float, guard: Any, *, search: bool) -> Any:
        given.append((search, seconds > 0))
        self.ledger.spent_s += 7.0 if len(given) == 1 else 1.0
        return self.blank

    monkeypatch.setattr(RegionRace, "tried", tried)
    owner = ledger(budget_s=20.0, cache=False)
    budget.decisions_of(regions_of_sizes(target, owner, 2, 6, 4), target, owner, WarmUp())
    assert given == [(False, True)] * 3 + [(True, True)] * 3


@pytest.mark.usefixtures("no_guard")
def test_a_promising_region_leaves_others_their_turn(monkeypatch: pytest.MonkeyPatch, target: Target) -> None:
    given = []

    def tried(self: RegionRace, seconds: float, guard: Any, *, search: bool) -> Any:
        given.append((search, seconds))
        self.ledger.spent_s += 2.0 if len(given) == 1 else seconds
        return self.blank

    promised = {6: 3e6, 4: 2e6, 2: 1.0}
    gains = property(lambda self: promised[self.region.goal.sizes[self.region.goal.axes[0].name]])
    monkeypatch.setattr(RegionRace, "gain_us", gains)
    monkeypatch.setattr(RegionRace, "tried", tried)
    owner = ledger(budget_s=30.0, cache=False)
    budget.decisions_of(regions_of_sizes(target, owner, 2, 6, 4), target, owner, WarmUp())
    assert [seconds for search, seconds in given if not search][1:] == [23.0, 5.0]


@pytest.mark.usefixtures("no_guard")
def test_where_no_search_is_sure_to_end_one_takes_all_the_time(
    monkeypatch: pytest.MonkeyPatch, target: Target
) -> None:
    given = []

    def tried(self: RegionRace, seconds: float, guard: Any, *, search: bool) -> Any:
        given.append((search, seconds))
        self.ledger.spent_s += 8.0 if seconds else 0.0
        return self.blank

    monkeypatch.setattr(RegionRace, "tried", tried)
    owner = ledger(budget_s=36.0, cache=False)
    budget.decisions_of(regions_of_sizes(target, owner, 2, 6, 4), target, owner, WarmUp())
    assert [search for search, _ in given] == [False] * 3 + [True] * 3
    assert [seconds for _, seconds in given[3:]] == [12.0, 0.0, 0.0]
