"""Kernels of programs with exponentials: right and finite wherever PyTorch is, in one pass."""

import json
import os
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

SLOW = pytest.mark.slow
TRITON = pytest.mark.skipif(find_spec("triton") is None, reason="needs triton")
# Absolute, where results are of the order of 1: an entropy of 4e-13, the difference of two logarithms, is 0.
NOTHING = 1e-12
ONE_PASS = ["causal", "alibi", "additive-mask", "safe", "padded", "soft-capped", "entropy", "softmax"]
QUICK = ["additive-mask", "root-on-one-side"]


def answers(target, dtype, device, *names):
    """Return what the runner says of each case."""
    environment = {
        **os.environ,
        "OMP_NUM_THREADS": "1",
        "TRITON_INTERPRET": "1" if target == "triton" else "0",
    }
    command = [sys.executable, str(Path(__file__).with_name("runner.py")), target, dtype, device, *names]
    done = subprocess.run(command, capture_output=True, text=True, env=environment)
    assert not done.returncode, done.stderr[-2000:]
    return [json.loads(line) for line in done.stdout.splitlines()]


@pytest.mark.parametrize(
    ("target", "dtype"),
    [
        pytest.param("triton", "f32", marks=TRITON),
        pytest.param("triton", "f16", marks=[TRITON, SLOW]),
        pytest.param("cpp", "f32", marks=SLOW),
        pytest.param("cpp", "f16", marks=SLOW),
        pytest.param("cpp", "bf16", marks=SLOW),
    ],
)
@pytest.mark.parametrize(
    "names", [QUICK, pytest.param(["even"], marks=SLOW), pytest.param(["odd"], marks=SLOW)], ids=" ".join
)
def test_no_worse_than_pytorch(target, dtype, names):
    found = answers(target, dtype, "-", *names)
    for answer in found:
        allowed = 2 * answer["eager"] + 8 * answer["rounding"] + NOTHING
        assert answer["shape"], answer
        assert not answer["wrong"], answer
        assert answer["error"] <= allowed, answer
        if answer["case"].startswith("found,") and "parts" not in answer["case"]:
            assert answer["kernels"] == 1 or answer["name"] not in ONE_PASS, answer
    running = {answer["name"] for answer in found if answer["running"]}
    assert running == {answer["name"] for answer in found if answer["shifted"]}


@SLOW
@pytest.mark.parametrize("name", ["causal", "cross-entropy", "sink"])
def test_on_this_machine(name):
    for answer in answers("cpp", "f32", "-", name):
        assert not answer["wrong"], answer
        assert answer["error"] <= 2 * answer["eager"] + 4 * answer["rounding"], answer


ONE_PASS_AT_SCALE = ["causal", "cross-entropy", "log-sum-exp", "differential"]


@SLOW
@pytest.mark.parametrize(
    ("target", "device"),
    [pytest.param("triton", "h200", marks=TRITON), ("cpp", "cpu")],
)
@pytest.mark.parametrize("name", [*ONE_PASS_AT_SCALE, "padded", "sink"])
def test_schedules_of_real_sizes_run_at_any(target, device, name):
    """The best schedules are right; among them is one that keeps no scores in memory."""
    found = answers(target, "f32", device, name)
    for answer in found:
        assert not answer["wrong"], answer
        assert answer["error"] <= 2 * answer["eager"] + 4 * answer["rounding"], answer
    if target == "triton" and name in ONE_PASS_AT_SCALE:
        assert any(answer["running"] and not answer["scores"] for answer in found), found


@pytest.mark.parametrize("parts", [0, 7])
def test_many_keys(parts):
    import torch

    from superopt.codegen.cpp import CppMuGraph
    from superopt.ir import fuse, split_axis, stabilize
    from superopt.trace import trace

    def attention(q, k, v):
        weights = (q @ k.mT).exp()
        return weights @ v / weights.sum(-1, keepdim=True)

    torch.manual_seed(0)
    q, k, v = torch.randn(2, 8) * 1e4, torch.randn(131_072, 8), torch.randn(131_072, 8)
    graph, splits = trace(attention, q, k, v).graph, []
    if parts:
        graph, split = split_axis(graph, graph.inputs[1].dims[0][0], parts)
        splits = [split]
    mugraph = fuse(stabilize(graph, [one.outer for one in splits]), splits=splits, online=True)
    (found,) = CppMuGraph(mugraph)(q=q, k=k, v=v).values()
    exact = ((q @ k.mT).double().softmax(-1) @ v.double()).float()
    torch.testing.assert_close(found, exact, rtol=1e-3, atol=1e-3)
