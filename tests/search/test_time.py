"""The time of a search: every phase ends with it, and what comes too late is not even read."""

import time
from dataclasses import replace

import pytest

from superopt.driver import SearchOptions, run, search
from superopt.frontier.tensors.derive import Arc, derive
from superopt.ir import parse_graph
from superopt.rules import saturate as saturation
from superopt.rules.saturate import SaturationLimits, saturate
from superopt.rules.terms import goal_of
from superopt.verify.graphs.all_equal import equal_to_all

CHAIN = "graph chain\naxes m=4 k=8\n" + "".join(f"in a{i}: f32[m, k]\n" for i in range(5))
SUM = CHAIN + "s0 = add(a0, a1)\n" + "".join(f"s{i} = add(s{i - 1}, a{i + 1})\n" for i in range(1, 4))
SUM += "out out: f32[m, k] = s3\n"
PRODUCTS = "graph product\naxes m=4 k=8\nin a: f32[m, k]\nin b: f32[k]\n"
AS_SUM = PRODUCTS + "p = mul(b, a)\ns = sum[k](p)\nr = relu(s)\nout out: f32[m] = r\n"
AS_CONTRACTION = PRODUCTS + "s = contract[k](a, b)\nr = relu(s)\nout out: f32[m] = r\n"


def test_a_contraction_takes_the_steps_of_a_sum_of_products() -> None:
    """Before: a proof by random tests, of seconds for a goal with many maxima."""
    [verdict] = equal_to_all(parse_graph(AS_SUM), [parse_graph(AS_CONTRACTION)], seconds=0.0)
    assert verdict.equal
    assert verdict.error_bound == 0
    other = AS_CONTRACTION.replace("contract[k](a, b)", "contract[k](a, a)")
    [verdict] = equal_to_all(parse_graph(AS_SUM), [parse_graph(other)])
    assert not verdict.equal


@pytest.mark.parametrize("over", [True, False])
def test_an_e_graph_that_comes_too_late_is_not_read(monkeypatch: pytest.MonkeyPatch, over: bool) -> None:
    """Before: it was read and thrown away, and saturated once more without constants."""
    read: list[int] = []
    table = saturation._Export.table
    monkeypatch.setattr(saturation._Export, "table", lambda self, *told: read.append(1) or table(self, *told))
    goal = goal_of(parse_graph(SUM), ())
    found = saturate(goal, SaturationLimits(rounds=1), lambda: over)
    assert found.truncated
    assert bool(found.roots) == bool(read) == (not over)
    assert found.late == over


def test_what_takes_too_long_to_read_is_late(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(saturation, "_READING_S", 1.0)
    few = SaturationLimits(nodes=20)
    goal = goal_of(parse_graph(SUM), ())
    assert not saturate(goal, few).late
    assert saturate(goal, replace(few, seconds_left=5.0)).late
    for name in ("_FIRST_TRY", "_LAST_TRY"):
        monkeypatch.setattr(run, name, few)
    monkeypatch.setattr(run, "halves_of", lambda graph: None)
    [region] = search(parse_graph(SUM), options=SearchOptions(seconds=5.0)).regions
    assert [one.is_original for one in region.found] == [True]
    assert region.truncated == ("saturation: limit of 20 e-nodes",)


@pytest.mark.parametrize(("rounds_s", "next_s"), [([0.1, 0.3], 0.9), ([0.3, 0.2], 0.2), ([0.01, 0.3], 0.0)])
def test_rounds_grow_as_they_did(
    monkeypatch: pytest.MonkeyPatch, rounds_s: list[float], next_s: float
) -> None:
    now = 5.0
    pace = saturation._Pace(now)
    for seconds in rounds_s:
        now += seconds
        monkeypatch.setattr(saturation.time, "perf_counter", lambda at=now: at)
        end = pace.next_end()
    assert end == pytest.approx(now + next_s)


@pytest.mark.parametrize("predicted_s", [3.0, 30.0])
def test_a_round_that_would_end_too_late_is_not_begun(
    monkeypatch: pytest.MonkeyPatch, predicted_s: float
) -> None:
    """Only the end of the search counts: another limit stops rounds that have taken long."""
    monkeypatch.setattr(saturation._Pace, "next_end", lambda pace: time.perf_counter() + predicted_s)
    goal = goal_of(parse_graph(SUM), ())
    whole = saturate(goal, SaturationLimits())
    assert whole.truncated is None
    found = saturate(goal, SaturationLimits(seconds_left=20.0))
    assert (found.truncated, found.late) == ((None, False) if predicted_s < 20 else ("limit of 20 s", True))


SHARED = (
    (Arc("leaf", 0, (), 0.0),),
    (Arc("exp", 0, (0,), 3.0), Arc("neg", 0, (0,), 2.0)),
    (Arc("neg", 0, (1,), 2.0),),
    (Arc("add", 0, (1, 2), 1.0), Arc("neg", 0, (2,), 9.0)),
    (Arc("neg", 0, (5,), 1.0),),
    (Arc("neg", 0, (4,), 1.0),),
)


def test_a_derivation_that_ends_at_once_takes_the_cheapest_arcs() -> None:
    """Before: no graph was derived, though the exploration had reached the goal."""
    for stop in (None, lambda: True):
        [derivation], _ = derive(SHARED, [3, 2], count=1, pass_us=1.0, stop=stop)
        assert derivation.us == 5.0
        assert [(tensor, arc.op) for tensor, arc in sorted(derivation.arcs)] == [
            (0, "leaf"),
            (1, "neg"),
            (2, "neg"),
            (3, "add"),
        ]
    assert derive(SHARED, [4], count=64, pass_us=1.0, stop=lambda: True) == ((), True)


@pytest.mark.parametrize("terms", [8, 14])
def test_a_search_takes_about_the_time_it_was_told(terms: int) -> None:
    """Before: 2 s of search took up to 6 s."""
    matrices = "".join(f"in a{i}: f32[x{i}, x{i + 1}]\n" for i in range(terms))
    steps = "".join(
        f"t{i} = contract[x{i}]({f't{i - 1}' if i > 1 else 'a0'}, a{i})\n" for i in range(1, terms)
    )
    axes = " ".join(f"x{i}=64" for i in range(terms + 1))
    text = f"graph chain\naxes {axes}\n{matrices}{steps}out y: f32[x0, x{terms}] = t{terms - 1}\n"
    start = time.process_time()  # of this process: other ones may keep the machine busy
    result = search(parse_graph(text), options=SearchOptions(seconds=1.0))
    assert time.process_time() - start < 1.25 * 1.0 + 0.5
    assert result.truncated
    for region in result.regions:
        assert any(one.is_original for one in region.found)
        assert all(one.verdict.equal for one in region.found)
