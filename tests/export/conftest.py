import contextlib
import io
import os
import runpy
import shutil
import subprocess
import sys
from dataclasses import replace
from functools import cache
from importlib.util import find_spec
from pathlib import Path

import pytest
import torch

from superopt.candidates import Candidate, RegionCandidates
from superopt.codegen.cpp import compile as cpp_compile
from superopt.driver import search
from superopt.export import cpp_module
from superopt.fate import Kind
from superopt.ir import Program, fuse, is_matmul, parse_mugraph, stabilize
from superopt.live.ranges import open_axes
from superopt.result import Result
from superopt.targets import pick_target
from superopt.trace import trace
from superopt.workloads import WORKLOADS

_HAS_COMPILERS = find_spec("triton") and (shutil.which("g++") or shutil.which("clang++"))
collect_ignore_glob = [] if _HAS_COMPILERS else ["*"]

# Runs an exported module as a person would, where superopt cannot be imported.
RUN = (
    "import runpy, sys\n"
    "sys.modules['superopt'] = None\n"
    "scope = runpy.run_path(sys.argv[1])\n"
    "for sizes in eval(sys.argv[2]):\n"
    "    assert scope['check'](**sizes) < 1\n"
)


def result_of(target, regions):
    """A result of (goal, graph found, candidates by name) triples; the first candidate of each is chosen.

    Every axis may change, as if it had been tried.
    """
    known, ranges = [], {}
    for goal, graph, mugraphs in regions:
        ranges |= dict.fromkeys(goal.sizes, (0, 1 << 20))
        first, *others = [Candidate(name, graph, one) for name, one in mugraphs.items()]
        known.append(RegionCandidates(goal, (first.ended("choose", Kind.CHOSEN), *others)))
    program = Program("tested", (), (), ())
    return Result(program, pick_target(target), (), tuple(known), seed=0, winner="superopt", open_axes=ranges)


@pytest.fixture(scope="session", autouse=True)
def _quick_modules(quick_flags):
    """Write modules that compile their kernels as quickly as other kernels are compiled here."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(cpp_module, "FLAGS", cpp_compile.FLAGS)
        yield


@pytest.fixture(scope="session")
def searched():
    """Make a result of a workload: its best graph, fused, and with matmuls as library calls."""

    @cache
    def make(name, target, dtype, **sizes):
        workload = WORKLOADS[name]
        program = trace(workload.function, *workload.inputs(dtype=dtype, **sizes), name=name).program
        regions = []
        for one in search(program, name=name).regions:
            found = one.found[0].graph
            graph = stabilize(found)
            fused = {"fused": fuse(graph), "library": fuse(graph, library=is_matmul)}
            regions.append((one.goal, found, fused))
        return result_of(target, regions)

    return make


@pytest.fixture
def traced():
    """Make a result of a function, with the ranges of its axes as a saved result has them."""

    def make(function, *shapes, target="cpu"):
        inputs = tuple(torch.empty(shape, device="meta") for shape in shapes)
        found = trace(function, *inputs, name="tested")
        [region] = found.program.regions
        graph = region.graph
        result = result_of(target, [(graph, graph, {"fused": fuse(stabilize(graph))})])
        return replace(result, program=found.program, open_axes=open_axes(function, found, inputs))

    return make


@pytest.fixture
def written():
    """Make a result of one muGraph in text form, which is its own goal."""

    def make(text, target):
        mugraph = parse_mugraph(text)
        return result_of(target, [(mugraph.graph, mugraph.graph, {"written": mugraph})])

    return make


@pytest.fixture
def runs(tmp_path):
    """Run the check of an exported module on inputs of several sizes; return what it printed."""

    def run(text, *sizes):
        path = Path(tmp_path, "exported.py")
        path.write_text(text)
        run_in = _process_of_its_own if "import triton" in text else _this_process
        return run_in(path, sizes or ({},))

    return run


def _process_of_its_own(path, sizes):
    """Run a check in Triton's interpreter, which has to be asked for before triton is imported."""
    done = subprocess.run(
        [sys.executable, "-I", "-c", RUN, str(path), repr(sizes)],
        capture_output=True,
        text=True,
        env={**os.environ, "TRITON_INTERPRET": "1", "OMP_NUM_THREADS": "1"},
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def _this_process(path, sizes):
    """Run a check where torch is imported already, which takes as long as to compile a kernel."""
    with pytest.MonkeyPatch.context() as patch, contextlib.redirect_stdout(io.StringIO()) as printed:
        patch.setitem(sys.modules, "superopt", None)
        scope = runpy.run_path(str(path))
        for one in sizes:
            assert scope["check"](**one) < 1, printed.getvalue()
    return printed.getvalue()
