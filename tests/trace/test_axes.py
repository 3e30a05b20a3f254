"""Axis identity: equal sizes never make two axes one, and one tensor may stand under several axes."""

from collections.abc import Callable
from math import inf
from typing import Any

import pytest
import torch
from torch import Tensor

from superopt.trace import Traced, trace
from superopt.trace.axes import Axes
from superopt.trace.lowering import readings

SQUARE: dict[str, Callable[..., Any]] = {
    "x + x.T": lambda x: x + x.T,
    "x - x.T": lambda x: x - x.T,
    "x.T - x": lambda x: x.T - x,
    "x * x.T": lambda x: x * x.T,
    "x / x.T + x": lambda x: x / x.T + x,
    "x @ x.T": lambda x: x @ x.T,
    "x.T @ x": lambda x: x.T @ x,
    "x @ x": lambda x: x @ x,
    "x @ x @ x": lambda x: x @ x @ x,
    "(x @ x.T) @ x": lambda x: (x @ x.T) @ x,
    "x.T @ x @ x.T": lambda x: x.T @ x @ x.T,
    "x @ (x.T @ x)": lambda x: x @ (x.T @ x),
    "x @ x.T + x": lambda x: x @ x.T + x,
    "x @ x.T + x.T @ x": lambda x: x @ x.T + x.T @ x,
    "x @ x + (x @ x).T": lambda x: x @ x + (x @ x).T,
    "late: y = 2x, y @ y.T": lambda x: (2 * x) @ (2 * x).T,
    "row outer": lambda x: x[0][:, None] * x[0][None, :],
    "row + column sums": lambda x: x.sum(0)[:, None] + x.sum(1)[None, :] + x,
    "sum of transposes": lambda x: (x + x.T).sum(0) + (x * x.T).sum(1),
    "mask of itself": lambda x: torch.where(x > x.T, x, x.T),
    "softmax both ways": lambda x: x.softmax(0) + x.softmax(1).T,
    "view and transpose": lambda x: x.view(2, 2, 2, 2).permute(2, 3, 0, 1).reshape(4, 4) + x,
    "view swaps factors": lambda x: x.view(4, 2, 2).transpose(1, 2).reshape(4, 4) + x,
    "swapped factors times x": lambda x: x.view(4, 2, 2).transpose(1, 2).reshape(4, 4) @ x,
    "tril of gram": lambda x: (x @ x.T).tril() @ x,
    "self attention": lambda x: (x @ x.T).masked_fill(torch.ones(4, 4).tril() < 1, -inf).softmax(-1) @ x,
    "eye": lambda x: x @ torch.eye(4, dtype=x.dtype) + torch.eye(4, dtype=x.dtype),
    "einsum trace of product": lambda x: torch.einsum("ij,ji->", x, x),
    "einsum ij,jk,kl": lambda x: torch.einsum("ij,jk,kl->il", x, x, x),
    "expand of row": lambda x: x[0].expand(4, 4) + x[0].expand(4, 4).T + x.T,
    "stack of x and x.T": lambda x: torch.stack([x, x.T], 0).sum(0),
    "cat of x and x.T": lambda x: torch.cat([x, x.T], 1),
    "rotate rows and columns": lambda x: torch.cat([x[:, 2:], x[:, :2]], 1) + torch.cat([x[2:], x[:2]], 0),
    "kronecker": lambda x: (x[:, None, :, None] * x[None, :, None, :]).reshape(16, 16),
    "three-way": lambda x: (x[:, :, None] * x[None, :, :] * x[:, None, :]).sum(1),
    "distance": lambda x: (x[:, None] - x[None]).square().sum(-1),
    "both outputs": lambda x: (x, x.T, x @ x.T),
}  # fmt: skip

PAIRS: dict[str, Callable[..., Any]] = {
    "x @ y then x + y": lambda x, y: (x @ y) @ (x + y),
    "x + y then x @ y": lambda x, y: (x + y) @ (x @ y),
    "x @ y + y @ x": lambda x, y: x @ y + y @ x,
    "x @ y.T + y @ x.T": lambda x, y: x @ y.T + y @ x.T,
    "x.T + y": lambda x, y: x.T + y,
    "chain that unifies late": lambda x, y: (x.softmax(0) @ y.exp() + x) * (y.T + x @ x),
    "x split, y whole": lambda x, y: x.view(4, 2, 2).sum(1) @ y.view(2, 2, 4).sum(1),
    "x split, then whole": lambda x, y: (x.view(4, 2, 2) * y.view(4, 2, 2)).flatten(1) @ x,
    "x renamed, then split": lambda x, y: (x @ x.T @ y).view(2, 2, 2, 2).sum((0, 2)) + x[:2, :2],
}  # fmt: skip


def agree(traced: Traced, expected: Any, *inputs: Tensor) -> None:
    assert not traced.program.opaque, traced.program.opaque
    torch.testing.assert_close(traced.run(*inputs), expected, rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("name", SQUARE)
def test_square(name: str) -> None:
    x = torch.randn(4, 4, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
    agree(trace(SQUARE[name], x), SQUARE[name](x), x)


@pytest.mark.parametrize("name", PAIRS)
def test_pairs(name: str) -> None:
    generator = torch.Generator().manual_seed(1)
    x, y = (torch.randn(4, 4, dtype=torch.float64, generator=generator) for _ in range(2))
    agree(trace(PAIRS[name], x, y), PAIRS[name](x, y), x, y)


def test_one_tensor_under_two_names() -> None:
    x = torch.randn(4, 4, dtype=torch.float64)
    traced = trace(lambda a, b: a @ b.T, x, x)
    assert [port.name for port in traced.graph.inputs] == ["a", "b"]
    agree(traced, x @ x.T, x, x)


def test_gram_is_a_rename() -> None:
    graph = trace(lambda x: x @ x.T, torch.empty(4, 8)).graph
    assert [step.op for step in graph.steps] == ["rename", "contract"]


def test_factors_that_do_not_fit_are_opaque() -> None:
    traced = trace(lambda x: x.view(6, 4) + 1, torch.empty(4, 6))
    assert [node.target for node in traced.program.opaque] == ["aten.view.default"]
    assert "cuts across an axis" in traced.program.opaque[0].reason
    traced = trace(lambda x, y: x.flatten() + y.flatten(), torch.empty(4, 6), torch.empty(6, 4))
    assert "no common refinement" in traced.program.opaque[0].reason


def test_split_is_global() -> None:
    axes = Axes()
    k = axes.fresh(8)
    twin = axes.twin(k)
    dims = axes.cut((k,), (2, 4))
    assert dims is not None
    assert len(axes.leaves((twin,))) == 2
    assert axes.leaves((k,)) == dims[0] + dims[1]
    assert axes.met(*axes.leaves((k,)))


def test_cut_keeps_what_it_cannot_cut() -> None:
    axes = Axes()
    dim = (axes.fresh(4), axes.fresh(6))
    assert axes.cut(dim, (6, 4)) is None
    assert axes.cut(dim, (2, 12)) is not None


def test_strided_and_expanded_inputs() -> None:
    x = torch.randn(8, 6, dtype=torch.float64).t()[:, ::2]
    y = torch.randn(6, 1, dtype=torch.float64).expand(6, 4)
    traced = trace(lambda x, y: x * y + x, x, y)
    assert [port.strides for port in traced.program.inputs] == [(1, 12), (1, 0)]
    agree(traced, x * y + x, x, y)


@pytest.mark.parametrize("size", [0, 1, 7])
def test_odd_sizes(size: int) -> None:
    def function(x: Tensor, w: Tensor) -> tuple[Tensor, ...]:
        h = (x @ w).softmax(-1)
        return (
            h,
            x.sum(0),
            h.flatten(),
            (x + 1).view(3, -1, 1) if size else x,
            x @ x.T,
            x.mean(0),
            torch.cat([x, x], 1),
        )

    x = torch.randn(3, size, dtype=torch.float64)
    w = torch.randn(size, 4, dtype=torch.float64)
    agree(trace(function, x, w), function(x, w), x, w)
    x, w = torch.randn(size, 4, dtype=torch.float64), torch.randn(4, 3, dtype=torch.float64)
    agree(trace(lambda x, w: (x @ w).exp() * 2, x, w), (x @ w).exp() * 2, x, w)


def sliced_again_and_again(x: Tensor) -> tuple[Tensor, ...]:
    return x[3:-5:7], x.flip(0)[2::3], x[1:-2][::5].flip(0)[1:], x[5:-6][::11] + x[5:6], x[4:6]


def test_slices_of_slices() -> None:
    x = torch.randn(97)
    torch.testing.assert_close(trace(sliced_again_and_again, x).run(x), sliced_again_and_again(x))


def test_places_that_rise_evenly_are_not_looked_at_one_by_one(monkeypatch: pytest.MonkeyPatch) -> None:
    """Before: each place of a slice took time."""

    def one_by_one(*given: object) -> None:
        raise AssertionError

    monkeypatch.setattr(readings, "_line_from", one_by_one)
    x = torch.empty(2**20 - 3, device="meta")
    assert trace(sliced_again_and_again, x).program.regions
    assert trace(lambda x: torch.arange(2**20).flip(0) * x[0], x).program.regions
