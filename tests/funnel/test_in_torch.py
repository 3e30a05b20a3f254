"""In torch: regions that torch computes, stable and whatever modes are in force, as in a backward pass."""

from collections.abc import Callable
from contextlib import AbstractContextManager

import pytest
import torch
from torch import Tensor, fx

from superopt.backend.operators import Operators
from superopt.backend.region_plan import RegionPlan
from superopt.errors import GraphError, InputError
from superopt.funnel.assembly import InTorch
from superopt.ir import Graph, parse_graph
from superopt.trace import trace
from superopt.weights.division import divided
from superopt.weights.kept import KeptKernel
from tests.weights.folding import FOLDED


def attended(q: Tensor, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
    scores = q @ k.T
    return scores.softmax(-1) @ v, scores.logsumexp(-1)


def goal_of(rows: int = 5) -> Graph:
    return trace(attended, *drawn(rows), name="f").graph


def drawn(rows: int, by: float = 1.0) -> tuple[Tensor, ...]:
    return tuple(torch.randn(rows, 8) * by for _ in range(3))


def named(goal: Graph, tensors: tuple[Tensor, ...]) -> dict[str, Tensor]:
    return {port.name: one for port, one in zip(goal.inputs, tensors, strict=True)}


@pytest.mark.parametrize("rows", [5, 9])
def test_torch_takes_exponentials_less_their_maxima(rows: int) -> None:
    goal, given = goal_of(), drawn(rows, by=30.0)
    plan = RegionPlan(goal, "cpu", {})
    assert float((given[0] @ given[1].T).max()) > 90  # its exponential is beyond fp32
    torch.testing.assert_close(tuple(plan.by_torch(named(goal, given))), attended(*given))


def test_torch_refuses_sizes_that_do_not_fit() -> None:
    goal = goal_of()
    q, k, _ = drawn(5)
    with pytest.raises((InputError, GraphError)):
        RegionPlan(goal, "cpu", {}).by_torch(named(goal, (q, k, torch.randn(6, 8))))


def test_results_of_torch_are_in_memory_of_their_own() -> None:
    x = torch.randn(3, 4)
    goal = trace(torch.t, x, name="f").graph
    [made] = RegionPlan(goal, "cpu", {}).by_torch(named(goal, (x,)))
    assert made.is_contiguous()
    assert made.data_ptr() != x.data_ptr()
    torch.testing.assert_close(made, x.T)


def product() -> tuple[Callable[..., Tensor], tuple[Tensor, ...]]:
    """Return a plan of one operator of PyTorch."""
    graph = fx.Graph()
    places = [graph.placeholder(name) for name in ("q", "k")]
    graph.output((graph.call_function(torch.ops.aten.mm.default, tuple(places)),))
    module = fx.GraphModule(torch.nn.Module(), graph)
    operators = Operators({}, ("q", "k"), ("y",), "cpu", module)
    inputs = torch.randn(16, 32), torch.randn(32, 16)
    return lambda *given: operators(dict(zip(("q", "k"), given, strict=True)))["y"], inputs


def planned() -> tuple[Callable[..., Tensor], tuple[Tensor, ...]]:
    """Return a plan that torch computes."""
    inputs = torch.randn(16, 32), torch.randn(32, 16)
    goal = trace(torch.mm, *inputs, name="f").graph
    return lambda *given: RegionPlan(goal, "cpu", {}).by_torch(named(goal, given))[0], inputs


def kept() -> tuple[Callable[..., Tensor], tuple[Tensor, ...]]:
    """Return a kernel that can keep nothing of its weights, which others may write to."""
    goal = parse_graph(FOLDED)
    kernel = KeptKernel(goal, divided(goal, (3,)), None, InTorch(goal))
    inputs = torch.randn(8, 512), torch.rand(512), torch.randn(256, 512).share_memory_()
    return lambda *given: kernel.in_order(given)[0], inputs


MODES = [torch.autocast("cpu", torch.bfloat16), torch.enable_grad()]


@pytest.mark.parametrize("way", [product, planned, kept])
@pytest.mark.parametrize("mode", MODES, ids=["autocast", "gradients"])
def test_regions_obey_no_mode_of_a_backward_pass(
    way: Callable[[], tuple[Callable[..., Tensor], tuple[Tensor, ...]]], mode: AbstractContextManager[None]
) -> None:
    run, inputs = way()
    expected = run(*inputs)
    inputs[0].requires_grad_()
    with mode:
        made = run(*inputs)
    assert not made.requires_grad
    torch.testing.assert_close(made, expected, rtol=0, atol=0)
