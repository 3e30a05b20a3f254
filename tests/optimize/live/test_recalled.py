"""Whether kernels of an earlier run are used again: where they still win on this machine as it is now."""

import time
from collections.abc import Callable
from dataclasses import replace
from types import SimpleNamespace
from typing import Any, cast

import pytest
import torch

import superopt
from superopt.codegen.errors import CompileError
from superopt.live import recalled
from superopt.live.optimized import Optimized
from superopt.live.recalled import still_wins
from superopt.targets import pick_target
from superopt.targets.cpu import CpuTarget
from superopt.trace import trace
from superopt.tune import Measurement

Program = Callable[[torch.Tensor], torch.Tensor]


def sleeping(seconds: float) -> Program:
    def run(x: torch.Tensor) -> torch.Tensor:
        time.sleep(seconds)
        return x

    return run


def kept(ours: Program, original: Program, before_us: float, device: str = "cpu") -> Optimized:
    """Return what is known of a result that was kept."""
    measured = Measurement(before_us, before_us, before_us, 40)
    result = SimpleNamespace(measurements={"superopt": measured})
    target = pick_target(device)
    found = SimpleNamespace(name="kept", fused=ours, original=original, result=result, target=target)
    return cast(Optimized, found)


@pytest.mark.parametrize(
    ("ours_s", "theirs_s", "before_us", "wins"),
    [
        (0.002, 0.0, 2100.0, True),  # as when they raced: no race
        (0.002, 0.0, 200.0, False),
        (0.002, 0.006, 200.0, True),  # all takes longer now
        (0.0, 0.002, 2100.0, True),  # all is faster now
    ],
)
def test_kernels_of_an_earlier_run_must_still_win(
    ours_s: float, theirs_s: float, before_us: float, wins: bool, caplog: pytest.LogCaptureFixture
) -> None:
    best = kept(sleeping(ours_s), sleeping(theirs_s), before_us)
    assert still_wins(best, (torch.ones(4),)) is wins
    assert ("times eager's speed now: all race again" in caplog.text) is not wins


def test_what_is_elsewhere_is_not_timed() -> None:
    def never(x: torch.Tensor) -> Any:
        raise AssertionError("it is timed")

    assert still_wins(kept(never, never, 1.0, "cuda:90"), (torch.empty(4, device="meta"),))
    with pytest.raises(AssertionError, match="it is timed"):
        still_wins(kept(never, never, 1.0), (torch.empty(4, device="meta"),))


@pytest.mark.slow
def test_a_kept_result_that_lost_is_not_recalled(tmp_path: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SUPEROPT_CACHE_DIR", str(tmp_path))
    options = superopt.OptimizeOptions(
        target="cpu", seconds=0.4, graphs=1, torch_compile=False, guarded=False, recall=True
    )
    x = torch.randn(64, 512)

    def scaled(x: torch.Tensor) -> torch.Tensor:
        return (x * x).sum(-1, keepdim=True).sqrt() * x + x.exp() * x.tanh() - x

    first = superopt.optimize(scaled, x, options=options)
    if first.winner != "superopt":
        pytest.skip("the race was not decided: a busy machine")
    assert superopt.optimize(scaled, x, options=options).recalled is not None
    monkeypatch.setattr("superopt.live.recalled.still_wins", lambda *_: False)
    assert superopt.optimize(scaled, x, options=options).recalled is None


def norms(x: torch.Tensor) -> torch.Tensor:
    return (x * x).sum(-1)


@pytest.fixture
def recalling(
    quick: superopt.OptimizeOptions, tmp_path: Any, monkeypatch: pytest.MonkeyPatch
) -> superopt.OptimizeOptions:
    """Return quick options by which results are kept, and used again whatever times are now."""
    monkeypatch.setenv("SUPEROPT_CACHE_DIR", str(tmp_path))
    monkeypatch.setattr("superopt.live.recalled.still_wins", lambda *_: True)
    return replace(quick, cache=True, recall=True, graphs=1)


def test_failures_that_may_pass_are_not_kept(
    recalling: superopt.OptimizeOptions, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*given: object) -> None:
        raise CompileError("No space left on device")

    x = torch.randn(5, 64)
    with monkeypatch.context() as patch:
        patch.setattr(CpuTarget, "make", full)
        assert superopt.optimize(norms, x, options=recalling).winner == "eager"
    again = superopt.optimize(norms, x, options=recalling)
    assert again.recalled is None
    assert again.fused is not None


def test_a_race_without_its_rival_is_not_kept(
    recalling: superopt.OptimizeOptions, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Before: kernels that had not raced torch.compile, whose compiler was killed, were kept for 30 days."""

    def killed(*given: object, **settings: object) -> None:
        raise RuntimeError("the compiler was killed")

    monkeypatch.setattr("superopt.rivals.ahead.load_compilers", lambda: None)
    monkeypatch.setattr(torch, "compile", killed)
    x, against = torch.randn(5, 64), replace(recalling, torch_compile=True)
    for _ in range(2):
        best = superopt.optimize(norms, x, options=against)
        assert "torch.compile" not in best.measurements
        assert best.recalled is None


def test_a_race_with_other_settings_of_inductor_is_another_one() -> None:
    options = superopt.OptimizeOptions(target="cpu")
    traced, inputs = trace(norms, torch.randn(5, 64)), (torch.randn(5, 64),)
    keys = []
    for settings in ({}, {"max_autotune": True}, {"max_autotune": False}):
        with torch._inductor.config.patch(settings):
            keys.append(recalled._key(traced, inputs, options, pick_target("cpu")))
    assert keys[0] == keys[2] != keys[1]


def test_what_is_recalled_returns_what_the_function_does_now(
    recalling: superopt.OptimizeOptions, tmp_path: Any
) -> None:
    def before(x: torch.Tensor) -> Any:
        return (x * x).sum(-1), x + 1, 7

    def after(x: torch.Tensor) -> Any:
        return {"b": (x * x).sum(-1), "a": x + 1, "n": 8}

    x, file = torch.randn(5, 64), tmp_path / "best.json"
    superopt.optimize(before, x, name="edited", options=recalling)
    best = superopt.optimize(after, x, name="edited", options=recalling)
    if best.recalled is None:
        pytest.skip("the race was not decided: a busy machine")
    best.save(file)
    found = superopt.load(file)(x)
    assert list(found) == ["b", "a", "n"]
    assert found["n"] == 8
    torch.testing.assert_close(found["a"], x + 1)
