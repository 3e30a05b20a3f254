"""The emitted C++ of three workloads, read by people; `--update-golden` writes it anew."""

from pathlib import Path

import pytest

from superopt.codegen.cpp import default_config, emit
from superopt.codegen.statements import lower_block
from superopt.driver import search
from superopt.ir import fuse
from superopt.workloads import WORKLOADS

GOLDEN = Path(__file__).with_name("golden")
SIZES = {
    "rmsnorm-linear": {"M": 8, "K": 2048, "N": 2048},
    "gated-mlp": {"M": 8, "K": 2048, "N": 5632},
    "gqa-decode": {"B": 1, "H": 8, "G": 2, "S": 1, "T": 4096, "D": 128},
}


@pytest.mark.parametrize("name", SIZES)
def test_golden(name: str, update_golden: bool) -> None:
    workload = WORKLOADS[name]
    searched = search(workload.function, *workload.inputs(dtype="bf16", **SIZES[name]), name=name)
    mugraph = fuse(searched.regions[0].found[0].graph)
    programs = [lower_block(mugraph, number) for number in range(len(mugraph.kernels))]
    codes = [emit(program, default_config(program, mugraph.graph.sizes)).code for program in programs]
    path = GOLDEN / f"{name}.cpp"
    if update_golden:
        path.parent.mkdir(exist_ok=True)
        path.write_text("\n".join(codes))
    assert "\n".join(codes) == path.read_text(), "run with --update-golden where this is meant"
