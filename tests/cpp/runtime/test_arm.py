"""Kernels and the runtime compiled for ARM servers and run under an emulator, where both are at hand.

A cross compiler is `aarch64-linux-gnu-g++`, or zig, which pip installs as `ziglang`; the emulator is QEMU's.
"""

import re
import shutil
import struct
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from importlib.util import find_spec
from pathlib import Path

import pytest
import torch
from torch import Tensor

from superopt.codegen.cpp import CppMuGraph
from superopt.codegen.cpp.compile import FLAGS, runtime_text
from superopt.codegen.cpp.config import FEW
from superopt.codegen.cpp.launch import CppKernel
from superopt.driver import search
from superopt.ir import fuse
from superopt.workloads import WORKLOADS

from .contractions import Case, cases, laid
from .test_vector_math import FLOAT64, ULP, every_float

pytestmark = pytest.mark.slow

PLAIN, PAIRS = PROCESSORS = ("NEON", "NEON, products of bf16")
NAMED = {  # what GCC, zig and QEMU call them
    PLAIN: ("-march=armv8-a", "-mcpu=generic", "cortex-a72"),
    PAIRS: ("-march=armv8.6-a+bf16", "-mcpu=generic+bf16", "max"),
}
GOLDEN = Path(__file__).parent.with_name("golden")
SIZES = {
    "rmsnorm-linear": {"M": 8, "K": 96, "N": 70},
    "gated-mlp": {"M": 20, "K": 96, "N": 70},
    "gqa-decode": {"B": 1, "H": 8, "G": 2, "S": 1, "T": 70, "D": 32},
}
SHAPES = [(1, 47, 60), (5, 100, 257), (17, 97, 60), (70, 97, 600), (72, 97, 600), (300, 4096, 7)]
TARGET = ("-target", "aarch64-linux-musl")


@cache
def tools() -> tuple[list[str], str]:
    """Return the command of a cross compiler and that of an emulator, or skip the test."""
    named = shutil.which("aarch64-linux-gnu-g++")
    zig = [shutil.which("zig")] if shutil.which("zig") else None
    if zig is None and find_spec("ziglang"):
        zig = [sys.executable, "-m", "ziglang"]
    compiler = [named] if named else [*zig, "c++", *TARGET] if zig else None
    emulator = shutil.which("qemu-aarch64") or shutil.which("qemu-aarch64-static")
    if compiler is None:
        pytest.skip("no compiler for aarch64: neither aarch64-linux-gnu-g++ nor zig")
    if emulator is None:
        pytest.skip("no emulator of aarch64: qemu-aarch64 is absent")
    return compiler, emulator


@dataclass(frozen=True)
class Program:
    """A kernel with what calls it, for one processor."""

    name: str
    code: str
    processor: str

    def run(self, folder: Path, fields: Sequence[int], read: Sequence[Tensor], made: Tensor) -> Tensor:
        """Return what the kernel makes of some tensors, and of what is where its result goes."""
        compiler, emulator = tools()
        (folder / "runtime.hpp").write_text(runtime_text())
        (folder / "kernel.cpp").write_text(self.code)
        program, data = folder / "program", folder / "data"
        if not program.exists():
            flags = [one for one in FLAGS if one not in ("-march=native", "-fopenmp", "-fPIC", "-O3")]
            flags += [
                "-O1",
                "-fno-exceptions",
                NAMED[self.processor]["c++" in compiler],
                f"-DKERNEL={self.name}",
            ]
            built = []
            for text in (folder / "kernel.cpp", Path(__file__).with_name("arm.cpp")):
                built.append(str(folder / f"{text.stem}.o"))
                run([*compiler, *flags, "-c", str(text), "-o", built[-1]])
            linked = ["-nostdlib++"] if "c++" in compiler else []
            run([*compiler, "-O1", "-static", *linked, *built, "-o", str(program)])
        tensors = [as_bytes(one) for one in (*read, made)]
        numbers = [len(read), 1, len(fields), *map(len, tensors), *fields]
        data.write_bytes(struct.pack(f"<{len(numbers)}q", *numbers) + b"".join(tensors))
        run([emulator, "-cpu", NAMED[self.processor][2], str(program), str(data)])
        last = bytearray(data.read_bytes()[-len(tensors[-1]) :])
        return torch.frombuffer(last, dtype=made.dtype).view(made.shape)


def run(command: Sequence[str]) -> None:
    """Run a command, which must end well; zig builds a library of C before it links for the first time."""
    subprocess.run(command, check=True, timeout=1200)


def as_bytes(tensor: Tensor) -> bytes:
    """Return a dense tensor as it lies in memory."""
    flat = tensor if tensor.is_contiguous() else tensor.mT
    return bytes(flat.contiguous().view(torch.uint8).flatten().tolist())


@pytest.mark.parametrize("processor", PROCESSORS)
@pytest.mark.parametrize("name", SIZES)
def test_golden_kernels(name: str, processor: str, tmp_path: Path) -> None:
    workload = WORKLOADS[name]
    searched = search(workload.function, *workload.inputs(dtype="bf16", **SIZES[name]), name=name)
    mugraph = fuse(searched.regions[0].found[0].graph)
    torch.manual_seed(0)
    inputs = workload.inputs(dtype="bf16", device="cpu", **SIZES[name])
    [kernel] = CppMuGraph(mugraph, flags=("-O1",))._kernels
    assert isinstance(kernel, CppKernel)
    expected = workload.function(*(one.double() for one in inputs))
    strides = [list(one.stride()) for one in inputs]
    fields = kernel.fields(strides, [list(expected.stride())], mugraph.graph.sizes, 1)
    numbers = struct.unpack(f"<{len(fields) // 8}q", fields)
    program = Program(kernel.program.name, kernel.source.code, processor)
    made = program.run(tmp_path, numbers, inputs, torch.zeros(expected.shape, dtype=torch.bfloat16))
    torch.testing.assert_close(made.double(), expected, rtol=0.02, atol=0.02 * float(expected.abs().max()))


def assembly(name: str, processor: str, folder: Path) -> str:
    """Return the assembly of a golden kernel, with all that it calls."""
    compiler, _ = tools()
    (folder / "runtime.hpp").write_text(runtime_text())
    flags = [one for one in FLAGS if one not in ("-march=native", "-fopenmp")]
    flags += ["-fno-exceptions", NAMED[processor]["c++" in compiler], f"-I{folder}"]
    made = folder / "kernel.s"
    run([*compiler, *flags, "-S", str(GOLDEN / f"{name}.cpp"), "-o", str(made)])
    return made.read_text()


@pytest.mark.parametrize("name", SIZES)
def test_golden_kernels_multiply_pairs_in_registers(name: str, tmp_path: Path) -> None:
    loops = re.findall(
        r"^(\.L\w+):.*\n((?:(?!\.L).*\n)*?)\tb\S*\s+(?:\w+, )*\1$", assembly(name, PAIRS, tmp_path), re.M
    )
    many = SIZES[name].get("M", 1) > FEW  # a tile of so many rows meets columns in squares
    for instruction, most in (("bfdot", 20), *([("bfmmla", 16)] if many else [])):
        found = {body.count(instruction): body for _, body in loops if instruction in body}
        assert max(found) == most
        for body in found.values():
            assert not re.search(r"\b[qv]\d+.*\[sp", body)
        assert 2 * found[most].count("\tld") <= most  # operands are used again and again


@pytest.mark.parametrize("name", SIZES)
def test_golden_kernels_need_no_instructions_for_bf16(name: str, tmp_path: Path) -> None:
    assert not re.search(r"\bbf(dot|mmla|cvt)", assembly(name, PLAIN, tmp_path))


FORMATS = {"bf16": torch.bfloat16, "f16": torch.float16}
EIGHT_BITS = {"f8e4m3": torch.float8_e4m3fn, "f8e5m2": torch.float8_e5m2}


@pytest.mark.parametrize("processor", PROCESSORS)
def test_functions_and_formats(processor: str, tmp_path: Path) -> None:
    x = every_float(1 << 20)
    x = x[-(len(x) // 256 * 256) :]
    rows = [f"store(to, 1, some, {name}(value));" for name in ULP]
    rows += [f"{{ {one} out[lanes]; store(out, value); store(to, 1, some, load(out)); }}" for one in FORMATS]
    count = "for (int lane = 0; lane < lanes; ++lane) in[lane].bits = i + lane;"
    rows += [f"{{ {one} in[lanes]; {count} store(to, 1, some, load(in)); }}" for one in EIGHT_BITS]
    body = " to += x->n[0];\n        ".join(rows)
    code = f"""#include "runtime.hpp"
using namespace superopt;
struct Call {{ const float* from; float* to; index_t n[1]; }};
extern "C" void functions(const Call* x) {{
    for (index_t i = 0; i < x->n[0]; i += lanes) {{
        const index_t some = least(lanes, x->n[0] - i);
        const Vec value = load(x->from + i, 1, some);
        float* to = x->to + i;
        {body}
    }}
}}
"""
    made = Program("functions", code, processor).run(tmp_path, [len(x)], (x,), torch.zeros(len(rows), len(x)))
    for name, found in zip(ULP, made, strict=False):
        near = x.abs() < 1e5 if name in ("sin", "cos") else slice(None)
        wanted = FLOAT64[name](x[near].double()).float()
        torch.testing.assert_close(
            found[near], wanted, rtol=ULP[name] * 2.0**-23, atol=2.0**-125, equal_nan=True
        )
    for found, dtype in zip(made[len(ULP) :], FORMATS.values(), strict=False):
        torch.testing.assert_close(found, x.to(dtype).float(), rtol=0, atol=0, equal_nan=True)
    numbers = torch.arange(len(x)).to(torch.uint8)
    for found, dtype in zip(made[-len(EIGHT_BITS) :], EIGHT_BITS.values(), strict=True):
        torch.testing.assert_close(found, numbers.view(dtype).float(), rtol=0, atol=0, equal_nan=True)


@pytest.mark.parametrize("processor", PROCESSORS)
@pytest.mark.parametrize("call", ["contract", "contract_pairs"])
def test_contractions(call: str, processor: str, tmp_path: Path) -> None:
    found = [case for case in cases(SHAPES, pairs=call == "contract_pairs") if not case.packed]
    for number, case in enumerate(found):
        folder = tmp_path / "-".join(case.formats)
        folder.mkdir(exist_ok=True)
        assert error(case, call, processor, folder) < 2 * case.shape[2] ** 0.5 + 8, (number, case)


def error(case: Case, call: str, processor: str, folder: Path) -> float:
    """Return the largest error of a contraction in units of rounding."""
    (m, n, k), (first, second) = case.shape, case.formats
    code = f"""#include "runtime.hpp"
using namespace superopt;
struct Call {{ const {first}* a; const {second}* b; float* c; index_t n[8]; }};
extern "C" void product(const Call* x) {{
    {call}(x->n[0], x->n[1], x->n[2], Matrix<{first}>{{x->a, x->n[3], x->n[4]}},
           Matrix<{second}>{{x->b, x->n[5], x->n[6]}}, x->c, x->n[7]);
}}
"""
    dtypes = {"float": torch.float32, "bf16": torch.bfloat16, "f16": torch.float16}
    torch.manual_seed(m * 1009 + n * 31 + k)
    a = laid(torch.randn(m, k).to(dtypes[first]), case.a_turned)
    b = laid(torch.randn(k, n).to(dtypes[second]), case.b_turned)
    fields = [m, n, k, *a.stride(), *b.stride(), n]
    made = Program("product", code, processor).run(folder, fields, (a, b), torch.zeros(m, n))
    if call == "contract_pairs" and "bf16" in processor:
        a, b = a.bfloat16(), b.bfloat16()
    most = a.double().abs() @ b.double().abs()
    return float(((made - a.double() @ b.double()).abs() / most).max()) * 2**24
