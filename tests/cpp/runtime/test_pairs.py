"""The runtime's contraction in bf16 agrees with float64 on rounded operands, by any instructions."""

import ctypes
import platform
import re
import subprocess
from dataclasses import replace
from functools import cache
from pathlib import Path

import pytest
import torch

from superopt.codegen.cpp import CppMuGraph, find_compiler
from superopt.codegen.cpp import compile as cpp_compile
from superopt.codegen.cpp.compile import RUNTIME, runtime_text
from superopt.ir import fuse, parse_graph

from .contractions import PAIRS, SHAPES, Case, cases, error, laid, library, rounds, run

EMULATED = "-DPAIRS_EMULATED"
TILES = "-DTILES_EMULATED"
FLAGS = {
    "native": (),
    "no instructions": ("-mno-avx512bf16",),
    "emulated": ("-O1", EMULATED),  # which takes half the time to compile
    "emulated, with tiles": ("-O1", EMULATED, TILES),
    "emulated, 256 bits": ("-O1", "-mno-avx512f", EMULATED),
    "emulated, with squares": ("-O1", "-mno-avx", EMULATED, "-DSQUARES_EMULATED"),
}


@cache
def loaded(vectors: str) -> ctypes.CDLL:
    return library(FLAGS[vectors], formats=())


# To compile a runtime takes long.
SLOW = ("no instructions", "emulated", "emulated, 256 bits", "emulated, with squares")
ALL = [pytest.param(one, marks=pytest.mark.slow) if one in SLOW else one for one in FLAGS]


@pytest.mark.parametrize("vectors", ALL)
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_contraction(shape: tuple[int, int, int], vectors: str) -> None:
    for case in cases([shape], pairs=True):
        assert error(loaded(vectors), case) < 2 * shape[2] ** 0.5 + 8, case


FAR_APART = [
    Case((rows, 4096, summed), (first, "bf16"), a_turned, b_turned=False, packed=False, pairs=True)
    for rows, summed in ((257, 47), (260, 1100), (256, 30))
    for first, a_turned in (("bf16", False), ("bf16", True), ("float", False))
]


@pytest.mark.parametrize("vectors", ["native", pytest.param("emulated, 256 bits", marks=pytest.mark.slow)])
@pytest.mark.parametrize("case", FAR_APART, ids=str)
def test_columns_whose_rows_compete_for_the_cache(case: Case, vectors: str) -> None:
    assert error(loaded(vectors), case) < 2 * case.shape[2] ** 0.5 + 8


@pytest.mark.slow
def test_operands_are_rounded_where_there_are_instructions_only() -> None:
    assert rounds(loaded("emulated"))
    assert not rounds(loaded("no instructions"))


LINEAR = """
graph linear
axes m=5 n=40 k=33
in x: bf16[m, k]
in w: bf16[n, k]
t2 = contract[k](x, w)
out y: bf16[m, n] = t2
"""


@pytest.mark.parametrize(
    "flags",
    [(), *(pytest.param((one,), marks=pytest.mark.slow) for one in ("-mno-avx512bf16", "-mno-avx"))],
    ids=str,
)
def test_a_kernel_of_two_tensors_in_bf16_with_and_without_instructions(flags: tuple[str, ...]) -> None:
    torch.manual_seed(0)
    x, w = torch.randn(5, 33).bfloat16(), torch.randn(40, 33).bfloat16()
    made = CppMuGraph(fuse(parse_graph(LINEAR)), flags=("-O1", *flags))(x=x, w=w)["y"]
    torch.testing.assert_close(made, x @ w.T)


DTYPES = {"float": torch.float32, "bf16": torch.bfloat16}
LAYOUTS = [
    Case((rows, 70, 321), formats, a_turned, b_turned, packed=False, pairs=True)
    for rows in (3, 40)
    for formats in (("float", "bf16"), ("bf16", "bf16"))
    for a_turned in (False, True)
    for b_turned in (False, True)
]
LAYOUTS.append(FAR_APART[0])


@pytest.mark.parametrize("case", LAYOUTS, ids=str)
@pytest.mark.parametrize("scale", [1e4, 1e-4])
def test_rows_of_any_size_are_as_accurate_as_those_of_pytorch(case: Case, scale: float) -> None:
    m, n, k = case.shape
    torch.manual_seed(0)
    a, b = torch.randn(m, k).bfloat16(), torch.randn(k, n).bfloat16()
    a[::2] *= scale
    made = product(case, a, b)
    exact = a.double() @ b.double()
    sizes = exact.abs().amax(1, keepdim=True)
    ours, theirs = (((one.double() - exact).abs() / sizes).max() for one in (made.bfloat16(), a @ b))
    assert ours <= 2 * theirs


@pytest.mark.parametrize("vectors", ["native", "emulated, with squares"])
@pytest.mark.parametrize("case", LAYOUTS, ids=str)
def test_what_is_not_finite_reaches_its_row_or_column_only(case: Case, vectors: str) -> None:
    m, n, k = case.shape
    a, b = torch.ones(m, k).bfloat16(), torch.ones(k, n).bfloat16()
    a[1, k - 1] = float("inf")
    a[2, 5] = float("nan")
    b[k - 1, 7] = float("-inf")
    b[3, n - 1] = float("nan")
    # What a longer sum leaves in scratch memory does not count.
    end = (k + 31) // 32 * 32
    product(
        replace(case, shape=(m, n, end)),
        *(a.new_full(one, float("nan")) for one in ((m, end), (end, n))),
        vectors,
    )
    made, expected = product(case, a, b, vectors), a.float() @ b.float()
    torch.testing.assert_close(made, expected, equal_nan=True)
    assert made.isfinite().sum() == (m - 2) * (n - 2)


@pytest.mark.parametrize("case", LAYOUTS, ids=str)
def test_subnormal_numbers_count_as_themselves_or_as_zero(case: Case) -> None:
    m, n, k = case.shape
    tiny, least = 2.0**-130, 2.0**-126
    a, b = torch.ones(m, k).bfloat16(), torch.ones(k, n).bfloat16()
    a[0], a[1] = tiny, 2.0**-100
    b[:, 0], b[:, 1] = tiny, 2.0**-26
    made, exact = product(case, a, b).double(), a.double() @ b.double()
    # A subnormal operand or product may count as nothing: each of k products is off by that much at most.
    off = k * tiny * torch.maximum(a.double()[:, :1], b.double()[:1]).clamp_min(1) + k * least
    assert ((made - exact).abs() <= off + 1e-5 * exact.abs()).all()
    assert torch.equal(made[2:, 2:], exact[2:, 2:])


@pytest.mark.parametrize("vectors", ["native", "emulated, with squares"])
@pytest.mark.parametrize("case", LAYOUTS[:-1], ids=str)
def test_what_lies_behind_an_operand_does_not_count(case: Case, vectors: str) -> None:
    """Before: a vector of a negative number of lanes was read whole, and zero times its NaN is NaN."""
    m, n, _ = case.shape
    for k in (1, 2, 31, 33, 65, 321, 322, 353):
        sides = ((m, k), case.formats[0], case.a_turned), ((k, n), case.formats[1], case.b_turned)
        a, b = (_before_nan(shape, kind, turned) for shape, kind, turned in sides)
        made = torch.zeros(m, n)
        run(loaded(vectors), replace(case, shape=(m, n, k)), a, b, made)
        assert torch.equal(made, torch.full((m, n), float(k))), k


def _before_nan(shape: tuple[int, int], kind: str, turned: bool) -> torch.Tensor:
    """Return ones as they are laid in memory, and NaN behind them."""
    count = shape[0] * shape[1]
    memory = torch.full((count + 64,), float("nan")).to(DTYPES[kind])
    memory[:count] = 1
    ones = memory[:count]
    return ones.view(shape[::-1]).T if turned else ones.view(shape)


def product(case: Case, a: torch.Tensor, b: torch.Tensor, vectors: str = "native") -> torch.Tensor:
    m, n, _ = case.shape
    made = torch.zeros(m, n)
    first, second = (one.to(DTYPES[kind]) for one, kind in zip((a, b), case.formats, strict=True))
    run(loaded(vectors), case, laid(first, case.a_turned), laid(second, case.b_turned), made)
    return made


def assembly(processor: str, folder: Path) -> str:
    """Return the assembly of all contractions in bf16, or skip where the compiler knows no such processor."""
    text, made = folder / "products.cpp", folder / "products.s"
    (folder / RUNTIME).write_text(runtime_text())
    formats = (f"template PAIRS({a}, {b});" for a, b in PAIRS)  # one beside the other, as they are compiled
    text.write_text(f'#include "runtime.hpp"\nnamespace superopt {{ {" ".join(formats)} }}\n')
    flags = [flag for flag in cpp_compile.FLAGS if flag != "-march=native"]
    command = [find_compiler().path, *flags, f"-march={processor}", "-S", str(text), "-o", str(made)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300)
    if done.returncode:
        pytest.skip(f"the compiler makes nothing for {processor}: {done.stderr[:200]}")
    return made.read_text()


@pytest.mark.skipif(platform.machine() not in ("x86_64", "AMD64"), reason="instructions of x86")
@pytest.mark.slow
def test_sums_of_products_stay_in_registers(tmp_path: Path) -> None:
    made = assembly("cooperlake", tmp_path)
    loops = re.findall(r"^(\.L\d+):\n((?:(?!\.L).*\n)*?)\tj\w+\t\1$", made, re.MULTILINE)
    loops = [body for _, body in loops if "vdpbf16ps" in body]
    counts = {body.count("vdpbf16ps") for body in loops}
    assert counts >= {24, 16}  # rows with a panel, and dot products
    for loop in loops:
        assert not re.search(r"zmm.*\(%r[sb]p\)|\(%r[sb]p\).*zmm|\bcall\b", loop)


@pytest.mark.slow
@pytest.mark.skipif(platform.machine() not in ("x86_64", "AMD64"), reason="instructions of x86")
def test_tiles_are_configured_loaded_multiplied_and_released(tmp_path: Path) -> None:
    made = assembly("sapphirerapids", tmp_path)
    for sums, rows, columns in ((0, 4, 6), (1, 4, 7), (2, 5, 6), (3, 5, 7)):
        assert re.search(rf"tdpbf16ps\s+%tmm{columns}, %tmm{rows}, %tmm{sums}\b", made)
    assert "ldtilecfg" in made
    assert "tilerelease" in made
    assert "syscall" in made  # Linux lets a process use the tiles that asks
