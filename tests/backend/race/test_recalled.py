"""A decision from the cache is checked again where its kernels take another time than before."""

from dataclasses import replace
from typing import Any

import pytest
import torch

from superopt.backend.cache import epoch, next_epoch
from superopt.backend.checks import recalled
from superopt.backend.checks.recalled import recheck
from superopt.backend.decision import Decision, Ledger
from superopt.backend.options import BackendOptions
from superopt.backend.pieces import pieces_of
from superopt.backend.region import Region, region_of
from superopt.backend.subgraph import subgraph_of
from superopt.cache import Cache
from superopt.rivals.kinds import kinds_of
from superopt.targets import pick_target
from superopt.tune import Measurement
from superopt.tune.measure import HeadToHead

from .test_pieces import functional, mlp, ones

KNOWN = Decision("mm", "", True, "1.40 times Inductor's speed", after_us=100.0, plan="a plan", recalled=True)


@pytest.fixture
def region() -> Region:
    graph = functional(mlp, ones(4, 8), ones(8, 16), ones(16, 8))
    kinds = kinds_of(graph, "cpu")
    [piece] = pieces_of(graph, kinds)
    return region_of(subgraph_of(piece, kinds), pick_target("cpu"), Ledger(BackendOptions()))


def raced(speed: float, *, sure: bool = True) -> HeadToHead:
    winner, loser = ("superopt", "inductor") if speed > 1 else ("inductor", "superopt")
    times = dict.fromkeys((winner, loser), Measurement(1.0, 1.0, 1.0, 100))
    return HeadToHead(winner, loser, max(speed, 1 / speed), 1.0, sure, times)


@pytest.fixture
def checks(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Return what tells the time of kernels now and the outcome of a race; it counts the races."""
    calls: list[str] = []
    monkeypatch.setattr(recalled, "calling", lambda *unused: None)

    def told(now_us: float, outcome: HeadToHead | None) -> list[str]:
        def race(*unused: Any) -> Any:
            calls.append("race")
            assert outcome is not None
            return outcome, "inductor"

        monkeypatch.setattr(recalled, "_now_us", lambda *unused: now_us)
        monkeypatch.setattr(recalled, "_race", race)
        return calls

    return told


@pytest.mark.parametrize(
    ("now_us", "outcome", "taken"),
    [
        (100.0, None, True),  # the same state: nothing races
        (125.0, None, True),
        (180.0, raced(1.2), True),
        (40.0, raced(1.2), True),  # it was raced on a busy machine
        (180.0, raced(0.8), False),
        (40.0, raced(0.8), False),
        (180.0, raced(0.8, sure=False), True),  # noise takes nothing back
    ],
)
def test_kernels_race_anew_in_another_state(
    now_us: float,
    outcome: HeadToHead | None,
    taken: bool,
    region: Region,
    checks: Any,
) -> None:
    calls = checks(now_us, outcome)
    ledger = Ledger(BackendOptions(budget_s=9.0))
    found = recheck(KNOWN, region, pick_target("cpu"), ledger)
    assert found.taken == taken
    assert len(calls) == (outcome is not None)
    assert ledger.known[region.key.digest] is found
    if not taken:
        assert found.plan is None
        assert found.open
        assert found.why.endswith("but 0.80 times the speed of inductor on this machine now")
    recheck(KNOWN, region, pick_target("cpu"), ledger)
    assert len(calls) == (outcome is not None)  # once for each model


@pytest.mark.parametrize(
    ("known", "budget_s"),
    [
        (replace(KNOWN, taken=False), 9.0),
        (replace(KNOWN, recalled=False), 9.0),
        (replace(KNOWN, after_us=None), 9.0),
        (KNOWN, 0.0),
    ],
)
def test_what_need_not_be_checked_is_not(
    known: Decision,
    budget_s: float,
    region: Region,
    checks: Any,
) -> None:
    calls = checks(1e6, raced(0.5))
    ledger = Ledger(BackendOptions(budget_s=budget_s))
    assert recheck(known, region, pick_target("cpu"), ledger) is known
    assert calls == []


def test_a_check_that_fails_changes_nothing(
    region: Region,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def broken(*unused: Any) -> None:
        raise RuntimeError("no memory")

    monkeypatch.setattr(recalled, "calling", broken)
    ledger = Ledger(BackendOptions(budget_s=9.0))
    assert recheck(KNOWN, region, pick_target("cpu"), ledger) is KNOWN


def test_eager_races_where_there_is_no_time_to_compile(region: Region) -> None:
    ledger = Ledger(BackendOptions(budget_s=1.0))
    module = region.subgraph.module
    copies = [tuple(torch.randn(one.shape) for one in region.subgraph.example()) for _ in range(2)]
    outcome, name = recalled._race(module, copies, region, pick_target("cpu"), ledger)
    assert name == "eager"
    assert set(outcome.measurements) == {"superopt", "inductor"}


# -- the epoch, by which graphs that Inductor keeps are found as long as what was decided of them holds


def test_an_epoch_stays_until_the_next_one() -> None:
    first = epoch()
    assert epoch() == first
    next_epoch()
    assert epoch() == first + 1


def test_a_cache_that_is_emptied_begins_another_epoch() -> None:
    """Else Inductor would go on with graphs whose decisions are gone, and nothing would be searched."""
    first = epoch()
    Cache.open().clear()
    assert epoch() != first  # but for one time in 2^48


def test_where_nothing_can_be_written_all_processes_have_one_epoch(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Cache, "put", lambda *given: None)
    Cache.open().clear()
    assert epoch() == epoch() == 0
