"""A plan gives way only to one that is surely faster, and what a busy machine decides stays open."""

from dataclasses import replace

import pytest
import torch
from torch import nn

from superopt.backend import budget
from superopt.backend.cache import keep, known_decision, narrower_decision
from superopt.backend.checks import better as module
from superopt.backend.checks.better import choose_faster, decide_by_race, keep_nearer
from superopt.backend.decision import Decision, Ledger
from superopt.backend.options import BackendOptions
from superopt.backend.pieces import pieces_of
from superopt.backend.region import Region, draft_of, region_of
from superopt.backend.region_race import RegionRace
from superopt.backend.subgraph import subgraph_of
from superopt.funnel.warm_up import WarmUp
from superopt.rivals.kinds import kinds_of
from superopt.targets import Target, pick_target
from superopt.tune import Measurement
from superopt.tune.measure import HeadToHead
from superopt.weights.division import Weights

from ..conftest import plan_of
from .test_pieces import functional, ones


@pytest.fixture
def target() -> Target:
    return pick_target("cpu")


def region(target: Target, weights: Weights) -> Region:
    graph = functional(lambda x, w: nn.functional.silu(x @ w) @ w, ones(4, 8), ones(8, 8))
    kinds = kinds_of(graph, "cpu")
    [piece] = pieces_of(graph, kinds)
    return region_of(subgraph_of(piece, kinds), target, ledger(weights))


def ledger(weights: Weights, **named: object) -> Ledger:
    return Ledger(BackendOptions(weights=weights, **named))


def taken(region: Region, target: Target, **changes: object) -> Decision:
    found = replace(draft_of(region), taken=True, why="a race", after_us=1e9, plan=plan_of(region, target))
    return replace(found, **changes)


@pytest.mark.parametrize("policy", ["live", "default"])
def test_a_plan_under_a_narrower_policy_is_a_choice_under_a_wider_one(
    policy: Weights, target: Target
) -> None:
    known = region(target, policy)
    keep(taken(known, target), known, ledger(policy))
    wider = region(target, "frozen")
    assert wider.key != known.key
    assert known_decision(wider, ledger("frozen")) is None
    for budget_s in (None, 0.0, 90.0):
        found = narrower_decision(wider, ledger("frozen", budget_s=budget_s))
        assert found is not None
        assert (found.taken, found.plan, found.open) == (True, plan_of(known, target), True)
    assert narrower_decision(region(target, "live"), ledger("live")) is None
    assert narrower_decision(wider, ledger("frozen", cache=False)) is None


def test_a_region_that_was_left_takes_the_plan_of_a_narrower_policy(
    target: Target, monkeypatch: pytest.MonkeyPatch
) -> None:
    wider, known = region(target, "frozen"), region(target, "live")
    left = replace(draft_of(wider), why="no time", open=True, budget_s=5.0)
    keep(left, wider, ledger("frozen"))
    keep(taken(known, target), known, ledger("live"))
    monkeypatch.setattr(budget, "recheck", lambda found, *unused: found)
    found = budget.decisions_of([wider], target, ledger("frozen", budget_s=5.0, tune="off"), WarmUp())
    assert found[wider.key.digest].plan == plan_of(known, target)
    kept = known_decision(wider, ledger("frozen", budget_s=5.0))
    assert kept is not None
    assert kept.taken


def test_what_was_not_taken_under_a_narrower_policy_is_no_choice(target: Target) -> None:
    known = region(target, "live")
    keep(replace(draft_of(known), why="slower"), known, ledger("live"))
    assert narrower_decision(region(target, "frozen"), ledger("frozen")) is None


def test_a_known_plan_stays_where_nothing_better_is_found(
    target: Target, monkeypatch: pytest.MonkeyPatch
) -> None:
    wider = region(target, "frozen")
    known = taken(wider, target, open=True)
    race = RegionRace(wider, target, ledger("frozen", budget_s=60.0), known=known)
    monkeypatch.setattr(RegionRace, "_measure_once", lambda self: None)
    monkeypatch.setattr(RegionRace, "_run_funnel", lambda self, search: replace(self.draft, why="slower"))
    monkeypatch.setattr(RegionRace, "_race_operators", lambda self, search: self.draft)
    for search in (False, True):
        assert race.may_find_more  # the wider policy may find more, given time
        found = race.try_kernels(9.0, None, search=search)
        assert (found.taken, found.plan) == (True, known.plan)
    assert not race.may_find_more


def times(*, steady: bool = True) -> Measurement:
    return Measurement(10.0, 9.0, 11.0 if steady else 40.0, 40)


def raced(speedup: float, *, steady: bool = True, names: tuple[str, str] = ("superopt", "inductor")):
    measured = {name: times(steady=steady) for name in names}
    winner, loser = names if speedup >= 1 else reversed(names)
    ratio = max(speedup, 1 / speedup)
    return HeadToHead(winner, loser, ratio, 0.9, True, measured, (ratio - 0.01, ratio + 0.01))


@pytest.mark.parametrize("steady", [True, False])
@pytest.mark.parametrize("speedup", [0.5, 2.0])
def test_what_a_busy_machine_decides_stays_open(speedup: float, steady: bool, target: Target) -> None:
    known = draft_of(region(target, "live"))
    found = decide_by_race(known, raced(speedup, steady=steady), "a plan", 0.0, 1.05)
    assert (found.taken, found.open) == (speedup > 1, not steady)


@pytest.mark.parametrize(("speedup", "near"), [(0.95, True), (1.04, True), (0.85, False)])
@pytest.mark.parametrize("least", [True, False])
def test_kernels_that_come_near_keep_their_plan(
    speedup: float, near: bool, least: bool, target: Target
) -> None:
    known = replace(draft_of(region(target, "live")), before_is_least=least)
    found = decide_by_race(known, raced(speedup), "a plan", 0.0, 1.05)
    assert not found.taken
    assert (found.plan == "a plan") == (near and not least)  # library calls alone are no code to be near to


def test_a_later_attempt_does_not_drop_what_came_nearer() -> None:
    draft = Decision("", "", False, "slower", seconds=9.0)
    far, near = (replace(draft, plan=name, after_us=us) for name, us in (("far", 9.9), ("near", 9.7)))
    won = replace(near, taken=True, after_us=8.0)
    tried = [
        (won, far, won),
        (near, won, won),
        (near, draft, near),
        (draft, near, near),
        (far, near, near),
    ]
    tried += [(near, far, near), (draft, draft, draft)]
    for made, before, kept in tried:
        found = keep_nearer(replace(made, open=True), replace(before, seconds=1.0))
        assert (found.plan, found.taken, found.seconds) == (kept.plan, kept.taken, 9.0)
        assert found.open == (made.taken or not before.taken)


def test_a_plan_that_came_near_is_proven_when_it_is_recalled(target: Target) -> None:
    one, other = region(target, "live"), region(target, "frozen")
    found = replace(taken(one, target), taken=False)
    keep(found, one, ledger("live"))
    again = known_decision(one, ledger("live"))
    assert again is not None
    assert (again.taken, again.plan) == (False, found.plan)
    keep(replace(found, plan="no plan"), other, ledger("frozen"))
    assert known_decision(other, ledger("frozen")) is None


@pytest.mark.parametrize(
    ("speedup", "steady", "plan", "open"),
    [
        (1.5, True, "new", False),
        (1.01, True, "old", False),
        (0.7, True, "old", False),
        (0.7, False, "old", True),
        (1.01, False, "old", True),
    ],
)
def test_a_new_plan_must_be_surely_faster(
    speedup: float, steady: bool, plan: str, open: bool, target: Target, monkeypatch: pytest.MonkeyPatch
) -> None:
    one = region(target, "frozen")
    new, old = (taken(one, target, plan=name) for name in ("new", "old"))
    monkeypatch.setattr(module, "calling", lambda region, plan: plan)
    monkeypatch.setattr(
        module, "confirm", lambda *unused, **named: raced(speedup, steady=steady, names=("new", "old"))
    )
    found = choose_faster(new, old, one, target, [(torch.ones(1),)], seconds=0.1)
    assert (found.plan, found.open) == (plan, open)
    monkeypatch.delattr(module, "confirm")
    assert choose_faster(new, replace(old, plan="new"), one, target, [], seconds=0.1) is new
