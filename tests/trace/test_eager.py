"""Eager: the operators that PyTorch runs are those that are counted, and views are none of them."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F
from torch.utils._python_dispatch import TorchDispatchMode

from superopt.trace import trace
from superopt.workloads import WORKLOADS

VIEWS = {"view", "t", "transpose", "expand", "_unsafe_view", "unsqueeze", "slice", "select", "split"}
NO_OPERAND = {"empty", "ones", "arange"}


class _Seen(TorchDispatchMode):
    def __init__(self) -> None:
        super().__init__()
        self.names: list[str] = []

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        if func._opname not in VIEWS | NO_OPERAND:
            self.names.append(func._opname)
        return func(*args, **(kwargs or {}))


@pytest.mark.parametrize(
    "name",
    ["softmax", "layernorm-linear-gelu", "lora", "mha", "gqa-decode", "qknorm-attention", "llama-layer"],
)
def test_counted_are_the_operators_that_run(name: str) -> None:
    workload = WORKLOADS[name]
    with _Seen() as seen, torch.no_grad():
        workload.function(*workload.inputs())
    eager = trace(workload.function, *workload.inputs()).eager
    assert eager is not None
    assert eager.operators == len(seen.names), seen.names


def linear(x: Tensor, w: Tensor) -> Tensor:
    return F.linear(x, w)


def halves(x: Tensor) -> Tensor:
    return x[:, :4].relu() + x[:, 4:]


def gate(x: Tensor) -> Tensor:
    return F.hardswish(x) + 1


def spread(x: Tensor, b: Tensor) -> Tensor:
    return x * b.expand(4, 8)


@pytest.mark.parametrize(
    ("function", "shapes", "operators", "moved", "reads"),
    [
        (linear, [(2, 4, 8), (8, 8)], 1, 64 + 64 + 64, {"x": 1, "w": 1}),
        (halves, [(4, 8)], 2, 5 * 16, {"x": 2}),  # each half is read once
        (gate, [(4, 8)], 2, None, {"x": 1}),  # an operator that is taken apart is one
        (spread, [(4, 8), (8,)], 1, 32 + 8 + 32, {"x": 1, "b": 1}),
    ],
)
def test_what_is_read(
    function: Callable[..., Any],
    shapes: list[tuple[int, ...]],
    operators: int,
    moved: int | None,
    reads: dict[str, int],
) -> None:
    eager = trace(function, *(torch.empty(shape, device="meta") for shape in shapes)).eager
    assert eager is not None
    assert (eager.operators, eager.reads) == (operators, reads)
    assert moved is None or eager.bytes == 4 * moved


def test_a_function_that_was_rewritten_is_not_counted() -> None:
    def writes(x: Tensor) -> Tensor:
        y = x.clone()
        y[0] = 0
        y[1] += 1
        return y

    assert trace(writes, torch.empty(4, 8, device="meta")).eager is None
