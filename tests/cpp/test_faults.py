"""Compilers that misbehave and files that are damaged: one clear line, and the next try is sound."""

import logging
import os
import time
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from superopt.codegen.cpp import CppMuGraph, CppSource, compile_source, find_compiler
from superopt.codegen.cpp import compile as compiling
from superopt.codegen.cpp.calls import load_kernel
from superopt.codegen.errors import CompileError
from superopt.ir import fuse, parse_graph

NOTHING = CppSource("nothing", 'extern "C" void nothing(void*) {}\n', ())
PRODUCT = """
graph product
axes m=4 k=3 n=5
in x: f32[m, k]
in w: f32[k, n]
t2 = contract[k](x, w)
out y: f32[m, n] = t2
"""


@pytest.fixture
def compiler(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str], Path]:
    """Puts a script in the compiler's place, and nothing else."""
    find_compiler()  # the version of the real one is known from here on
    folder = tmp_path / "bin"
    folder.mkdir()

    def put(body: str) -> Path:
        script = folder / f"fake-{len(list(folder.iterdir()))}"
        script.write_text(f"#!/bin/sh\n{body}\n")
        script.chmod(0o755)
        monkeypatch.setenv("CXX", str(script))
        return script

    return put


@pytest.mark.parametrize(
    "body",
    [
        "exit 1",
        "kill -SEGV $$",
        "sleep 600",
        "sleep 600 & wait",  # its child keeps the pipe open
    ],
)
def test_what_does_not_say_its_version_is_no_compiler(compiler, monkeypatch, caplog, body: str) -> None:
    monkeypatch.setattr(compiling, "_ANSWER_S", 0.3)
    script = compiler(body)
    start = time.monotonic()
    with caplog.at_level(logging.WARNING, "superopt"):
        found = find_compiler()
    assert time.monotonic() - start < 60  # not the 600 s that it sleeps
    assert found.path != str(script)
    assert f"CXX is '{script}', which is no compiler here" in caplog.text


@pytest.mark.parametrize("body", ["printf '\\377\\376\\0'", "exit 0"])
def test_a_version_that_is_garbage(compiler, body: str) -> None:
    script = compiler(body)
    assert find_compiler().path == str(script)
    with pytest.raises(CompileError, match=r"the compiler made no \.so file, and says it did"):
        compile_source(NOTHING, cache=script.parent / "cache")


@pytest.mark.parametrize(
    ("body", "message"),
    [
        ("kill -SEGV $$", r"says nothing \(ended by SIGSEGV\)"),
        ("exit 3", r"says nothing \(exit code 3\)"),
        ("head -c 100000 /dev/urandom >&2; exit 1", "nothing"),
        (
            'for a; do [ "$o" ] && echo junk > "$a"; o=; [ "$a" = -o ] && o=1; done; exit 0',
            "made no .so file",
        ),
        ("rm -f $0; exit 0", "cannot run"),
    ],
)
def test_a_compiler_that_fails(compiler, tmp_path: Path, body: str, message: str) -> None:
    script = compiler(f'[ "$1" = --version ] && exec echo fake {os.getpid()}\n{body}')
    cache = tmp_path / "cache"
    with pytest.raises(CompileError, match=message):
        compile_source(NOTHING, cache=cache)
    assert list(cache.iterdir()) == []
    assert script.parent.exists()


def test_a_short_limit_is_no_fault_of_the_compiler(compiler, tmp_path: Path) -> None:
    real = find_compiler().path
    compiler(f'exec {real} "$@"')
    with pytest.raises(CompileError, match="took more than"):
        compile_source(NOTHING, cache=tmp_path / "cache", timeout_s=0.001)
    assert compile_source(NOTHING, cache=tmp_path / "cache").exists()


def test_a_compiler_that_hangs_is_not_tried_again(compiler, monkeypatch, tmp_path: Path) -> None:
    monkeypatch.setattr(compiling, "_ANSWER_S", 0.3)
    compiler(f'[ "$1" = --version ] && exec echo fake {os.getpid()}\nexec sleep 600')
    for message in ("took more than", "is not tried again"):
        with pytest.raises(CompileError, match=message):
            compile_source(NOTHING, cache=tmp_path / "cache", timeout_s=0.01)


@pytest.mark.parametrize(
    "damage",
    [b"", *(pytest.param(one, marks=pytest.mark.slow) for one in (b"nonsense", None))],
    ids=["empty", "nonsense", "cut off"],
)
def test_damaged_files_are_made_anew(tmp_path: Path, monkeypatch, damage: bytes | None) -> None:
    monkeypatch.setenv("SUPEROPT_CACHE_DIR", str(tmp_path))
    x, w = torch.randn(4, 3), torch.randn(3, 5)

    def works() -> None:
        got = CppMuGraph(fuse(parse_graph(PRODUCT)), flags=("-O0",))(x=x, w=w)["y"]
        torch.testing.assert_close(got, x @ w)

    works()
    kept = sorted((tmp_path / "cpp").iterdir())
    assert {path.suffix for path in kept} == {".so", ".o"}
    for path in kept:
        content = path.read_bytes()
        path.unlink()  # this process still runs the old one
        path.write_bytes(content[: len(content) // 2] if damage is None else damage)
    works()
    assert sorted((tmp_path / "cpp").iterdir()) == kept


def test_a_library_without_the_kernel(tmp_path: Path) -> None:
    path = compile_source(NOTHING, cache=tmp_path)
    with pytest.raises(CompileError, match="other: the compiled kernel has no such function"):
        load_kernel(path, "other")
    assert not path.exists()


def test_a_folder_where_no_program_may_run(tmp_path: Path, monkeypatch, caplog) -> None:
    monkeypatch.setenv("SUPEROPT_CACHE_DIR", str(tmp_path))
    compiling._scratch.cache_clear()

    class Mounted:
        f_flag = os.ST_NOEXEC

    monkeypatch.setattr(os, "statvfs", lambda path: Mounted)
    with caplog.at_level(logging.WARNING, "superopt"):
        path = compile_source(NOTHING)
    assert tmp_path not in path.parents
    assert "no program there may run; kernels of this run are not kept" in caplog.text
    load_kernel(path, "nothing")
