"""Sharing: how the seconds of a model are shared among its regions, as written and after a search."""

from collections.abc import Callable
from dataclasses import dataclass, replace
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
    monkeypatch.setattr(RegionRace, "measure_rivals", lambda self: None)


@dataclass(frozen=True)
class Turn:
    """A region's turn: which region, as written or after a search, and the seconds that it may take."""

    rows: int
    search: bool
    seconds: float


def rows_of(contest: RegionRace) -> int:
    return contest.region.goal.sizes[contest.region.goal.axes[0].name]


def turns(
    monkeypatch: pytest.MonkeyPatch, target: Target, budget_s: float, *, takes: Callable[[list[Turn]], float]
) -> list[Turn]:
    """Return the turns of three regions; `takes` tells from all turns until now how long the last is."""
    had: list[Turn] = []

    def tried(self: RegionRace, seconds: float, guard: Any, *, search: bool, **more: Any) -> Decision:
        had.append(Turn(rows_of(self), search, seconds))
        self.ledger.spent_s += takes(had)
        return self.draft

    monkeypatch.setattr(RegionRace, "try_kernels", tried)
    owner = ledger(budget_s=budget_s, cache=False)
    found = budget.decisions_of(regions_of_sizes(target, owner, 2, 6, 4), target, owner, WarmUp())
    assert len(found) == 3
    return had


def promise(monkeypatch: pytest.MonkeyPatch, gain_us: Callable[[int], float]) -> None:
    """Let each region promise a gain that depends on its rows."""
    monkeypatch.setattr(RegionRace, "gain_us", property(lambda self: gain_us(rows_of(self))))


@pytest.mark.usefixtures("no_guard")
def test_all_regions_try_as_written_before_any_is_searched(
    monkeypatch: pytest.MonkeyPatch, target: Target
) -> None:
    promise(monkeypatch, lambda rows: 1e3 * rows)
    had = turns(monkeypatch, target, 100.0, takes=lambda had: 2.0)
    assert [(one.search, one.rows) for one in had] == [
        *((False, rows) for rows in (6, 4, 2)),
        *((True, rows) for rows in (6, 4, 2)),
    ]
    assert had[0].seconds >= 100 / 3


def test_who_may_gain_most_comes_first(monkeypatch: pytest.MonkeyPatch, target: Target) -> None:
    monkeypatch.setattr(FirstRuns, "start", lambda self: None)
    least = {2: 500.0, 6: 100.0, 4: 900.0}
    order = []

    def opened(self: RegionRace) -> Decision | None:
        self.floor_us, self.before_us, self.rival = 90.0, 1000.0, Slow(1000.0)
        self.rival.least_us = least[rows_of(self)]
        if rows_of(self) != 6:
            return None
        self.settled = True
        return replace(self.draft, why="settled")

    def tried(self: RegionRace, seconds: float, guard: Any, *, search: bool, **more: Any) -> Any:
        order.append(rows_of(self))
        return replace(self.draft, taken=True)

    monkeypatch.setattr(RegionRace, "_measure_once", opened)
    monkeypatch.setattr(RegionRace, "try_kernels", tried)
    owner = ledger(budget_s=100.0, cache=False)
    owner.node_s = 0.001
    found = budget.decisions_of(regions_of_sizes(target, owner, 2, 6, 4), target, owner, WarmUp())
    assert order == [4, 2, 6] * 2
    assert [one.why for one in found.values()].count("settled") == 1
    assert owner.saved_s > 0


@pytest.mark.usefixtures("no_guard")
def test_what_would_not_be_ended_is_not_begun(monkeypatch: pytest.MonkeyPatch, target: Target) -> None:
    first, *others = turns(monkeypatch, target, 7.0, takes=lambda had: 5.0 if had[-1].seconds else 0.0)
    assert first.seconds >= 5.0
    assert [one.seconds for one in others] == [0.0] * 5


@pytest.mark.usefixtures("no_guard")
def test_what_the_first_region_waits_for_leaves_no_other_unsearched(
    monkeypatch: pytest.MonkeyPatch, target: Target
) -> None:
    had = turns(monkeypatch, target, 20.0, takes=lambda had: 7.0 if len(had) == 1 else 1.0)
    assert [one.search for one in had] == [False] * 3 + [True] * 3
    assert all(one.seconds > 0 for one in had)


@pytest.mark.usefixtures("no_guard")
def test_a_promising_region_leaves_others_their_turn(monkeypatch: pytest.MonkeyPatch, target: Target) -> None:
    promise(monkeypatch, {6: 3e6, 4: 2e6, 2: 1.0}.__getitem__)
    had = turns(monkeypatch, target, 30.0, takes=lambda had: 2.0 if len(had) == 1 else had[-1].seconds)
    assert [one.seconds for one in had if not one.search][1:] == [23.0, 5.0]


@pytest.mark.usefixtures("no_guard")
def test_where_no_search_is_sure_to_end_one_takes_all_the_time(
    monkeypatch: pytest.MonkeyPatch, target: Target
) -> None:
    had = turns(monkeypatch, target, 36.0, takes=lambda had: 8.0 if had[-1].seconds else 0.0)
    assert [one.search for one in had] == [False] * 3 + [True] * 3
    assert [one.seconds for one in had if one.search] == [12.0, 0.0, 0.0]


@pytest.mark.parametrize(("rows", "patient"), [((2, 6, 4), True), ((6,), False), ((6, 4), False)])
def test_who_waits_for_inductors_code_lets_others_try_first(
    rows: tuple[int, ...], patient: bool, monkeypatch: pytest.MonkeyPatch, target: Target
) -> None:
    """A region that is settled, as that of 4 rows, waits for nothing."""
    monkeypatch.setattr(FirstRuns, "start", lambda self: None)
    monkeypatch.setattr(RegionRace, "doubt_us", property(lambda self: 1e3 - rows_of(self)))
    had: list[tuple[str, int]] = []
    were: dict[int, bool] = {}

    def measure(self: RegionRace) -> None:
        self.settled = rows_of(self) == 4

    def tried(self: RegionRace, seconds: float, guard: Any, *, search: bool, patient: bool = False) -> Any:
        had.append(("searched" if search else "tried", rows_of(self)))
        if not search:
            were[rows_of(self)] = patient
        return self.draft

    def confirmed(self: RegionRace, seconds: float) -> Any:
        had.append(("confirmed", rows_of(self)))
        return self.draft

    for name, made in (("measure_rivals", measure), ("try_kernels", tried), ("confirm", confirmed)):
        monkeypatch.setattr(RegionRace, name, made)
    owner = ledger(budget_s=100.0, cache=False)
    budget.decisions_of(regions_of_sizes(target, owner, *rows), target, owner, WarmUp())
    assert {were[one] for one in rows if one != 4} == {patient}
    count = len(rows)
    kinds = [kind for kind, _ in had]
    assert kinds == ["tried"] * count + ["confirmed"] * count + ["searched"] * count + ["confirmed"] * count
    assert [one for kind, one in had[count : 2 * count]] == sorted(rows)  # the largest doubts come first


@pytest.mark.usefixtures("no_guard")
@pytest.mark.parametrize(("doubt_us", "begun"), [(100.0, False), (1.0, True)])
def test_no_region_takes_the_time_of_a_race_that_may_gain_more(
    doubt_us: float, begun: bool, monkeypatch: pytest.MonkeyPatch, target: Target
) -> None:
    """Of 9 seconds three are left: enough for a race with Inductor's code, but for no region before it."""
    promise(monkeypatch, {6: 3e6, 4: 2e6, 2: 10.0}.__getitem__)
    monkeypatch.setattr(
        RegionRace, "doubt_us", property(lambda self: doubt_us if rows_of(self) == 6 else 0.0)
    )
    monkeypatch.setattr(RegionRace, "confirm", lambda self, seconds: self.draft)
    had = turns(monkeypatch, target, 9.0, takes=lambda had: 3.0 if had[-1].seconds else 0.0)
    assert [one.rows for one in had if not one.search] == [6, 4, 2]
    assert [one.seconds > 0 for one in had if not one.search] == [True, True, begun]
