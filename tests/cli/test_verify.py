import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

Run = Callable[..., Any]
Write = Callable[..., Path]

PAIRS = """\
import torch

def late(x, g):
    return x * g * torch.rsqrt(x.square().mean(-1, keepdim=True))

def early(x, g):
    return x * torch.rsqrt(x.square().mean(-1, keepdim=True)) * g

def wrong(x, g):
    return x * g * torch.rsqrt(x.square().sum(-1, keepdim=True))

def three(x, g, h):
    return x

def running(x):
    return x.sort(-1).values

def multiplied(x):
    return -(-x).sort(-1, descending=True).values

def with_three(x):
    return x * 2, 3

def with_four(x):
    return x * 2, 4

def sorted_late(x, g):
    return torch.sort(x * g)[0]

def sorted_early(x, g):
    return torch.sort(g * x)[0]
"""
INPUTS = ("--inputs", "f32[4,8] f32[8]")


def test_equal_is_zero(run: Run, write: Write) -> None:
    path = write(PAIRS)
    ran = run("verify", f"{path}:late", f"{path}:early", *INPUTS)
    assert (ran.code, ran.err) == (0, "")
    assert ran.out.startswith("equal: ")
    assert "chance of error" in ran.out


def test_unequal_is_one_with_inputs_and_both_outputs(run: Run, write: Write) -> None:
    path = write(PAIRS)
    ran = run("verify", f"{path}:late", f"{path}:wrong", *INPUTS)
    assert ran.code == 1
    assert ran.out.startswith("different")
    assert " against " in ran.out
    assert "f32[4, 8] = " in ran.out


def test_unknown_is_three_and_says_why(run: Run, write: Write) -> None:
    path = write(PAIRS)
    ran = run("verify", f"{path}:running", f"{path}:multiplied", "--inputs", "f32[4,8]")
    assert ran.code == 3
    assert ran.out.startswith("unknown")
    assert "only one of the programs calls sort, or calls it with other tensors" in ran.out


def test_what_is_no_tensor_counts(run: Run, write: Write) -> None:
    path = write(PAIRS)
    ran = run("verify", f"{path}:with_three", f"{path}:with_four", "--inputs", "f32[4,8]")
    assert ran.code == 1
    assert "result[1]: 3 against 4" in ran.out


def test_json(run: Run, write: Write) -> None:
    path = write(PAIRS)
    ran = run("verify", f"{path}:late", f"{path}:wrong", *INPUTS, "--json", "--trials", 3, "--seed", 5)
    assert (ran.code, ran.err) == (1, "")
    verdict = json.loads(ran.out)
    assert verdict["schema"] == "superopt.verdict/2"
    assert verdict["outcome"] == "different"
    assert verdict["equal"] is False
    assert verdict["seed"] == 5
    assert verdict["counterexample"]["left"] != verdict["counterexample"]["right"]


def test_algebra_alone(run: Run, write: Write) -> None:
    path = write(PAIRS)
    ran = run("verify", f"{path}:late", f"{path}:early", *INPUTS, "--no-floats")
    assert ran.code == 0
    assert "floats" not in ran.out


def test_opaque_operators_are_said(run: Run, write: Write) -> None:
    path = write(PAIRS)
    ran = run("verify", f"{path}:sorted_late", f"{path}:sorted_early", *INPUTS)
    assert ran.code == 0
    assert "sort" in ran.out


def test_a_workload_against_a_file(run: Run, write: Write) -> None:
    path = write("def f(x, w): return (w.mT @ x.mT).mT\n")
    assert run("verify", "matmul", f"{path}:f", "--size", "M=4", "K=8", "N=6", "--dtype", "f32").code == 0


@pytest.mark.parametrize(
    ("second", "options", "message"),
    [
        ("three", INPUTS, "three takes (x, g, h)"),
        ("late", ("--inputs", "f32[4,8] f32[9]"), "late fails at user.py:4: mul(f32[4, 8], f32[9])"),
        ("lat", INPUTS, "did you mean late?"),
        ("early", (), "needs its inputs"),
        ("early", (*INPUTS, "--trials", "0"), "'0' is not a whole number of at least 1"),
        ("early", (*INPUTS, "--seed", "-1"), "'-1' is not a whole number of at least 0"),
    ],
)
def test_bad_input_is_one_line(
    run: Run, write: Write, second: str, options: tuple[str, ...], message: str
) -> None:
    path = write(PAIRS)
    assert message in run("verify", f"{path}:late", f"{path}:{second}", *options).complaint()
