"""Explain: what it tells of forward and backward graphs, and what it leaves as it was."""

from collections.abc import Callable, Mapping
from typing import Any

import pytest
import torch
from torch import Tensor, fx, nn

import superopt
from superopt.backend import entry

from .conftest import Host, close, troubles
from .modules import WIDTH, Mlp

# Dynamo itself looks at the gradients of what one graph hands to the next.
pytestmark = pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor that is not a leaf")


@pytest.fixture(autouse=True)
def without_inductor(monkeypatch: pytest.MonkeyPatch) -> None:
    """Run the pass over the graphs that Inductor would get, and then PyTorch itself."""

    def host(module: fx.GraphModule, inputs: Any, patches: Mapping[str, Any]) -> Callable[..., Any]:
        made = Host()
        made.ledger = patches["post_grad_custom_pre_pass"].ledger
        return made(module, inputs)

    monkeypatch.setattr(entry, "with_inductor", host)


NO_SEARCH = {"budget_s": 0}


def graphs(text: str) -> list[str]:
    return [line.partition(", ")[2] for line in text.splitlines() if line.startswith("graph ")]


class Broken(nn.Module):
    """Two graphs, with something between that is none."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = Mlp(torch.tanh, bias=False), Mlp(torch.tanh, bias=False)

    def forward(self, x: Tensor) -> tuple[Tensor, dict[str, Tensor]]:
        made = self.first(x)
        torch._dynamo.graph_break()
        return made, {"second": self.second(made), "count": torch.tensor(2)}


def data(rows: int = 3) -> Tensor:
    return torch.randn(rows, WIDTH, generator=torch.Generator().manual_seed(rows))


def test_backward_graphs_are_explained_and_no_grad_changes() -> None:
    module, x = Broken(), data().requires_grad_()
    first = next(module.parameters())
    first.grad = torch.ones_like(first)
    text = superopt.explain(module, x, options=NO_SEARCH)
    assert graphs(text) == ["forward", "forward", "backward", "backward"]
    assert x.grad is None
    assert [one.grad is None for one in module.parameters()].count(False) == 1
    assert torch.equal(first.grad, torch.ones_like(first))


@pytest.mark.parametrize("frozen", [True, False])
def test_without_gradients_there_is_no_backward_graph(frozen: bool) -> None:
    module = Mlp(torch.tanh, bias=False)
    if frozen:
        module.requires_grad_(False)
    with torch.set_grad_enabled(frozen):
        assert graphs(superopt.explain(module, data(), options=NO_SEARCH)) == ["inference"]


def test_a_graph_of_the_users_can_still_be_run_backward() -> None:
    module, x = Mlp(torch.tanh, bias=False), data().requires_grad_()
    before = (x * x).exp()
    text = superopt.explain(module, before, options=NO_SEARCH)
    assert graphs(text) == ["forward", "backward"]
    [found] = torch.autograd.grad(before.sum(), x)
    close(found, 2 * x * (x * x).exp())


def test_a_backward_pass_that_fails_is_one_line(warnings_logged: pytest.LogCaptureFixture) -> None:
    module = Mlp(torch.tanh, bias=False)

    def refuse(gradient: Tensor) -> None:
        raise RuntimeError("no gradients here")

    def hooked(x: Tensor) -> Tensor:
        made = module(x)
        torch._dynamo.graph_break()
        made.register_hook(refuse)
        return made * 2

    text = superopt.explain(hooked, data(), options=NO_SEARCH)
    assert "forward" in graphs(text)
    assert troubles(warnings_logged) == ["the backward pass is not explained: no gradients here"]


def test_explaining_many_times_leaves_room_for_the_users_own_graphs() -> None:
    module, host = Mlp(torch.tanh, bias=False), Host(budget_s=0.0)
    compiled = torch.compile(module, backend=host, dynamic=False)
    with torch.no_grad(), torch._dynamo.config.patch(recompile_limit=2):
        compiled(data(2))
        for _ in range(4):
            assert graphs(superopt.explain(module, data(2), options=NO_SEARCH)) == ["inference"]
        close(compiled(data(3)), module(data(3)))
    assert len(host.graphs) == 2


def test_operators_outside_all_regions_are_told_with_the_reason() -> None:
    def function(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
        return torch.sort(x @ w).values @ w

    given = torch.randn(4, 8), torch.randn(8, 8)
    told = superopt.backend.explain(function, *given, options={"budget_s": 0.0})
    assert "outside all regions\n  sort: the order depends on the data, 1 times" in told
    told = superopt.backend.explain(lambda x, w: (x @ w).relu() @ w, *given, options={"budget_s": 0.0})
    assert "outside" not in told
