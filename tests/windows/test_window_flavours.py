"""Convolutions in fewer products by other compilers, for other processors, and under the sanitizers."""

import os
import shutil
import struct
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from superopt.codegen.cpp.launch import CppKernel
from tests.cpp.runtime.test_arm import PROCESSORS, Program
from tests.cpp.test_sanitizers import clean
from tests.windows.filtered import CASES, SCRIPT, case_of, filtered, near

pytestmark = pytest.mark.slow

CLANG = shutil.which("clang++")
FLAGS = ("-O1", "-g", "-fsanitize=address,undefined", "-fno-sanitize-recover=all")


@pytest.mark.parametrize("name", CASES)
def test_sanitizers(name: str) -> None:
    clean("-c", SCRIPT, name, *FLAGS)


@pytest.mark.parametrize("processor", ["haswell", "x86-64-v2"])
@pytest.mark.parametrize("name", CASES)
def test_vectors_of_256_bits_and_none(name: str, processor: str) -> None:
    kernels, given, expected = filtered(name, (f"-march={processor}",))
    assert near(kernels.in_order(given)[0], expected)


@pytest.mark.skipif(CLANG is None, reason="no clang++ here")
@pytest.mark.parametrize("name", CASES)
def test_clang(name: str) -> None:
    command = [sys.executable, "-c", SCRIPT, name, "-O1"]
    done = subprocess.run(
        command,
        env={**os.environ, "CXX": str(CLANG)},
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.stdout.strip().endswith("clean"), done.stderr[-2000:]


@pytest.mark.parametrize("processor", PROCESSORS)
@pytest.mark.parametrize("name", CASES)
def test_arm(name: str, processor: str, tmp_path: Path) -> None:
    kernels, given, expected = filtered(name, ("-O1",))
    [kernel] = kernels._kernels
    assert isinstance(kernel, CppKernel)
    read = [given[at] for at in kernel.reads]
    dense = [one if one.is_contiguous() else one.permute(0, 2, 3, 1).contiguous() for one in read]
    made = torch.zeros(expected.shape, dtype=case_of(name).inputs[0].dtype)
    fields = kernel.fields([one.stride() for one in read], [made.stride()], kernels.graph.sizes, 1)
    numbers = struct.unpack(f"<{len(fields) // 8}q", fields)
    program = Program(kernel.program.name, kernel.source.code, processor)
    assert near(program.run(tmp_path, numbers, dense, made), expected)
