"""Building: how many kernels are made at a time, and what the compiler's word on them does to their race."""

import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from types import SimpleNamespace

import pytest
import torch

import superopt
from superopt import OptimizeOptions
from superopt.clock import Clock
from superopt.ir import fuse
from superopt.plans import racing
from superopt.plans.contest import Contest
from superopt.plans.course import Course
from superopt.plans.guard import Guard
from superopt.plans.outcome import Outcome
from superopt.plans.plan import Candidate, Within, Work
from superopt.targets import KernelReport, cuda
from superopt.targets.cpu import CpuTarget
from superopt.targets.cuda import CudaTarget
from superopt.trace import trace
from superopt.tune.halving import halve
from superopt.verify import floats

GIB = 1 << 30


def scaled(x: torch.Tensor) -> torch.Tensor:
    return x * 2.0


def contest_of(options: OptimizeOptions, within: Within | None = None) -> Contest:
    inputs = (torch.randn(8, 16),)
    course = Course(CpuTarget(), options, Clock(), lambda message: None, within)
    return Contest(course, scaled, trace(scaled, *inputs), inputs)


@pytest.mark.parametrize(
    ("cores", "free", "memory", "size", "builders"),
    [
        (16, 80 * GIB, 128 * GIB, 1 << 20, 8),
        (4, 80 * GIB, 128 * GIB, 1 << 20, 4),
        (16, 4 * GIB, 128 * GIB, 1 << 20, 3),  # of the device's memory, a context takes most
        (16, 80 * GIB, 128 * GIB, 2 * GIB, 4),  # large inputs
        (16, 80 * GIB, 12 * GIB, 1 << 20, 3),
        (1, 80 * GIB, 128 * GIB, 1 << 20, 2),  # while one runs another may be compiled
        (16, GIB, 2 * GIB, 1 << 20, 2),
    ],
)
def test_as_many_builders_as_there_is_room_for(
    monkeypatch, cores: int, free: int, memory: int, size: int, builders: int
) -> None:
    pages = {"SC_PHYS_PAGES": memory >> 12, "SC_PAGE_SIZE": 1 << 12}
    known = SimpleNamespace(sysconf=pages.__getitem__, sched_getaffinity=lambda _: range(cores))
    monkeypatch.setattr(cuda, "os", known)
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda: (free, 80 * GIB))
    assert CudaTarget(90).builders(size) == builders


def test_a_processor_that_is_measured_has_two() -> None:
    assert CpuTarget().builders(0) == CpuTarget().builders(GIB) == 2


@pytest.mark.parametrize(
    ("guarded", "shared", "builders"), [(True, None, 5), (True, 3, 3), (True, 9, 5), (False, 3, 2)]
)
def test_a_contest_builds_as_many_as_its_target_says(
    quick: OptimizeOptions, monkeypatch, guarded: bool, shared: int | None, builders: int
) -> None:
    asked: list[int] = []
    monkeypatch.setattr(CpuTarget, "builders", lambda self, size: asked.append(size) or 5)
    within = None
    if shared is not None:
        within = Within(float("inf"), 0.0, guard=Guard(shared, "cpu", 1.0))
    builder = contest_of(replace(quick, guarded=guarded), within).builder
    with builder.guarded(512):
        assert builder.builders == builders
        assert (builder.guard is None) is not guarded
        if builder.guard is not None:
            assert builder.guard.workers == (shared or 5)
    assert asked == ([512] if guarded else [])


def raced(
    quick: OptimizeOptions, monkeypatch, spilled: dict[str, int]
) -> tuple[dict[str, float], Sequence[Candidate]]:
    """Race two candidates of which the compiler says this, and return by what they were ordered."""
    ordered: list[dict[str, float]] = []

    def noted(guesses, *arguments: object, **named: object):
        ordered.append(dict(guesses))
        return halve(guesses, *arguments, **named)

    monkeypatch.setattr(racing, "halve", noted)
    contest = contest_of(quick)
    goal = contest.traced.graph
    mugraph = fuse(goal)
    names = iter(spilled)

    def compiled(self, kernel) -> dict[int, KernelReport]:
        return {0: KernelReport("it", registers=255, shared_bytes=64, spill_bytes=spilled[next(names)])}

    monkeypatch.setattr(CpuTarget, "compiled", compiled)
    monkeypatch.setattr(contest.builder, "builders", 1)
    candidates = tuple(Candidate(name, goal, mugraph) for name in spilled)
    outcome = Outcome()
    with torch.no_grad():
        contest._region(Work(goal, candidates, recalled=True), {"x": contest.inputs[0]}, outcome, 0.2)
    return ordered[0], outcome.regions[0].candidates


@pytest.mark.parametrize(
    ("spilled", "behind"),
    [
        ({"a": 8, "b": 0}, ["a"]),
        ({"a": 0, "b": 0}, []),
        ({"a": 8, "b": 8}, []),  # there is none that does not
    ],
)
def test_kernels_that_spill_are_raced_last(
    quick: OptimizeOptions, monkeypatch, spilled: dict[str, int], behind: list[str]
) -> None:
    ordered, candidates = raced(quick, monkeypatch, spilled)
    assert [name for name, us in ordered.items() if us == float("inf")] == behind
    assert {one.name: one.kernels[0].spill_bytes for one in candidates} == spilled
    assert all(one.kernels[0].registers == 255 for one in candidates)
    assert all(one.kernels[0].predicted_us is not None for one in candidates)
    assert all(one.measurement is not None for one in candidates)  # they may yet be the fastest


def test_what_a_guard_builds_is_right(quick: OptimizeOptions, random: Callable, monkeypatch) -> None:
    monkeypatch.setattr(CpuTarget, "builders", lambda self, size: 3)
    inputs = random((6, 32))
    best = superopt.optimize(scaled, *inputs, options=replace(quick, guarded=True))
    assert best.regions[0].chosen is not None
    torch.testing.assert_close(best(*inputs), scaled(*inputs))


@pytest.mark.parametrize(("beat_us", "chosen"), [(1e9, True), (1e-3, False)])
def test_what_is_beaten_already_is_not_checked(
    quick: OptimizeOptions, monkeypatch, beat_us: float, chosen: bool
) -> None:
    checked: list[object] = []
    real = floats.compare_floats
    monkeypatch.setattr(floats, "compare_floats", lambda *a, **k: checked.append(a) or real(*a, **k))
    contest = contest_of(replace(quick, guarded=False), Within(time.monotonic() + 60.0, beat_us, tune=False))
    goal = contest.traced.graph
    outcome = contest.run([Work(goal, (Candidate("one", goal, fuse(goal)),))])
    [plan] = outcome.regions
    assert (plan.chosen is not None) is chosen
    assert bool(checked) is chosen
    assert all(one.measurement is not None for one in plan.candidates)  # its time is known all the same
    if not chosen:
        assert {one.rejected for one in plan.candidates} == {"slower than what there is to beat"}
