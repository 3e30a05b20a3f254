"""Assembly: a program of one kernel is called in order, any other as it was traced."""

from collections.abc import Callable
from typing import Any

import pytest
import torch

from superopt.codegen.cpp import CppMuGraph
from superopt.errors import InputError
from superopt.funnel import assembly
from superopt.funnel.assembly import Alone, assemble
from superopt.ir import fuse, stabilize
from superopt.trace import trace

WEIGHT = torch.randn(5)


def both(x: torch.Tensor, y: torch.Tensor) -> tuple[torch.Tensor, ...]:
    return x - y, y * x


def scaled(x: torch.Tensor, by: float) -> torch.Tensor:
    return x * by


CASES: tuple[tuple[Callable[..., Any], tuple[Any, ...], bool], ...] = (
    (lambda x: x.square() + 1, (torch.randn(4, 5),), True),
    (both, (torch.randn(4, 5), torch.randn(4, 5)), True),
    (lambda x, y: (y - x,), (torch.randn(4, 5), torch.randn(4, 5)), True),
    (lambda x, y: {"y": x - y}, (torch.randn(4, 5), torch.randn(4, 5)), False),
    (lambda x, y: (x - y, x), (torch.randn(4, 5), torch.randn(4, 5)), False),
    (lambda x: x * WEIGHT, (torch.randn(4, 5),), True),
    (lambda pair: pair[0] - pair[1], ((torch.randn(4, 5), torch.randn(4, 5)),), True),
    (scaled, (torch.randn(4, 5), 3.0), True),
)


@pytest.mark.parametrize(("function", "inputs", "alone"), CASES)
def test_programs_compute_what_the_function_does(
    function: Callable[..., Any], inputs: tuple[Any, ...], alone: bool
) -> None:
    traced = trace(function, *inputs, name="f")
    program = assemble(traced, {traced.graph.name: CppMuGraph(fuse(traced.graph), flags=("-O1",))})
    assert isinstance(program, Alone) == alone
    torch.testing.assert_close(program(*inputs), function(*inputs))
    if isinstance(program, Alone):
        torch.testing.assert_close(program.prepared(inputs)(*inputs), function(*inputs))


def test_one_tensor_too_few() -> None:
    x, y = torch.randn(4, 5), torch.randn(4, 5)
    traced = trace(both, x, y)
    program = assemble(traced, {traced.graph.name: CppMuGraph(fuse(traced.graph), flags=("-O1",))})
    with pytest.raises(InputError, match="takes 2 tensors"):
        program(x)


def test_a_region_without_a_kernel_keeps_the_digits_of_its_dtypes() -> None:
    def function(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        return x * (1 + 2.0**-40), torch.arange(len(x)) * 50021 + 1

    x = torch.randn(5000, dtype=torch.float64)
    program = assemble(trace(function, x), {})
    for found, wanted in zip(program(x), function(x), strict=True):
        assert torch.equal(found, wanted)


def attended(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> tuple[torch.Tensor, ...]:
    scores = q @ k.mT
    return scores.softmax(-1) @ v, scores.logsumexp(-1)


EXPONENTIALS: tuple[tuple[Callable[..., Any], int], ...] = (
    (lambda x: x.softmax(-1), 1),
    (lambda x: x.log_softmax(0), 1),
    (lambda x: torch.where(x > 0, x, -torch.inf).softmax(-1), 1),
    (attended, 3),
    (lambda x: x.exp().sum(-1), 1),  # no shift is free: it is infinite in PyTorch too
)


@pytest.mark.parametrize(("function", "count"), EXPONENTIALS)
def test_a_region_without_a_kernel_takes_exponentials_less_their_maxima(
    function: Callable[..., Any], count: int
) -> None:
    inputs = tuple(torch.full((6, 32), 100.0) + torch.randn(6, 32) for _ in range(count))
    program = assemble(trace(function, *inputs), {})
    for _ in range(2):
        torch.testing.assert_close(program(*inputs), function(*inputs))


def test_what_keeps_exponentials_small_is_found_once(monkeypatch: pytest.MonkeyPatch) -> None:
    found = []
    monkeypatch.setattr(assembly, "stabilize", lambda graph: found.append(graph) or stabilize(graph))
    x = torch.randn(6, 32)
    program = assemble(trace(torch.sigmoid, x), {})
    assert not found
    for _ in range(3):
        program(x)
    assert len(found) == 1
