"""The learned ranker: it wins where the cost model is biased, and stays away where it is right."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from superopt.cache import Cache
from superopt.errors import InputError
from superopt.tune.learned_order import FEATURES, accuracy, choose, features
from superopt.tune.measure import Measurement
from superopt.tune.records import load_records, save_measurement

DEVICE = {"name": "test device", "processors": 16}


def made_up(bias, *, kernels: int = 8, each: int = 24, noise: float = 0.0, seed: int = 0) -> list[dict]:
    """Return records whose measured time is the predicted one times a bias of the configuration."""
    random = np.random.default_rng(seed)
    records = []
    for kernel in range(kernels):
        sizes = {"m": int(2 ** random.integers(4, 10)), "n": int(2 ** random.integers(8, 13))}
        for _ in range(each):
            configuration = {
                "tiles": [["m", int(2 ** random.integers(4, 8))], ["n", int(2 ** random.integers(4, 8))]],
                "num_warps": int(2 ** random.integers(1, 4)),
                "num_stages": int(random.integers(1, 5)),
            }
            predicted = float(random.uniform(50, 100))
            records.append(
                {
                    "kernel": f"kernel {kernel}",
                    "sizes": sizes,
                    "configuration": configuration,
                    "device": DEVICE,
                    "predicted_us": predicted,
                    "measured_us": predicted * bias(configuration) * float(np.exp(noise * random.normal())),
                }
            )
    return records


def by_warps(configuration: dict[str, Any]) -> float:
    return float(configuration["num_warps"] ** 0.8)


def by_two(configuration: dict[str, Any]) -> float:
    """A bias of two features together, which no sum of single ones expresses."""
    long = configuration["tiles"][1][1] / 32
    return float(long ** (0.4 * (configuration["num_stages"] - 2.5)))


@pytest.mark.parametrize("bias", [by_warps, by_two])
def test_a_biased_prediction_is_corrected(bias) -> None:
    records = made_up(bias, noise=0.05)
    found = choose(records)
    assert found.use == "learned"
    assert found.ranker is not None
    assert found.accuracy.learned > 0.85 > found.accuracy.analytical
    unseen = made_up(bias, kernels=3, seed=9)
    scores = np.array(found.scores(unseen))
    truth = np.array([one["measured_us"] for one in unseen])
    for at in range(0, len(unseen), 24):
        assert np.corrcoef(np.log(scores[at : at + 24]), np.log(truth[at : at + 24]))[0, 1] > 0.9


@pytest.mark.parametrize("noise", [0.0, 0.1])
def test_a_right_prediction_is_kept(noise: float) -> None:
    records = made_up(lambda configuration: 3.0, noise=noise)
    found = choose(records)
    assert found.use == "analytical"
    assert found.ranker is None
    assert found.accuracy.analytical >= found.accuracy.learned - 0.01
    assert found.scores(records[:2]) == [one["predicted_us"] for one in records[:2]]


def test_held_out_kernels_are_not_learned_by_heart() -> None:
    random = np.random.default_rng(0)
    records = made_up(lambda configuration: float(random.uniform(0.2, 5.0)))  # nothing to learn
    found = accuracy(records)
    assert 0.3 < found.learned < 0.7


def test_the_split_is_by_kernel_and_seeded() -> None:
    records = made_up(by_warps, kernels=6, each=12, noise=0.3)
    first, again, other = (accuracy(records, seed=seed) for seed in (1, 1, 2))
    assert first == again != other
    assert first.pairs == other.pairs > 200
    assert accuracy(records, seed=-1).pairs == first.pairs


def test_too_little_to_learn_from() -> None:
    one_kernel = made_up(by_warps, kernels=1)
    assert choose(one_kernel).use == "analytical"
    assert accuracy(one_kernel).pairs == 0
    assert choose(made_up(by_warps, kernels=2, each=1)).use == "analytical"
    few = made_up(by_warps, kernels=2, each=4)
    assert 0 < accuracy(few).pairs < 50
    assert choose(few).use == "analytical"
    with pytest.raises(InputError, match="no records"):
        choose([])


@pytest.mark.parametrize(
    ("name", "value"),
    [("measured_us", 0.0), ("measured_us", float("nan")), ("predicted_us", "fast"), ("sizes", None)],
)
def test_a_record_that_is_none(name: str, value: Any) -> None:
    [record] = made_up(by_warps, kernels=1, each=1)
    with pytest.raises(InputError, match=f"a record's {name} is"):
        choose([record | {name: value}])


def test_features_are_numbers_of_fixed_meaning() -> None:
    [record] = made_up(by_warps, kernels=1, each=1)
    record["configuration"] = {"tiles": [["m", 64], ["n", 128]], "num_warps": 8, "num_stages": 3}
    record["sizes"] = {"m": 96, "n": 1024}
    found = dict(zip(FEATURES, features(record), strict=True))
    assert found["tile elements"] == 13
    assert found["warps"] == 3
    assert found["tiles"] == 4  # 2 of 64 cover 96, 8 of 128 cover 1024
    assert found["tiles of a processor"] == 0
    assert found["padding"] == pytest.approx(np.log2(128 / 96))
    record["configuration"] = {"tiles": [], "schedule": "dynamic"}  # of a C++ kernel
    assert np.isfinite(features(record)).all()
    assert found["tensor descriptors"] == 0
    record["configuration"]["descriptors"] = True
    assert dict(zip(FEATURES, features(record), strict=True))["tensor descriptors"] == 1


def test_measurements_come_back_from_the_cache_as_records(tmp_path: Path) -> None:
    wanted = made_up(by_warps, kernels=2, each=3)
    with Cache.open(tmp_path) as cache:
        for one in wanted:
            measured = Measurement(one["measured_us"], 1.0, 2.0, 7, ((0.5, 1.0),))
            save_measurement(
                cache,
                measured,
                program=one["kernel"],
                kernel=one["kernel"],
                sizes=one["sizes"],
                configuration=one["configuration"],
                device=DEVICE,
            )
        save_measurement(
            cache,
            Measurement(0.0, 0.0, 0.0, 0, (), "clock", "failed: it crashed"),
            program="p",
            kernel="k",
            sizes={},
            configuration={"tiles": []},
            device=DEVICE,
        )
        predicted = {json.dumps(one["configuration"]): one["predicted_us"] for one in wanted}
        found = load_records(cache, lambda one: predicted[json.dumps(plain(one["configuration"]))])
        assert load_records(cache, lambda one: float("nan")) == []
        assert load_records(cache, lambda one: 1.0, device="another") == []
    assert sorted(map(str, found)) == sorted(map(str, map(sorted_keys, wanted)))


def plain(configuration: dict[str, Any]) -> dict[str, Any]:
    return {name: configuration[name] for name in ("tiles", "num_warps", "num_stages")}


def sorted_keys(record: dict[str, Any]) -> dict[str, Any]:
    return {
        name: dict(sorted(value.items())) if isinstance(value, dict) and name != "device" else value
        for name, value in record.items()
    }
