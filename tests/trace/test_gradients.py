"""Functions that compute gradients themselves are traced as their callers run them."""

import pytest
import torch

from superopt.errors import TraceError
from superopt.trace import trace


def step(x: torch.Tensor, w: torch.Tensor, target: torch.Tensor) -> tuple[torch.Tensor, ...]:
    """Return a step of gradient descent and its loss, with no word about the mode of gradients."""
    weight = w.detach().requires_grad_()
    loss = ((x @ weight).tanh() - target).square().mean()
    (gradient,) = torch.autograd.grad(loss, weight)
    return w - 0.1 * gradient, loss.detach()


def draw(*sizes: int) -> torch.Tensor:
    return torch.randn(sizes, generator=torch.Generator().manual_seed(sum(sizes)))


def test_a_step_is_traced_with_gradients() -> None:
    x, w, target = draw(3, 5), draw(5, 4), draw(3, 4)
    for made, wanted in zip(trace(step, x, w, target).run(x, w, target), step(x, w, target), strict=True):
        torch.testing.assert_close(made.float(), wanted)


def test_nothing_asks_for_gradients_where_the_caller_has_none() -> None:
    x, w, target = draw(3, 5), draw(5, 4), draw(3, 4)
    with torch.no_grad(), pytest.raises(TraceError, match=r"autograd\.grad is called .*gradients are off"):
        trace(step, x, w, target)


def test_other_functions_are_traced_without_gradients() -> None:
    seen = []

    def product(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
        seen.append(torch.is_grad_enabled())
        return x @ w

    trace(product, draw(3, 5), draw(5, 4))
    assert seen == [False]
