"""Placement: a gradient to which rows are added is made where a backward pass holds less."""

import pytest
import torch
from torch import Tensor, fx
from torch.fx.experimental.proxy_tensor import make_fx

from superopt.backend.joint import placement
from superopt.backend.joint.placement import place_products

WORDS, WIDTH, READ = 300, 8, 20


def backward(layers: int, *, viewed: bool = False) -> tuple[fx.GraphModule, tuple[Tensor, ...]]:
    """Return a backward pass for which so many numbers a row were kept that it reads late, with inputs."""

    def run(
        logits: Tensor, x: Tensor, saved: Tensor, primals_1: Tensor, index: Tensor, tangents_1: Tensor
    ) -> tuple[Tensor, Tensor]:
        weight = x.t() @ logits if viewed else logits.t() @ x
        rows = torch.sigmoid(logits @ primals_1) * tangents_1
        inner = saved.cos().sum(-1, keepdim=True) * rows
        weight = weight.t() if viewed else weight
        return weight.index_put((index,), inner, accumulate=True), inner.sum()

    inputs = (
        torch.randn(READ, WORDS),
        torch.randn(READ, WIDTH),
        torch.randn(READ, layers),
        torch.randn(WORDS, WIDTH),
        torch.randint(0, WORDS, (READ,)),
        torch.ones(()),
    )
    return make_fx(run, tracing_mode="fake")(*inputs), inputs


@pytest.mark.parametrize("viewed", [False, True])
def test_where_much_is_held_it_is_made_late(viewed: bool) -> None:
    module, inputs = backward(40 * WORDS, viewed=viewed)
    wanted = module(*inputs)
    before = placement._most(module.graph)
    assert place_products(module) == 1
    module.graph.lint()
    assert placement._most(module.graph) < before
    for one, other in zip(module(*inputs), wanted, strict=True):
        torch.testing.assert_close(one, other)


@pytest.mark.parametrize("viewed", [False, True])
def test_where_little_is_held_it_stays(viewed: bool) -> None:
    """What the product reads may go as soon as it is made."""
    module, inputs = backward(1, viewed=viewed)
    order, wanted = list(module.graph.nodes), module(*inputs)
    assert place_products(module) == 0
    assert list(module.graph.nodes) == order
    for one, other in zip(module(*inputs), wanted, strict=True):
        torch.testing.assert_close(one, other)


def test_a_fault_of_ours_leaves_the_graph_whole(monkeypatch: pytest.MonkeyPatch) -> None:
    module, inputs = backward(40 * WORDS)
    wanted, lines = module(*inputs), list[str]()
    counted = iter([5])
    monkeypatch.setattr(placement.log, "warning", lambda text, *given: lines.append(text % given))
    monkeypatch.setattr(placement, "most_of_pass", lambda *_: next(counted))
    place_products(module)
    assert len(lines) == 1
    assert "left as it is" in lines[0]
    module.graph.lint()
    for one, other in zip(module(*inputs), wanted, strict=True):
        torch.testing.assert_close(one, other)
