"""Training steps whose chunks are computed by kernels of ours, in float32 and under autocast."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.utils._python_dispatch import _get_current_dispatch_mode

from superopt.backend.decision import Decision
from superopt.backend.joint import chunk_race, joint_pass
from superopt.backend.joint.chunks import choice
from superopt.backend.joint.chunks.own import OwnStage
from superopt.backend.joint.chunks.run import TiledKernel
from superopt.backend.joint.chunks.tiles import Tiles
from superopt.backend.joint.limits import changed
from superopt.rivals.inductor import alone
from superopt.verify.floats.float64 import Float64

from .steps import Loss, Model, capped, plain, step, with_z

SLOW = pytest.mark.slow


@pytest.fixture
def called(monkeypatch: pytest.MonkeyPatch) -> set[str]:
    """Let kernels of ours compute all stages; return the names of the graphs that they have computed."""
    call, names = OwnStage.__call__, set[str]()

    def ours(several: Sequence[Tiles], given: Mapping[str, Tensor]) -> list[tuple[float, Tiles]]:
        return [(1.0, replace(one, own=tuple(one.kernel.flops()))) for one in several]

    def calling(self: OwnStage, *given: Any) -> None:
        names.add(self._kernels.graph.name)
        call(self, *given)

    monkeypatch.setattr(choice, "_timed", ours)
    monkeypatch.setattr(OwnStage, "__call__", calling)
    return names


def autocast(program: Callable[..., Tensor]) -> Callable[..., Tensor]:
    def run(*given: Any) -> Tensor:
        with torch.autocast("cpu", dtype=torch.bfloat16):
            return program(*given)

    return run


def made(loss: Loss) -> Model:
    return Model(loss, tied=True, short=True, bias=loss is capped)


@pytest.mark.parametrize("loss", [plain, pytest.param(capped, marks=SLOW), pytest.param(with_z, marks=SLOW)])
def test_gradients_are_eagers(loss: Loss, noted: list[Decision], called: set[str]) -> None:
    model = made(loss)
    parameters = list(model.parameters())
    compiled = torch.compile(model, backend="superopt", options={"budget_s": 600})
    for by in (1.0, -2.5):
        for found, wanted in zip(step(compiled, parameters, by), step(model, parameters, by), strict=True):
            torch.testing.assert_close(found, wanted, rtol=1e-4, atol=1e-5)
    assert any(one.taken for one in noted), noted
    assert len(called) >= 4, "three products, and what lies between"


@pytest.mark.parametrize("loss", [plain, pytest.param(with_z, marks=SLOW)])
def test_gradients_under_autocast(
    loss: Loss, noted: list[Decision], called: set[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Before: what is compiled ran where operators are carried out in float64, and wrote elsewhere."""
    run, modes = TiledKernel.__call__, set[object]()

    def running(self: TiledKernel, given: Mapping[str, Tensor]) -> dict[str, Tensor]:
        modes.add(_get_current_dispatch_mode())
        return run(self, given)

    monkeypatch.setattr(TiledKernel, "__call__", running)
    model = made(loss)
    parameters = list(model.parameters())
    exact_model = made(loss).double()
    exact = step(exact_model, list(exact_model.parameters()), 1.0)
    compiled = torch.compile(model, backend="superopt", options={"budget_s": 600})
    theirs = step(autocast(model), parameters, 1.0)
    for found, wanted, best in zip(step(autocast(compiled), parameters, 1.0), theirs, exact, strict=True):
        assert found.dtype == wanted.dtype
        error, allowed = (float((one - best).abs().max()) for one in (found, wanted))
        assert error <= 2 * allowed + 1e-3 * float(best.abs().max())
    assert any(one.taken for one in noted), noted
    assert len(called) >= 4
    assert modes
    assert not any(isinstance(one, Float64) for one in modes)


def test_products_are_timed_where_nothing_is_fake() -> None:
    """Before: while a graph was compiled, the product of a fake tensor was timed, which takes none."""
    chunk_race._library_rate.cache_clear()
    with torch._subclasses.FakeTensorMode():
        rate = alone(lambda: chunk_race._library_rate(torch.float32))
    assert rate < 1e14


@pytest.mark.parametrize(("rate", "raced"), [(1e15, False), (1e3, True)])
def test_without_a_budget_short_parts_are_not_raced(
    rate: float, raced: bool, noted: list[Decision], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(chunk_race, "_library_rate", lambda dtype: rate)
    model = made(plain)
    with changed(any_speed=False):
        step(torch.compile(model, backend="superopt"), list(model.parameters()), 1.0)
    told = [one.why for one in noted if one.graph == "joint graph"]
    assert told
    assert any("too little to race" in one for one in told) != raced


@pytest.mark.parametrize("share", [0.0, 1e3])
def test_without_a_budget_chunks_are_raced_that_may_lower_the_peak(
    share: float, noted: list[Decision], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Before: chunks were raced for half a minute, and then held too much at the end of the step."""
    monkeypatch.setattr(joint_pass, "_LEAST_LARGEST", share)
    model = made(plain)
    with changed(any_speed=False):
        step(torch.compile(model, backend="superopt"), list(model.parameters()), 1.0)
    assert any(one.graph == "joint graph" for one in noted) == (share == 0.0)
