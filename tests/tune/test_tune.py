"""Measurement and racing, on functions whose times are known."""

import time

import pytest

from superopt.tune import measure_together, race


def _sleeper(seconds: float):
    def run(value: object) -> object:
        time.sleep(seconds)
        return value

    return run


def test_contenders_are_measured_in_turns_on_changing_inputs() -> None:
    seen: list[tuple[str, int]] = []
    contenders = {name: lambda value, name=name: seen.append((name, value)) for name in ("a", "b")}
    found = measure_together(contenders, [(1,), (2,), (3,)], seconds=0.0, least_rounds=4)
    timed = seen[4:]  # two calls of each come first, not timed
    assert [name for name, _ in timed] == ["a", "b"] * 4
    assert {value for _, value in timed} == {1, 2, 3}
    assert found["a"].rounds == found["b"].rounds == 4
    assert found["a"].low_us <= found["a"].median_us <= found["a"].high_us


def test_the_time_given_is_kept() -> None:
    start = time.perf_counter()
    measure_together({"sleeps": _sleeper(0.005)}, [(0,)], seconds=0.1)
    assert time.perf_counter() - start < 1.0


def test_race_finds_the_fastest_and_drops_the_slow_ones_first() -> None:
    times = {"slow": 0.03, "slower": 0.04, "fast": 0.001, "middle": 0.01, "slowest": 0.05}
    standings = race({name: _sleeper(s) for name, s in times.items()}, [(0,)], seconds=0.5)
    assert standings[0].name == "fast"
    assert {one.name for one in standings} == set(times)
    assert {one.name for one in standings if one.rounds > 1} == {"fast", "middle", "slow"}


@pytest.mark.parametrize("count", [0, 1])
def test_race_of_few(count: int) -> None:
    candidates = {f"c{i}": _sleeper(0.0) for i in range(count)}
    assert len(race(candidates, [(0,)], seconds=0.05)) == count
