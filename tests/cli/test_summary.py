"""The few lines that `superopt optimize` prints: true to the result, and the same from an earlier run."""

import errno
import shutil
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

import superopt
from superopt.candidates.candidate import Candidate, RegionCandidates
from superopt.cli.screen import Table, Text
from superopt.cli.summary import summary
from superopt.codegen.cpp import compile as cpp_compile
from superopt.fate import Fate, Kind
from superopt.frontier.tensors.bound import graph_bound
from superopt.ir import fuse
from superopt.result.result import Result
from superopt.result.why import why_faster, why_not_faster
from superopt.trace import trace
from superopt.tune import Measurement

pytestmark = pytest.mark.skipif(shutil.which("g++") is None, reason="no compiler")

Run = Callable[..., Any]
NORM = """
import torch

def norm_linear(x, g, w):
    return (x * torch.rsqrt(x.square().mean(-1, keepdim=True) + 1e-6) * g) @ w

def norm(x, g):
    return x * torch.rsqrt(x.square().mean(-1, keepdim=True) + 1e-6) * g

class Held(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.g = torch.nn.Parameter(torch.ones(64))

    def forward(self, x):
        return x * torch.rsqrt(x.square().mean(-1, keepdim=True) + 1e-6) * self.g
"""
INPUTS = (
    "--inputs",
    "f32[8,64] f32[64] f32[64,96]",
    "--seconds",
    "0.5",
    "--no-torch-compile",
    "--graphs",
    "2",
)


def norm_linear(x: torch.Tensor, g: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    return (x * torch.rsqrt(x.square().mean(-1, keepdim=True) + 1e-6) * g) @ w


def normed(x: torch.Tensor, g: torch.Tensor) -> torch.Tensor:
    return x * torch.rsqrt(x.square().mean(-1, keepdim=True) + 1e-6) * g


def delayed_norm_linear(x: torch.Tensor, g: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    return ((x * g) @ w) * torch.rsqrt(x.square().mean(-1, keepdim=True) + 1e-6)


def rowsum(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    return (x @ w).sum(-1)


def with_floor(result: Result, us: float) -> Result:
    return replace(result, regions=tuple(replace(one, floor_us=us) for one in result.regions))


@pytest.fixture(scope="module")
def planned() -> Callable[..., Result]:
    """Return the result of a plan, with made-up times: ours, then those of PyTorch's programs."""

    def make(function: Callable[..., Any], *shapes: tuple[int, ...], **times: float) -> Result:
        options = superopt.OptimizeOptions(target="cpu", measure=False, graphs=2, cache=False)
        inputs = [torch.empty(shape, device="meta") for shape in shapes]
        result = superopt.optimize(function, *inputs, options=options).result
        measured = {
            name.replace("_", "."): Measurement(us, 0.9 * us, 1.2 * us, 100) for name, us in times.items()
        }
        winner = min(times, key=lambda name: times[name]).replace("_", ".") if times else None
        return with_floor(replace(result, measurements=measured, winner=winner), 40.0)

    return make


def text_of(result: Result) -> str:
    return "\n".join(one.text for one in summary(result, None) if isinstance(one, Text))


SHAPES = ((16, 256), (256,), (256, 512))


def as_written(function: Callable[..., Any], *shapes: tuple[int, ...]) -> Candidate:
    """Return the program of one region as it is written, in one kernel."""
    [region] = trace(function, *(torch.empty(shape, device="meta") for shape in shapes)).program.regions
    return Candidate("as written", region.graph, fuse(region.graph))


def with_chosen(result: Result, candidate: Candidate) -> Result:
    [region] = result.regions
    one = replace(candidate, fate=Fate("choose", Kind.CHOSEN))
    return replace(result, regions=(replace(region, candidates=(one,)),))


def test_why_it_is_faster_counts_what_the_program_does(planned: Callable[..., Result]) -> None:
    # Which graph is predicted to be the fastest depends on the machine: these are named by what they do.
    result = planned(norm_linear, *SHAPES, superopt=50.0, eager=100.0)
    why = why_faster(with_chosen(result, as_written(delayed_norm_linear, *SHAPES)))
    assert "7 operators became 1 kernel" in why
    assert "One pass over x instead of two" in why
    assert "it moves 574.5 instead of 689.5 kB" in why
    assert why.endswith(".")
    result = planned(rowsum, (32, 512), (512, 512), superopt=50.0, eager=100.0)
    least = min(result.regions[0].candidates, key=lambda one: graph_bound(one.graph).flops)
    less = why_faster(with_chosen(result, least))
    assert "times less arithmetic" in less


def two_halves(x: torch.Tensor) -> torch.Tensor:
    return torch.nn.functional.layer_norm(x, (x.shape[-1],)) * torch.sigmoid(x)


def test_why_it_is_faster_counts_operators_of_pytorch(planned: Callable[..., Result]) -> None:
    result = planned(two_halves, (32, 512), superopt=50.0, eager=100.0)
    one_kernel = with_chosen(result, as_written(two_halves, (32, 512)))
    why = why_faster(one_kernel)
    assert "3 operators became 1 kernel" in why  # a layer norm is one, whatever its algebra
    assert "pass" not in why  # the kernel itself reads x once for each sum and once to normalize
    assert "it moves 131.1 instead of 459.0 kB" in why
    unknown = why_faster(replace(one_kernel, eager=None))
    assert "steps became 1 kernel" in unknown
    assert "instead of" not in unknown


def test_why_it_is_faster_names_two_weights(planned: Callable[..., Result]) -> None:
    def gated(x: torch.Tensor, w: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        return torch.nn.functional.silu(x @ w) * (x @ v)

    result = planned(gated, (8, 512), (512, 512), (512, 512), superopt=50.0, eager=100.0)
    assert "that it moves are w and v" in why_faster(result)


def test_why_it_is_not_faster(planned: Callable[..., Result]) -> None:
    lost = planned(norm_linear, *SHAPES, superopt=90.0, eager=45.0)
    said = " ".join(why_not_faster(lost))
    assert "The best of ours takes 90.0 µs, eager 45.0 µs." in said
    assert "take 40.0 µs at least; eager takes 1.1 times that, so there is little to win" in said
    assert "little to win" not in " ".join(why_not_faster(with_floor(lost, 4.0)))
    none = replace(lost, regions=(), measurements={"eager": lost.measurements["eager"]})
    assert "No part of the program is in the algebra." in why_not_faster(none)
    assert "It is not decided: because." in why_not_faster(replace(lost, unsettled="because"))


def test_the_summary_is_a_few_lines(planned: Callable[..., Result]) -> None:
    won = replace(
        planned(norm_linear, *SHAPES, superopt=50.0, eager=100.0, torch_compile=120.0),
        ratio=2.0,
        interval=(1.9, 2.1),
    )
    blocks = summary(won, Path("result.json"))
    [race] = [one for one in blocks if isinstance(one, Table)]
    assert race.rows == (
        ("superopt", "50.0 µs", "45.0 to 60.0"),
        ("eager", "100 µs", "90.0 to 120"),
        ("torch.compile", "120 µs", "108 to 144"),
    )
    said = text_of(won)
    assert said.startswith("norm_linear: 2.00 times as fast as eager PyTorch (1.90 to 2.10)")
    assert "The race of all" not in said
    assert len(blocks) <= 8
    assert all(one.wraps or len(one.text) < 80 for one in blocks if isinstance(one, Text))
    assert "The report: superopt report result.json; -v shows" in str(blocks[-1])


def test_a_ratio_that_is_not_sure_is_a_least_one(planned: Callable[..., Result]) -> None:
    won = planned(norm_linear, *SHAPES, superopt=50.0, eager=100.0)
    assert (
        "norm_linear: at least 6.70 times as fast as eager PyTorch (up to 531.90: the machine was busy)"
        in (text_of(replace(won, ratio=390.0, interval=(6.7, 531.9))))
    )
    assert "390.00 times as fast as eager PyTorch (300.00 to 500.00)" in (
        text_of(replace(won, ratio=390.0, interval=(300.0, 500.0)))
    )
    assert "2.00 times as fast as eager PyTorch\n" in text_of(won)


def test_times_that_do_not_agree_are_explained(planned: Callable[..., Result]) -> None:
    won = planned(norm_linear, *SHAPES, superopt=50.0, eager=100.0)
    assert "The race of all programs gave 2.00; the ratio above is of a second race" in text_of(
        replace(won, ratio=1.5)
    )
    [region] = won.regions
    chosen = region.chosen
    assert chosen is not None
    timed = replace(chosen, measurement=Measurement(30.0, 29.0, 31.0, 100))
    others = tuple(timed if one is chosen else one for one in region.candidates)
    apart = replace(won, ratio=2.0, regions=(RegionCandidates(region.goal, others),))
    assert "Raced among the candidates it took 30.0 µs: other programs" in text_of(apart)
    quick = replace(timed, measurement=Measurement(3.5, 3.4, 3.6, 100))
    small = replace(apart, regions=(RegionCandidates(region.goal, (quick,)),))
    small = replace(small, measurements={"superopt": Measurement(5.5, 5.0, 6.0, 100)})
    assert "took 3.5 µs, without what calling the whole program takes." in text_of(small)
    slow = replace(timed, measurement=Measurement(12_345.0, 29.0, 31.0, 100))
    busy = replace(apart, regions=(RegionCandidates(region.goal, (slow,)),))
    assert "Raced among the candidates it took 12.3 ms: the machine was busier then." in text_of(busy)
    assert "race" not in text_of(replace(won, ratio=2.0)).replace("raced", "")


def test_best_of_pytorch_is_not_said_where_only_eager_raced(planned: Callable[..., Result]) -> None:
    won = planned(norm_linear, *SHAPES, superopt=50.0, eager=100.0)
    assert "as fast as eager PyTorch" in text_of(won)
    lost = planned(norm_linear, *SHAPES, superopt=100.0, eager=50.0)
    assert "PyTorch's program stays; nothing that was found is surely faster" in text_of(lost)
    plan = planned(norm_linear, *SHAPES)
    assert "nothing was measured" in text_of(plan)


@pytest.fixture
def norm(tmp_path: Path, kernels_folder: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.setenv("SUPEROPT_CACHE_DIR", str(tmp_path / "cache"))
    monkeypatch.setattr(cpp_compile, "_folder", lambda: kernels_folder)
    monkeypatch.setattr(sys, "path", list(sys.path))
    path = tmp_path / "norm.py"
    path.write_text(NORM)
    return str(path)


def test_the_same_again_is_recalled_and_says_so(
    run: Run, norm: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    inputs = ("--inputs", "f32[8,64] f32[64]", *INPUTS[2:], "--graphs", "1")
    first = run("optimize", f"{norm}:norm", *inputs)
    assert first.code in (0, 1), first.err
    if "Not decided" in first.out or "It is not decided" in first.out:
        pytest.skip("the race was not decided: a busy machine")
    assert "proven equal again now" not in first.out

    def never(*anything: object, **more: object) -> None:
        raise AssertionError("it races")

    with monkeypatch.context() as patch:
        patch.setattr("superopt.optimizer.race", never)
        patch.setattr("superopt.optimizer._start_early", never)  # which comes before the search
        again = run("optimize", f"{norm}:norm", *inputs, "-o", tmp_path / "result.json")
        assert again.code == first.code
        assert "proven equal again now; --fresh races anew" in again.out
        kept = [line for line in again.out.splitlines() if line.startswith(("superopt ", "eager "))]
        assert kept == [line for line in first.out.splitlines() if line.startswith(("superopt ", "eager "))]
        assert superopt.load(tmp_path / "result.json").winner in ("superopt", "eager")
        for other in (
            ("--inputs", "f32[9,64] f32[64]"),  # other sizes
            ("--fresh",),
            ("--seed", "1"),
            ("--seconds", "0.6"),
        ):
            with pytest.raises(AssertionError, match="it races"):
                run("optimize", f"{norm}:norm", *inputs, *other)
        with pytest.raises(AssertionError, match="it races"):  # it holds tensors of its own
            run("optimize", f"{norm}:Held", "--inputs", "f32[8,64]", *INPUTS[2:])


def test_a_result_that_cannot_be_saved_is_printed_all_the_same(
    run: Run, norm: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr("superopt.result.codec.replace_text", full)
    ran = run("optimize", f"{norm}:norm_linear", *INPUTS, "--plan", "-o", tmp_path / "result.json")
    assert ran.code == 2
    assert "a plan for" in ran.out
    assert "-o result.json keeps it" in ran.out
    last = ran.err.splitlines()[-1]
    assert last.startswith("superopt: error: cannot write")
    assert last.endswith("No space left on device")


def test_a_kept_result_that_is_damaged_is_not_used(norm: str, tmp_path: Path) -> None:
    from superopt.cache import Cache, Record, key_of

    options = superopt.OptimizeOptions(
        target="cpu", seconds=0.4, graphs=2, torch_compile=False, guarded=False, recall=True
    )
    inputs = (torch.randn(8, 64), torch.randn(64))
    superopt.optimize(normed, *inputs, options=options)
    with Cache.open() as cache:
        entries = cache.entries("result")
        if not entries:
            pytest.skip("the race was not decided: a busy machine")
        key = key_of("result", **entries[0].parts)
        data = cache.get(key).data
        regions = [{**one, "goal": one["goal"].replace("mul(", "add(")} for one in data["regions"]]
        cache.put(key, Record({**data, "regions": regions}, "wrong"))
    best = superopt.optimize(normed, *inputs, options=options)
    assert best.recalled is None
    torch.testing.assert_close(best(*inputs), normed(*inputs), rtol=1e-3, atol=1e-3)


@pytest.mark.slow
def test_interrupted_before_the_race_saves_nothing(norm: str, tmp_path: Path) -> None:
    code = (
        "import superopt.funnel.build as build, superopt.funnel.funnel as funnel, sys\n"
        "def stop(candidates, context): raise KeyboardInterrupt\n"
        "stopped = funnel.Stage(stop, True)\n"
        "funnel.FUNNEL = tuple(stopped if one.run is build.build else one for one in funnel.FUNNEL)\n"
        "from superopt.cli import main\n"
        f"sys.exit(main(['optimize', {norm!r} + ':norm_linear', *{INPUTS!r}, '-o', 'never.json']))\n"
    )
    ended = subprocess.run([sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True)
    assert ended.returncode == 130, ended.stderr
    assert ended.stdout == ""
    assert "Traceback" not in ended.stderr
    assert not (tmp_path / "never.json").exists()
