"""Floors: the least time that is shown is one that no equal program found goes below."""

import html
from dataclasses import replace

import pytest
import torch

import superopt
from superopt.candidates.candidate import Candidate, RegionCandidates
from superopt.candidates.floors import SURELY, add_floors, is_too_fast, least_us, program_floor_us
from superopt.ir.mugraph import fuse
from superopt.report import report_html
from superopt.result.codec import read_result
from superopt.targets.cpu import CpuTarget
from superopt.trace import trace
from tests.cost.fixed import FIXED


def graph_of(function, *inputs: torch.Tensor):
    """Return the graph of a function that is one region."""
    (region,) = trace(function, *inputs).program.regions
    return region.graph


@pytest.fixture
def pair():
    """Return two equal graphs: a product and a sum over it, and the same as a product with a vector."""
    x, w = torch.randn(64, 512), torch.randn(512, 2048)
    return graph_of(lambda x, w: (x @ w).sum(-1), x, w), graph_of(lambda x, w: x @ w.sum(-1), x, w)


def test_the_floor_is_that_of_the_cheapest_equal_graph(pair, monkeypatch) -> None:
    monkeypatch.setattr(CpuTarget, "cost_device", lambda self: FIXED)  # memory of a real one may be slow
    written, cheap = pair
    target = CpuTarget()
    dear, least = target.floor_us(written), target.floor_us(cheap)
    assert dear is not None
    assert least is not None
    assert dear > 2 * least
    region = RegionCandidates(written, ())
    assert add_floors(target, [region], cold=True)[0].floor_us == pytest.approx(dear)
    region = replace(
        region, candidates=tuple(Candidate(str(at), graph, fuse(graph)) for at, graph in enumerate(pair))
    )
    assert add_floors(target, [region], cold=True)[0].floor_us == pytest.approx(least)
    assert least_us(target, pair) == pytest.approx(least)
    assert (least_us(target, pair, cold=False) or 0.0) < least


@pytest.mark.parametrize(
    ("us", "floor", "told"),
    [(94.0, 100.0, True), (96.0, 100.0, False), (200.0, 100.0, False), (1.0, None, False)],
)
def test_a_time_below_its_floor(us: float, floor: float | None, told: bool) -> None:
    assert is_too_fast(us, floor) is told
    assert SURELY < 1


def test_the_floor_of_a_program_counts_no_region_twice() -> None:
    traced = trace(lambda x: torch.cumprod(x.exp(), -1).log(), torch.randn(8, 8))
    first, second = (one.graph.name for one in traced.program.regions)
    assert program_floor_us(traced.program, {first: 2.0, second: 3.0}) == 2.0
    assert program_floor_us(traced.program, {first: None, second: 3.0}) is None
    assert program_floor_us(traced.program, {}) is None


@pytest.mark.slow
def test_an_optimized_program_is_not_below_its_floor() -> None:
    x, w = torch.randn(64, 512), torch.randn(512, 2048)
    options = superopt.OptimizeOptions(seconds=2.0, torch_compile=False, cache=False)
    best = superopt.optimize(lambda x, w: (x @ w).sum(-1), x, w, options=options)
    floor = best.result.floor_us
    fastest = min(one.median_us for one in best.result.measurements.values())
    assert floor is not None
    assert 0 < SURELY * floor < fastest


@pytest.mark.slow
def test_a_floor_that_is_beaten_is_measured_again_and_then_told_as_an_error(
    monkeypatch, caplog, tmp_path
) -> None:
    asked = []
    monkeypatch.setattr(CpuTarget, "renew", lambda self: asked.append(self))
    monkeypatch.setattr(CpuTarget, "floor_us", lambda self, graph, cold=True, kept=False: 1e9)
    options = superopt.OptimizeOptions(seconds=0.4, graphs=1, torch_compile=False, cache=False)
    best = superopt.optimize(lambda x: (x * 2).exp() + x, torch.randn(64, 64), options=options)
    assert len(asked) == 1
    assert best.result.floor_us is None
    assert "no floor is shown" in caplog.text
    assert "the bytes and the arithmetic take" not in best.explain()
    assert "error: " in best.explain()
    best.save(tmp_path / "best.json")
    kept = read_result(tmp_path / "best.json")
    assert "one of the two is wrong" in kept.doubt
    assert kept.doubt in html.unescape(report_html(kept))
