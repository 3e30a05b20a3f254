"""The memory of results: what PyTorch copies is a copy here too."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_leaves

import superopt
from superopt.errors import InputError
from superopt.funnel.assembly import assemble
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


def turned(x: Tensor) -> Tensor:
    return x.t().tanh()


def turned_late(x: Tensor) -> Any:
    y = x * 2
    return {"turned": y.t(), "whole": y.sum(-1), "split": y.view(-1, 2, 4).transpose(1, 2)}


def sorted_late(x: Tensor) -> Any:
    return (x * 2).t().sort(-1).values, (x * x).sum(-1)


def alike(x: Tensor) -> Tensor:
    return (x * 2).tanh()


def summed(x: Tensor) -> Tensor:
    return x.exp().sum(-1, keepdim=True) + x.sum(-2, keepdim=True)


def joined(x: Tensor) -> Tensor:
    return (torch.cat([x, x], 1) * 2).tanh()


def channels_last(*shape: int) -> Tensor:
    return torch.randn(shape).to(memory_format=torch.channels_last)


def steps(result: Any) -> list[list[int]]:
    """Return the strides of each tensor along what is longer than 1."""
    return [
        [step for size, step in zip(one.shape, one.stride(), strict=True) if size > 1]
        for one in tree_leaves(result)
    ]


@pytest.mark.parametrize(
    ("function", "inputs"),
    [
        (sorted_late, [torch.randn(4, 8), torch.randn(8, 4).t()]),
        (turned, [torch.randn(4, 8), torch.randn(8, 4).t(), torch.randn(6, 10)]),
        (turned_late, [torch.randn(4, 8), torch.randn(8, 4).t(), torch.randn(6, 16)[:, ::2]]),
        (alike, [torch.randn(4, 8), torch.randn(8, 4).t(), torch.randn(4, 16)[:, ::2]]),
        (alike, [channels_last(2, 3, 4, 5), torch.randn(2, 3, 4, 5), channels_last(2, 4, 3, 5)]),
        (summed, [channels_last(2, 3, 4, 4), torch.randn(2, 3, 4, 4)]),
        (joined, [torch.randn(2, 1, 4, 5), torch.randn(2, 4, 5, 1).permute(0, 3, 1, 2)]),
    ],
)
def test_results_lie_in_memory_as_pytorchs_do(build, function: Callable[..., Any], inputs: Any) -> None:
    """Before: they were contiguous."""
    watched = build(function, inputs[0])
    for x in [*inputs, *inputs]:
        watched.computes(x)
        assert steps(watched.best(x)) == steps(function(x))
    watched.ours(inputs[0])
    assert not watched.best.elsewhere


def test_where_one_row_lies_in_others_makes_no_program_anew(build) -> None:
    """Before: each length of the rows around it had a program of its own."""
    watched = build(lambda x: (x * 2).tanh(), torch.randn(1, 1, 8))
    for rows in range(2, 8):
        watched.ours(torch.randn(1, rows, 8)[:, -1:])
    assert len(watched.best._programs) <= 2


def with_a_graph_for_many(x: Tensor) -> Tensor:
    with torch.set_grad_enabled(len(x) > 8):
        return 3 * x.tanh()


def test_a_function_that_turns_gradients_on_at_other_sizes(build) -> None:
    watched = build(with_a_graph_for_many, torch.randn(4, 8))
    watched.ours(torch.randn(4, 8))
    for rows in (12, 12, 4):
        x = torch.randn(rows, 8, requires_grad=True)
        assert watched.best(x).requires_grad == (rows > 8)


def views(x: Tensor) -> Any:
    return x.t(), x[0], {"split": x.view(-1, 2, 4), "pieces": x.split(3, 1)}, (x * x).sum(-1), BIAS[2:], x.t()


def test_views_of_inputs_are_views(build) -> None:
    """Before: they were copies."""
    x = torch.randn(4, 8)
    watched = build(views, x)
    for at in (x, torch.randn(6, 8), torch.randn(1, 8), torch.randn(4, 16)[:, 4:12], x):
        watched.computes(at)
        found, wanted = tree_leaves(watched.best(at)), tree_leaves(views(at))
        assert places(at, BIAS, *found) == places(at, BIAS, *wanted)
        assert steps(found) == steps(wanted)
        assert [one.storage_offset() for one in found] == [one.storage_offset() for one in wanted]
    assert not watched.best.elsewhere
    watched.best(x)[1].zero_()
    assert not x[0].any()


def turned_and_summed(x: Tensor) -> Any:
    return x.t(), (x * x).sum(-1)


def test_a_program_that_returns_a_view_of_an_input_is_loaded_with_its_function(build, tmp_path: Path) -> None:
    x, path = torch.randn(4, 8), tmp_path / "best.json"
    build(turned_and_summed, x).best.save(path)
    agree(superopt.load(path, turned_and_summed)(x), turned_and_summed(x))
    with pytest.raises(InputError, match="or is a view of an input; pass function="):
        superopt.load(path)


def spread(x: Tensor) -> Any:
    return x.sum() + torch.zeros(4, 8), x.sum(0).expand(4, 8), (x.sum(0) + torch.zeros(4, 8)).t()


def test_each_element_of_a_result_has_a_place_of_its_own(build) -> None:
    """Before: what PyTorch computed of a region had some in one place, so that all changed with one."""
    x = torch.randn(4, 8)
    traced = trace(spread, x, live="cpu")
    for found in (assemble(traced, {})(x), traced.run(x), build(spread, x).best(x)):
        for one, wanted in zip(found, spread(x), strict=True):
            one[0] = 7.0
            torch.testing.assert_close(one[1:], wanted[1:])
