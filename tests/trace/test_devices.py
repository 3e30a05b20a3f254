"""What a traced function is told of the devices of its tensors."""

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

import superopt
from superopt.ir import print_program
from superopt.trace import trace

TABLE = torch.ones(8)


def by_type(x: Tensor) -> Tensor:
    return x * (2 if x.device.type == "cpu" else 3)


def by_flags(x: Tensor) -> Tensor:
    return x * (2 if x.is_cpu else 3) + (5 if x.is_cuda or x.is_meta else 1)


def by_index(x: Tensor) -> Tensor:
    return x * (2 if x.get_device() < 0 and x.device.index is None else 3)


def by_text(x: Tensor) -> Tensor:
    return x * (2 if "cpu" in str(x.device) else 3)


def of_what_it_made(x: Tensor) -> Tensor:
    y = x * 2
    return y * (2 if y.device == torch.device("cpu") else 3)


def of_a_constant(x: Tensor) -> Tensor:
    return x * (TABLE if TABLE.device == x.device else TABLE.to(x.device) * 5)


def under_autocast(x: Tensor) -> Tensor:
    with torch.autocast(device_type=x.device.type, enabled=False):
        return x * 2


BRANCHES = [by_type, by_flags, by_index, by_text, of_what_it_made, of_a_constant, under_autocast]


def made_there(x: Tensor) -> Tensor:
    return x + torch.zeros(8, device=x.device) + torch.tensor([1.0] * 8, device=x.device)


def moved_there(x: Tensor) -> Tensor:
    return x + torch.ones(8).to(x.device) + torch.arange(8).to(device=x.device)


def made_in_a_context(x: Tensor) -> Tensor:
    with torch.device(x.device):
        return x + torch.ones(8)


@pytest.mark.parametrize("live", [None, "cpu"])
@pytest.mark.parametrize("function", [*BRANCHES, made_there, moved_there, made_in_a_context])
def test_a_function_takes_the_branch_of_its_device(function: Callable[..., Tensor], live: str | None) -> None:
    x = torch.randn(4, 8)
    traced = trace(function, x, live=live)
    torch.testing.assert_close(traced.run(x, dtype=torch.float32), function(x))


@pytest.mark.parametrize("function", BRANCHES)
def test_inputs_without_data_stand_for_those_of_the_run(function: Callable[..., Tensor]) -> None:
    x = torch.randn(4, 8)
    found = [trace(function, one, live="cpu").program for one in (x, x.to("meta"))]
    assert print_program(found[0]) == print_program(found[1])


def test_a_program_for_a_device_that_is_not_here() -> None:
    x = torch.empty(4, 8, device="meta")
    here, there = (print_program(trace(by_type, x, live=one).program) for one in ("cpu", "cuda"))
    assert here != there
    assert there == print_program(trace(by_type, torch.randn(4, 8), live="cuda").program)


@pytest.mark.parametrize(("by", "equal"), [(2, True), (3, False)])
def test_a_proof_is_of_the_branch_of_the_device(by: int, equal: bool) -> None:
    assert superopt.equivalent(by_type, lambda x: x * by, torch.randn(4, 8)).equal == equal
