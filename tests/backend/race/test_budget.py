"""The budget: how much there is, what is kept of regions it did not reach, and that it binds all steps."""

import time
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch.nn import functional as F

from superopt.backend import region_race
from superopt.backend.budget import decisions_of
from superopt.backend.cache import epoch, keep, known_decision
from superopt.backend.checks.inputs import RegionInputs
from superopt.backend.decision import Decision, Ledger
from superopt.backend.options import BackendOptions
from superopt.backend.pieces import pieces_of
from superopt.backend.region import Region, region_of
from superopt.backend.region_race import RegionRace
from superopt.backend.subgraph import subgraph_of
from superopt.candidates import RegionCandidates
from superopt.candidates.schedules import schedules
from superopt.driver import search as searched
from superopt.funnel import Limits, State, run_regions
from superopt.funnel.warm_up import WarmUp
from superopt.options import OptimizeOptions
from superopt.rivals import inductor as inductors
from superopt.rivals.kinds import kinds_of
from superopt.targets import Target, pick_target
from superopt.trace import trace
from superopt.tune import Measurement
from superopt.tune.measure import HeadToHead

from ..conftest import plan_of
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
        one.inductor_s = 2.0
    assert told.budget_s == 9.0
    assert free.budget_s == pytest.approx(1.7)
    free.saved_s = 0.5
    assert free.budget_s == pytest.approx(2.2)
    free.inductor_s = 1e6
    assert free.budget_s == 60.0
    assert ledger().budget_s == 0.0


@pytest.mark.parametrize(
    ("enough", "slow", "settled", "grown_s"),
    [
        (True, False, False, 20.0),
        (True, True, True, 0.0),
        (False, True, False, 20.0),
        (False, False, False, 0.0),
    ],
)
def test_slow_rivals_let_the_budget_grow(
    monkeypatch: pytest.MonkeyPatch,
    region: Region,
    target: Target,
    enough: bool,
    slow: bool,
    settled: bool,
    grown_s: float,
) -> None:
    """Also where there is no time to begin: then a call is timed first, and measured where it is slow."""

    def measure(race: RegionRace) -> None:
        race.rival = SimpleNamespace(most_us=2e5, least_us=0.0)  # type: ignore[assignment]
        race.before_us, race.settled = 2e5, settled

    monkeypatch.setattr(RegionRace, "measure_rivals", measure)
    monkeypatch.setattr(RegionInputs, "are_slow_for", lambda *given: slow)
    monkeypatch.setattr(RegionRace, "schedule_ahead", lambda race: None)
    monkeypatch.setattr(RegionRace, "try_kernels", lambda race, *given, **named: race.draft)
    one = ledger(tune="off", cache=False)
    one.inductor_s = 3.0 if enough else 0.5
    with WarmUp() as warm_up:
        decisions_of([region], target, one, warm_up)
    assert one.budget_s == pytest.approx(0.85 * one.inductor_s + grown_s, abs=0.1)


def test_nothing_is_looked_at_without_a_budget(
    monkeypatch: pytest.MonkeyPatch, region: Region, target: Target
) -> None:
    monkeypatch.delattr(RegionInputs, "are_slow_for")
    for told_s in (0.0, 1.0):
        one = ledger(budget_s=told_s, tune="off", cache=False)
        with WarmUp() as warm_up:
            [decision] = decisions_of([region], target, one, warm_up).values()
        assert not decision.taken
        assert one.budget_s == told_s


def undecided(region: Region, target: Target, ledger: Ledger) -> Decision:
    """Return what comes of a region for which there is half a second."""
    contest = RegionRace(region, target, ledger)
    for search in (False, True):
        contest.try_kernels(0.5, None, search=search)
    return contest.conclude()


def test_what_there_was_no_time_for_is_kept(region: Region, target: Target) -> None:
    first = ledger(budget_s=9.0)
    assert known_decision(region, first) is None
    found = undecided(region, target, first)
    assert found.open
    assert found.why == "no time: 9 of 9 s of the budget are left"
    assert known_decision(region, first) is found
    for again in (ledger(), ledger(budget_s=0.0), ledger(budget_s=9.0)):
        recalled = known_decision(region, again)
        assert recalled is not None
        assert recalled.recalled
        assert recalled.open
    for more in (ledger(budget_s=10.0), ledger(retry=True), ledger(cache=False)):
        assert known_decision(region, more) is None


def test_a_region_that_is_taken_later_renews_what_inductor_keeps(region: Region, target: Target) -> None:
    late = undecided(region, target, ledger(budget_s=9.0))
    before = epoch()
    taken = replace(late, taken=True, plan=plan_of(region, target), why="a test", open=False)
    more = ledger(budget_s=90.0)
    keep(taken, region, more)
    assert epoch() == before + 1
    keep(taken, region, more)
    assert epoch() == before + 1
    recalled = known_decision(region, ledger())
    assert recalled is not None
    assert recalled.taken


def test_what_a_budget_of_nothing_left_is_taken_later(region: Region, target: Target) -> None:
    nothing = ledger(budget_s=0.0)
    left = undecided(region, target, nothing)
    assert not left.taken
    before = epoch()
    for more in (ledger(), ledger(budget_s=9.0), ledger(retry=True)):
        assert known_decision(region, more) is None
    keep(replace(left, taken=True, plan=plan_of(region, target), open=False), region, ledger(budget_s=9.0))
    assert epoch() == before + 1
    recalled = known_decision(region, ledger(budget_s=0.0))
    assert recalled is not None
    assert recalled.taken


def test_a_budget_of_nothing_replaces_no_decision(region: Region, target: Target) -> None:
    known = undecided(region, target, ledger(budget_s=9.0))
    keep(replace(known, why="less", budget_s=0.0), region, ledger(budget_s=0.0))
    recalled = known_decision(region, ledger(budget_s=9.0))
    assert recalled is not None
    assert recalled.why == known.why


class Slow:
    """A rival that takes so long, and has no library calls."""

    has_library = False

    def __init__(self, us: float) -> None:
        self.most_us, self.least_us = us, 0.0

    def has_made(self, rival: object) -> bool:
        """Return that nothing is compiled."""
        return False

    def give_up_copies(self) -> None:
        """Do nothing: it has none."""


@pytest.mark.parametrize(
    ("before_us", "cheapest", "why"),
    [
        (3.0, 1.0, "too short"),
        (105.0, 100.0, "Inductor is at the floor"),
        (105.0, 40.0, None),  # of the program as it is written, but not of an equal one
        (440.0, 40.0, None),
    ],
)
def test_what_cannot_win_is_not_searched(
    before_us: float,
    cheapest: float,
    why: str | None,
    region: Region,
    target: Target,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    tried = []

    def no_kernels(self: RegionRace, search: bool) -> Decision:
        tried.append(search)
        return replace(self.draft, why="no kernels")

    monkeypatch.setattr(region_race, "Opponents", lambda *unused, **named: Slow(before_us))
    monkeypatch.setattr(region_race, "cheapest_us", lambda *unused: cheapest)
    monkeypatch.setattr(RegionRace, "_run_funnel", no_kernels)
    contest = RegionRace(replace(region, floor_us=100.0), target, ledger(budget_s=60.0))
    for search in (False, True):
        found = contest.try_kernels(9.0, None, search=search)
    if why is None:
        assert tried == [False, True]
        assert contest.gain_us == before_us - (40.0 if before_us < 110.0 else 100.0)
    else:
        assert not tried
        assert found.why.startswith(why)
        assert not found.open


def test_the_cheapest_equal_program_counts(target: Target) -> None:
    graph = functional(lambda x, w: (x @ w).sum(-1), ones(4096, 256), ones(256, 4096))
    kinds = kinds_of(graph, "cpu")
    [piece] = pieces_of(graph, kinds)
    collapsing = region_of(subgraph_of(piece, kinds), target, ledger())
    assert region_race.cheapest_us(collapsing, target, 5.0) < 0.5 * collapsing.floor_us


def test_a_floor_of_a_busy_moment_is_not_believed(
    region: Region, target: Target, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = []
    monkeypatch.setattr(region_race, "Opponents", lambda *unused, **named: Slow(50.0))
    monkeypatch.setattr(type(target), "renew", lambda self: asked.append(1))
    monkeypatch.setattr(type(target), "floor_us", lambda self, goal: 90.0 if len(asked) > 1 else 10.0)
    for gain in (40.0, 50.0):
        contest = RegionRace(replace(region, floor_us=100.0), target, ledger())
        assert contest._measure_once() is None
        assert contest.gain_us == gain
    assert len(asked) == 2


def regions_of_sizes(target: Target, owner: Ledger, *sizes: int) -> list[Region]:
    found = []
    for rows in sizes:
        graph = functional(mlp, ones(rows, 8), ones(8, 16), ones(16, 8))
        kinds = kinds_of(graph, "cpu")
        found += [region_of(subgraph_of(p, kinds), target, owner) for p in pieces_of(graph, kinds)]
    return found


@pytest.mark.parametrize(
    ("speedup", "sure", "taken", "why"),
    [
        (2.0, True, True, "2.00 times Inductor's speed"),
        (1.04, True, False, "1.04 times Inductor's speed, 1.05 is needed"),
        (2.0, False, False, "2.00 times Inductor's speed, but ahead in only 55% of the rounds"),
        (0.5, True, False, "0.50 times Inductor's speed, 1.05 is needed"),
    ],
)
@pytest.mark.parametrize("least", [False, True])
def test_what_a_race_decides(
    speedup: float, sure: bool, taken: bool, why: str, least: bool, region: Region, target: Target
) -> None:
    contest = RegionRace(region, target, ledger())
    known = replace(contest.draft, before_is_least=least)
    found = contest._decide(known, raced(speedup, sure=sure), "a plan")
    assert (found.taken, found.why) == (taken, f"at least {why}" if least else why)
    assert found.open == (not sure)
    assert ("Inductor at least 9.0" in found.text()) == least


@pytest.mark.parametrize(("speedup", "sure"), [(0.1, True), (1.2, False)])
def test_any_kernels_are_taken_where_none_need_win(
    speedup: float, sure: bool, region: Region, target: Target, monkeypatch: pytest.MonkeyPatch
) -> None:
    contest = RegionRace(region, target, ledger())
    assert not contest._decide(contest.draft, raced(speedup, sure=sure), "a plan").taken
    monkeypatch.setattr(region_race, "WIN", 0.0)
    assert contest._decide(contest.draft, raced(speedup, sure=sure), "a plan").taken


@pytest.mark.parametrize("left_s", [1.4, 2.0, 4.0])
def test_a_search_is_begun_only_where_it_can_end(
    left_s: float, region: Region, target: Target, monkeypatch: pytest.MonkeyPatch
) -> None:
    begun: list[bool] = []
    monkeypatch.setattr(RegionRace, "_measure_once", lambda self: None)
    monkeypatch.setattr(RegionRace, "_run_funnel", lambda self, search: begun.append(search) or self.draft)
    for search in (False, True):
        RegionRace(region, target, ledger(budget_s=9.0)).try_kernels(left_s, None, search=search)
    assert begun == [search for search, least_s in ((False, 1.5), (True, 3.0)) if left_s >= least_s]


def raced(speedup: float, *, sure: bool = True) -> HeadToHead:
    """Return a race that superopt won by a factor, or lost where that is below 1."""
    won = speedup > 1
    names = ("superopt", "inductor") if won else ("inductor", "superopt")
    us = {"inductor": 9.0, "superopt": 9.0 / speedup}
    times = {name: Measurement(us[name], 8.0, 10.0, 5) for name in names}
    return HeadToHead(*names, speedup if won else 1 / speedup, 0.55, sure, times)


@pytest.mark.parametrize(
    ("library", "inductor", "seconds", "taken", "least", "compiled"),
    [
        (2.0, 3.0, 9.0, True, True, False),  # faster than the calls alone: enough
        (0.9, 1.5, 9.0, True, False, True),  # Inductor's own part decides
        (0.9, 0.95, 9.0, False, False, True),
        (0.5, 3.0, 9.0, False, True, False),  # too far behind to ask
        (0.9, 1.5, 1.0, False, True, False),  # no time to ask
    ],
)
def test_inductors_code_is_compiled_only_where_it_decides(
    library: float,
    inductor: float,
    seconds: float,
    taken: bool,
    least: bool,
    compiled: bool,
    region: Region,
    target: Target,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    asked, speeds = [], {"library calls": library, "inductor": inductor}
    monkeypatch.setattr(inductors, "as_in_a_graph", lambda *given: asked.append(1) or given[0])
    monkeypatch.setattr(
        RegionRace,
        "_race",
        lambda self, ours, other: raced(speeds[other.name if self.rival.contender(other) else ""]),
    )
    monkeypatch.setattr(region_race, "_TOO_SHORT_US", 0.0)
    monkeypatch.setattr(region_race, "_CALL_US", 0.0)
    contest = RegionRace(replace(region, floor_us=0.0), target, ledger())
    assert contest._measure_once() is None
    contest.deadline = time.monotonic() + seconds
    found = contest._race_inductor(contest.draft, region.subgraph.module, "a plan", unclear=False)
    assert (found.taken, found.before_is_least, bool(asked)) == (taken, least, compiled)


@pytest.mark.parametrize("inductor", [1.5, 0.95])
def test_while_other_regions_wait_inductors_code_is_compiled_later(
    inductor: float, region: Region, target: Target, monkeypatch: pytest.MonkeyPatch
) -> None:
    raced_with: list[str] = []
    speeds = {"library calls": 0.9, "inductor": inductor}

    def race(self: RegionRace, ours: Any, other: Any) -> HeadToHead:
        self.rival.contender(other)
        raced_with.append(other.name)
        return raced(speeds[other.name])

    monkeypatch.setattr(inductors, "as_in_a_graph", lambda *given: given[0])
    monkeypatch.setattr(RegionRace, "_race", race)
    monkeypatch.setattr(
        RegionRace,
        "_run_funnel",
        lambda self, search: self._race_rivals(
            replace(self.draft, after_us=10.0), region.subgraph.module, "a plan", False
        ),
    )
    monkeypatch.setattr(region_race, "_TOO_SHORT_US", 0.0)
    monkeypatch.setattr(region_race, "_CALL_US", 0.0)
    contest = RegionRace(replace(region, floor_us=0.0), target, ledger(budget_s=60.0))
    assert contest._measure_once() is None
    contest._opponents.most_us = 50.0
    assert contest.confirm(9.0) == contest.draft  # nothing waits yet
    first = contest.try_kernels(9.0, None, search=False, patient=True)
    assert (first.taken, first.open, raced_with) == (False, True, ["library calls"])
    assert contest.doubt_us > 0
    assert contest.confirm(1.0).why == first.why  # too little time is left
    assert contest.doubt_us == 0
    contest.try_kernels(9.0, None, search=False, patient=True)
    raced_with.clear()
    assert contest.confirm(9.0).taken == (inductor > 1)
    assert raced_with[:1] == ["inductor"]
    assert contest.doubt_us == 0


def test_while_other_regions_wait_operators_race_later(
    region: Region, target: Target, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Inductor's code of what eager PyTorch has one kernel for is what its operators race with."""
    asked: list[bool] = []

    def by_operators(self: RegionRace, search: bool) -> Decision:
        asked.append(search)
        return replace(self.draft, taken=True, plan="operators", after_us=40.0, why="faster")

    monkeypatch.setattr(RegionRace, "_run_funnel", lambda self, search: replace(self.draft, why="no kernels"))
    monkeypatch.setattr(RegionRace, "_race_operators", by_operators)
    contest = RegionRace(replace(region, floor_us=0.0), target, ledger(budget_s=60.0))
    assert contest._measure_once() is None
    contest.fused, contest._opponents.most_us = True, 50.0
    assert not contest.try_kernels(9.0, None, search=False, patient=True).taken
    assert (asked, contest.doubt_us > 0) == ([], True)
    assert contest.confirm(9.0).plan == "operators"
    assert (asked, contest.doubt_us) == ([False], 0)


def inputs() -> tuple[torch.Tensor, ...]:
    return tuple(ones(*shape) for shape in SHAPES)


def raced_until(deadline: float, options: OptimizeOptions) -> list[RegionCandidates]:
    """Return the regions of a program as the funnel leaves them by a deadline."""
    traced, target = trace(mlp, *inputs()), pick_target("cpu")
    found = searched(traced.program).regions
    state = State(mlp, traced, inputs(), target, options, Limits(1.0, deadline, 1.0, most=6))
    return run_regions([schedules(one.goal, one.found, target, graphs=6) for one in found], state)


def test_after_the_deadline_nothing_is_compiled() -> None:
    options = OptimizeOptions(target="cpu", guarded=False, cache=False)
    regions = raced_until(time.monotonic(), options)
    assert {str(one.fate) for region in regions for one in region.candidates if not one.fate.is_sound} == {
        "no time was left to compile it"
    }
    assert all(region.chosen is None for region in regions)


@pytest.mark.slow
def test_a_compiler_that_hangs_ends_with_the_deadline(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    slow = tmp_path / "slow-g++"
    slow.write_text('#!/bin/sh\nif [ "$1" = --version ]; then echo slow 1; else sleep 600; fi\n')
    slow.chmod(0o755)
    monkeypatch.setenv("CXX", str(slow))
    start = time.monotonic()
    regions = raced_until(start + 10.0, OptimizeOptions(target="cpu", cache=False))
    assert time.monotonic() - start < 60
    assert all(region.chosen is None for region in regions)
