"""The benchmark of the cost model: what a score counts, and that kept times can be scored again."""

import json
from dataclasses import replace
from pathlib import Path

import pytest

from superopt.bench.costs.command import main
from superopt.bench.costs.measure import Way, kept_device, kept_way, plain_device, predicted_us
from superopt.bench.costs.programs import FAMILIES, HELD_OUT, PROGRAMS, Program
from superopt.bench.costs.score import Score, score, together
from superopt.bench.harness.results import begin, read_results, write_results
from superopt.ir import fuse, parse_graph
from superopt.targets import pick_target
from superopt.trace import trace

KEPT = Path(__file__).parents[2] / "bench" / "results" / "costs" / "held-out-avx512.json"
ROWS = "graph g\naxes m=64 k=4096\nin x: f32[m, k]\nt1 = exp(x)\nt2 = sum[k](t1)\nout o: f32[m] = t2\n"


def test_a_pair_counts_where_both_times_differ_alike() -> None:
    measured = [(10.0, 10.0), (20.0, 20.0), (20.5, 20.0), (15.0, 25.0)]
    found = score([1.0, 3.0, 2.0, 2.0], measured)
    assert (found.pairs, found.right) == (3, 3.0)
    assert score([3.0, 1.0, 1.0, 3.0], measured) == Score(3, 0.5, 0.0)


def test_regret_is_what_the_best_predicted_lose() -> None:
    measured = [(float(us), float(us)) for us in (12, 10, 30)]
    assert score([1.0, 2.0, 3.0], measured, tried=1).regret == pytest.approx(0.2)
    assert score([1.0, 2.0, 3.0], measured, tried=2).regret == 0
    assert together([Score(3, 3.0, 0.2), Score(1, 0.0, 0.0)]) == Score(4, 3.0, 0.1)


def test_every_family_has_programs_of_their_own_names() -> None:
    every = (*PROGRAMS, *HELD_OUT)
    assert len({one.name for one in every}) == len(every)
    assert all(sum(one.family == family for one in PROGRAMS) >= 2 for family in FAMILIES)


@pytest.mark.parametrize("program", HELD_OUT, ids=lambda one: one.name)
def test_what_is_held_out_can_be_scheduled(program: Program) -> None:
    [region] = trace(program.function, *program.inputs()).program.regions
    assert region.graph.outputs


def test_kept_times_are_scored_by_the_model_of_today(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    target, mugraph = pick_target("cpu"), fuse(parse_graph(ROWS))
    configs = list(target.configs(mugraph, 0))[:4]
    ways = [Way(str(at), mugraph, (one,), (10.0 * 2**at,) * 2) for at, one in enumerate(configs)]
    assert [kept_way(json.loads(json.dumps(one.kept())), target) for one in ways] == ways
    cases = {"rows": {"case": "rows", "family": "norm", "ways": [one.kept() for one in ways]}}
    place = tmp_path / "costs.json"
    write_results(begin("costs", {"threads": 1}, {}, cases), place)
    assert main(["--data", str(place)]) == 0
    assert "of    6 pairs" in capsys.readouterr().err


def test_times_are_predicted_by_the_rates_of_their_machine() -> None:
    target, mugraph = pick_target("cpu"), fuse(parse_graph(ROWS))
    device = replace(target.cost_device(), memory_gbs=20.0, l2_gbs=50.0)
    assert kept_device(json.loads(json.dumps(plain_device(device)))) == device
    way = Way("rows", mugraph, target.default_configs(mugraph))
    slow = replace(device, memory_gbs=0.01)
    assert predicted_us(way, slow) > 10 * predicted_us(way, device)


@pytest.mark.parametrize(("memory", "cache"), [(0.5, 1.0), (1.5, 0.7), (1.0, 2.0)])
def test_the_order_hardly_depends_on_rates_that_vary_from_day_to_day(memory: float, cache: float) -> None:
    """Kept times of three programs; measured rates of memory varied by 2.3 from moment to moment."""
    target = pick_target("cpu")
    cases = read_results(KEPT)["cases"]
    for name in ("8x32x64x49", "12x40x77x64", "24x200x96"):
        device = kept_device(cases[name]["host"])
        varied = replace(device, memory_gbs=memory * device.memory_gbs, l2_gbs=cache * device.l2_gbs)
        ways = [kept_way(one, target) for one in cases[name]["ways"]]
        found = score([predicted_us(way, varied) for way in ways], [way.us for way in ways])
        assert found.share > 0.8, name
        assert found.regret < 0.05, name


def test_a_wrong_name_is_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["--family", "norms"])
    assert "norms" in capsys.readouterr().err
