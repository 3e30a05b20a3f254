"""Positions that no result depends on need no chunk, and are found by what a chunk computes."""

import random
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from superopt.backend.decision import Decision
from superopt.backend.joint.chunks.run import TiledKernel
from superopt.backend.joint.chunks.skipped import counted_positions
from superopt.backend.joint.chunks.tiling import tiled, with_undefined
from superopt.backend.joint.limits import changed
from superopt.trace import trace
from superopt.trace.run import run_graph

from ..steps import WIDTH, WORDS
from ..test_random import compiled
from .test_tiling import loss

M, K, N, ROWS = 24, 5, 64, 4
LARGE = 4 * M * N - 1

Function = Callable[..., tuple[Tensor, ...]]


def labels(kept: int) -> Tensor:
    """Return labels of which so many are not ignored, here and there."""
    y = torch.full((M,), -100)
    y[torch.randperm(M)[:kept]] = torch.randint(0, N, (kept,))
    return y


def kernel_of(function: Function, *inputs: Tensor) -> tuple[TiledKernel, Callable[..., None]]:
    """Return a kernel in chunks along the rows, and what compares its results with the program's."""
    traced = trace(function, *inputs, for_proof=True)
    graph = with_undefined(traced.graph)
    rows = next(port.dims[0][0] for port in graph.inputs if graph.shape(port) == (M, K))
    tiling = tiled(graph, rows, LARGE)
    assert tiling is not None
    kernel = TiledKernel(tiling, ROWS)

    def compare(*tensors: Tensor) -> None:
        given = dict(zip(traced.input_names, tensors, strict=True))
        wanted, made = run_graph(graph, given), kernel(given)
        assert set(made) == set(wanted)
        for name, one in wanted.items():
            apart = 1e-3 + 1e-4 * float(one.nan_to_num().abs().amax())  # terms may cancel
            torch.testing.assert_close(made[name].float(), one.float(), rtol=0, atol=apart, equal_nan=True)

    return kernel, compare


@pytest.mark.parametrize("kept", [0, 1, 4, 5, 9, 20, 21, M])
def test_ignored_labels_take_no_chunk(kept: int, monkeypatch: pytest.MonkeyPatch) -> None:
    torch.manual_seed(kept)
    chunks = list[int]()
    chunk = TiledKernel._compute_chunk
    monkeypatch.setattr(
        TiledKernel, "_compute_chunk", lambda *a, **n: (chunks.append(a[1]), chunk(*a, **n))[1]
    )
    with changed(fused=False, product_flops=1):
        _, compare = kernel_of(loss, torch.randn(M, K), torch.randn(N, K), labels(M // 2))
        compare(torch.randn(M, K), torch.randn(N, K), labels(kept))
    assert chunks == [ROWS] * -(-kept // ROWS)


def summed(x: Tensor, w: Tensor, y: Tensor) -> tuple[Tensor, ...]:
    """A sum, whose gradients are finite where all labels are ignored."""
    keep = y != -100
    at = torch.where(keep, y, 0)
    d = (x @ w.t()).softmax(-1) - F.one_hot(at, N).float()
    d = torch.where(keep[:, None], d, 0.0)
    return d @ w, d.t() @ x, d.square().sum()


def test_where_all_are_ignored_all_is_zero() -> None:
    with changed(fused=False, product_flops=1):
        kernel, compare = kernel_of(summed, torch.randn(M, K), torch.randn(N, K), labels(3))
        assert kernel._counted is not None
        compare(torch.randn(M, K), torch.randn(N, K), labels(0))
        compare(torch.randn(M, K), torch.randn(N, K), labels(2))


def with_more(more: Callable[[Tensor, Tensor], Tensor]) -> Function:
    """Return a sum with one more result, of the logits and of what is kept."""

    def function(x: Tensor, w: Tensor, y: Tensor) -> tuple[Tensor, ...]:
        return *summed(x, w, y), more(x @ w.t(), y != -100)

    return function


DEPENDING = {
    "all logits": lambda logits, keep: logits.square().sum(),
    "rows of all": lambda logits, keep: logits.logsumexp(-1),
    "a maximum": lambda logits, keep: torch.where(keep[:, None], logits, 0.0).amax(),
    "others": lambda logits, keep: torch.where(keep, 0.0, logits.sum(-1)),
    "not zero": lambda logits, keep: torch.where(keep, logits.sum(-1), 2.0),
    "a cosine": lambda logits, keep: torch.where(keep, logits.sum(-1), 0.0).cos().sum(),
    "a count": lambda logits, keep: (torch.where(keep, logits.sum(-1), 0.0) >= 0).sum(),
}


@pytest.mark.parametrize("name", DEPENDING)
def test_where_a_result_depends_on_all_positions_each_has_a_chunk(name: str) -> None:
    with changed(fused=False, product_flops=1):
        more = DEPENDING[name]
        function = with_more(more)
        kernel, compare = kernel_of(function, torch.randn(M, K), torch.randn(N, K), labels(5))
        assert kernel._counted is None
        compare(torch.randn(M, K), torch.randn(N, K), labels(5))


@pytest.mark.parametrize(("ignored", "skips"), [(-100, True), (-99, False)])
def test_one_mask_may_be_written_in_two_ways(ignored: int, skips: bool) -> None:
    """As in a loss with label smoothing, which ignores labels twice."""

    def function(x: Tensor, w: Tensor, y: Tensor) -> tuple[Tensor, ...]:
        d = (x @ w.t()).softmax(-1)
        d = torch.where((y != -100)[:, None], d, 0.0) + torch.where(~(y == ignored)[:, None], d.square(), 0.0)
        return d @ w, d.t() @ x, d.square().sum()

    with changed(fused=False, product_flops=1):
        kernel, compare = kernel_of(function, torch.randn(M, K), torch.randn(N, K), labels(5))
        assert (kernel._counted is not None) == skips
        for kept in (0, 5, M):
            compare(torch.randn(M, K), torch.randn(N, K), labels(kept))


def program(draw: random.Random) -> Function:
    """Return a random program of logits and of a mask that it may or may not apply to all results."""
    steps: list[Callable[[Tensor, Tensor], Tensor]] = [
        lambda v, keep: v * keep[:, None],
        lambda v, keep: torch.where(keep[:, None], v, 0.0),
        lambda v, keep: torch.where(keep[:, None], v, 1.0),
        lambda v, keep: v.tanh(),
        lambda v, keep: v.cos(),
        lambda v, keep: v.softmax(-1),
        lambda v, keep: v - v.mean(-1, keepdim=True),
        lambda v, keep: v * v.sum(-1, keepdim=True),
        lambda v, keep: v + keep[:, None].float(),
        lambda v, keep: torch.relu(v) - 0.5 * v,
        lambda v, keep: v / (1 + v.square()),
    ]
    chosen = [draw.choice(steps) for _ in range(draw.randint(1, 5))]
    ends = draw.sample(range(3), draw.randint(1, 3))

    def function(x: Tensor, w: Tensor, y: Tensor) -> tuple[Tensor, ...]:
        made, keep = x @ w.t(), y != -100
        for one in chosen:
            made = one(made, keep)
        results = made @ w, made.t() @ x, made.square().sum()
        return tuple(results[at] for at in ends)

    return function


@pytest.mark.parametrize("seed", range(12))
def test_random_programs(seed: int) -> None:
    """Of 74 other programs, 21 skipped positions, and all agreed."""
    draw = random.Random(seed)
    torch.manual_seed(seed)
    with changed(fused=False, product_flops=1):
        _, compare = kernel_of(program(draw), torch.randn(M, K), torch.randn(N, K), labels(5))
        for kept in (0, 3, 11):
            compare(torch.randn(M, K), torch.randn(N, K), labels(kept))


def test_a_step_with_few_labels(noted: list[Decision]) -> None:
    torch.manual_seed(0)

    def step(x: Tensor, w: Tensor, y: Tensor) -> Tensor:
        return F.cross_entropy(x @ w.t(), y)

    ours = compiled(step, "balanced", noted)
    for kept in (27, 3, 1, 20):
        y = torch.randint(0, WORDS, (27,))
        y[torch.randperm(27)[kept:]] = -100
        given = [torch.randn(27, WIDTH).requires_grad_(), torch.randn(WORDS, WIDTH).requires_grad_()]
        found, wanted = (torch.autograd.grad(one(*given, y), given) for one in (ours, step))
        for a, b in zip(found, wanted, strict=True):
            torch.testing.assert_close(a, b, rtol=1e-4, atol=1e-6)
    assert any(one.taken for one in noted)


def test_a_mask_that_others_read_stays_outside(noted: list[Decision]) -> None:
    def step(x: Tensor, w: Tensor, y: Tensor) -> Any:
        each = F.cross_entropy(x @ w.t(), y, reduction="none")
        some = y > 5  # no gradient needs it
        return each.mean(), (each.detach() * some).sum() / some.sum()

    given = [torch.randn(27, WIDTH).requires_grad_(), torch.randn(WORDS, WIDTH).requires_grad_()]
    y = torch.randint(0, WORDS, (27,))
    found, wanted = (
        torch.autograd.grad(one(*given, y)[0], given) for one in (compiled(step, "balanced", noted), step)
    )
    for a, b in zip(found, wanted, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-4, atol=1e-6)
    assert any(one.taken for one in noted)


def test_the_mask_is_made_of_what_enters_along_the_rows() -> None:
    traced = trace(loss, torch.randn(M, K), torch.randn(N, K), labels(5), for_proof=True)
    graph = with_undefined(traced.graph)
    tiling = tiled(graph, graph.inputs[0].dims[0][0], LARGE)
    assert tiling is not None
    made = counted_positions(tiling)
    assert made is not None
    assert [port.dtype for port in made.inputs] == ["i64"]
