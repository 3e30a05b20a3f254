"""Memory that no program wrote: what it holds is unknown, and another unknown at each call."""

import pytest
import torch
from quick import few

from superopt import equivalent

X = torch.randn(4, 4)


def _halves(make):
    """Return a program that fills memory in two halves."""

    def program(x):
        made = make(x)
        made[:2], made[2:] = x[:2] * 2, x[2:] * 2
        return made

    return program


def _half(x):
    made = torch.empty_like(x)
    made[:2] = x[:2]
    return made


def _grown(x):
    return torch.ones(2).resize_(4, 4) + 0 * x


MAKERS = {
    "empty": lambda x: torch.empty(4, 4),
    "empty_like": torch.empty_like,
    "empty_permuted": lambda x: torch.empty_permuted((4, 4), (1, 0)),
    "empty_strided": lambda x: torch.empty_strided((4, 4), (4, 1)),
    "new_empty": lambda x: x.new_empty(4, 4),
    "new_empty_strided": lambda x: x.new_empty_strided((4, 4), (4, 1)),
    "resize_": lambda x: torch.empty(0).resize_(4, 4),
}


@pytest.mark.parametrize("floats", [False, True])
@pytest.mark.parametrize("make", MAKERS.values(), ids=MAKERS)
def test_two_pieces_of_memory_are_not_one(make, floats):
    verdict = equivalent(lambda x: make(x) - make(x) + x, lambda x: x + 0, X, floats=floats)
    assert verdict.unknown
    assert "depends on memory that it never wrote" in verdict.notes[0]


READ = {
    "all of it": lambda x: torch.empty_like(x) + x,
    "half of it": _half,
    "what a tensor is enlarged by": _grown,
}


@pytest.mark.parametrize("program", READ.values(), ids=READ)
def test_a_program_that_returns_what_it_never_wrote_is_not_equal_to_itself(program):
    assert equivalent(program, program, X).unknown


@pytest.mark.parametrize("name", few(MAKERS, "empty", "new_empty_strided", "resize_"))
def test_memory_that_is_written_in_parts_is_compared(name):
    make = MAKERS[name]
    verdict = equivalent(_halves(make), lambda x: x * 2, X)
    assert verdict.equal
    assert not any(target.startswith("aten.empty") for target in verdict.oracles)
    assert equivalent(_halves(make), _halves(make), X).equal
    assert equivalent(_halves(make), lambda x: x * 3, X).different


def test_memory_that_a_mask_hides_does_not_count():
    hides = lambda x: torch.where(torch.eye(4) > -1, x * 2, torch.empty(4, 4))  # noqa: E731
    assert equivalent(hides, lambda x: x * 2, X).equal


def test_a_tensor_made_smaller_is_written():
    smaller = lambda x: x.clone().resize_(2, 4)  # noqa: E731
    assert equivalent(smaller, smaller, X).equal
