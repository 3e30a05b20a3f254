"""Faults of the environment: each ends with a correct result and one clear line."""

import errno
import logging
import os
import signal
import subprocess
import sys
import textwrap
import threading
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest
import torch

import superopt
from superopt import OptimizeOptions
from superopt.codegen.cpp import find_compiler
from superopt.codegen.cpp.launch import CppMuGraph
from superopt.targets.cpu import CpuTarget
from superopt.tune.errors import DeviceLostError


def norm(x: torch.Tensor, g: torch.Tensor) -> torch.Tensor:
    return x * torch.rsqrt(x.square().mean(-1, keepdim=True) + 1e-6) * g


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    folder = tmp_path / "cache"
    monkeypatch.setenv("SUPEROPT_CACHE_DIR", str(folder))
    return folder


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
        find_compiler.cache_clear()

    yield put
    find_compiler.cache_clear()


def is_right(best: superopt.Optimized, inputs: tuple[torch.Tensor, ...]) -> None:
    torch.testing.assert_close(best(*inputs), norm(*inputs), rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize(
    ("body", "line"),
    [
        ("echo 'kernel.cpp:1: error: no such thing' >&2; exit 1", "no such thing"),
        ("kill -SEGV $$", ""),
        ("sleep 600", "the compiler took more than 3 s"),
    ],
)
def test_a_compiler_that_fails_crashes_or_hangs(compiler, one, random, body: str, line: str) -> None:
    compiler(body)
    inputs = random((6, 32), (32,))
    best = superopt.optimize(norm, *inputs, options=replace(one, guarded=True, limit_seconds=3.0))
    is_right(best, inputs)
    assert best.winner == "eager"
    assert best.fused is None
    assert line in best.explain(), best.explain()
    assert all(candidate.rejected for candidate in best.regions[0].candidates)


def test_no_compiler_at_all(monkeypatch, one, random) -> None:
    find_compiler.cache_clear()
    monkeypatch.setattr("shutil.which", lambda name: None)
    inputs = random((6, 32), (32,))
    best = superopt.optimize(norm, *inputs, options=one)
    find_compiler.cache_clear()
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


def test_a_damaged_cache(cache: Path, one, random, caplog) -> None:
    kept = replace(one, cache=True)
    inputs = random((6, 32), (32,))
    superopt.optimize(norm, *inputs, options=kept)
    (cache / "cache.db").write_bytes(b"nonsense" * 1000)
    for library in (cache / "cpp").glob("*.so"):
        library.unlink()  # this process still runs the old one
        library.write_bytes(b"nonsense")
    with caplog.at_level(logging.WARNING, "superopt"):
        is_right(superopt.optimize(norm, *inputs, options=kept), inputs)
    assert "the file is damaged" in caplog.text
    is_right(superopt.optimize(norm, *inputs, options=kept), inputs)


def test_a_full_disk(one, random, monkeypatch, caplog) -> None:
    def full(*_: object, **__: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr("superopt.codegen.cpp.compile.shutil.copy", full)
    inputs = random((6, 32), (32,))
    best = superopt.optimize(norm, *inputs, options=one)
    is_right(best, inputs)
    assert "No space left on device" in best.explain()


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
    assert (cache / "cache.db").exists()


def test_a_device_that_is_lost_while_racing(one, random, monkeypatch, caplog) -> None:
    def lost(self, *_: object, **__: object) -> None:
        raise DeviceLostError("an illegal memory access")

    monkeypatch.setattr(CpuTarget, "measure", lost)
    inputs = random((6, 32), (32,))
    best = superopt.optimize(norm, *inputs, options=one)
    is_right(best, inputs)
    assert best.winner == "eager"
    assert not best.measurements
    assert "the device is lost to this process" in caplog.text


@pytest.mark.parametrize("during", ["compiling", "racing", "tuning", "racing against"])
def test_ctrl_c_gives_the_best_so_far(one, random, caplog, during: str) -> None:
    inputs = random((6, 32), (32,))
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
