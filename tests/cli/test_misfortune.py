"""Misfortune: compilers that hang, folders of others, programs too large: one line, an exit code, no harm."""

import json
import os
import shutil
import stat
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from superopt.cache import keys, versions
from superopt.codegen.cpp import compile as compiling
from superopt.cost import memory
from superopt.cost.memory import check_memory, needed_bytes
from superopt.errors import InputError
from superopt.ir import Program, Region, parse_graph
from superopt.result.codec import read_result

NORM = """
import torch

def norm(x, g):
    return x * torch.rsqrt(x.square().mean(-1, keepdim=True) + 1e-6) * g
"""
OPTIMIZE = ["optimize", "norm.py:norm", "--inputs", "f32[6,64] f32[64]", "--seconds", "1", "--graphs", "1"]
ATTENTION = """\
graph scores
axes m=100000 n=100000 k=64
in q: f32[m, k]
in k: f32[n, k]
t2 = contract[k](q, k)
t3 = max[n](t2)
out y: f32[m] = t3
"""

needs_compiler = pytest.mark.skipif(shutil.which("g++") is None, reason="no compiler")
Ran = subprocess.CompletedProcess[str]
Cli = Callable[..., Ran]


@pytest.fixture
def cli(tmp_path: Path) -> Cli:
    """Run the command line in a process and a cache of its own."""
    (tmp_path / "norm.py").write_text(NORM)

    def run(*arguments: str, **environment: str) -> Ran:
        return subprocess.run(
            [sys.executable, "-m", "superopt", *arguments],
            cwd=tmp_path,
            env={**os.environ, "SUPEROPT_CACHE_DIR": str(tmp_path / "cache"), **environment},
            capture_output=True,
            text=True,
            timeout=300,
        )

    return run


def script(folder: Path, name: str, body: str) -> str:
    path = folder / name
    path.write_text(f"#!/bin/sh\n{body}\n")
    path.chmod(0o755)
    return str(path)


@needs_compiler
@pytest.mark.slow
def test_a_compiler_that_hangs_costs_no_more_than_its_limit(cli: Cli, tmp_path: Path) -> None:
    hangs = script(
        tmp_path, "hangs", 'if [ "$1" = --version ]; then echo "g++ fake"; exit 0; fi\nexec sleep 999'
    )
    start = time.monotonic()
    ran = cli(*OPTIMIZE, CXX=hangs)
    assert time.monotonic() - start < 90  # 15 s for the compiler, the rest for a busy machine
    assert ran.returncode == 1, ran.stderr
    assert "torch.compile does not race: the C++ compiler hangs" in ran.stderr
    assert "PyTorch's program stays" in ran.stdout
    assert "None of our kernels passed" in ran.stdout
    assert "Traceback" not in ran.stderr


@needs_compiler
@pytest.mark.slow
def test_a_compiler_that_does_not_say_its_version_is_used_by_nobody(cli: Cli, tmp_path: Path) -> None:
    ran = cli(*OPTIMIZE, CXX=script(tmp_path, "hangs", "exec sleep 999"))
    assert ran.returncode in (0, 1), ran.stderr
    assert "which is no compiler here; g++ is used" in ran.stderr
    assert "torch.compile" in ran.stdout  # it raced, by the same compiler as ours


@needs_compiler
@pytest.mark.parametrize("command", ["env g++", "g++ -DSOMETHING=1"])
def test_cxx_with_arguments(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, command: str) -> None:
    monkeypatch.setenv("CXX", command)
    found = compiling.find_compiler()
    assert found.command == (shutil.which(command.split()[0]), *command.split()[1:])
    assert found.version


def test_a_compiler_whose_path_has_a_space(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "my tools").mkdir()
    path = script(tmp_path / "my tools", "c++", "echo my compiler 1")
    monkeypatch.setenv("CXX", path)
    assert compiling.find_compiler().command == (path,)


@pytest.mark.skipif(not hasattr(os, "getuid"), reason="no owners")
def test_code_lies_in_no_folder_that_others_can_write(tmp_path: Path) -> None:
    folder = tmp_path / "cache" / "cpp"
    folder.mkdir(mode=0o700, parents=True)
    (tmp_path / "cache").chmod(0o755)
    assert compiling._open_to_others(folder) is None
    folder.chmod(0o720)
    assert "can be written by others" in str(compiling._open_to_others(folder))
    folder.chmod(0o700)
    (tmp_path / "cache").chmod(0o757)
    assert "can be written by others" in str(compiling._open_to_others(folder))
    (tmp_path / "cache").chmod(0o757 | stat.S_ISVTX)  # as in /tmp: nobody else can rename what is ours
    assert compiling._open_to_others(folder) is None
    folder.rename(tmp_path / "elsewhere")
    folder.symlink_to(tmp_path / "elsewhere")
    assert "is no folder of its own" in str(compiling._open_to_others(folder))


@pytest.mark.skipif(not hasattr(os, "getuid") or os.getuid() != 0, reason="only root gives folders away")
def test_code_lies_in_no_folder_of_another_user(tmp_path: Path, caplog, monkeypatch) -> None:
    folder = tmp_path / "cache" / "cpp"
    folder.mkdir(mode=0o700, parents=True)
    os.chown(folder, 12345, 12345)
    monkeypatch.setenv("SUPEROPT_CACHE_DIR", str(tmp_path / "cache"))
    assert folder not in (compiling._folder(), compiling._folder().parent)
    assert [line for line in caplog.messages if "belongs to another user" in line] == [
        f"{folder} belongs to another user, so others could put code there; kernels of this run are not kept"
    ]


def test_a_program_that_does_not_fit_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    graph = parse_graph(ATTENTION)
    program = Program("scores", graph.inputs, (Region(graph),), ("y",))
    assert needed_bytes(program) == 2 * 2 * 100_000 * 64 * 4 + 100_000**2 * 4
    monkeypatch.setattr(memory, "available_bytes", lambda: 50 * 10**9)
    check_memory(program)
    monkeypatch.setattr(memory, "available_bytes", lambda: 40 * 10**9)
    with pytest.raises(InputError, match=r"at least 40\.1 GB of memory, and 40\.0 GB are free here"):
        check_memory(program)
    monkeypatch.setattr(memory, "available_bytes", lambda: None)  # nobody knows: it is tried
    check_memory(program)


def test_too_large_is_one_line(
    run: Callable[..., Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SUPEROPT_CACHE_DIR", str(tmp_path))
    ran = run("optimize", "softmax", "--size", "M=3000000", "N=3000000", "--dtype", "f32")
    assert ran.complaint().startswith("softmax: it needs at least")


@pytest.mark.parametrize("number", ["1e999", "-1e400", "NaN", "Infinity", "1" + "0" * 400])
def test_numbers_beyond_floats_are_refused(tmp_path: Path, number: str) -> None:
    path = tmp_path / "result.json"
    path.write_text(json.dumps({"superopt": "result", "floor_us": "@"}).replace('"@"', number))
    with pytest.raises(InputError, match="beyond the range of floats"):
        read_result(path)


def test_the_version_of_the_kernels_is_part_of_every_key(monkeypatch: pytest.MonkeyPatch) -> None:
    assert "kernels " in versions()["superopt"]
    assert all("superopt" in parts for parts in keys.PARTS.values())
    found = {keys._kernels()}
    for room in keys._DECIDING:  # what decides kernels, or proves them: none of it can change unseen
        keys._kernels.cache_clear()
        monkeypatch.setattr(keys, "_DECIDING", tuple(one for one in keys._DECIDING if one != room))
        found.add(keys._kernels())
        monkeypatch.undo()
    keys._kernels.cache_clear()
    assert len(found) == 1 + len(keys._DECIDING)
