"""Configurations are ranked by prediction, and by what measurements of this device taught about it."""

from dataclasses import replace

import pytest
import torch

import superopt
from superopt.cache import Cache
from superopt.candidates import Candidate
from superopt.candidates.order import ConfigurationOrder, likely
from superopt.funnel import race
from superopt.ir import fuse, parse_graph
from superopt.targets import config_json, pick_target
from superopt.tune import Measurement
from tests.cost.fixed import FIXED

STEPS = ("exp(x)", "neg(x)", "sqrt(x)", "square(x)", "add(x, x)", "mul(x, x)")


@pytest.fixture(autouse=True)
def cache(tmp_path, monkeypatch) -> Cache:
    monkeypatch.setenv("SUPEROPT_CACHE_DIR", str(tmp_path / "cache"))
    return Cache.open()


@pytest.fixture(autouse=True)
def device(monkeypatch) -> None:
    """Has the model reckon with one processor, whatever this one is and does just now."""
    monkeypatch.setattr("superopt.targets.cpu._host", lambda threads: FIXED)


def candidate(step: str, m: int = 256, n: int = 512) -> Candidate:
    graph = parse_graph(f"graph g\naxes m={m} n={n}\nin x: f32[m, n]\nt1 = {step}\nout y: f32[m, n] = t1\n")
    mugraph = fuse(graph)
    return Candidate(step, graph, mugraph, pick_target("cpu").default_configs(mugraph))


def measured(cache: Cache, steps, bias) -> None:
    """Keep, of every configuration of each kernel, its predicted time with a bias."""
    target = pick_target("cpu")
    ranking = ConfigurationOrder(target, cache)
    for step in steps:
        base = candidate(step)
        configs = list(target.configs(base.mugraph, 0))
        for config, us in zip(configs, target.predictions(base.mugraph, 0, configs), strict=True):
            time = us * bias(config)
            ranking.keep(
                base.graph,
                [replace(base, configs=(config,), measurement=Measurement(time, time, time, 9))],
                0,
            )


def schedule_bias(config) -> float:
    return 9.0 if config.schedule == "static" else 1.0


def test_without_measurements_the_prediction_ranks(cache: Cache) -> None:
    target, base = pick_target("cpu"), candidate("exp(x)")
    configs = list(target.configs(base.mugraph, 0))
    for ranking in (ConfigurationOrder(target), ConfigurationOrder(target, cache)):
        found = ranking.ranked(base.mugraph, base.configs, 0)
        times = [us for _, us in found]
        assert times[0] == min(times)
        assert len(set(times)) > 1
        assert {str(config) for config, _ in found} == set(map(str, configs))
        assert ranking.used.model == "analytical"
        assert "too few" in str(ranking.used)


def test_what_was_measured_corrects_the_prediction(cache: Cache) -> None:
    measured(cache, STEPS[:-1], schedule_bias)
    ranking = ConfigurationOrder(pick_target("cpu"), cache)
    unseen = candidate(STEPS[-1], m=512)
    found = ranking.ranked(unseen.mugraph, unseen.configs, 0)
    assert ranking.used.model == "learned"
    assert ranking.used.learned > ranking.used.analytical
    assert ranking.used.pairs > 100
    assert "ranked by the learned model" in str(ranking.used)
    assert found[0][0].schedule == "dynamic"
    assert (
        ConfigurationOrder(pick_target("cpu")).ranked(unseen.mugraph, unseen.configs, 0)[0][0].schedule
        == "static"
    )


def test_a_right_prediction_is_kept(cache: Cache) -> None:
    measured(cache, STEPS[:-1], lambda config: 3.0)
    ranking = ConfigurationOrder(pick_target("cpu"), cache)
    unseen = candidate(STEPS[-1])
    found = ranking.ranked(unseen.mugraph, unseen.configs, 0)
    assert ranking.used.model == "analytical"
    assert ranking.used.pairs > 10
    assert found == ConfigurationOrder(pick_target("cpu")).ranked(unseen.mugraph, unseen.configs, 0)


@pytest.mark.parametrize(
    "change",
    [
        {"kernel": "nonsense"},
        {"race": {}},
        {"race": {"number": 7, "others": []}},
        {"configuration": {"tiles": [["z", 8]]}},
        {"configuration": {}},
        {"sizes": {"m": 4}},
    ],
)
def test_records_that_say_nothing_are_left_out(cache: Cache, change) -> None:
    from superopt.cache import program_text
    from superopt.tune.records import save_measurement

    target, base = pick_target("cpu"), candidate("exp(x)")
    parts = {
        "kernel": program_text(base.mugraph, open_axes=("m", "n")),
        "sizes": {"m": 256, "n": 512},
        "configuration": config_json(base.configs[0]),
        "race": {"number": 0, "others": []},
    }
    device = {"name": target.device_name, "processors": 2}
    save_measurement(cache, Measurement(9.0, 9.0, 9.0, 3), program="p", device=device, **(parts | change))
    ranking = ConfigurationOrder(target, cache)
    assert ranking.ranked(base.mugraph, base.configs, 0)
    assert ranking.used.pairs == 0


def test_only_kernels_in_the_same_company_are_compared(cache: Cache) -> None:
    target = pick_target("cpu")
    text = (
        "graph g\naxes m=64 k=128 n=64\nin x: f32[m, k]\nin w: f32[k, n]\n"
        "t2 = exp(x)\nt3 = contract[k](t2, w)\nt4 = sum[n](t3)\nout y: f32[m] = t4\n"
    )
    mugraph = fuse(parse_graph(text), library=lambda graph, value: graph.step_of(value).op == "contract")
    configs = target.default_configs(mugraph)
    number = next(at for at, one in enumerate(configs) if one is not None)
    base = Candidate(
        "two kernels", mugraph.graph, mugraph, configs, measurement=Measurement(9.0, 9.0, 9.0, 3)
    )
    ConfigurationOrder(target, cache).keep(mugraph.graph, [base], number)
    [(parts, _)] = cache.records("measurement")
    race = parts["options"]["race"]
    assert race["number"] == number
    assert len(race["others"]) == len(mugraph.kernels) - 1 > 0
    library = next(at for at, one in enumerate(configs) if one is None)
    ConfigurationOrder(target, cache).keep(mugraph.graph, [base], library)
    assert len(cache.records("measurement")) == 1


def norm(x: torch.Tensor, g: torch.Tensor) -> torch.Tensor:
    return x * torch.rsqrt(x.square().mean(-1, keepdim=True) + 1e-6) * g


@pytest.mark.parametrize("kept", [True, False])
def test_optimizing_keeps_what_it_measured(cache: Cache, quick, random, tmp_path, kept: bool) -> None:
    options = replace(quick, graphs=1, cache=kept)
    best = superopt.optimize(norm, *random((40, 64), (64,)), options=options)
    raced = [one for plan in best.regions for one in plan.candidates if one.measurement is not None]
    kernels = [one for one in raced if len(one.configs) == 1]
    assert raced
    assert len(cache.records("measurement")) >= len(kernels) * kept
    assert bool(cache.records("measurement")) == kept
    assert best.ranked_by.model == "analytical"
    assert str(best.ranked_by) in best.explain()
    best.save(tmp_path / "best.json")
    assert superopt.load(tmp_path / "best.json").ranked_by == best.ranked_by


def test_no_configuration_is_tuned_that_was_raced_before(cache: Cache, quick, random, monkeypatch) -> None:
    """Also where another configuration than the likeliest won the first race."""
    likeliest = []

    def times(candidates, context, seconds):
        found, fates = really(candidates, context, seconds)
        slow = next(id for id, one in candidates.items() if one.name.endswith("as predicted"))
        likeliest.append(candidates[slow].configs)
        return found | {slow: replace(found[slow], median_us=1e6)}, fates

    really = race._times
    monkeypatch.setattr(race, "_times", times)
    best = superopt.optimize(norm, *random((40, 64), (64,)), options=replace(quick, graphs=1, seconds=3))
    [plan] = best.regions
    raced = [one for one in plan.candidates if one.measurement is not None]
    assert len(likeliest) == 2  # it was raced again, with those that were tuned
    assert len({one.configs for one in raced}) == len(raced) > 2
    assert raced[-1].configs == likeliest[0]


def test_the_first_few_are_not_all_of_the_same_tiles() -> None:
    graph = parse_graph(
        "graph g\naxes m=16 k=4096 n=4096\nin x: f16[m, k]\nin w: f16[k, n]\n"
        "t2 = contract[k](x, w)\nout y: f16[m, n] = t2\n"
    )
    target = pick_target("cuda:90")
    mugraph = fuse(graph)
    ranked = ConfigurationOrder(target).ranked(mugraph, target.default_configs(mugraph), 0)
    tiles = [str(config_json(config)["tiles"]) for config, _ in ranked]
    times = [us for _, us in ranked if us is not None]
    assert len(ranked) == len(list(target.configs(mugraph, 0)))
    assert times[0] == min(times)
    assert len(set(tiles[:6])) >= 3
    assert {config_json(config)["descriptors"] for config, _ in ranked[:8]} == {False, True}
    assert max(times[:6]) <= 1.3 * times[0]  # and all of them are worth a try


def test_only_configurations_that_round_as_is_allowed_are_likely() -> None:
    target = pick_target("cpu")
    text = "graph g\naxes m=64 k=64 n=64\nin x: f32[m, k]\nin w: f32[k, n]\n"
    graph = parse_graph(f"{text}t1 = contract[k](x, w)\nout y: f32[m, n] = t1\n")
    mugraph = fuse(graph)
    base = Candidate("1", graph, mugraph, target.default_configs(mugraph))
    known = [config for config, _ in ConfigurationOrder(target).ranked(mugraph, base.configs, 0)]
    other = replace(known[-1], filtered=True)

    class Order:
        def ranked(self, *_: object) -> list[tuple[object, float]]:
            return [(one, 1.0) for one in (*known, other)]

    assert other in likely(base, 0, Order(), 99)
    allowed = likely(base, 0, Order(), 99, roundings={known[0].rounding})
    assert allowed == [one for one in known if one != base.configs[0]]
