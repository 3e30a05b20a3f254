"""Building: how many kernels are made at a time, and what the compiler's word on them does to their race."""

import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from types import SimpleNamespace

import pytest
import torch

import superopt
from superopt import OptimizeOptions
from superopt.candidates import Candidate, RegionCandidates
from superopt.fate import Fate, Kind
from superopt.funnel import Limits, State, run_regions
from superopt.funnel.tune import worth_tuning
from superopt.ir import fuse
from superopt.targets import KernelReport, cuda
from superopt.targets.cpu import CpuTarget
from superopt.targets.cuda import CudaTarget
from superopt.trace import trace
from superopt.tune.first_runs import FirstRuns
from superopt.tune.halving import halve
from superopt.verify.floats.compare import compare_floats as real

GIB = 1 << 30


def scaled(x: torch.Tensor) -> torch.Tensor:
    return x * 2.0


def state_of(options: OptimizeOptions, first_runs: FirstRuns | None = None, **limits: object) -> State:
    inputs = (torch.randn(8, 16),)
    taken = Limits(0.4, **limits)
    return State(scaled, trace(scaled, *inputs), inputs, CpuTarget(), options, taken, first_runs=first_runs)


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
def test_a_program_builds_as_many_as_its_target_says(
    quick: OptimizeOptions, monkeypatch, guarded: bool, shared: int | None, builders: int
) -> None:
    asked: list[int] = []
    monkeypatch.setattr(CpuTarget, "builders", lambda self, size: asked.append(size) or 5)
    kept = None if shared is None else FirstRuns(shared, "cpu", 1.0)
    state = state_of(replace(quick, guarded=guarded), kept)
    with state.ready():
        assert state.builders == builders
        assert (state.first_runs is None) is not guarded
        if state.first_runs is not None:
            assert state.first_runs.workers == (shared or 5)
    assert asked == ([512] if guarded else [])


def raced(
    quick: OptimizeOptions, monkeypatch, spilled: dict[str, int]
) -> tuple[dict[str, float], Sequence[Candidate]]:
    """Race two candidates of which the compiler says this, and return by what they were ordered."""
    ordered: list[dict[str, float]] = []

    def noted(guesses, *arguments: object, **named: object):
        ordered.append(dict(guesses))
        return halve(guesses, *arguments, **named)

    monkeypatch.setattr("superopt.funnel.race.halve", noted)
    state = state_of(quick)
    goal = state.traced.graph
    mugraph = fuse(goal)
    names = iter(spilled)

    def compiled(self, kernel) -> dict[int, KernelReport]:
        return {0: KernelReport("it", registers=255, shared_bytes=64, spill_bytes=spilled[next(names)])}

    monkeypatch.setattr(CpuTarget, "compiled", compiled)
    state.builders = 1
    candidates = tuple(Candidate(name, goal, mugraph) for name in spilled)
    [region] = run_regions([RegionCandidates(goal, candidates, recalled=True)], state)
    return ordered[0], region.candidates


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


def test_variants_get_ids_that_no_candidate_has(quick: OptimizeOptions) -> None:
    """A file that is tuned again holds variants of its candidates already."""
    state = state_of(quick)
    goal = state.traced.graph
    known = [Candidate(id, goal, fuse(goal)) for id in ("1.1", "1.1/1", "1.1/3")]
    [region] = run_regions([RegionCandidates(goal, tuple(known))], state)
    ids = [one.id for one in region.candidates]
    assert len(set(ids)) == len(ids)
    assert {one.id for one in known} < set(ids)
    for one in known:  # its configuration is still its own
        [same] = [other for other in region.candidates if other.id == one.id]
        assert same.configs == state.target.default_configs(same.mugraph)
        assert same.variant == ""


@pytest.mark.parametrize(
    ("several", "tuned"),
    [
        ({"own": 10, "library": 11}, ["own"]),
        ({"library": 10, "own": 12, "another": 12.1}, ["library", "own"]),  # which tuning may put ahead
        ({"library": 10, "own": 20}, ["library"]),  # too slow for that
    ],
)
def test_a_library_that_is_a_little_faster_does_not_end_tuning(
    quick: OptimizeOptions, several: dict[str, float], tuned: list[str]
) -> None:
    goal = state_of(quick).traced.graph
    ranked = [
        Candidate(name, goal, fuse(goal), library=name == "library", predicted_us=us)
        for name, us in several.items()
    ]
    assert [one.id for one in worth_tuning(ranked, 1)] == tuned


@pytest.mark.slow
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
    monkeypatch.setattr(
        "superopt.funnel.check.compare_floats", lambda *a, **k: checked.append(a) or real(*a, **k)
    )
    limits = {"deadline": time.monotonic() + 60.0, "beat_us": beat_us, "tune": False}
    state = state_of(replace(quick, guarded=False), **limits)
    goal = state.traced.graph
    [plan] = run_regions([RegionCandidates(goal, (Candidate("one", goal, fuse(goal)),))], state)
    assert (plan.chosen is not None) is chosen
    assert bool(checked) is chosen
    assert all(one.measurement is not None for one in plan.candidates)  # its time is known all the same
    if not chosen:
        slower = Fate("check", Kind.SLOWER, "slower than what there is to beat")
        assert {one.fate for one in plan.candidates} == {slower}


def test_other_work_is_done_once_and_before_anything_is_timed(quick: OptimizeOptions, monkeypatch) -> None:
    ended: list[str] = []

    class Slow:
        def begin(self, state: State) -> None:
            ended.append(f"{len(state.typical)} inputs")

        def wait(self) -> None:
            time.sleep(0.1)
            ended.append("work")

        def end(self) -> None:
            ended.append("end")

    def noted(*arguments: object, **named: object):
        ended.append("race")
        return halve(*arguments, **named)

    monkeypatch.setattr("superopt.funnel.race.halve", noted)
    state = state_of(replace(quick, guarded=False))
    state.meanwhile = Slow()
    goal = state.traced.graph
    several = [Candidate(name, goal, fuse(goal)) for name in ("a", "b")]
    run_regions([RegionCandidates(goal, tuple(several), recalled=True)], state)
    assert ended[:2] == [f"{len(state.inputs)} inputs", "work"]
    assert set(ended[2:]) == {"race"}
    assert state.meanwhile is None
