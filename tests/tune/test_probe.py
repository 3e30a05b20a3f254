"""First runs: kernels that are right, wrong, crash and hang, here and in a process of their own."""

import json
import sys
from collections.abc import Iterator
from io import StringIO
from pathlib import Path

import pytest
import torch

from superopt.codegen.children import Children
from superopt.codegen.cpp import default_config
from superopt.codegen.statements import lower_block
from superopt.ir import MuGraph, fuse, parse_graph
from superopt.tune.checks import run_guarded
from superopt.tune.errors import DeviceLostError, KernelFaultError
from superopt.tune.pool import Worker, compile_all
from superopt.tune.probe import PROBE, ProbeJob, make_kernel, probe, request_of, serve

TEXT = """
graph {0}
axes m=8 n=16
in x: f32[m, n]
t1 = {1}
out y: f32[m, n] = t1
"""

FAKE = """
import os, sys, time
from superopt.ir import parse_mugraph
from superopt.tune.errors import DeviceLostError
from superopt.tune.pool import Worker
from superopt.tune.probe import serve

def make(request):
    mugraph = parse_mugraph(request["mugraph"])
    def kernel(**tensors):
        name = mugraph.graph.name
        if name == "crash": os.abort()
        if name == "hang": time.sleep(60)
        if name == "lost": raise DeviceLostError("the device is lost")
        if name == "wrong": return {"y": tensors["x"][:1]}
        return {"y": tensors["x"]}
    return mugraph, kernel

answers = os.fdopen(os.dup(1), "w")
os.dup2(2, 1)
print("kernels may print")
serve(sys.stdin, answers, make)
"""


def mugraph(name: str = "doubled", step: str = "add(x, x)") -> MuGraph:
    return fuse(parse_graph(TEXT.format(name, step)))


@pytest.fixture(scope="module")
def children() -> Iterator[Children]:
    with Children() as found:
        yield found


class Prober:
    """A process for first runs, kept for the next kernel until one takes it down."""

    def __init__(self, children: Children, command: tuple[str, ...] = PROBE) -> None:
        self.worker, self.command = Worker(children), command

    def check(self, mugraph: MuGraph, configs: list[object], limit_seconds: float = 60.0) -> None:
        job = ProbeJob("it", mugraph, tuple(configs), command=self.command)
        job.run(self.worker, limit_seconds)


@pytest.fixture(scope="module")
def prober(children: Children) -> Iterator[Prober]:
    made = Prober(children)
    yield made
    made.worker.close()


@pytest.fixture(scope="module")
def fake(children: Children) -> Iterator[Prober]:
    made = Prober(children, command=(sys.executable, "-c", FAKE))
    yield made
    made.worker.close()


# -- guarded runs

X = torch.tensor([[1.0, -1.0]])
SHAPES = {"y": (1, 2)}


def test_a_kernel_that_is_fine() -> None:
    assert torch.equal(run_guarded(lambda x: {"y": x}, {"x": X}, SHAPES)["y"], X)


def raises(error: Exception):
    def kernel(x: torch.Tensor):
        raise error

    return kernel


@pytest.mark.parametrize(
    ("kernel", "message"),
    [
        (lambda x: {"y": x.log()}, "'y' has 1 of 2 elements that are NaN or infinite"),
        (lambda x: {"y": x / 0}, "'y' has 2 of 2 elements that are NaN"),
        (lambda x: {"y": x.T}, r"'y' has shape \(2, 1\), expected \(1, 2\)"),
        (lambda x: {"z": x}, "no output 'y', only z"),
        (lambda x: {}, "no output 'y', only none"),
        (raises(ValueError("why\nmore")), "^ValueError: why$"),
        (raises(torch.OutOfMemoryError("CUDA out of memory")), "more memory than there is: CUDA out"),
    ],
)
def test_faults(kernel, message: str) -> None:
    with pytest.raises(KernelFaultError, match=message):
        run_guarded(kernel, {"x": X}, SHAPES)


def test_what_is_not_finite_where_it_should_not_be() -> None:
    trusted = {"y": torch.tensor([[0.0, torch.nan]])}
    assert run_guarded(lambda x: {"y": x.log()}, {"x": X}, SHAPES, expected_finite=lambda: trusted)
    with pytest.raises(KernelFaultError, match="1 of 2"):
        run_guarded(lambda x: {"y": x / 0}, {"x": X}, SHAPES, expected_finite=lambda: trusted)


def test_the_trusted_way_is_only_gone_where_needed() -> None:
    def never():
        raise AssertionError

    run_guarded(lambda x: {"y": x}, {"x": X}, SHAPES, expected_finite=never)


# -- in a process of their own


def test_a_cpp_kernel_that_is_fine(prober: Prober) -> None:
    made = mugraph()
    config = default_config(lower_block(made, 0), made.graph.sizes)
    prober.check(made, [None])
    prober.check(made, [config])


def test_a_program_that_gives_nan_may_give_nan(prober: Prober) -> None:
    prober.check(mugraph("logs", "log(x)"), [])


def test_a_cpp_kernel_that_cannot_be_made_is_a_fault(prober: Prober) -> None:
    unknown = fuse(parse_graph(TEXT.format("wide", "add(x, x)").replace("f32", "f64")))
    with pytest.raises(KernelFaultError, match=r"wide: UnsupportedError: .*f64"):
        prober.check(unknown, [])


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("crash", "crash: its first run ended the process: ended by SIGABRT"),
        pytest.param("hang", "hang: its first run was not done within 1.5 s", marks=pytest.mark.slow),
        ("wrong", r"wrong: 'y' has shape \(1, 16\), expected \(8, 16\)"),
        ("lost", "lost: .*the device is lost"),
    ],
)
def test_faults_take_down_that_process_only(fake: Prober, name: str, message: str) -> None:
    limit = 1.5 if name == "hang" else 60.0
    with pytest.raises(KernelFaultError, match=message):
        fake.check(mugraph(name), [], limit_seconds=limit)
    fake.check(mugraph("good"), [])


def test_first_runs_in_the_pool() -> None:
    command = (sys.executable, "-c", FAKE)
    jobs = [ProbeJob(name, mugraph(name), (), command=command) for name in ("good", "crash", "fine")]
    good, crash, fine = compile_all(jobs, workers=1, limit_seconds=60.0)
    assert good.failure is fine.failure is None
    assert "ended by SIGABRT" in (crash.failure or "")


def test_a_probe_here() -> None:
    made = mugraph()
    probe(made, lambda x: {"y": x + x}, "cpu")
    with pytest.raises(KernelFaultError, match="128 of 128"):
        probe(made, lambda x: {"y": x / 0}, "cpu")


def test_a_lost_device_ends_the_server(tmp_path: Path) -> None:
    line = '{"device": "cpu", "mugraph": "", "configs": []}\n'
    (tmp_path / "requests").write_text(line * 3)

    def lost(request):
        raise DeviceLostError("gone")

    with (tmp_path / "requests").open() as requests, (tmp_path / "answers").open("w") as answers:
        serve(requests, answers, lost)
    assert (tmp_path / "answers").read_text().count("\n") == 2  # ready, and one answer


def test_configurations_travel_to_the_process_and_back() -> None:
    triton = pytest.importorskip("superopt.codegen.triton")
    made = mugraph()
    config = triton.default_config(lower_block(made, 0), made.graph.sizes)
    for configs in ((config,), (None,)):
        request = json.loads(json.dumps(request_of(made, configs, "cuda")))
        assert make_kernel(request)[1].configs == configs


@pytest.mark.parametrize(
    ("device", "fault", "times"),
    [
        ("cuda", None, 2),
        ("cuda", ValueError("of its own"), 2),
        ("cuda", DeviceLostError("gone"), 0),
        ("cpu", None, 0),
    ],
)
def test_a_process_that_waits_holds_no_memory_of_the_device(
    monkeypatch, device: str, fault: Exception | None, times: int
) -> None:
    given_back: list[str] = []
    monkeypatch.setattr(torch.cuda, "empty_cache", lambda: given_back.append("all"))

    def run(*_: object) -> None:
        if fault is not None:
            raise fault

    monkeypatch.setattr("superopt.tune.probe.probe", run)
    requests = StringIO(2 * (json.dumps({"device": device}) + "\n"))
    serve(requests, StringIO(), lambda request: (mugraph(), None))
    assert len(given_back) == times
