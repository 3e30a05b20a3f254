"""Successive halving, on made-up times and a made-up clock."""

import math

import pytest

from superopt.errors import InputError
from superopt.tune.errors import DeviceLostError
from superopt.tune.halving import halve
from superopt.tune.measure import Measurement


class Bench:
    """Trials whose times are known, measured on a clock that moves by what a measurement takes."""

    def __init__(self, times: dict[str, float]) -> None:
        self.times = times
        self.now = 0.0
        self.calls: list[tuple[tuple[str, ...], int]] = []

    def measure(self, trials: tuple[str, ...], repeats: int) -> dict[str, Measurement]:
        self.calls.append((trials, repeats))
        self.now += repeats * sum(self.times[trial] for trial in trials) / 1e6
        return {
            trial: Measurement(self.times[trial], self.times[trial], self.times[trial], repeats)
            for trial in trials
        }

    def clock(self) -> float:
        return self.now

    def halve(self, predicted: dict[str, float] | None = None, **options):
        trials = predicted or dict.fromkeys(self.times, 1.0)
        options = {"seconds": 1e9, "seed": 0, "clock": self.clock} | options
        return halve(trials, self.measure, **options)


def many(count: int) -> dict[str, float]:
    return {f"c{i}": 10.0 + (i * 7919) % count for i in range(count)}


@pytest.mark.parametrize("count", [1, 2, 3, 10, 81])
@pytest.mark.parametrize("batch", [1, 4])
def test_the_fastest_wins_and_all_are_ranked(count: int, batch: int) -> None:
    bench = Bench(many(count))
    found = bench.halve(batch=batch)
    assert found.ended == "complete"
    assert found.best is not None
    assert bench.times[found.best.trial] == 10.0
    assert sorted(one.trial for one in found.standings) == sorted(bench.times)


def test_the_better_ones_are_measured_more() -> None:
    bench = Bench(many(27))
    found = bench.halve(least_repeats=2)
    repeats = {trials[0]: count for trials, count in bench.calls}  # the last of each
    ranked = sorted(bench.times, key=bench.times.__getitem__)
    assert repeats[ranked[0]] >= 2 * 27
    assert repeats[ranked[-1]] == 2
    assert sum(count == 2 for _, count in bench.calls) == 27
    assert [one.rung for one in found.standings] == sorted(
        (one.rung for one in found.standings), reverse=True
    )


def test_a_rung_does_not_wait_until_all_were_tried() -> None:
    bench = Bench(many(30))
    bench.halve(least_repeats=2)
    first = next(at for at, (_, repeats) in enumerate(bench.calls) if repeats > 2)
    assert first == 3


def test_those_predicted_faster_come_first_and_some_others_between() -> None:
    bench = Bench(many(100))
    predicted = {name: float(place) for place, name in enumerate(bench.times)}
    bench.halve(predicted)
    order = [trials[0] for trials, repeats in bench.calls if repeats == 3]
    places = [predicted[name] for name in order[:50]]
    assert places != sorted(places)
    assert sum(place < 50 for place in places) > 35


def test_the_same_seed_gives_the_same_race() -> None:
    runs = []
    for seed in (1, 1, 2):
        bench = Bench(many(40))
        found = bench.halve(seed=seed)
        runs.append((bench.calls, [one.trial for one in found.standings]))
    assert runs[0] == runs[1]
    assert runs[0][0] != runs[2][0]


def test_time_runs_out() -> None:
    bench = Bench(dict.fromkeys((f"c{i}" for i in range(100)), 1e5))  # 0.3 s each
    found = bench.halve(seconds=3.0)
    assert found.ended == "out of time"
    assert bench.now < 4.5
    assert len(found.standings) + len(found.untried) == 100
    assert found.untried


def test_without_time_there_is_still_one_answer() -> None:
    found = Bench(many(5)).halve(seconds=0.0)
    assert len(found.standings) == 1


def test_a_predicted_time_that_is_none_comes_last() -> None:
    bench = Bench({"unknown": 1.0, "a": 2.0, "b": 3.0})
    bench.halve({"unknown": math.nan, "a": 2.0, "b": 1.0}, seed=3)
    assert bench.calls[0][0] == ("b",)


@pytest.mark.parametrize("batch", [1, 5])
def test_what_raises_has_failed_and_the_race_goes_on(batch: int) -> None:
    bench = Bench(many(20))
    faults = {
        "c3": MemoryError("no memory left"),
        "c7": ValueError("NaN in 'y'\nand more"),
        "c11": RuntimeError(""),
    }

    def measure(trials: tuple[str, ...], repeats: int) -> dict[str, Measurement]:
        for trial in trials:
            if trial in faults:
                raise faults[trial]
        return bench.measure(trials, repeats)

    found = halve(
        dict.fromkeys(bench.times, 1.0), measure, seconds=1e9, seed=0, batch=batch, clock=bench.clock
    )
    assert found.ended == "complete"
    assert found.failed == {
        "c3": "MemoryError: no memory left",
        "c7": "ValueError: NaN in 'y'",
        "c11": "RuntimeError",
    }
    assert len(found.standings) == 17
    assert found.failed["c7"] == "ValueError: NaN in 'y'"


@pytest.mark.parametrize("time_us", [math.nan, math.inf, 0.0, -1.0])
def test_a_time_that_is_none_has_failed(time_us: float) -> None:
    bench = Bench({"good": 5.0, "bad": 1.0})

    def measure(trials: tuple[str, ...], repeats: int) -> dict[str, Measurement]:
        found = bench.measure(trials, repeats)
        return {t: Measurement(time_us, 0, 0, 1) if t == "bad" else found[t] for t in trials}

    found = halve({"good": 1.0, "bad": 1.0}, measure, seconds=1.0, seed=0)
    assert found.best is not None
    assert found.best.trial == "good"
    assert "its time is" in found.failed["bad"]


def test_all_fail() -> None:
    def measure(trials: tuple[str, ...], repeats: int) -> dict[str, Measurement]:
        raise RuntimeError("no")

    found = halve({"a": 1.0, "b": 1.0}, measure, seconds=1.0, seed=0)
    assert found.best is None
    assert set(found.failed) == {"a", "b"}


@pytest.mark.parametrize(
    ("error", "ended"),
    [(KeyboardInterrupt(), "interrupted"), (DeviceLostError("gone"), "device lost")],
)
@pytest.mark.parametrize("batch", [1, 3])
def test_an_end_keeps_the_best_so_far(error: BaseException, ended: str, batch: int) -> None:
    bench = Bench(many(30))

    def measure(trials: tuple[str, ...], repeats: int) -> dict[str, Measurement]:
        if len(bench.calls) == 8:
            raise error
        return bench.measure(trials, repeats)

    found = halve(
        dict.fromkeys(bench.times, 1.0), measure, seconds=1e9, seed=0, batch=batch, clock=bench.clock
    )
    assert found.ended == ended
    assert found.interrupted == (ended == "interrupted")
    assert found.best is not None
    everyone = [*(one.trial for one in found.standings), *found.failed, *found.untried]
    assert sorted(everyone) == sorted(bench.times)


def test_the_best_is_told_as_it_changes() -> None:
    bench = Bench(many(20))
    told: list[tuple[str, float]] = []
    found = bench.halve(on_best=lambda trial, measurement: told.append((trial, measurement.median_us)))
    assert len(told) > 1
    assert found.best is not None
    assert told[-1] == (found.best.trial, 10.0)


@pytest.mark.parametrize("options", [{"least_repeats": 0}, {"least_repeats": 401}, {"batch": 0}])
def test_wrong_settings(options: dict[str, int]) -> None:
    with pytest.raises(InputError, match=r"give"):
        Bench(many(3)).halve(**options)
