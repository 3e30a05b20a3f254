"""Random modules: forward and backward with regions taken are about as accurate as eager PyTorch."""

from typing import Any

import pytest
import torch

from superopt.backend import region_plan
from superopt.backend.decision import Decision

from ..conftest import Host, troubles
from .agreement import Trio
from .soups import random_case

FAST = 10
QUICK = (2, 8)
DYNAMIC = (1, 3, 8)  # of the fast ones; symbolic sizes take PyTorch long
MANY = 500


def check(backend: Any, seed: int, *, dynamic: bool, options: dict[str, Any] | None = None) -> None:
    """Compare a case's results and gradients at one size, or at two where sizes are symbols."""
    case = random_case(seed)

    def compiled(module: torch.nn.Module) -> Any:
        return torch.compile(module, backend=backend, dynamic=dynamic, options=options)

    trio = Trio(case.module, compiled)
    for more in (0, 1) if dynamic else (0,):
        trio.check(*case.inputs(seed, more), gradients=True)
        trio.check(*case.inputs(seed + 1, more), gradients=False)


@pytest.mark.parametrize(
    "seed", [pytest.param(one, marks=[pytest.mark.slow] * (one not in QUICK)) for one in range(FAST)]
)
def test_regions_computed_by_torch(
    seed: int, taken: list[Decision], monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """The graphs are cut and put together as they should, whatever computes the regions."""
    monkeypatch.setattr(
        region_plan.RegionPlan, "by_kernels", lambda self, known: self.by_torch(known)
    )  # no compiler, for speed
    host = Host()
    check(host, seed, dynamic=seed in DYNAMIC)
    assert host.calls >= len(taken) > 0  # equal regions are decided on once
    assert not [one for one in host.ledger.decisions if one.why.startswith("failed")]
    assert not troubles(caplog)


@pytest.mark.slow
@pytest.mark.usefixtures("quick_kernels")
@pytest.mark.parametrize("dynamic", [False, True])
@pytest.mark.parametrize("seed", range(MANY))
def test_regions_computed_by_kernels(
    seed: int, dynamic: bool, taken: list[Decision], caplog: pytest.LogCaptureFixture
) -> None:
    host = Host()
    check(host, seed, dynamic=dynamic)
    assert host.calls >= len(taken)
    assert taken or dynamic  # where sizes are symbols, kernels may serve some only
    assert not troubles(caplog)


@pytest.mark.slow
@pytest.mark.usefixtures("quick_kernels")
@pytest.mark.parametrize(("seed", "dynamic"), [(8, False), (2, True), (3, False), (5, False), (7, True)])
def test_inductor_compiles_what_is_left(
    seed: int, dynamic: bool, taken: list[Decision], caplog: pytest.LogCaptureFixture
) -> None:
    options = {"cache": False, "inductor": {"fx_graph_cache": False}}
    check("superopt", seed, dynamic=dynamic, options=options)
    assert taken
    assert not troubles(caplog)
