"""What PyTorch compiles beside the plans of the GPU benchmark, and plans that are run here."""

import json
import os
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch

from superopt.bench.gpu import main
from superopt.bench.harness.rivals import copies_like
from superopt.bench.kernels.cases import Case
from superopt.bench.kernels.gpu_cases import plan_of
from superopt.bench.planned import race, smoke
from superopt.bench.planned.compiler import LATE, CompileJob
from superopt.bench.plans import make_plan, write_plan
from superopt.tune.pool import compile_all

from .test_gpu import SLOW, run

COMPILES = """
import sys, torch
from torch._dynamo.utils import counters
from superopt.bench.harness.rivals import compiled
from superopt.bench.planned import compiler
from superopt.bench.kernels.gpu_cases import case_named
peer, tagged = sys.argv[1], sys.argv[2] == "beside"
request = {"workload": "softmax", "case": "decode-1", "dtype": "f32", "peer": peer, "device": "cpu"}
if tagged:
    compiler._warm({**request, "threads": 1})
else:
    case = case_named("softmax", "decode-1")
    with torch.no_grad():
        compiled(case.function, peer)(*case.inputs("f32", "cpu"))
print(counters["inductor"]["fxgraph_cache_hit"])
"""


@pytest.mark.slow
@pytest.mark.parametrize(("peer", "found"), [("torch.compile", "1"), (SLOW, "0")])
def test_what_was_picked_beside_others_is_not_found(peer: str, found: str, tmp_path: Path) -> None:
    hits = []
    for where in ("beside", "alone"):
        done = subprocess.run(
            [sys.executable, "-c", COMPILES, peer, where],
            env={**os.environ, "TORCHINDUCTOR_CACHE_DIR": str(tmp_path)},
            capture_output=True,
            text=True,
            check=True,
        )
        hits.append(done.stdout.strip())
    assert hits == ["0", found]


@pytest.mark.slow
def test_a_peer_that_is_late_or_fails_says_so() -> None:
    job = CompileJob("one", "softmax", "decode-1", "f32", "torch.compile in no mode", "cpu")
    [late] = compile_all([job], workers=1, limit_seconds=0.001)
    assert late.failure == LATE
    [wrong] = compile_all([job], workers=1, limit_seconds=60.0)
    assert "Unrecognized mode" in wrong.failure


@pytest.mark.slow
def test_a_plan_for_this_cpu_is_raced(tmp_path: Path) -> None:
    case = Case("rmsnorm-linear", "decode", "decode-8", {"M": 8, "K": 128, "N": 128})
    write_plan(make_plan(case, "f32", "cpu"), plan_of(case, tmp_path, "f32"))
    out = tmp_path / "out.json"
    command = ["--plans", str(tmp_path), "--dtype", "f32", "--workloads", case.workload, "--case", case.case]
    done = run(*command, "--peers", "eager", "--json", str(out), "--minutes", "2", "--trials", "2")
    assert done.returncode == 0, done.stderr
    found = json.loads(out.read_text())["cases"][case.name]
    assert found["error"] is None
    assert set(found["measured"]) == {"superopt", "eager"}
    assert found["ratio"] == pytest.approx(
        found["measured"]["eager"]["median_us"] / found["measured"]["superopt"]["median_us"]
    )
    assert "fine" in found["floats"]
    before = time.monotonic()
    assert run(*command, "--json", str(out), "--resume", "--peers", "eager").returncode == 0
    assert time.monotonic() - before < 60  # nothing was raced again


@pytest.mark.slow
def test_kernels_of_plans_run_interpreted() -> None:
    done = run("--check", "--trials", "2", "--case", "decode-8", "--workloads", "rmsnorm-linear,gqa-decode")
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.count("fine: 2 candidates") == 2


@pytest.mark.parametrize(("least", "copies"), [(0, 3), (3000, 3), (40_000, 10), (10**9, 256)])
def test_so_many_copies_that_no_cache_holds_them(least: int, copies: int) -> None:
    made = copies_like([torch.empty(10, 100, device="meta")], "cpu", seed=0, least_bytes=least)
    assert len(made) == copies
    assert len({float(one[0][0, 0]) for one in made}) == copies


def test_the_share_of_a_copy() -> None:
    assert race.copy_share(10.0, 20.0, 4800.0, 4000.0) == pytest.approx(0.6)
    assert race.copy_share(10.0, 20.0, 4800.0, None) is None


class Clock:
    """A device on which each call takes 100 µs."""

    l2_bytes = 1000
    captured = 0

    def clear_cache(self, size: int) -> None:
        """There is none."""

    def mark(self) -> None:
        """Note nothing."""

    wait = release = mark

    def elapsed_us(self, start: None, end: None) -> float:
        return 100.0

    def capture(self, call):
        self.captured += 1
        return call


def test_what_a_device_does_at_most(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    device = Clock()
    monkeypatch.setattr(smoke, "_SECONDS", 0.0)
    found = smoke.smoke(place="cpu", device=device, size=1 << 20)
    assert found["copy_gbs"] == pytest.approx(2 * (1 << 20) / 100e3)
    assert found["read_gbs"] == pytest.approx((1 << 20) / 100e3)
    assert found["f16_8192x8192x8192_tflops"] == pytest.approx(2 * 64**3 / 100e6)
    assert (found["graph_us"], device.captured) == (100.0, 1)
    if not torch.cuda.is_available():
        with pytest.raises(SystemExit, match="2"):
            main(["--smoke"])
        assert "none is here" in capsys.readouterr().err
