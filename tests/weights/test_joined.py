"""Projections of one tensor as one product, their weights side by side; and what is never joined."""

from collections.abc import Callable
from dataclasses import replace

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

from superopt.bench.models.int8 import with_int8_weights
from superopt.candidates.candidate import Candidate
from superopt.candidates.proof import prove_by_graph
from superopt.candidates.schedules import schedules
from superopt.driver import Found
from superopt.funnel.assembly import as_kernel
from superopt.ir import Graph, parse_graph
from superopt.targets import pick_target
from superopt.trace import trace
from superopt.trace.traced import Traced
from superopt.verify.graphs.equality import equal_graphs
from superopt.weights.division import divided, once_values
from superopt.weights.joined import joined

pytestmark = pytest.mark.usefixtures("every_schedule")

D = 96


def linear(inner: int, outer: int) -> nn.Linear:
    return nn.Linear(inner, outer, bias=False)


class Heads(nn.Module):
    """Queries, and fewer keys and values, turned into heads; one of them has a bias."""

    def __init__(self) -> None:
        super().__init__()
        self.q, self.k, self.v = nn.Linear(D, 128), linear(D, 32), linear(D, 48)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        q = self.q(x).view(-1, 8, 16).transpose(0, 1)
        return q, self.k(x).view(-1, 2, 16).transpose(0, 1), self.v(x).relu()


class Gated(nn.Module):
    """A gate and what passes it, after a norm."""

    def __init__(self) -> None:
        super().__init__()
        self.g, self.u, self.d = linear(D, 256), linear(D, 256), linear(256, D)

    def forward(self, x: Tensor) -> Tensor:
        x = x * torch.rsqrt(x.square().mean(-1, keepdim=True) + 1e-6)
        return self.d(functional.silu(self.g(x)) * self.u(x))


class Score(nn.Module):
    """Rows of two projections by each other: the second matrix meets the first one's columns."""

    def __init__(self) -> None:
        super().__init__()
        self.q, self.k = linear(D, 64), linear(D, 64)

    def forward(self, x: Tensor) -> Tensor:
        return self.q(x) @ self.k(x).t()


def region(module: nn.Module, rows: int = 5, dtype: torch.dtype = torch.float32) -> tuple[Traced, Graph]:
    traced = trace(module.eval().to(dtype), torch.randn(rows, D).to(dtype))
    [node] = traced.program.nodes
    return traced, node.graph


def matrices(graph: Graph) -> int:
    """Return the products of a graph with matrices of weights, as it runs in each call."""
    run = divided(graph, values).run if (values := once_values(graph, "frozen")) else graph
    weights = {at for at, port in enumerate(run.inputs) if port.constant}
    return sum(step.op == "contract" and not weights.isdisjoint(step.inputs) for step in run.steps)


def candidates(graph: Graph, weights: str = "frozen") -> list[Candidate]:
    found = Found(graph, None, equal_graphs(graph, graph), is_original=True)
    return list(schedules(graph, [found], pick_target("cpu"), graphs=16, weights=weights).candidates)


def has_joined(one: Candidate) -> bool:
    return any(axis.name.startswith("joined") for axis in one.graph.axes)


@pytest.mark.parametrize(("module", "before", "after"), [(Heads, 3, 1), (Gated, 3, 2), (Score, 2, 1)])
def test_projections_of_one_tensor_are_joined_and_proven(module, before: int, after: int) -> None:
    _, graph = region(module())
    made = joined(graph, "frozen")
    assert made is not None
    assert (matrices(graph), matrices(made)) == (before, after)
    assert equal_graphs(graph, made).equal


@torch.no_grad()
@pytest.mark.parametrize("dtype", [torch.float32, pytest.param(torch.bfloat16, marks=pytest.mark.slow)])
@pytest.mark.parametrize("module", [Heads, Gated])
def test_schedules_try_them_and_kernels_see_changes(module, dtype: torch.dtype) -> None:
    torch.manual_seed(0)
    made = module()
    traced, graph = region(made, dtype=dtype)
    [best, *_] = filter(has_joined, candidates(graph))
    kernel = as_kernel(graph, best, pick_target("cpu").make(best.mugraph, best.configs))
    x = torch.randn(5, D).to(dtype)
    near = {"rtol": 1e-4, "atol": 1e-4} if dtype == torch.float32 else {"rtol": 3e-2, "atol": 3e-2}
    for _ in range(2):
        known = {traced.input_names[0]: x, **traced.constants}
        found = kernel(**{port.name: known[port.name] for port in graph.inputs})
        wanted = made(x)
        for one, other in zip(
            found.values(), wanted if isinstance(wanted, tuple) else (wanted,), strict=True
        ):
            torch.testing.assert_close(one.reshape(other.shape), other, **near)
        for weight in made.parameters():
            weight.data.mul_(-1.5)


@pytest.mark.parametrize(("weights", "some"), [("live", False), ("default", True), ("frozen", True)])
def test_a_policy_decides(weights: str, some: bool) -> None:
    """All of these weights together are small enough to be kept beside the original."""
    _, graph = region(Heads())
    assert any(map(has_joined, candidates(graph, weights))) is some


def test_large_weights_are_joined_only_where_they_may_be_kept() -> None:
    class Large(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.a, self.b = linear(D, 512), linear(D, 512)

        def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
            return self.a(x), self.b(x)

    _, graph = region(Large())
    assert joined(graph, "default") is None
    assert joined(graph, "frozen") is not None


@torch.no_grad()
def test_integers_are_joined_as_integers() -> None:
    torch.manual_seed(0)
    module = with_int8_weights(Heads())
    _, graph = region(module)
    found = joined(graph, "frozen")
    assert found is not None
    [kept] = divided(found, once_values(found, "frozen")).once.outputs
    assert kept.port.dtype == "i8"
    assert equal_graphs(graph, found).equal


class Two(nn.Module):
    """Two products, of which a test says what they are."""

    def __init__(self, function: Callable[["Two", Tensor], tuple[Tensor, Tensor]]) -> None:
        super().__init__()
        self.a, self.b = nn.Parameter(torch.randn(D, 32)), nn.Parameter(torch.randn(D, 32))
        self.c, self.short = nn.Parameter(torch.randn(5, D, 8)), nn.Parameter(torch.randn(32, 32))
        self.function = function

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        return self.function(self, x)


APART: dict[str, Callable[[Two, Tensor], tuple[Tensor, Tensor]]] = {
    "of two tensors": lambda m, x: (x @ m.a, x.exp() @ m.b),
    "one weight twice": lambda m, x: (x @ m.a, (x @ m.a).relu()),
    "one after the other": lambda m, x: (x @ m.a, (x @ m.a) @ m.short),
    "weights of each row": lambda m, x: (x @ m.a, torch.einsum("mk,mkn->mn", x, m.c)),
    "of an activation": lambda m, x: (x @ x.t(), x @ m.a),
    "sums of other lengths": lambda m, x: (x[:, :32] @ m.short, x @ m.a),
}


@pytest.mark.parametrize("function", APART.values(), ids=list(APART))
def test_what_shares_no_tensor_and_no_sum_stays_apart(function) -> None:
    traced = trace(Two(function).eval(), torch.randn(5, D))
    for node in traced.program.nodes:
        assert joined(node.graph, "frozen") is None


def test_weights_of_other_dtypes_stay_apart() -> None:
    text = """
    graph mixed
    axes m=4 k=8 n=6 l=5
    in x: f32[m, k]
    in a: f32[n, k] constant
    in b: bf16[l, k] constant
    t3 = contract[k](x, a)
    t4 = contract[k](x, b)
    out y: f32[m, n] = t3
    out z: f32[m, l] = t4
    """
    assert joined(parse_graph(text), "frozen") is None
    assert joined(parse_graph(text.replace("bf16", "f32")), "frozen") is not None


def test_tensors_that_calls_bring_stay_apart() -> None:
    x, a, b = torch.randn(5, D), torch.randn(D, 32), torch.randn(D, 32)
    [node] = trace(lambda x, a, b: (x @ a, x @ b), x, a, b).program.nodes
    assert joined(node.graph, "frozen") is None


def test_a_wrong_join_is_refused() -> None:
    """A file may claim anything: windows one further, parts exchanged, a part left out."""
    _, graph = region(Heads())
    [best, *_] = filter(has_joined, candidates(graph))
    assert prove_by_graph(graph, best.graph, best.mugraph, best.once) is not None
    places = [(at, step) for at, step in enumerate(best.graph.steps) if step.op == "window"]
    assert len(places) == 6
    for at, step in places:
        [place] = step.places
        for offset in (place.offset + 1, place.offset - 1, -place.offset or 16):
            moved = replace(step, places=(replace(place, offset=offset),))
            steps = (*best.graph.steps[:at], moved, *best.graph.steps[at + 1 :])
            wrong = replace(best.graph, steps=steps)
            assert prove_by_graph(graph, wrong, best.mugraph, best.once) is None
            run = divided(wrong, best.once).run
            if run != best.run:
                kernels = replace(best.mugraph, graph=run)
                assert prove_by_graph(graph, best.graph, kernels, best.once) is None
