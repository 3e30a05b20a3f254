"""Weights in panels of columns: proven, read by kernels in one piece, and made again when they change."""

from collections.abc import Callable

import pytest
import torch
from quick import few
from torch import Tensor, nn
from torch.nn import functional

from superopt.candidates.candidate import Candidate
from superopt.candidates.proof import prove_by_graph
from superopt.candidates.schedules import schedules
from superopt.driver import Found
from superopt.funnel.assembly import as_kernel
from superopt.ir import Graph
from superopt.targets import pick_target
from superopt.trace import trace
from superopt.trace.traced import Traced
from superopt.verify.graphs.equality import equal_graphs
from superopt.weights.division import divided
from superopt.weights.packed import packed

pytestmark = pytest.mark.usefixtures("every_schedule")

D = 96


class Projection(nn.Module):
    """A projection with a bias, and something behind it."""

    def __init__(self, inner: int = D, outer: int = 192) -> None:
        super().__init__()
        self.l = nn.Linear(inner, outer)

    def forward(self, x: Tensor) -> Tensor:
        return functional.gelu(self.l(x))


class Turned(nn.Module):
    """A matrix whose rows lie along its columns."""

    def __init__(self) -> None:
        super().__init__()
        self.w = nn.Parameter(torch.randn(D, 128) / 10)

    def forward(self, x: Tensor) -> Tensor:
        return x @ self.w


class Mlp(nn.Module):
    """Columns of two matrices are rows of a third one."""

    def __init__(self) -> None:
        super().__init__()
        self.g, self.u = (nn.Linear(D, 256, bias=False) for _ in range(2))
        self.d = nn.Linear(256, 64)

    def forward(self, x: Tensor) -> Tensor:
        return self.d(functional.silu(self.g(x)) * self.u(x))


class Heads(nn.Module):
    """Columns in heads, which leave in another order."""

    def __init__(self, each: int = 128) -> None:
        super().__init__()
        self.q = nn.Linear(D, 3 * each, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        return self.q(x).view(x.shape[0], 3, -1).transpose(0, 1).relu()


class Exact(Heads):
    """Heads of one panel each."""

    def __init__(self) -> None:
        super().__init__(64)


def region(module: nn.Module, rows: int = 5, dtype: torch.dtype = torch.float32) -> tuple[Traced, Graph]:
    traced = trace(module.eval().to(dtype), torch.randn(rows, D).to(dtype))
    [node] = traced.program.nodes
    return traced, node.graph


def candidates(graph: Graph, weights: str = "frozen") -> list[Candidate]:
    found = Found(graph, None, equal_graphs(graph, graph), is_original=True)
    ways = schedules(graph, [found], pick_target("cpu"), graphs=16, weights=weights).candidates
    return [one for one in ways if packed_whole(one) or "n_lane" in one.graph.sizes]


def packed_whole(one: Candidate) -> bool:
    """Whether weights are kept as they are in another order."""
    return any(at < len(one.graph.inputs) for at in one.once)


class Folded(nn.Module):
    """A matrix that is made of two tensors once."""

    def __init__(self) -> None:
        super().__init__()
        self.l, self.g = nn.Linear(D, 128, bias=False), nn.Parameter(torch.rand(D))

    def forward(self, x: Tensor) -> Tensor:
        return functional.linear(x, self.l.weight * self.g)


class Rotated(nn.Module):
    """Halves of columns that change places."""

    def __init__(self) -> None:
        super().__init__()
        self.l = nn.Linear(D, 128, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        x = self.l(x)
        return torch.cat([-x[:, 64:], x[:, :64]], -1) * 0.5


MODULES = [Projection, Turned, Mlp, Heads, Exact, Folded, Rotated]


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("module", MODULES)
def test_columns_lie_in_panels_and_the_graph_is_proven(module, dtype: torch.dtype) -> None:
    _, graph = region(module(), dtype=dtype)
    made = packed(graph, "frozen")
    assert made is not None
    assert equal_graphs(graph, made[0]).equal
    parts = divided(*made)
    widths = {32} if dtype == torch.float32 else {32, 64}
    products = [step for step in parts.run.steps if step.op == "contract"]
    assert products
    for step in products:
        [weight] = [parts.run.inputs[at] for at in step.inputs if at < len(parts.run.inputs)][-1:]
        assert weight.constant
        *outer, lane = weight.axes
        assert parts.run.sizes[lane] in widths
        assert set(outer[-len(step.axes) :]) == set(step.axes)


SEVERAL = [
    (module, torch.float32, rows)
    for module in MODULES
    for rows in (1, 40)
    if module is not Folded or rows > 1
]
SEVERAL += [(Projection, torch.float32, 7), (Projection, torch.bfloat16, 1), (Mlp, torch.bfloat16, 20)]


@torch.no_grad()
@pytest.mark.parametrize(("module", "dtype", "rows"), few(SEVERAL, *(one for one in SEVERAL if one[2] > 1)))
def test_kernels_read_panels_and_see_changes(module, dtype: torch.dtype, rows: int) -> None:
    torch.manual_seed(0)
    made = module()
    traced, graph = region(made, rows, dtype)
    best, *_ = candidates(graph)
    kernel = as_kernel(graph, best, pick_target("cpu").make(best.mugraph, best.configs))
    near = {"rtol": 1e-4, "atol": 1e-4} if dtype == torch.float32 else {"rtol": 3e-2, "atol": 3e-2}
    for x in (torch.randn(rows, D).to(dtype), torch.randn(D, rows).to(dtype).t()):
        known = {traced.input_names[0]: x, **traced.constants}
        [found] = kernel(**{port.name: known[port.name] for port in graph.inputs}).values()
        torch.testing.assert_close(found, made(x), **near)
        for weight in made.parameters():
            weight.data.mul_(-1.5)


@pytest.mark.parametrize(("weights", "some"), [("live", False), ("default", True), ("frozen", True)])
def test_a_policy_decides(weights: str, some: bool) -> None:
    """These weights are small enough to be kept beside the original."""
    _, graph = region(Projection())
    assert bool(candidates(graph, weights)) is some


def test_large_weights_are_packed_only_where_they_may_be_kept() -> None:
    _, graph = region(Projection(outer=1024))
    assert packed(graph, "default") is None
    assert packed(graph, "frozen") is not None


def test_no_more_than_a_few_small_weights_are_kept_twice() -> None:
    class Many(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layers = nn.ModuleList(nn.Linear(D, D * 4) for _ in range(4))

        def forward(self, x: Tensor) -> tuple[Tensor, ...]:
            return tuple(one(x) for one in self.layers)

    _, graph = region(Many())
    made = packed(graph, "default")
    assert made is not None
    assert len(made[1]) == 1


class Uneven(Projection):
    """Columns that no whole panels hold."""

    def __init__(self) -> None:
        super().__init__(outer=80)


class Tied(nn.Module):
    """A matrix that two products read."""

    def __init__(self) -> None:
        super().__init__()
        self.l = nn.Linear(D, D, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        return self.l(self.l(x).relu())


class Read(nn.Module):
    """A matrix that is read as it is, besides."""

    def __init__(self) -> None:
        super().__init__()
        self.w = nn.Parameter(torch.randn(D, D))

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        return x @ self.w, self.w.abs().sum()


class Shifted(nn.Module):
    """Columns that are read beside one another."""

    def __init__(self) -> None:
        super().__init__()
        self.l = nn.Linear(D, 128, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        return functional.avg_pool1d(self.l(x)[:, None], 3, 1, 1)


NOT_PACKED: list[Callable[[], nn.Module]] = [Uneven, Tied, Read, Shifted]


@pytest.mark.parametrize("module", NOT_PACKED)
def test_what_panels_do_not_serve_stays(module) -> None:
    _, graph = region(module())
    assert packed(graph, "frozen") is None


def test_tensors_that_calls_bring_stay() -> None:
    traced = trace(lambda x, w: x @ w, torch.randn(5, D), torch.randn(D, 128))
    assert packed(traced.program.nodes[0].graph, "frozen") is None


def test_kernels_of_another_order_are_not_proven() -> None:
    _, graph = region(Turned())
    best, *_ = candidates(graph)
    assert prove_by_graph(graph, best.graph, best.mugraph, best.once)
    weight = best.mugraph.graph.inputs[-1]
    assert prove_by_graph(graph, best.graph, best.mugraph, ()) is None, weight
