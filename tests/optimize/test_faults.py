"""Faults of the environment: each ends with a correct result and one clear line."""

import errno
import gc
import logging
import os
import signal
import subprocess
import sys
import textwrap
import threading
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from quick import few

import superopt
from superopt import OptimizeOptions
from superopt.candidates import RegionCandidates
from superopt.codegen.cpp import compile as cpp_compile
from superopt.codegen.cpp import find_compiler
from superopt.codegen.cpp.launch import CppMuGraph
from superopt.fate import Kind
from superopt.funnel import Limits, State
from superopt.result import read_result
from superopt.rivals import final
from superopt.targets.cpu import CpuTarget
from superopt.trace import trace
from superopt.tune.errors import DeviceLostError
from superopt.tune.measure import Times
from superopt.verify.floats.compare import compare_floats


def norm(x: torch.Tensor, g: torch.Tensor) -> torch.Tensor:
    return x * torch.rsqrt(x.square().mean(-1, keepdim=True) + 1e-6) * g


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    folder = tmp_path / "cache"
    monkeypatch.setenv("SUPEROPT_CACHE_DIR", str(folder))
    return folder


KERNELS_FOLDER = cpp_compile._folder


@pytest.fixture
def own_kernels(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Keep compiled kernels in the cache of the test alone."""
    monkeypatch.setattr(cpp_compile, "_folder", KERNELS_FOLDER)


@pytest.fixture
def one(quick: OptimizeOptions) -> OptimizeOptions:
    return replace(quick, graphs=1)


@pytest.fixture
def compiler(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """Puts a script in the compiler's place."""
    folder = tmp_path / "bin"
    folder.mkdir()

    def put(body: str) -> None:
        script = folder / "fake-g++"
        version = f'if [ "$1" = --version ]; then echo "fake {os.getpid()}"; exit 0; fi'
        script.write_text(f"#!/bin/sh\n{version}\n{body}\n")
        script.chmod(0o755)
        monkeypatch.setenv("CXX", str(script))

    return put


def is_right(best: superopt.Optimized, inputs: tuple[torch.Tensor, ...]) -> None:
    torch.testing.assert_close(best(*inputs), norm(*inputs), rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize(
    ("body", "line", "limit_seconds"),
    [
        ("echo 'kernel.cpp:1: error: no such thing' >&2; exit 1", "no such thing", 3.0),
        ("kill -SEGV $$", "", 3.0),
        ("sleep 600", "the compiler took more than 1 s", 1.0),
    ],
)
def test_a_compiler_that_fails_crashes_or_hangs(
    compiler, one, random, monkeypatch, body: str, line: str, limit_seconds: float
) -> None:
    monkeypatch.setattr(cpp_compile, "_ANSWER_S", 2.0)  # until it is known to hang whatever it compiles
    compiler(body)
    inputs = random((6, 32), (32,))
    best = superopt.optimize(norm, *inputs, options=replace(one, guarded=True, limit_seconds=limit_seconds))
    is_right(best, inputs)
    assert best.winner == "eager"
    assert best.fused is None
    assert line in best.explain(), best.explain()
    assert {one.fate.kind for one in best.regions[0].candidates} == {Kind.FAILED}


def test_no_compiler_at_all(monkeypatch, one, random) -> None:
    monkeypatch.setattr("shutil.which", lambda name, **_: None)
    monkeypatch.setenv("CXX", "no-compiler-here")
    inputs = random((6, 32), (32,))
    best = superopt.optimize(norm, *inputs, options=one)
    is_right(best, inputs)
    assert "no C++ compiler" in best.explain()


@pytest.mark.parametrize("wrong", [float("nan"), 1.0])
def test_a_kernel_that_computes_nonsense(monkeypatch, one, random, wrong: float) -> None:
    def nonsense(self, given: Sequence[torch.Tensor]) -> Sequence[torch.Tensor]:
        return [torch.full((6, 32), wrong)]

    monkeypatch.setattr(CppMuGraph, "in_order", nonsense)
    monkeypatch.setattr(CppMuGraph, "prepared", lambda self, given: lambda given: self.in_order(given))
    inputs = random((6, 32), (32,))
    best = superopt.optimize(norm, *inputs, options=one)
    is_right(best, inputs)
    assert best.winner == "eager"
    assert "NaN" in best.explain() or "times what is allowed" in best.explain()


@pytest.mark.slow
def test_a_kernel_that_aborts(monkeypatch, one, random, compiler) -> None:
    real = find_compiler().path
    line = "static int ended = (__builtin_abort(), 0);"  # it runs when the library is loaded
    append = f'case "$a" in *.cpp) echo "{line}" >> "$a";; esac'
    compiler(f'for a in "$@"; do {append}; done\nexec {real} "$@"')
    inputs = random((6, 32), (32,))
    best = superopt.optimize(norm, *inputs, options=replace(one, guarded=True))
    is_right(best, inputs)
    assert best.winner == "eager"
    assert "SIGABRT" in best.explain()


@pytest.mark.usefixtures("own_kernels")
def test_a_damaged_cache(cache: Path, one, random, caplog) -> None:
    kept = replace(one, cache=True)
    inputs = random((6, 32), (32,))
    superopt.optimize(norm, *inputs, options=kept)
    (cache / "cache-1.db").write_bytes(b"nonsense" * 1000)
    for library in (cache / "cpp").glob("*.so"):
        library.unlink()  # this process still runs the old one
        library.write_bytes(b"nonsense")
    with caplog.at_level(logging.WARNING, "superopt"):
        is_right(superopt.optimize(norm, *inputs, options=kept), inputs)
    assert "the file is damaged" in caplog.text
    is_right(superopt.optimize(norm, *inputs, options=kept), inputs)


@pytest.mark.usefixtures("own_kernels")
def test_a_full_disk(one, random, monkeypatch, caplog) -> None:
    def full(*_: object, **__: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr("superopt.codegen.cpp.compile.Path.write_text", full)
    inputs = random((6, 32), (32,))
    best = superopt.optimize(norm, *inputs, options=one)
    is_right(best, inputs)
    assert "No space left on device" in best.explain()


@pytest.mark.usefixtures("own_kernels")
def test_a_folder_that_cannot_be_written(one, random, monkeypatch, tmp_path: Path, caplog) -> None:
    blocked = tmp_path / "file"
    blocked.write_text("")
    monkeypatch.setenv("SUPEROPT_CACHE_DIR", str(blocked / "cache"))
    inputs = random((6, 32), (32,))
    with caplog.at_level(logging.WARNING, "superopt"):
        best = superopt.optimize(norm, *inputs, options=replace(one, cache=True))
    is_right(best, inputs)
    assert best.regions[0].chosen is not None  # kernels are made all the same
    assert "kernels of this run are not kept" in caplog.text


@pytest.mark.slow
def test_two_processes_at_once(cache: Path) -> None:
    code = textwrap.dedent(
        """
        import torch, superopt
        from superopt import OptimizeOptions, SearchOptions
        def norm(x, g):
            return x * torch.rsqrt(x.square().mean(-1, keepdim=True) + 1e-6) * g
        options = OptimizeOptions(
            seconds=0.3, graphs=1, torch_compile=False, guarded=False, search=SearchOptions(max_graphs=2)
        )
        x, g = torch.randn(6, 32), torch.randn(32)
        best = superopt.optimize(norm, x, g, options=options)
        torch.testing.assert_close(best(x, g), norm(x, g), rtol=1e-4, atol=1e-4)
        assert best.regions[0].chosen is not None
        """
    )
    started = [
        subprocess.Popen([sys.executable, "-c", code], stderr=subprocess.PIPE, text=True) for _ in range(2)
    ]
    for process in started:
        _, errors = process.communicate(timeout=240)
        assert process.returncode == 0, errors
        assert "Traceback" not in errors
    assert (cache / "cache-1.db").exists()


def test_a_device_that_is_lost_while_racing(one, random, monkeypatch, caplog) -> None:
    def lost(self, *_: object, **__: object) -> None:
        raise DeviceLostError("an illegal memory access")

    monkeypatch.setattr(CpuTarget, "times", lost)
    inputs = random((6, 32), (32,))
    best = superopt.optimize(norm, *inputs, options=one)
    is_right(best, inputs)
    assert best.winner == "eager"
    assert not best.measurements
    assert "the device is lost to this process" in caplog.text


FAULTS = {
    "lost": DeviceLostError("the device is lost to this process: an illegal memory access"),
    "memory": torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB\nmore"),
}


def is_refused(best: superopt.Optimized, inputs: tuple[torch.Tensor, ...], why: str) -> None:
    is_right(best, inputs)
    assert best.winner == "eager"
    assert best.fused is None
    assert best.floats is None
    assert "superopt" not in best.measurements
    assert [plan.chosen for plan in best.regions] == [None]
    assert why in best.explain(), best.explain()


def warnings_in(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [one.getMessage() for one in caplog.records if one.levelno >= logging.WARNING]


def timed(**times_us: float) -> dict[str, Times]:
    return {name: Times([us] * 16) for name, us in times_us.items()}


def stand(monkeypatch: pytest.MonkeyPatch, *last: Callable) -> None:
    """Put something in the place of the last race, and of its confirmation."""
    real, left = CpuTarget.times, iter(last)

    def times(self, contenders, *arguments: object, **named: object):
        answer = next(left, None) if "superopt" in contenders else None
        return answer() if answer else real(self, contenders, *arguments, **named)

    monkeypatch.setattr(CpuTarget, "times", times)


def failing(fault: str) -> Callable:
    def fail() -> None:
        raise FAULTS[fault]

    return fail


@pytest.mark.parametrize("fault", FAULTS)
@pytest.mark.parametrize("in_confirmation", [False, True])
def test_a_fault_in_the_last_race(
    one, random, monkeypatch, caplog, tmp_path: Path, fault: str, in_confirmation: bool
) -> None:
    times = timed(eager=100.0, superopt=10.0)
    if in_confirmation:
        stand(monkeypatch, lambda: times, failing(fault))
    else:
        stand(monkeypatch, failing(fault))
    inputs = random((6, 32), (32,))
    best = superopt.optimize(norm, *inputs, options=one)
    is_refused(best, inputs, str(FAULTS[fault]).splitlines()[0])
    assert set(best.measurements) == ({"eager"} if in_confirmation else set())
    assert best.interrupted is (fault == "lost")
    [line] = warnings_in(caplog)
    assert line.startswith("norm: the original is what comes back: the race against PyTorch failed: ")
    best.save(tmp_path / "best.json")
    is_right(superopt.load(tmp_path / "best.json", norm), inputs)


@pytest.mark.parametrize("fault", FAULTS)
def test_a_fault_in_the_check_in_floats(one, random, monkeypatch, caplog, fault: str) -> None:
    checked: list[object] = []

    def fail(function, candidate, *given: object, **settings: object) -> None:
        checked.append(candidate)
        failing(fault)()

    monkeypatch.setattr("superopt.funnel.check.compare_floats", fail)
    inputs = random((6, 32), (32,))
    best = superopt.optimize(norm, *inputs, options=one)
    is_refused(best, inputs, "it could not be checked in floats")
    lines = warnings_in(caplog)
    assert len(lines) == len(checked)
    if fault == "lost":  # nothing else is checked or raced on it
        assert len(checked) == 1
        assert not best.measurements


def test_who_can_be_checked_is_chosen_after_one_who_cannot(one, random, monkeypatch) -> None:
    checked: list[object] = []

    def once(*arguments: object, **named: object):
        checked.append(arguments)
        return failing("memory")() if len(checked) == 1 else compare_floats(*arguments, **named)

    monkeypatch.setattr("superopt.funnel.check.compare_floats", once)
    inputs = random((6, 32), (32,))
    best = superopt.optimize(norm, *inputs, options=replace(one, graphs=2))
    is_right(best, inputs)
    [plan] = best.regions
    assert plan.chosen is not None
    assert plan.chosen.fate.kind is Kind.CHOSEN
    assert "OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB" in best.explain()


@pytest.mark.parametrize(
    ("ours_us", "confirmed_us", "clears", "refused"),
    [
        (0.5, 0.5, True, True),  # less than the 1 µs that the data takes
        (10.0, 0.5, True, True),
        (10.0, 10.0, True, False),
        (0.5, 0.5, False, False),  # what is in a cache may be faster
    ],
)
def test_a_last_race_that_is_won_in_no_time(
    one, random, monkeypatch, caplog, ours_us: float, confirmed_us: float, clears: bool, refused: bool
) -> None:
    target = replace(CpuTarget(), clears_caches=clears)
    monkeypatch.setattr("superopt.optimizer.pick_target", lambda *_, **__: target)
    monkeypatch.setattr(CpuTarget, "floor_us", lambda self, graph, cold=True, kept=False: 1.0)
    times = timed(eager=100.0, superopt=ours_us)
    stand(monkeypatch, lambda: times, lambda: timed(eager=100.0, superopt=confirmed_us))
    inputs = random((6, 32), (32,))
    best = superopt.optimize(norm, *inputs, options=one)
    if refused:
        is_refused(best, inputs, "0.50 µs, but the program's data takes 1.00 µs")
        assert len(warnings_in(caplog)) == 1
    else:
        assert best.winner == "superopt"
        assert ["no floor is shown" in line for line in warnings_in(caplog)] == [True] * (ours_us < 1.0)


def test_a_last_race_that_noise_leaves_undecided(one, random, monkeypatch, tmp_path: Path) -> None:
    busy = {"eager": Times([100.0, 900.0] * 6), "superopt": Times([880.0, 90.0] * 5 + [90.0, 90.0])}
    stand(monkeypatch, lambda: timed(eager=100.0, superopt=50.0), *[lambda: busy] * 9)
    inputs = random((6, 32), (32,))
    best = superopt.optimize(norm, *inputs, options=one)
    is_right(best, inputs)
    assert best.winner != "superopt"
    assert "which leaves the race undecided: close other programs" in best.explain()
    best.save(tmp_path / "result.json")
    assert read_result(tmp_path / "result.json").unsettled == best.result.unsettled


def test_a_ratio_comes_with_its_interval(one, random, monkeypatch, tmp_path: Path) -> None:
    last = {"eager": Times([98.0, 100.0, 102.0] * 6), "superopt": Times([50.0] * 18)}
    stand(monkeypatch, lambda: last, lambda: last)
    best = superopt.optimize(norm, *random((6, 32), (32,)), options=one)
    assert best.winner == "superopt"
    assert "norm: 2.00 times as fast as eager PyTorch (1.96 to 2.04)" in best.explain()
    best.save(tmp_path / "result.json")
    again = read_result(tmp_path / "result.json")
    assert (again.speedup, again.interval) == (2.0, (1.96, 2.04))


@pytest.mark.parametrize(
    ("function", "counted"),
    [
        (lambda x: (x * 2).exp(), [True]),
        (lambda x: (torch.cumprod(x, -1) * 2).exp(), [False]),  # what cumprod made may be in the cache
        (lambda x: torch.cumprod(x.exp(), -1).log(), [True, False]),
        (lambda x: torch.cumprod(x.exp(), -1) + x, [True, False]),
    ],
)
def test_the_least_time_of_a_program_is_that_of_what_no_cache_holds(one, function, counted) -> None:
    target = replace(CpuTarget(), clears_caches=True)
    inputs = (torch.randn(64, 64),)
    traced = trace(function, *inputs)
    goals = [region.graph for region in traced.program.regions]
    assert len(goals) == len(counted)
    state = State(function, traced, inputs, target, one, Limits(1.0))
    regions = [RegionCandidates(goal, ()) for goal in goals]
    floors = [target.floor_us(goal, kept=True) for goal in goals]
    expected = sum(us for us, counts in zip(floors, counted, strict=True) if counts)
    assert (final._floor_us(state, regions) or 0.0) == pytest.approx(expected)


DURING = ["compiling", "racing", "tuning", "racing against"]


@pytest.mark.parametrize("during", few(DURING, "compiling", "racing"))
def test_ctrl_c_gives_the_best_so_far(one, random, caplog, request, during: str) -> None:
    gc.disable()  # Python drops what is raised while it collects garbage, and Hypothesis then calls code
    request.addfinalizer(gc.enable)
    inputs = random((2048, 256), (256,))  # else the last race could be over before it is interrupted
    told: list[str] = []

    def tell(message: str) -> None:
        told.append(message)
        if message.startswith(during) and not any(earlier.startswith(during) for earlier in told[:-1]):
            threading.Timer(0.02, lambda: os.kill(os.getpid(), signal.SIGINT)).start()

    options = replace(one, seconds=2.0)
    best = superopt.optimize(norm, *inputs, options=options, on_progress=tell)
    is_right(best, inputs)
    assert best.interrupted
    assert "interrupted" in best.explain()
    assert [line for line in caplog.messages if "interrupted" in line] == [
        "interrupted: the best so far is what comes back"
    ]


def test_ctrl_c_while_searching_ends_all(one, random, monkeypatch, caplog) -> None:
    real = superopt.optimizer.search

    def stopped(*arguments: object, **named: object) -> superopt.Search:
        return replace(real(*arguments, **named), interrupted=True)

    monkeypatch.setattr("superopt.optimizer.search", stopped)
    monkeypatch.setattr(CpuTarget, "make", lambda *_: pytest.fail("compiled after the interrupt"))
    inputs = random((6, 32), (32,))
    best = superopt.optimize(norm, *inputs, options=one)
    is_right(best, inputs)
    assert best.interrupted
    assert best.winner == "eager"
    assert "interrupted: nothing was compiled yet" in caplog.text
