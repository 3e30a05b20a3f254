"""Pending regions are decided once, by the same checks and races, and an end in the middle loses nothing."""

import os
import threading
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from backend.conftest import plan_of

from superopt.backend import budget, region_race
from superopt.backend.cache import epoch, keep, known_decision, recorded
from superopt.backend.decision import Decision
from superopt.backend.deferred import work
from superopt.backend.deferred.lock import owner_of_lock, scratch_folder, tuning
from superopt.backend.deferred.queue import defer, pending_items, put_back
from superopt.backend.deferred.work import give_up, work_off, work_through
from superopt.backend.region import Region, draft_of
from superopt.backend.region_race import RegionRace
from superopt.cache import Cache
from superopt.codegen.cpp import CppMuGraph
from superopt.funnel.warm_up import WarmUp
from superopt.targets import pick_target

from .conftest import MLP, Regions, ledger, mlp

Race = Callable[[Decision], None]


@pytest.fixture(autouse=True)
def fresh(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let no test give up the work of the next one."""
    monkeypatch.setattr(work, "_GIVEN_UP", threading.Event())
    monkeypatch.setattr(work, "_UNDER_WAY", [])


@pytest.fixture
def races(monkeypatch: pytest.MonkeyPatch) -> Race:
    """Return what lets every race end with a decision."""

    def ending(found: Decision) -> None:
        def tried(self: RegionRace, seconds: float, first_runs: Any, *, search: bool) -> Decision:
            self.found, self.searched = found, search
            return found

        monkeypatch.setattr(RegionRace, "measure_rivals", lambda self: None)
        monkeypatch.setattr(RegionRace, "try_kernels", tried)
        monkeypatch.setattr("superopt.funnel.warm_up.WarmUp.first_runs", lambda self, target: None)

    return ending


def taken(region: Region, plan: str | None = None, **changes: Any) -> Decision:
    found = replace(draft_of(region), taken=True, why="2.00 times", before_us=20.0, after_us=10.0)
    return replace(found, plan=plan or plan_of(region, pick_target("cpu")), **changes)


def test_a_search_that_finds_nothing_is_remembered(region: Region, races: Race) -> None:
    races(replace(draft_of(region), why="0.9 times Inductor's speed, 1.05 is needed", open=True))
    defer(region, 5.0, ledger())
    [attempt] = work_through()
    assert attempt.done
    assert not attempt.faster
    assert pending_items() == []
    assert work_through() == []
    assert not defer(region, 5.0, ledger())
    kept = known_decision(region, ledger())
    assert kept is not None
    assert (kept.taken, kept.final, kept.open) == (False, True, False)


def test_what_came_near_is_not_forgotten(region: Region, races: Race) -> None:
    near = replace(taken(region), taken=False, why="0.97 times", open=True, budget_s=1.0)
    keep(near, region, ledger())
    races(replace(draft_of(region), why="0.85 times"))
    defer(region, 5.0, ledger())
    [attempt] = work_through()
    assert (attempt.done, attempt.faster) == (True, False)
    kept = known_decision(region, ledger())
    assert kept is not None
    assert (kept.taken, kept.final, kept.plan) == (False, True, near.plan)


def test_better_kernels_are_kept_and_what_inductor_keeps_is_renewed(region: Region, races: Race) -> None:
    keep(replace(draft_of(region), why="no time", open=True, budget_s=1.0), region, ledger())
    races(taken(region))
    defer(region, 5.0, ledger())
    before = epoch()
    [attempt] = work_through()
    assert attempt.faster
    assert epoch() == before + 1
    kept = known_decision(region, ledger())
    assert kept is not None
    assert (kept.taken, kept.final) == (True, True)


def test_what_takes_longer_than_the_time_waits_as_before(
    region: Region, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Before: what was begun was never ended, however long it took."""

    def endless(*_: Any) -> None:
        while True:
            time.sleep(0.01)

    monkeypatch.setattr(work, "_worked_off", endless)
    monkeypatch.setattr(work, "_GRACE_S", -59.5)
    defer(region, 5.0, ledger())
    [attempt] = work_through(seconds=60.0)
    assert (attempt.done, attempt.faster) == (False, False)
    assert "longer" in attempt.why
    [item] = pending_items()
    assert item.begun == 0
    assert work_through(seconds=60.0) == []  # it is not begun again with as little time


@pytest.mark.parametrize("better", [True, False])
def test_a_plan_gives_way_to_a_faster_one_only(
    better: bool, region: Region, races: Race, monkeypatch: pytest.MonkeyPatch
) -> None:
    old, new = plan_of(region, pick_target("cpu")), "another plan"
    keep(taken(region, old), region, ledger())
    races(taken(region, new))
    monkeypatch.setattr(work, "_better", lambda race, found, before: found if better else before)
    defer(region, 5.0, ledger())
    before = epoch()
    [attempt] = work_through()
    assert attempt.faster is better
    assert epoch() == before + better
    with Cache.open() as cache:
        kept = recorded(cache, region.key)
    assert kept is not None
    assert (kept["plan"], kept["final"]) == (new if better else old, True)


def test_a_plan_stays_where_a_search_finds_nothing(region: Region, races: Race) -> None:
    old = plan_of(region, pick_target("cpu"))
    keep(taken(region, old), region, ledger())
    races(replace(draft_of(region), why="slower this time"))
    defer(region, 5.0, ledger())
    [attempt] = work_through()
    assert not attempt.faster
    kept = known_decision(region, ledger())
    assert kept is not None
    assert (kept.taken, kept.plan, kept.final) == (True, old, True)


def test_a_region_with_too_little_time_waits(region: Region, races: Race) -> None:
    races(replace(draft_of(region), why="slower", open=True))
    defer(region, 5.0, ledger())
    [item] = pending_items()
    attempt = work_off(item, 20.0)
    assert not attempt.done
    assert pending_items() == [item]
    assert known_decision(region, ledger()) is None
    assert work_through(seconds=1.0) == []


@pytest.mark.parametrize("error", [KeyboardInterrupt, MemoryError])
def test_what_is_interrupted_waits_as_before(
    error: type[BaseException], region: Region, races: Race, monkeypatch: pytest.MonkeyPatch
) -> None:
    races(draft_of(region))

    def interrupted(self: RegionRace) -> None:
        assert [one.begun for one in pending_items()] == [1]
        raise error

    monkeypatch.setattr(RegionRace, "measure_rivals", interrupted)
    defer(region, 5.0, ledger())
    [item] = pending_items()
    with pytest.raises(error):
        work_through()
    assert pending_items() == [item]


def test_what_a_dying_process_finds_is_void(
    region: Region, races: Race, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As a helper ends, its compilers are killed: that no kernel could be made says nothing."""
    races(replace(draft_of(region), why="no kernels: none could be made"))
    monkeypatch.setattr(RegionRace, "measure_rivals", lambda self: give_up())
    defer(region, 5.0, ledger())
    [item] = pending_items()
    with pytest.raises(KeyboardInterrupt):
        work_through()
    assert pending_items() == [item]
    assert known_decision(region, ledger()) is None


def test_a_region_that_ends_its_process_is_given_up(region: Region, races: Race) -> None:
    defer(region, 5.0, ledger())
    for begun in (1, 2, 3):
        [item] = pending_items()
        put_back(replace(item, begun=begun))
    races(taken(region))
    [attempt] = work_through()
    assert attempt.why == "given up: work on it failed or ended its process 3 times"
    assert pending_items() == []
    assert not defer(region, 5.0, ledger())
    kept = known_decision(region, ledger())
    assert kept is not None
    assert not kept.taken


def test_what_fails_stops_no_other_and_is_given_up_in_the_end(
    regions: Regions, races: Race, monkeypatch: pytest.MonkeyPatch
) -> None:
    [region] = regions(mlp, *MLP)
    [other] = regions(mlp, torch.ones(5, 8), *MLP[1:])
    races(replace(draft_of(other), why="slower"))

    def fails(self: RegionRace) -> None:
        if self.region.key == region.key:
            raise RuntimeError("a test")

    monkeypatch.setattr(RegionRace, "measure_rivals", fails)
    defer(region, 5.0, ledger())
    defer(other, 4.0, ledger())
    for begun in (1, 2, 3):
        first, *others = work_through()
        assert (first.done, first.why) == (False, "failed: RuntimeError: a test")
        assert [one.done for one in others] == [True] * (begun == 1)
        assert [(one.begun, one.operators) for one in pending_items()] == [(begun, first.operators)]
    [attempt] = work_through()
    assert (attempt.done, attempt.why) == (True, "given up: work on it failed or ended its process 3 times")
    assert pending_items() == []


def test_what_a_program_decides_meanwhile_stays(
    region: Region, races: Race, monkeypatch: pytest.MonkeyPatch
) -> None:
    races(replace(draft_of(region), why="slower this time"))
    won = taken(region)
    monkeypatch.setattr(RegionRace, "measure_rivals", lambda self: keep(won, region, ledger()))
    defer(region, 5.0, ledger())
    [attempt] = work_through()
    assert attempt.done
    kept = known_decision(region, ledger())
    assert kept is not None
    assert (kept.taken, kept.plan, kept.final) == (True, won.plan, True)


def test_a_decision_can_be_read_before_the_epoch_changes(
    region: Region, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else Inductor keeps a graph that is compiled in between, without the kernels, under the new epoch."""
    keep(replace(draft_of(region), why="no time", open=True, budget_s=1.0), region, ledger())
    seen: list[bool] = []

    def change() -> None:
        with Cache.open() as cache:
            found = recorded(cache, region.key)
        seen.append(found is not None and found["taken"])

    monkeypatch.setattr("superopt.backend.cache.next_epoch", change)
    keep(taken(region), region, ledger())
    assert seen == [True]


def test_more_time_never_loses_what_is_taken(region: Region, monkeypatch: pytest.MonkeyPatch) -> None:
    """The race with more time begins with the plan that there is, even if nothing is tried then."""
    old = taken(region, open=True, budget_s=1.0)
    keep(old, region, ledger())
    monkeypatch.setattr(budget, "recheck", lambda known, *unused: known)
    for options in ({"budget_s": 1.5}, {"budget_s": 1.0, "retry": True}):
        found = budget.decisions_of([region], pick_target("cpu"), ledger(**options), WarmUp())
        assert [(one.taken, one.plan) for one in found.values()] == [(True, old.plan)]
        with Cache.open() as cache:
            kept = recorded(cache, region.key)
        assert kept is not None
        assert (kept["taken"], kept["plan"], kept["open"]) == (True, old.plan, True)


def test_what_came_near_is_no_start_of_a_race(region: Region, monkeypatch: pytest.MonkeyPatch) -> None:
    keep(replace(taken(region), taken=False, open=True, budget_s=1.0), region, ledger())
    found = budget.decisions_of([region], pick_target("cpu"), ledger(budget_s=1.5), WarmUp())
    assert [one.taken for one in found.values()] == [False]


def test_data_of_another_region_are_never_searched(regions: Regions, races: Race) -> None:
    [region] = regions(mlp, *MLP)
    [other] = regions(mlp, torch.ones(5, 8), *MLP[1:])
    defer(region, 5.0, ledger())
    [item] = pending_items()
    defer(other, 4.0, ledger())
    foreign = pending_items()[1]
    put_back(replace(item, data=foreign.data))
    races(taken(other))
    first, _ = work_through()
    assert first.why == "given up: it is another region here"
    kept = known_decision(region, ledger())
    assert kept is not None
    assert not kept.taken


def test_only_one_process_tunes(tmp_path: Any) -> None:
    with tuning() as first:
        assert first
        assert owner_of_lock().isdigit()
        with tuning() as second:
            assert not second
        with scratch_folder() as folder:
            (folder / "left").touch()
    assert not folder.exists()
    folder.mkdir()  # as a killed owner leaves it
    with tuning() as third:
        assert third
        assert not folder.exists()


def test_folders_of_the_users_in_the_cache_stay(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Before: where a project was named as the cache, all of its folders that begin alike were removed."""
    monkeypatch.setenv("SUPEROPT_CACHE_DIR", str(tmp_path))
    theirs = [tmp_path / one for one in ("tuning-results", "tuning-2024-01", "cpp/tmp", "cpp/tmp-notes")]
    ours = [tmp_path / one for one in ("tuning-123", "cpp/tmpab12_xyz")]
    for one in (*theirs, *ours):
        one.mkdir(parents=True)
        os.utime(one, (0, 0))
    with tuning() as free:
        assert free
    assert all(one.exists() for one in theirs)
    assert not any(one.exists() for one in ours)


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork here")
def test_a_child_does_not_tune_on(tmp_path: Any) -> None:
    begin, end = os.pipe()
    with tuning() as first:
        assert first
        child = os.fork()
        if child == 0:
            os.read(begin, 1)
            os._exit(0)
    try:
        with tuning() as second:
            assert second
    finally:
        os.write(end, b"x")
        os.waitpid(child, 0)
        os.close(begin)
        os.close(end)


@pytest.mark.slow
@pytest.mark.parametrize("wrong", [True, False])
def test_a_wrong_kernel_is_never_kept(wrong: bool, region: Region, monkeypatch: pytest.MonkeyPatch) -> None:
    """The race is the real one, with nothing to beat; a planted kernel is off by one in a hundred."""
    judged = lambda self, known, raced, plan: replace(known, taken=True, plan=plan, why="a test")  # noqa: E731
    monkeypatch.setattr(RegionRace, "_decide", judged)
    for name in ("WIN", "_NO_ROOM", "_TOO_SHORT_US"):
        monkeypatch.setattr(region_race, name, 0.0)
    if wrong:
        plain = CppMuGraph.__call__

        def off(self: CppMuGraph, **tensors: torch.Tensor) -> Any:
            return {name: one * 1.01 for name, one in plain(self, **tensors).items()}

        monkeypatch.setattr(CppMuGraph, "__call__", off)
        in_order = CppMuGraph.in_order
        monkeypatch.setattr(
            CppMuGraph, "in_order", lambda self, given: [one * 1.01 for one in in_order(self, given)]
        )
    defer(region, 5.0, ledger())
    [attempt] = work_through()
    assert attempt.done
    assert attempt.faster is not wrong
    kept = known_decision(region, ledger())
    assert kept is not None
    assert kept.taken is not wrong
