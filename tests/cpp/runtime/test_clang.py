"""Kernels by clang++ agree as those by g++ do."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

CLANG = shutil.which("clang++")
SCRIPT = """
import sys
sys.path.insert(0, sys.argv[1])
import test_workloads
from superopt.codegen.cpp import find_compiler
assert "clang" in find_compiler().version
test_workloads.check(sys.argv[2], sys.argv[3], "traced", ("-O1",))
"""


@pytest.mark.slow
@pytest.mark.skipif(CLANG is None, reason="no clang++ here")
@pytest.mark.parametrize(
    ("name", "dtype"),
    [("rmsnorm-linear", "f32"), ("softmax", "bf16"), ("gated-mlp", "f16"), ("gqa-decode", "f32")],
)
def test_workloads_by_clang(name: str, dtype: str) -> None:
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT, str(Path(__file__).parent.parent), name, dtype],
        env={**os.environ, "CXX": str(CLANG)},
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-2000:]
