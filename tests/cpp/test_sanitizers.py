"""Emitted kernels at odd sizes under the address and undefined-behaviour sanitizers: clean."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from superopt.codegen.cpp import find_compiler
from superopt.workloads import WORKLOADS

FOLDER = Path(__file__).parent
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


def clean(*command: str) -> None:
    """Require that a script ends well with the sanitizers watching."""
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
        "PYTHONPATH": os.pathsep.join((str(FOLDER.parent), os.environ.get("PYTHONPATH", ""))),
    }
    done = subprocess.run(
        [sys.executable, *command],
        env=environment,
        capture_output=True,
        text=True,
        timeout=1200,
        check=False,
    )
    assert done.returncode == 0, f"{done.stderr[:2000]} ... {done.stderr[-1000:]}"
    assert done.stdout.strip().endswith("clean")


@pytest.mark.slow
@pytest.mark.parametrize("name", NAMES)
def test_sanitizers(name: str) -> None:
    clean("-c", SCRIPT, str(FOLDER), name)


@pytest.mark.slow
def test_a_tuned_configuration() -> None:
    clean(str(FOLDER / "sanitized.py"), "softmax", "f32", "1")


@pytest.mark.slow
@pytest.mark.parametrize("dtype", ["f32", "bf16"])
@pytest.mark.parametrize("name", NAMES)
def test_tuned_configurations(name: str, dtype: str) -> None:
    clean(str(FOLDER / "sanitized.py"), name, dtype, "6")


@pytest.mark.slow  # as are the others
def test_a_fault_is_seen() -> None:
    """A read past the end of a tensor's memory, or this test proves nothing of the others."""
    script = f"""
import ctypes, sys
sys.path.insert(0, {str(FOLDER)!r})
import torch
from sanitized import FLAGS
from superopt.codegen.cpp import CppSource, compile_source
from superopt.codegen.cpp.calls import load_kernel
code = 'extern "C" void past(float** p) {{ p[0][16] = p[0][15]; }}'
path = compile_source(CppSource("past", code, ()), flags=FLAGS)
memory = torch.zeros(16)
addresses = torch.tensor([memory.data_ptr()])
load_kernel(path, "past")(addresses.data_ptr())
print("clean")
"""
    with pytest.raises(AssertionError, match="heap-buffer-overflow"):
        clean("-c", script)
