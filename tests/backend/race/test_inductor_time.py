"""Expected: how long Inductor will take, and what is made ahead meanwhile."""

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import fx, nn

from superopt.backend.decision import Ledger
from superopt.backend.entry import multiplies
from superopt.backend.graphpass import RegionPass
from superopt.backend.inductor_time import NODES, kernels_of, node_seconds
from superopt.backend.options import BackendOptions
from superopt.codegen.cpp import compile as cpp_compile
from superopt.funnel.warm_up import WarmUp
from superopt.targets import Target, pick_target

from ..conftest import Host


def functional(module: nn.Module, *inputs: torch.Tensor) -> fx.Graph:
    """Return the graph that Inductor would get."""
    host = Host(budget_s=0.0)
    with torch.no_grad():
        torch.compile(module, backend=host, fullgraph=True)(*inputs)
    [graph] = host.graphs
    return graph


class Layers(nn.Module):
    """So many equal layers, or different ones."""

    def __init__(self, count: int, *, alike: bool) -> None:
        super().__init__()
        self.linears = nn.ModuleList(nn.Linear(8, 8) for _ in range(count))
        self.alike = alike

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for number, linear in enumerate(self.linears):
            x = linear(x)
            for _ in range(1 if self.alike else number + 1):
                x = (x * 2).exp()
        return x


def test_layers_that_are_alike_are_compiled_once() -> None:
    x = torch.ones(4, 8)
    one, many = (functional(Layers(count, alike=True), x) for count in (1, 6))
    assert kernels_of(one) == kernels_of(many)
    assert kernels_of(functional(Layers(6, alike=False), x)) > 1.5 * kernels_of(many)


def test_a_product_alone_makes_few_kernels() -> None:
    assert kernels_of(functional(nn.Linear(8, 8, bias=False), torch.ones(4, 8))) < 1.5


def test_a_node_takes_less_than_it_did_beside_others_or_with_its_gradients() -> None:
    graph = functional(Layers(6, alike=False), torch.ones(4, 8))
    nodes = len(graph.nodes)
    alone = node_seconds(graph, 2.0, joint=False)
    assert alone == pytest.approx(2.0 / max(nodes, 60))
    assert node_seconds(graph, 2.0, joint=True) < alone
    assert node_seconds(graph, 2.0, joint=False, alone=0.6) < alone


def test_a_ledger_expects_all_graphs_at_the_pace_of_the_first() -> None:
    graph = functional(Layers(3, alike=True), torch.ones(4, 8))
    ledger = Ledger(BackendOptions())
    ledger.note_arrival(graph, joint=False)
    assert ledger.inductor_s == 0.0  # nothing is known yet
    ledger.node_s = 0.01
    ledger.note_arrival(graph, joint=False)
    assert ledger.inductor_s == pytest.approx(0.01 * NODES * kernels_of(graph))


def test_the_pace_that_was_seen_counts() -> None:
    graph = functional(Layers(1, alike=True), torch.ones(4, 8))
    ledger = Ledger(BackendOptions())
    ledger.note_compiled(graph, 3.0 * kernels_of(graph))
    assert ledger.kernel_s == 0.0  # no graph has arrived yet
    ledger.node_s = 1.0  # of the first graph of a process
    assert ledger.kernel_s == pytest.approx(3.0)
    ledger.note_compiled(graph, 0.01)  # its kernels were at hand
    assert ledger.kernel_s == pytest.approx(3.0)
    ledger.note_compiled(graph, 2.0 * kernels_of(graph))
    assert ledger.kernel_s == pytest.approx(2.0)


@pytest.mark.parametrize(
    ("module", "multiplied"),
    [(nn.Linear(2, 2), True), (nn.Softmax(-1), False), (nn.MultiheadAttention(4, 2), True)],
)
def test_modules_that_multiply(module: nn.Module, multiplied: bool) -> None:
    found: list[bool] = []

    def noted(graph: fx.GraphModule, inputs: object) -> fx.GraphModule:
        found.append(multiplies(graph))
        return graph

    size = 4 if multiplied and not isinstance(module, nn.Linear) else 2
    x = torch.ones(3, size)
    arguments = (x, x, x) if isinstance(module, nn.MultiheadAttention) else (x,)
    torch.compile(module, backend=noted)(*arguments)
    assert found[0] is multiplied


@pytest.mark.slow
def test_what_kernels_share_is_compiled_ahead(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cpp_compile, "_folder", lambda: tmp_path / "cpp")
    with WarmUp() as warm_up:
        assert not warm_up.busy
        warm_up.share(pick_target("cpu"), [torch.ones(2), "no tensor", torch.ones(2, dtype=torch.int64)])
        assert warm_up.busy
        assert warm_up._work is not None
        warm_up._work.join()
        assert not warm_up.busy
    names = {path.name.partition("-")[0] for path in (tmp_path / "cpp").iterdir()}
    assert {"contract_float", "contract_panels"} <= names
    assert "contract_bf16" not in names


@pytest.mark.slow
def test_a_process_is_begun_for_graphs_that_are_new(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SUPEROPT_CACHE_DIR", str(tmp_path / "own"))
    monkeypatch.setattr(RegionPass, "_run", lambda self, graph, warm_up: None)
    begun: list[Target] = []
    monkeypatch.setattr(WarmUp, "first_runs", lambda self, target: begun.append(target))
    x = torch.ones(3, 8)

    def counted(size: int, **options: Any) -> int:
        torch._dynamo.reset()
        begun.clear()
        settings = {"inductor": {"fx_graph_cache": False}, **options}
        with torch.no_grad():
            torch.compile(nn.Linear(8, size), backend="superopt", options=settings)(x)
        return len(begun)

    assert [counted(4), counted(4), counted(5), counted(5)] == [1, 0, 1, 0]
    assert [counted(6, budget_s=0), counted(6, budget_s=1), counted(6, budget_s=9)] == [0, 0, 1]
    assert [counted(4, cache=False), counted(4, cache=False)] == [1, 1]


def test_leaving_ends_what_was_begun(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SUPEROPT_CACHE_DIR", str(tmp_path / "own"))
    with WarmUp() as warm_up:
        warm_up.share(pick_target("cpu"), [torch.ones(2, dtype=torch.bfloat16)])
        kept = warm_up.first_runs(pick_target("cpu"))
        assert warm_up.first_runs(pick_target("cpu")) is kept
    assert warm_up._work is not None
    warm_up._work.join(10)
    assert not warm_up.busy
