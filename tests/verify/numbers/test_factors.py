"""Factors: what is compared may be a multiple of a number that stands nowhere in the program."""

from collections.abc import Callable
from fractions import Fraction

import pytest
import torch
from quick import few

from superopt.trace import trace
from superopt.verify.equivalent import equivalent
from superopt.verify.field.factors import compared_factors

Sum = Callable[[torch.Tensor, torch.Tensor], torch.Tensor]

POSITIVE: dict[str, tuple[Sum, Sum]] = {  # a value, and a positive multiple of it that no one factor makes
    "like terms": (lambda x, y: x, lambda x, y: x + x * 0.1),
    "of three": (lambda x, y: x, lambda x, y: 0.5 * x + x * 0.25 + 3 * x),
    "of two inputs": (lambda x, y: x - y, lambda x, y: x + 0.3 * x - y - 0.3 * y),
    "of squares": (lambda x, y: x * y, lambda x, y: (x * 2.5) * y + y * (x * 0.25)),
    "of a quotient": (lambda x, y: x / y, lambda x, y: x / y + x / (y * 10)),
    "of exponentials": (lambda x, y: x * y.exp(), lambda x, y: x * y.exp() + x / (-y).exp() / 10),
    "of sums": (lambda x, y: x.sum(-1, keepdim=True), lambda x, y: (x + 0.1 * x).sum(-1, keepdim=True)),
    "of a product of matrices": (lambda x, y: x @ y.T, lambda x, y: x @ (y * 0.1).T + x @ y.T),
    "of a transposed value": (lambda x, y: x @ y.T, lambda x, y: (y @ x.T).T * 0.1 + x @ y.T),
    "of maxima": (lambda x, y: x.maximum(y), lambda x, y: torch.maximum(x, y) + torch.maximum(y, x) * 0.1),
    "of a maximum along an axis": (
        lambda x, y: x.amax(-1, keepdim=True),
        lambda x, y: x.amax(-1, keepdim=True) + (x * 0.1).amax(-1, keepdim=True),
    ),
    "of masked values": (
        lambda x, y: torch.where(y > 0, x, 0),
        lambda x, y: torch.where(y > 0, x, 0) + torch.where(y > 0, x * 0.1, 0),
    ),
    "of choices whose other parts differ": (
        lambda x, y: torch.where(y > 0, x, y),
        lambda x, y: torch.where(y > 0, x, y * 3) + torch.where(y > 0, x * 0.1, y),
    ),
    "of a part": (lambda x, y: x[:, 3:4], lambda x, y: (x + x * 0.1)[:, 3:4]),
    "of roots": (
        lambda x, y: x * (y * y).sqrt(),
        lambda x, y: x * (y * y).sqrt() * 2 + (y * y).sqrt() * x * 0.2,
    ),
}


def _chosen(one: Sum, multiple: Sum) -> Callable[..., torch.Tensor]:
    def function(x: torch.Tensor, y: torch.Tensor, a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
        return torch.where(one(x, y) > 0, torch.where(multiple(x, y) > 0, a, b), b * 2)

    return function


def _inputs() -> tuple[torch.Tensor, ...]:
    generator = torch.Generator().manual_seed(0)
    return tuple(torch.randn(7, 7, generator=generator) for _ in range(4))


QUICK = ("like terms", "of squares", "of a quotient", "of a product of matrices", "of masked values")


@pytest.mark.parametrize("name", few(POSITIVE, *QUICK))
def test_a_multiple_of_a_positive_number_is_positive_in_every_field(name: str) -> None:
    """Before: where 11/10 was no square, the inner condition was never met, so that any number could stand
    there; one seed in four said "equal"."""
    one, multiple = POSITIVE[name]
    first = _chosen(one, multiple)

    def never(x: torch.Tensor, y: torch.Tensor, a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
        return torch.where(one(x, y) > 0, b, b * 2)

    for seed in range(3):
        assert not equivalent(first, never, *_inputs(), floats=False, seed=seed).equal, seed


@pytest.mark.parametrize("name", ["like terms", "of two inputs", "of a part"])
def test_what_is_always_met_is_proven(name: str) -> None:
    one, multiple = POSITIVE[name]

    def always(x: torch.Tensor, y: torch.Tensor, a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
        return torch.where(one(x, y) > 0, a, b * 2)

    assert equivalent(_chosen(one, multiple), always, *_inputs(), floats=False, seed=1).equal


@pytest.mark.parametrize("name", POSITIVE)
def test_factors_are_found(name: str) -> None:
    """What is a multiple of 11 / 10, and the like, has a factor that is no number of the program."""
    one, multiple = POSITIVE[name]
    graph = trace(_chosen(one, multiple), *_inputs(), for_proof=True).graph
    assert compared_factors(graph, narrow=True) - {Fraction(1)}


def test_products_need_no_factor_of_their_own() -> None:
    graph = trace(lambda x, y: torch.where(x * y > 0, x, y), *_inputs()[:2], for_proof=True).graph
    assert compared_factors(graph, narrow=True) == {Fraction(1)}
