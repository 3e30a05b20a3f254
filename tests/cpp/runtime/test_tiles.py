"""The instructions of AMX as they are compiled, where there are none: a handler of SIGILL does their work."""

import platform
import subprocess
from pathlib import Path

import pytest

from superopt.codegen.cpp import find_compiler
from superopt.codegen.cpp.compile import FLAGS, RUNTIME, runtime_text

pytestmark = pytest.mark.skipif(
    platform.system() != "Linux" or platform.machine() not in ("x86_64", "AMD64"), reason="AMX under Linux"
)
PROGRAM = Path(__file__).with_name("tiles.cpp")
TILES = (
    "-mamx-tile",
    "-mamx-bf16",
    "-DPAIRS_EMULATED",
    "-O1",
)  # beside tiles, no other instructions for bf16
MULTIPLY = '"tdpbf16ps %%tmm%c2, %%tmm%c1, %%tmm%c0"'
FAULTS = {
    "operands in the wrong order": (
        MULTIPLY,
        MULTIPLY.replace("c2", "c3").replace("c1", "c2").replace("c3", "c1"),
    ),
    "tiles that are never released": ('asm volatile("tilerelease")', ""),
    "tiles that are never configured": ("if (used_) tiles_begin();", ""),
    "tiles of too few rows": ("shape.rows[one] = tile_side", "shape.rows[one] = tile_side - 1"),
    "rows at a wrong distance": (
        "constexpr index_t a_line = pair_row",
        "constexpr index_t a_line = pair_depth",
    ),
}


def run(runtime: str, folder: Path) -> "subprocess.CompletedProcess[str]":
    (folder / RUNTIME).write_text(runtime)
    made = folder / "tiles"
    flags = [flag for flag in FLAGS if flag not in ("-O3", "-fopenmp")]
    command = [find_compiler().path, *flags, *TILES, f"-I{folder}", str(PROGRAM), "-o", str(made)]
    built = subprocess.run(command, capture_output=True, text=True, timeout=300)
    if built.returncode:
        pytest.skip(f"the compiler knows no tiles: {built.stderr[:200]}")
    done = subprocess.run([str(made)], capture_output=True, text=True, timeout=100)
    if done.returncode == 2:
        pytest.skip("the request for tiles cannot be answered here: seccomp is not allowed")
    return done


def test_products_of_tiles_are_accurate(tmp_path: Path) -> None:
    done = run(runtime_text(), tmp_path)
    assert done.returncode == 0, done.stderr
    assert int(done.stdout) > 1000


@pytest.mark.slow
@pytest.mark.parametrize("fault", FAULTS)
def test_wrong_instructions_are_seen(fault: str, tmp_path: Path) -> None:
    right, wrong = FAULTS[fault]
    text = runtime_text()
    assert text.count(right) == 1
    assert run(text.replace(right, wrong), tmp_path).returncode in (1, 3)
