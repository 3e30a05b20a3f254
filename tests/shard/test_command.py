"""`superopt shard`: what it prints and writes, and one line for each mistake."""

import json
from pathlib import Path

import pytest

from superopt.cli import main

PROGRAM = """
import torch

def mlp(x, w1, w2):
    return torch.relu(x @ w1) @ w2

module = torch.nn.Sequential(torch.nn.Linear(64, 128), torch.nn.ReLU(), torch.nn.Linear(128, 64))
"""
INPUTS = ("--inputs", "f32[8,64] f32[64,128] f32[128,64]")


@pytest.fixture
def program(tmp_path: Path) -> str:
    file = tmp_path / "mlp.py"
    file.write_text(PROGRAM)
    return f"{file}:mlp"


def test_reductions_are_ranked(capsys: pytest.CaptureFixture[str]) -> None:
    mesh = "node=2 @ 10 GB/s own, gpu=4 @ 200 GB/s"
    command = ["shard", "--mesh", mesh, "--axes", "data=4, tensor=2", "--reduce", "data"]
    assert main([*command, "--json"]) == 0
    found = json.loads(capsys.readouterr().out)["placements"]
    assert [one["placement"]["data"] for one in found] == [[1, 4], [2, 2]]
    assert found[1]["program"] == "reduce-scatter(gpu), all-reduce(node), all-gather(gpu)"
    assert found[1]["all_reduce_s"] > found[1]["seconds"]
    assert main(command) == 0
    assert "data 2x2; tensor 1x2" in capsys.readouterr().out


def test_a_program_is_sharded_proven_and_written(
    program: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "out.py"
    command = [
        "shard",
        program,
        *INPUTS,
        "--mesh",
        "gpu=4",
        "--pin",
        "x=whole, out=whole, w1=n:gpu, w2=n:gpu",
    ]
    page = tmp_path / "out.html"
    assert main([*command, "-o", str(out), "--html", str(page)]) == 0
    printed = capsys.readouterr().out
    assert "all-reduce[gpu]" in printed
    assert "equal:" in printed
    compile(out.read_text(), str(out), "exec")
    shown = page.read_text()
    assert shown.count("<svg") == shown.count("</svg>") == 2
    assert "all-reduce over gpu" in shown


@pytest.mark.parametrize(
    ("pins", "said"),
    [
        (
            "x0_weight=n:gpu, x2_weight=n:gpu",
            "RowwiseParallel(input_layouts=Shard(-1), output_layouts=Replicate())",
        ),
        (
            "x2_bias=i:gpu, x2_weight=whole",
            "parallelize_module: x2_bias is split and belongs to no linear module",
        ),
    ],
)
def test_a_module_has_a_plan_or_a_reason(
    program: str, pins: str, said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    target = program.replace(":mlp", ":module")
    pinned = f"input=whole, out=whole, {pins}"
    assert main(["shard", target, "--inputs", "f32[8,64]", "--mesh", "gpu=4", "--pin", pinned]) == 0
    assert said in capsys.readouterr().out


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (("--mesh", "gpu=3", "--pin", "x=m:gpu"), "axis 'm' of x has size 8, which gpu=3 does not divide"),
        (("--mesh", "gpu=4", "--pin", "x=m:node"), "no level 'node'; its levels are gpu"),
        (("--mesh", "gpu=4", "--pin", "x"), "cannot read 'x'"),
        (("--mesh", "gpu=4", "--memory", "1e-6"), "the nearest choice that works"),
        (("--mesh", "gpu", "--pin", "x=whole"), "cannot read 'gpu'"),
        (("--mesh", "gpu=4", "--measure"), "only --mesh goes with it"),
        (("--mesh", "gpu=4", "--html", "/nowhere/out.html"), "/nowhere"),
        (("--mesh", "gpu=4", "--memory", "nan"), "give gigabytes above 0"),
        (("--mesh", "gpu=0"), "give a count of at least 1"),
        (("--mesh", "gpu=4", "--axes", "data=4"), "either a function to shard, or --axes"),
    ],
)
def test_mistakes_are_one_line(
    program: str, options: tuple[str, ...], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["shard", program, *INPUTS, *options]) == 2
    error = capsys.readouterr().err
    assert said in error
    assert error.count("\n") == 1


def test_axes_that_do_not_fill_the_machine_are_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["shard", "--mesh", "node=2, gpu=4", "--axes", "data=4, tensor=3"]) == 2
    assert "tensor=2" in capsys.readouterr().err
