"""Measurement and racing, on functions whose times are known."""

import math
import pkgutil
import random
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from typing import Any

import pytest

import superopt.tune
from superopt.tune import confirm, measure_together
from superopt.tune.measure import Times


def _sleeper(seconds: float):
    def run(value: object) -> object:
        time.sleep(seconds)
        return value

    return run


def test_contenders_are_measured_in_turns_on_changing_inputs() -> None:
    seen: list[tuple[str, int]] = []
    contenders = {name: lambda value, name=name: seen.append((name, value)) for name in ("a", "b")}
    found = measure_together(contenders, [(1,), (2,), (3,)], seconds=0.0, least_rounds=8)
    timed = seen[4:]  # two calls of each come first, not timed
    names = [name for name, _ in timed]
    rounds = {tuple(names[at : at + 2]) for at in range(0, 16, 2)}
    assert rounds == {("a", "b"), ("b", "a")}  # none always comes after the other
    assert {value for _, value in timed} == {1, 2, 3}
    assert found["a"].rounds == found["b"].rounds == 8
    assert found["a"].low_us <= found["a"].median_us <= found["a"].high_us


def test_the_time_given_is_kept() -> None:
    start = time.perf_counter()
    measure_together({"sleeps": _sleeper(0.005)}, [(0,)], seconds=0.1)
    assert time.perf_counter() - start < 5.0  # 0.1 s, and what a busy machine takes


def test_the_rounds_have_a_limit() -> None:
    found = measure_together({"a": len}, [((),)], seconds=60.0, most_rounds=7)
    assert found["a"].rounds == 7


def test_a_summary() -> None:
    found = Times([float(one) for one in range(21)], note="why").summary()
    assert (found.median_us, found.low_us, found.high_us, found.rounds) == (10.0, 2.0, 18.0, 21)
    assert dict(found.quantiles_us) == {0.1: 2.0, 0.25: 5.0, 0.5: 10.0, 0.75: 15.0, 0.9: 18.0}
    assert (found.method, found.note) == ("clock", "why")


def test_the_winner_is_confirmed() -> None:
    contenders = {"slow": _sleeper(0.004), "fast": _sleeper(0.001)}
    found = confirm(contenders, "slow", "fast", [(0,)], seconds=0.15)
    assert (found.winner, found.loser) == ("fast", "slow")
    assert found.speed_of("fast") == found.speedup > 1.5
    assert found.speed_of("slow") == pytest.approx(1 / found.speedup)


def planted(ratio: float, *, noise: float, rounds: int, seed: int) -> Callable[..., dict[str, Times]]:
    """Times of two contenders, the second `ratio` times as long, on a machine that interrupts calls."""
    draw = random.Random(seed)

    def times(contenders: Mapping[str, object], inputs: object, *, seconds: float) -> dict[str, Times]:
        def call(us: float) -> float:
            return us * draw.uniform(1, 1 + noise) * (draw.choice((3, 10, 40)) if draw.random() < 0.3 else 1)

        return {
            name: Times([call(us) for _ in range(rounds)])
            for name, us in zip(contenders, (100.0, 100.0 * ratio), strict=True)
        }

    return times


@pytest.mark.parametrize("rounds", [5, 12, 60, 400])
def test_noise_wins_no_race(rounds: int) -> None:
    wrong = missed = 0
    for seed in range(200):
        ratio = (0.7, 0.9, 1.0, 1.0, 1.3)[seed % 5]
        times = planted(ratio, noise=0.5, rounds=rounds, seed=seed)
        found = confirm({"a": len, "b": len}, "a", "b", [((),)], seconds=1.0, times=times)
        low, high = found.interval
        assert low <= found.speedup <= high
        won = found.sure and found.winner == "a" and found.speedup > 1.02
        wrong += won and ratio <= 1
        missed += not won and ratio > 1
    assert wrong == 0
    assert rounds < 400 or missed == 0


def test_an_undecided_race_goes_on_as_long_as_it_may() -> None:
    asked: list[float] = []
    take = planted(1.05, noise=0.4, rounds=9, seed=0)

    def times(*arguments: Any, seconds: float) -> dict[str, Times]:
        asked.append(seconds)
        return take(*arguments, seconds=seconds)

    contenders = {"a": len, "b": len}
    found = confirm(contenders, "a", "b", [((),)], seconds=1.0, most_seconds=3.5, times=times)
    assert asked == [1.0, 1.0, 1.5]
    assert not found.sure
    assert found.measurements["a"].rounds == 27
    assert found.interval[0] < 1 < found.interval[1]
    assert found.spread > 2


@pytest.mark.parametrize(("ratio", "noise", "rounds"), [(1.3, 1.2, 16), (1.02, 1.02, 5), (4.0, 1.2, 5)])
def test_a_race_of_long_calls_goes_on_with_the_rounds_it_has(ratio: float, noise: float, rounds: int) -> None:
    """Where one is ahead by the level, as many rounds follow as make it sure; a tie gets no more time.

    Who is several times as fast needs no more than the first few.
    """

    def times(contenders: Mapping[str, object], inputs: object, *, seconds: float) -> dict[str, Times]:
        us = dict(zip(contenders, (10_000.0, 10_000.0 * ratio), strict=True))
        count = max(5, round(seconds / (sum(us.values()) / 1e6)))
        return {
            name: Times([one * noise ** ((at + (name == "b")) % 2) for at in range(count)])
            for name, one in us.items()
        }

    found = confirm(
        {"a": len, "b": len}, "a", "b", [((),)], seconds=0.1, most_seconds=2.0, level=1.05, times=times
    )
    assert rounds <= found.measurements["a"].rounds <= rounds + 2
    assert found.is_apart("a", 1.05) == (ratio > 1.05)


@pytest.mark.parametrize("rounds", [5, 30])
def test_a_race_ends_once_its_level_is_decided(rounds: int) -> None:
    """A clear one soon, one near the level late; stopping early takes nobody for faster than he is."""
    early = wrong = 0
    for seed in range(200):
        ratio = (0.8, 0.99, 1.0, 1.04, 1.5)[seed % 5]
        take, asked = planted(ratio, noise=0.3, rounds=rounds, seed=seed), list[float]()

        def times(
            *arguments: Any, seconds: float, take: Any = take, asked: list[float] = asked
        ) -> dict[str, Times]:
            asked.append(seconds)
            found: dict[str, Times] = take(*arguments, seconds=seconds)
            return found

        found = confirm({"a": len, "b": len}, "a", "b", [((),)], seconds=1.0, level=1.05, times=times)
        assert asked[0] == 0.2
        assert sum(asked) <= 1.0 + 1e-9
        early += sum(asked) < 0.9
        wrong += found.is_apart("a", 1.05) and (found.speed_of("a") > 1.05) != (ratio > 1.05)
        assert found.is_apart("a", 1.05) == found.is_apart("b", 1 / 1.05)
    assert wrong == 0
    assert early >= 60 or rounds < 16  # fewer rounds decide nothing


@pytest.mark.parametrize(
    ("rounds", "apart", "sure"), [(5, 15, False), (5, 20, True), (6, 12, False), (6, 14, True), (7, 11, True)]
)
def test_few_rounds_are_as_sure_as_many(rounds: int, apart: float, sure: bool) -> None:
    """Before: of 5 rounds whose ratios have equal means, one in 3,600 decided, and not one in 30,000."""
    middle = [at - (rounds - 1) / 2 for at in range(rounds)]
    error = statistics.stdev(middle) / math.sqrt(rounds)
    slow = [100.0 * math.exp(0.1 * (1 + one / (apart * error))) for one in middle]

    def times(contenders: Mapping[str, object], *arguments: object, seconds: float) -> dict[str, Times]:
        return {"a": Times([100.0] * rounds), "b": Times(slow)}

    found = confirm({"a": len, "b": len}, "a", "b", [((),)], seconds=1.0, times=times)
    assert found.winner == "a"
    assert found.sure == sure
    assert (found.interval[0] > 1) == sure
    assert found.interval[0] < found.speedup < found.interval[1]


@pytest.mark.slow
def test_tuning_imports_neither_egglog_nor_z3() -> None:
    modules = [f"superopt.tune.{one.name}" for one in pkgutil.iter_modules(superopt.tune.__path__)]
    assert len(modules) > 8
    code = (
        "import sys\n"
        "sys.modules['egglog'] = sys.modules['z3'] = None\n"  # an import of either would fail
        f"import {', '.join(modules)}\n"
        "assert not any(one.startswith(('egglog.', 'z3.')) for one in sys.modules)\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True)
