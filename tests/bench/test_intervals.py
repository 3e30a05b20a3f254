"""What two results say: what is slower, what is the same, and what noise of which kind does not change."""

from itertools import pairwise

import numpy as np
import pytest
from quick import few

from superopt.bench.harness.blocks import BLOCKS, in_blocks, quartiles, timed_in_blocks
from superopt.bench.harness.intervals import Interval, Launch, change, speed, verdict


def launches(
    factor: float,
    *,
    seed: int,
    drift: float = 1.0,
    count: int = 5,
    ours: float = 0.005,
    baseline: float = 0.005,
    blocks: float = 0.02,
) -> list[Launch]:
    """Return launches of a case that takes `factor`, on a machine that takes `drift` times as long."""
    random = np.random.default_rng(seed)

    def times(middle: float, between: float) -> list[float]:
        return list(middle * drift * np.exp(random.normal(0, between) + random.normal(0, blocks, 24)))

    return [Launch(times(100 * factor, ours), times(200, baseline)) for _ in range(count)]


@pytest.mark.parametrize("drift", few([1.0, 1.05, 1.5], 1.5))
def test_a_tenth_more_is_found_and_the_same_is_the_same(drift: float) -> None:
    trials = range(20)
    old = [launches(1.0, seed=seed) for seed in trials]
    same = [launches(1.0, seed=seed + 100, drift=drift) for seed in trials]
    slow = [launches(1.1, seed=seed + 200, drift=drift) for seed in trials]
    found = [verdict(change(one, other), 0.05) for one, other in zip(old, slow, strict=True)]
    alarms = [verdict(change(one, other), 0.05) for one, other in zip(old, same, strict=True)]
    assert found.count("slower") >= 19
    assert "slower" not in alarms
    faster = [verdict(change(other, one), 0.05) for one, other in zip(old, slow, strict=True)]
    assert faster.count("faster") >= 19


def test_a_baseline_that_differs_by_itself_adds_no_alarm() -> None:
    several = [
        change(
            launches(1.0, seed=seed, baseline=0.05, count=7),
            launches(1.0, seed=seed + 100, baseline=0.05, count=7),
        )
        for seed in range(20)
    ]
    assert sum(verdict(one, 0.05) == "slower" for one in several) <= 1
    assert np.std(np.log([one.ratio for one in several])) < 0.03  # less than the baseline's own noise


def test_a_launch_that_is_disturbed_throughout_does_not_count() -> None:
    old, new = launches(1.0, seed=1), launches(1.0, seed=2)
    new[1] = Launch([3 * us for us in new[1].ours], [2 * us for us in new[1].baseline])
    assert verdict(change(old, new), 0.05) == "same"


def test_without_a_baseline_times_are_compared_as_they_are() -> None:
    bare = [[Launch(one.ours, []) for one in launches(1.0, seed=1, drift=drift)] for drift in (1.0, 1.2)]
    assert change(*bare).ratio == pytest.approx(1.2, rel=0.02)


def test_one_launch_knows_less_than_five() -> None:
    few = change(launches(1.0, seed=1, count=1), launches(1.0, seed=2, count=1))
    many = change(launches(1.0, seed=1, count=5), launches(1.0, seed=2, count=5))
    assert few.high / few.low > many.high / many.low


def test_speed_is_the_baseline_over_ours() -> None:
    found = speed(launches(0.5, seed=3))
    assert found.low < found.ratio < found.high
    assert found.ratio == pytest.approx(4.0, rel=0.02)


@pytest.mark.parametrize(
    ("low", "high", "said"),
    [
        (1.06, 1.2, "slower"),
        (1.04, 1.2, "unclear"),
        (0.97, 1.04, "same"),
        (0.8, 0.94, "faster"),
        (0.8, 1.2, "unclear"),
    ],
)
def test_verdicts(low: float, high: float, said: str) -> None:
    assert verdict(Interval((low * high) ** 0.5, low, high), 0.05) == said


def test_blocks_call_every_contender_once_a_round_in_an_order_drawn_anew() -> None:
    called: list[tuple[str, object]] = []
    contenders = {name: lambda x, name=name: called.append((name, x)) for name in ("one", "two")}
    times = timed_in_blocks(contenders, lambda: (object(),), seconds=0.02, synchronize=lambda: None)
    assert 5 <= len(times["one"]) <= BLOCKS
    assert list(map(len, times["one"])) == list(map(len, times["two"]))
    rounds = [(first, second) for (first, _), (second, _) in zip(called[::2], called[1::2], strict=True)]
    assert set(rounds) == {("one", "two"), ("two", "one")}
    # None reads the copy that the call before it has read, which would be in the cache.
    assert all(before is not after for (_, before), (_, after) in pairwise(called))


def test_each_call_waits_for_the_device() -> None:
    order: list[str] = []
    timed_in_blocks(
        {"one": lambda: order.append("call")},
        tuple,
        seconds=0.001,
        synchronize=lambda: order.append("wait"),
    )
    assert order[1:] == ["call", "wait"] * (len(order) // 2)


@pytest.mark.parametrize(("count", "blocks"), [(1, 1), (3, 1), (20, 10), (400, BLOCKS)])
def test_a_race_is_cut_into_blocks(count: int, blocks: int) -> None:
    times = {"one": [float(at) for at in range(count)]}
    cut = in_blocks(times)["one"]
    assert len(cut) == blocks
    assert [us for block in cut for us in block] == times["one"]
    assert quartiles({"one": [[4.0, 1.0, 3.0, 2.0]]}) == {"one": [1.0]}
