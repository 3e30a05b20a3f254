"""Kernels that serve all sizes are raced at much larger and much smaller ones, too."""

import signal
import threading
import time
from collections.abc import Callable
from dataclasses import replace
from math import inf

import pytest
import torch
from deferred.conftest import Regions, regions
from torch import Tensor

from superopt.backend.cache import keep, known_decision
from superopt.backend.checks import elsewhere
from superopt.backend.checks.inputs import RegionInputs, scaled
from superopt.backend.decision import Ledger
from superopt.backend.options import BackendOptions
from superopt.backend.region import Region, _uneven_growth, draft_of
from superopt.backend.region_plan import plan_of as read
from superopt.ir import print_graph
from superopt.rivals import inductor
from superopt.rivals.inductor import alone
from superopt.targets import pick_target

from .conftest import plan_of
from .modules import Mlp

__all__ = ["regions"]


@pytest.fixture
def region(regions: Regions) -> Region:
    """A region whose rows are a symbol, as torch.compile gives it."""
    return regions(Mlp(torch.relu, bias=False), torch.randn(6, 8), dynamic=True)[0]


def inputs_of(region: Region) -> RegionInputs:
    return RegionInputs(region, pick_target("cpu"), 0)


@pytest.mark.parametrize(
    ("speeds", "rows", "why"),
    [
        ([1.2, 1.0], [48, 2], None),
        ([0.5], [48], "0.50 times Inductor's speed at [48, "),
        ([1.5, 0.97], [48, 2], "0.97 times Inductor's speed at [2, "),
        ([0.0], [48], "not known to have Inductor's speed at [48, "),
    ],
)
def test_what_is_lost_at_other_sizes_is_not_taken(
    speeds: list[float], rows: list[int], why: str | None, region: Region, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[int] = []
    left = iter(speeds)

    def speed(example: tuple[torch.Tensor, ...], *unused: object) -> float:
        [size] = {one.shape[0] for one in example if one.shape[0] not in (8, 16)}
        asked.append(size)
        return next(left)

    monkeypatch.setattr(elsewhere, "speed_at", speed)
    found = elsewhere.slower_elsewhere(inputs_of(region), region.subgraph.module, {}, inf)
    assert asked == rows
    assert found is why or (why is not None and found is not None and found.startswith(why))


def test_sizes_that_are_fixed_have_no_others(region: Region, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(elsewhere, "speed_at", lambda *given: 0.0)
    fixed = replace(region, subgraph=replace(region.subgraph, symbols=()))
    assert elsewhere.slower_elsewhere(inputs_of(fixed), fixed.subgraph.module, {}, inf) is None


@pytest.mark.parametrize("seconds", [60.0, 0.0])
def test_speeds_are_those_of_library_calls_and_of_inductors_code(
    seconds: float, region: Region, monkeypatch: pytest.MonkeyPatch
) -> None:
    """PyTorch as it is takes longer than the library calls alone, and is not slower than itself."""
    monkeypatch.setattr(inductor, "as_in_a_graph", lambda module, inputs, options: module)
    monkeypatch.setattr(elsewhere, "_NO_LOSS", 1e9)
    monkeypatch.setattr(elsewhere, "HOPELESS", 1e9)
    inputs, module = inputs_of(region), region.subgraph.module
    end = time.monotonic() + seconds
    example = scaled(region.subgraph, 8.0)
    assert example is not None
    speed = alone(lambda: elsewhere.speed_at(example, inputs, module, {}, end))
    assert 0.05 < speed < 20


def test_sizes_that_memory_does_not_hold_are_not_tried(region: Region) -> None:
    assert scaled(region.subgraph, 1e9) is None
    assert scaled(region.subgraph, 1.0) is None  # no other sizes


def test_the_end_of_a_wait_ends_all_threads_that_were_waited_for() -> None:
    """Before: a thread that waited for another one never saw its end, and PyTorch aborted the process."""
    begun, ended = threading.Event(), threading.Event()

    def work() -> None:
        try:
            while True:
                torch.ones(8).sum()
                begun.set()
        finally:
            ended.set()

    def interrupt() -> None:
        begun.wait()
        signal.raise_signal(signal.SIGINT)

    other = threading.Thread(target=interrupt)
    other.start()
    with pytest.raises(KeyboardInterrupt):
        alone(lambda: alone(work))
    other.join()
    assert ended.is_set()
    assert not [one for one in threading.enumerate() if one.name == "superopt" and one.is_alive()]


# -- numbers that are read off sizes

OPERANDS = (torch.ones(16, 8), torch.ones(8, 8), torch.ones(8, 8))


def by_number(x: Tensor, w: Tensor, v: Tensor) -> Tensor:
    return (x @ w).relu() @ v / 16


def by_float(x: Tensor, w: Tensor, v: Tensor) -> Tensor:
    return (x @ w).relu() @ v / 16.0


def by_size(x: Tensor, w: Tensor, v: Tensor) -> Tensor:
    return (x @ w).relu() @ v / x.shape[0]


def by_blocks(x: Tensor, w: Tensor, v: Tensor) -> Tensor:
    return (x @ w).relu() @ v / (x.shape[0] // 64 + 1)


def by_one(x: Tensor, w: Tensor, v: Tensor) -> Tensor:
    return (x @ w).relu() @ v / 1


def test_a_number_that_is_a_size_is_no_number(regions: Regions) -> None:
    """Before: the plan that divides by 16 was taken for the function that divides by a size, which was 16."""
    [number], [like_it], [size] = (
        regions(one, *OPERANDS, dynamic=True) for one in (by_number, by_float, by_size)
    )
    assert print_graph(number.goal) == print_graph(size.goal)
    found = replace(draft_of(number), taken=True, plan=plan_of(number, pick_target("cpu")), why="a test")
    ledger = Ledger(BackendOptions())
    keep(found, number, ledger)
    assert like_it.key == number.key
    assert size.key != number.key
    assert known_decision(like_it, Ledger(BackendOptions())) is not None
    for known in (ledger, Ledger(BackendOptions())):  # in this process, and in another one
        assert known_decision(size, known) is None


def test_a_number_of_fixed_sizes_is_one(regions: Regions) -> None:
    [number], [size] = (regions(one, *OPERANDS) for one in (by_number, by_size))
    assert size.key == number.key


@pytest.mark.parametrize("function", [by_size, by_blocks])
def test_a_plan_with_a_number_of_one_size_serves_no_others(
    function: Callable[..., Tensor], regions: Regions
) -> None:
    [region] = regions(function, *OPERANDS, dynamic=True)
    plan = read(plan_of(region, pick_target("cpu")))
    assert inputs_of(region).other_sizes(plan) == "another program at other sizes"


def test_a_quotient_of_a_size_is_part_of_the_key(regions: Regions) -> None:
    [one], [blocks] = (regions(function, *OPERANDS, dynamic=True) for function in (by_one, by_blocks))
    assert one.key != blocks.key


@pytest.mark.parametrize(
    ("divisors", "growth"),
    [((), 3), ((2,), 3), ((3,), 4), ((2, 3), 5), ((64,), 65), ((5, 2), 7), ((2, 7), 9)],
)
def test_sizes_grow_until_quotients_and_remainders_change(divisors: tuple[int, ...], growth: int) -> None:
    assert _uneven_growth(divisors) == growth
    for size in range(1, 200):
        assert all((size + growth) // one != size // one for one in divisors)
        assert all((size + growth) % one != size % one for one in divisors)
