"""Random modules: forward and backward with regions taken give what PyTorch gives."""

from typing import Any

import pytest
import torch

from superopt.backend import plans
from superopt.backend.decision import Decision

from .conftest import Host, close
from .modules import random_module

FAST = 20
DYNAMIC = (1, 3, 7)  # of the fast ones; symbolic sizes take PyTorch long
MANY = 500


def check(seed: int, *, dynamic: bool) -> Host:
    host = Host()
    check_with(host, seed, dynamic=dynamic)
    return host


def check_with(backend: Any, seed: int, *, dynamic: bool, options: dict[str, Any] | None = None) -> None:
    module, shape = random_module(seed)
    compiled = torch.compile(module, backend=backend, dynamic=dynamic, options=options)
    shapes = [shape, (shape[0] + 1, shape[1] + 2, shape[2])] if dynamic else [shape]
    for number, one in enumerate(shapes):
        torch.manual_seed(seed + number)
        x = torch.randn(one, requires_grad=True)
        y = x.detach().clone().requires_grad_()
        expected, found = module(x), compiled(y)
        close(found, expected)
        wanted = torch.autograd.grad(expected.square().mean(), [x, *module.parameters()])
        made = torch.autograd.grad(found.square().mean(), [y, *module.parameters()])
        for a, b in zip(made, wanted, strict=True):
            close(a, b)
        with torch.no_grad():
            close(compiled(x.detach()), module(x.detach()))


@pytest.mark.parametrize("seed", range(FAST))
def test_regions_computed_by_torch(seed: int, taken: list[Decision], monkeypatch: pytest.MonkeyPatch) -> None:
    """The graphs are cut and put together as they should, whatever computes the regions."""
    monkeypatch.setattr(
        plans.Runner, "by_kernels", lambda self, known: self.by_torch(known)
    )  # no compiler, for speed
    host = check(seed, dynamic=seed in DYNAMIC)
    assert host.calls >= len(taken) > 0  # equal regions are decided on once
    assert not [one for one in host.ledger.decisions if one.why.startswith("failed")]


@pytest.mark.slow
@pytest.mark.parametrize("dynamic", [False, True])
@pytest.mark.parametrize("seed", range(MANY))
def test_regions_computed_by_kernels(
    seed: int, dynamic: bool, taken: list[Decision], caplog: pytest.LogCaptureFixture
) -> None:
    host = check(seed, dynamic=dynamic)
    assert host.calls >= len(taken) > 0  # equal regions are decided on once
    assert not [one for one in caplog.records if one.name == "superopt"]


@pytest.mark.slow
@pytest.mark.parametrize(("seed", "dynamic"), [(4, False), (1, True), (3, False)])
def test_inductor_compiles_what_is_left(
    seed: int, dynamic: bool, taken: list[Decision], caplog: pytest.LogCaptureFixture
) -> None:
    options = {"cache": False, "inductor": {"force_disable_caches": True}}
    check_with("superopt", seed, dynamic=dynamic, options=options)
    assert taken
    assert not [one for one in caplog.records if one.name == "superopt"]
