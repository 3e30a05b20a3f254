"""Kernels that serve all sizes are raced at much larger and much smaller ones, too."""

import signal
import threading
import time
from dataclasses import replace
from math import inf

import pytest
import torch

from superopt.backend import budget
from superopt.backend.checks import elsewhere
from superopt.backend.checks.inputs import RegionInputs, scaled
from superopt.backend.region import Region, blank_of
from superopt.rivals import inductor
from superopt.rivals.inductor import alone
from superopt.targets import pick_target

from .conftest import Host
from .modules import Mlp


@pytest.fixture
def region(monkeypatch: pytest.MonkeyPatch) -> Region:
    """A region whose rows are a symbol, as torch.compile gives it."""
    found: list[Region] = []
    with monkeypatch.context() as patched:
        patched.setattr(
            budget,
            "known_decision",
            lambda region, ledger: found.append(region) or replace(blank_of(region), why="a test"),
        )
        with torch.no_grad():
            torch.compile(Mlp(torch.relu, bias=False), backend=Host(), dynamic=True)(torch.randn(6, 8))
    return found[0]


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
    monkeypatch.setattr(inductor, "compiled_by_inductor", lambda module, inputs, options: module)
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
