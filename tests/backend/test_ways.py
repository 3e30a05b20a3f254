"""The ways in which torch.compile is asked, with regions taken: modes, options, sizes that change."""

from typing import Any

import pytest
import torch
from torch import Tensor, nn

from superopt.backend import region_plan, region_race
from superopt.backend.decision import Decision
from superopt.backend.graphpass import RegionPass

from .conftest import Host, close, troubles
from .modules import WIDTH, Mlp
from .test_compile import take_all


@pytest.fixture
def calls(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Let torch compute what kernels would; return the rows of each call of a region."""
    rows: list[int] = []

    def compute(self: region_plan.RegionPlan, known: dict[str, Tensor]) -> list[Tensor]:
        made = self.by_torch(known)
        rows.append(len(made[0]))
        return made

    monkeypatch.setattr(region_plan.RegionPlan, "by_kernels", compute)
    return rows


@pytest.fixture
def no_caches(monkeypatch: pytest.MonkeyPatch) -> None:
    """Keep Inductor from bringing back the graphs of other tests."""
    monkeypatch.setattr(RegionPass, "uuid", lambda self: None)


def data(rows: int) -> Tensor:
    return torch.randn(rows, WIDTH, generator=torch.Generator().manual_seed(rows))


WAYS: list[Any] = [
    {"mode": "reduce-overhead"},
    pytest.param({"mode": "default", "fullgraph": True}, marks=pytest.mark.slow),
    pytest.param({"options": {"inductor": {"triton.cudagraphs": True}}}, marks=pytest.mark.slow),
    pytest.param(
        {"options": {"inductor": {"triton.cudagraphs": True, "triton.cudagraph_trees": False}}},
        marks=pytest.mark.slow,
    ),
    {"options": {"inductor": {"max_autotune": True}}, "dynamic": True},
]


@pytest.mark.parametrize("way", WAYS, ids=str)
@pytest.mark.usefixtures("no_caches", "taken")
def test_regions_are_called_forward_and_backward(way: dict[str, Any], calls: list[int]) -> None:
    module = nn.Sequential(Mlp(torch.tanh, bias=False))
    compiled = torch.compile(module, backend="superopt", **way)
    with torch.no_grad():
        for _ in range(3):
            close(compiled(data(3)), module(data(3)))
    assert calls[-3:] == [3] * 3  # kernels for all sizes were also tried at others
    before = len(calls)
    found = torch.autograd.grad(compiled(data(3)).square().sum(), list(module.parameters()))
    wanted = torch.autograd.grad(module(data(3)).square().sum(), list(module.parameters()))
    for a, b in zip(found, wanted, strict=True):
        close(a, b)
    assert len(calls) > before


@pytest.mark.usefixtures("calls")
def test_an_axis_that_is_marked_is_compiled_once(taken: list[Decision]) -> None:
    module, host = Mlp(torch.tanh, bias=False), Host()
    compiled = torch.compile(module, backend=host)
    with torch.no_grad():
        for rows in (3, 5, 17):
            x = data(rows)
            torch._dynamo.mark_dynamic(x, 0, min=2, max=64)
            close(compiled(x), module(x))
    assert len(host.graphs) == host.calls == 1


@pytest.mark.slow
@pytest.mark.usefixtures("quick_kernels")
@pytest.mark.parametrize("way", [{"dynamic": True}, {"fullgraph": True}], ids=str)
def test_a_search(
    way: dict[str, Any], monkeypatch: pytest.MonkeyPatch, warnings_logged: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(region_race.RegionRace, "_decide", take_all)
    monkeypatch.setattr(region_race, "slower_elsewhere", lambda *given: None)
    for name in ("_TOO_SHORT_US", "_NO_ROOM", "WIN"):
        monkeypatch.setattr(region_race, name, 0.0)
    monkeypatch.setattr("superopt.backend.options._GRAPHS", {"quick": 1})
    module, host = Mlp(torch.relu, bias=False), Host(budget_s=30.0)
    compiled = torch.compile(module, backend=host, **way)
    with torch.no_grad():
        for rows in (4, 7) if "dynamic" in way else (4, 4):
            close(compiled(data(rows)), module(data(rows)))
    assert host.ledger.searched == 1
    assert [one.taken for one in host.ledger.decisions] == [True]
    assert len(host.graphs) == host.calls == 1
    assert not troubles(warnings_logged)
