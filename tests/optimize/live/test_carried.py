"""What tensors, functions and settings carry in attributes, and the order of the keys of a dict."""

import types
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn


def _scaled_by(holder: Any) -> Callable[[Tensor], Tensor]:
    def function(x: Tensor) -> Tensor:
        return torch.softmax(x * getattr(holder, "scale", 2.0), -1)

    return function


@pytest.mark.parametrize("known", [True, False], ids=["changed", "arrived"])
@pytest.mark.parametrize("make", [lambda: nn.Parameter(torch.ones(4)), lambda: types.ModuleType("settings")])
def test_attributes_of_tensors_and_modules(make: Callable[[], Any], known: bool, build) -> None:
    holder, x = make(), torch.randn(8, 64)
    if known:
        holder.scale = 0.5
    watched = build(_scaled_by(holder), x)
    watched.ours(x)
    holder.other = 1  # nobody reads it
    watched.ours(x)
    holder.scale = 3.0
    watched.theirs(x)


def test_gradients_that_a_function_reads(build) -> None:
    p, x = nn.Parameter(torch.randn(64, 64)), torch.randn(8, 64)
    p.grad = torch.randn(64, 64)
    watched = build(lambda x: torch.softmax(x @ p.grad, -1), x)
    watched.ours(x)
    p.grad = torch.randn(64, 64)
    watched.ours(x)
    p.grad.add_(1)
    watched.ours(x)


def test_names_that_a_function_puts_together(build) -> None:
    table, x = types.ModuleType("table"), torch.randn(8, 64)
    table.scale_0 = 2.0

    def function(x: Tensor) -> Tensor:
        for at in range(1):
            x = x * getattr(table, f"scale_{at}")
        return torch.softmax(x, -1)

    watched = build(function, x)
    watched.ours(x)
    table.scale_0 = 9.0
    watched.theirs(x)


def test_attributes_code_and_defaults_of_a_function(build) -> None:
    def function(x: Tensor, by: float = 2.0) -> Tensor:
        return torch.softmax(x * by * getattr(function, "scale", 1.0), -1)

    def other(x: Tensor, by: float = 2.0) -> Tensor:
        return torch.softmax(x * by + 1, 0) if function else x

    x, code = torch.randn(8, 64), function.__code__
    watched = build(function, x)
    watched.ours(x)
    function.__defaults__ = (9.0,)
    watched.theirs(x)
    function.__defaults__ = (2.0,)
    watched.ours(x)
    function.__code__ = other.__code__
    watched.theirs(x)
    function.__code__ = code
    watched.ours(x)
    function.scale = 4.0
    watched.theirs(x)


class Hooked(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.l, self.post_hooks = nn.Linear(64, 64), list[Callable[[Tensor], Tensor]]()

    def forward(self, x: Tensor) -> Tensor:
        y = self.l(x).tanh()
        for hook in self.post_hooks:
            y = hook(y)
        return y


def test_hooks_of_a_user(build) -> None:
    model, x = Hooked(), torch.randn(8, 64)
    watched = build(model, x)
    watched.ours(x)
    model.post_hooks.append(lambda y: y * 10)
    watched.theirs(x)
    model.post_hooks = []
    watched.ours(x)
    model.post_hooks = [lambda y: y - 7]
    watched.theirs(x)


def test_a_new_tensor_where_another_one_lay(build) -> None:
    counts, x = torch.full((100,), 2), torch.randn(8, 64)
    box = types.SimpleNamespace(steps=counts.data)
    watched = build(lambda x: torch.softmax(x * (sum(box.steps.tolist()) / 200), -1), x)
    watched.ours(x)
    counts.fill_(20)
    box.steps = counts.data  # another object, at the same address, and never written to
    watched.theirs(x)


def test_the_order_of_keys(build) -> None:
    def ordered(d: dict[str, Tensor]) -> Tensor:
        first, second = d.values()
        return torch.softmax(first - 2 * second, -1)

    a, b = torch.randn(8, 64), torch.randn(8, 64)
    watched = build(ordered, {"a": a, "b": b})
    watched.ours({"a": a, "b": b})
    watched.theirs({"b": b, "a": a})
