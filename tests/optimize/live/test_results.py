"""The memory of results: what PyTorch copies is a copy here too."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_leaves

import superopt
from superopt.trace import trace

from .conftest import agree

BIAS = nn.Parameter(torch.randn(8), requires_grad=False)


def places(*tensors: Tensor) -> list[int]:
    """Return, for each tensor, the number of the memory that it lies in."""
    found: dict[int, int] = {}
    return [found.setdefault(one.untyped_storage().data_ptr(), len(found)) for one in tensors]


def of_input(x: Tensor) -> Any:
    return x.clone(), (x * x).sum(-1)


def of_weight(x: Tensor) -> Any:
    return BIAS.clone(), (x * x).sum(-1)


def of_input_alone(x: Tensor) -> Any:
    return {"all": (x * x).sum(-1), "whole": x * 1}


def of_result(x: Tensor) -> Any:
    y = x * 2
    return y, y.clone()


def of_several(x: Tensor) -> Any:
    y = x * 2
    z = x.clone()
    return [y.clone(), y, y.clone(), y, z, x.clone(), z.view_as(z)]


def transposed(x: Tensor) -> Any:
    return x.t().contiguous(), x.expand(2, *x.shape).contiguous(), x[1].clone(), (x * x).sum(-1)


def made_of_numbers(x: Tensor) -> Any:
    return torch.tensor([1.0, 2.0, 3.0]), (x * x).sum(-1)


def as_it_lies(x: Tensor) -> Any:
    return x, (x * x).sum(-1), x.contiguous(), x.to(torch.float32), BIAS


def views_outside(x: Tensor) -> Any:
    """Return a view for which the algebra has no rule, of the input and of a copy."""
    return x.as_strided((4,), (1,)), x.clone().as_strided((4,), (1,)), (x * x).sum(-1)


def taken_apart(x: Tensor) -> Any:
    """Return what an operator outside the algebra makes, twice."""
    y = x.cumprod(0)
    return y, y.clone(), (x * x).sum(-1)


FUNCTIONS = [
    *(of_input, of_weight, of_input_alone, of_result, of_several, transposed),
    *(made_of_numbers, as_it_lies, views_outside, taken_apart),
]


@pytest.mark.parametrize("function", FUNCTIONS)
def test_results_have_memory_of_their_own_where_pytorchs_have(function: Callable[..., Any]) -> None:
    x = torch.randn(4, 8)
    found = trace(function, x, live="cpu").run(x, dtype=torch.float32)
    agree(found, function(x))
    assert places(x, BIAS, *tree_leaves(found)) == places(x, BIAS, *tree_leaves(function(x)))


@pytest.mark.parametrize("function", FUNCTIONS)
def test_so_have_the_results_of_kernels(build, function: Callable[..., Any]) -> None:
    x = torch.randn(4, 8)
    watched = build(function, x)
    for _ in range(2):
        watched.ours(x)
    for at in (x, torch.randn(6, 8)):
        found, wanted = watched.best(at), function(at)
        agree(found, wanted)
        assert places(at, BIAS, *tree_leaves(found)) == places(at, BIAS, *tree_leaves(wanted))


def test_what_is_written_into_a_copy_stays_there(build) -> None:
    x, y = torch.randn(4, 8), torch.randn(4, 8)
    best = build(of_input, x).best
    given = y.clone()
    best(given)[0].zero_()
    assert torch.equal(given, y)
    kept = BIAS.clone()
    build(of_weight, x).best(x)[0].zero_()
    assert torch.equal(BIAS, kept)


def test_the_same_result_twice_is_one_tensor(build) -> None:
    def twice(x: Tensor) -> Any:
        y, z = x * 2, x.clone()
        return y, y, z, z

    x = torch.randn(4, 8)
    first, second, third, fourth = build(twice, x).best(x)
    assert first is second
    assert third is fourth
    assert third is not x


@pytest.mark.parametrize("function", [of_input, of_input_alone, of_result, of_several, transposed])
def test_a_loaded_program_copies_too(build, function: Callable[..., Any], tmp_path: Path) -> None:
    x = torch.randn(4, 8)
    path = tmp_path / "best.json"
    build(function, x).best.save(path)
    for given in (None, function):
        for at in (x, torch.randn(6, 8)):
            found, wanted = superopt.load(path, given)(at), function(at)
            agree(found, wanted)
            assert places(at, *tree_leaves(found)) == places(at, *tree_leaves(wanted))
