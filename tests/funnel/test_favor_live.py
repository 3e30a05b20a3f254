"""What keeps tensors of weights is chosen only where it is surely faster than what keeps none."""

from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from superopt import OptimizeOptions, SearchOptions
from superopt.candidates.candidate import Candidate
from superopt.candidates.schedules import schedules
from superopt.driver import search
from superopt.funnel import Limits, State, race, write_regions
from superopt.funnel.race import favor_live
from superopt.funnel.state import Context
from superopt.targets import pick_target
from superopt.trace import trace
from superopt.tune import Measurement
from superopt.tune.measure import HeadToHead


class Score(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.l = nn.Linear(64, 48)

    def forward(self, x: Tensor) -> Tensor:
        return self.l(x).sum(-1)


OPTIONS = OptimizeOptions(target="cpu", cache=False, search=SearchOptions(max_graphs=4, seconds=5.0))


def scheduled(limits: Limits) -> tuple[State, Any]:
    inputs = (torch.randn(8, 64),)
    target, traced = pick_target("cpu"), trace(Score().eval(), *inputs)
    [region] = search(traced.program, options=replace(OPTIONS.search, weights="frozen")).regions
    [node] = traced.program.nodes
    found = schedules(node.graph, region.found, target, graphs=2, weights="frozen")
    return State(Score(), traced, inputs, target, OPTIONS, limits), found


@pytest.mark.parametrize(("most", "tune"), [(1, False), (2, False), (6, True)])
def test_what_keeps_nothing_is_compiled_too(most: int, tune: bool) -> None:
    state, region = scheduled(Limits(1.0, most=most, tune=tune))
    [written] = write_regions([region], state)
    kept = [one for one in written.candidates if one.is_kept]
    assert {bool(one.once) for one in kept} == {True, False}
    assert len(kept) <= most + 1


def timed(one: Candidate, us: float) -> Candidate:
    return replace(one, measurement=Measurement(us, 0.9 * us, 1.1 * us, 40))


@pytest.mark.parametrize(
    ("speedup", "high_us", "first", "unclear"),
    [
        (1.5, 11.0, "kept", False),
        (1.01, 11.0, "live", False),
        (0.9, 11.0, "live", False),
        (1.0, 90.0, "live", True),
    ],
)
def test_chance_does_not_decide(
    speedup: float, high_us: float, first: str, unclear: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    state, region = scheduled(Limits(1.0))
    known = [one for one in region.candidates if one.is_kept]
    kept = timed(next(one for one in known if one.once), 9.0)
    live = timed(next(one for one in known if not one.once), 10.0)
    other = next(one for one in known if one.id not in (kept.id, live.id))
    context = Context(state, region.goal, False, 1.0, kernels={one.id: object() for one in (kept, live)})

    def head_to_head(one: Candidate, two: Candidate, *unused: object) -> HeadToHead:
        ids = (one.id, two.id) if speedup >= 1 else (two.id, one.id)
        ratio = max(speedup, 1 / speedup)
        measured = {id: Measurement(10.0, 9.0, high_us, 40) for id in ids}
        return HeadToHead(*ids, ratio, 0.9, True, measured, (ratio - 0.005, ratio + 0.005))

    monkeypatch.setattr(race, "_head_to_head", head_to_head)
    found = favor_live([kept, other, live], context)
    assert [one.id for one in found] == [
        one.id for one in ([kept, other, live] if first == "kept" else [live, kept, other])
    ]
    assert state.unclear is unclear


def test_where_nothing_is_kept_or_nothing_else_ran_the_order_stays(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(race, "_head_to_head")
    state, region = scheduled(Limits(1.0))
    known = [one for one in region.candidates if one.is_kept]
    kept = timed(next(one for one in known if one.once), 9.0)
    live = timed(next(one for one in known if not one.once), 8.0)
    context = Context(state, region.goal, False, 1.0, kernels={one.id: object() for one in (kept, live)})
    assert favor_live([live, kept], context) == [live, kept]
    assert favor_live([kept], context) == [kept]
    del context.kernels[live.id]
    assert favor_live([kept, live], context) == [kept, live]
