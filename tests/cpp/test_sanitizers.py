"""Emitted kernels at odd sizes under the address and undefined-behaviour sanitizers: clean."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from superopt.codegen.cpp import find_compiler
from superopt.workloads import WORKLOADS

NAMES = tuple(name for name in WORKLOADS if name != "llama-layer")  # its search takes minutes
SCRIPT = """
import sys
sys.path.insert(0, sys.argv[1])
import test_stable, test_workloads
name = sys.argv[2]
flags = test_stable.FAST = ("-O1", "-g", "-fsanitize=address,undefined", "-fno-sanitize-recover=all")
for dtype in ("f32", "bf16", "f16"):
    test_workloads.check(name, dtype, "found", flags)
    if name in test_stable.ONLINE:
        test_stable.check(name, "found", dtype, 0, {})
    if name in test_stable.SPLIT:
        test_stable.check(name, "found", dtype, 4, {})
print("clean")
"""


@pytest.mark.slow
@pytest.mark.parametrize("name", NAMES)
def test_sanitizers(name: str) -> None:
    libraries = [
        subprocess.run(
            [find_compiler().path, f"-print-file-name={library}"], capture_output=True, text=True, check=True
        ).stdout.strip()
        for library in ("libasan.so", "libubsan.so")
    ]
    environment = {
        **os.environ,
        "LD_PRELOAD": ":".join(libraries),
        "ASAN_OPTIONS": "detect_leaks=0:new_delete_type_mismatch=0",
        "OMP_NUM_THREADS": "2",
    }
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT, str(Path(__file__).parent), name],
        env=environment,
        capture_output=True,
        text=True,
        timeout=600,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    assert done.stdout.strip().endswith("clean")
