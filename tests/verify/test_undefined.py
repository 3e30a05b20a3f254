"""Undefined: programs of which one makes NaN or infinity for numbers for which the other has a number."""

import math
from typing import Any

import pytest
import torch
from torch import Tensor

from superopt.verify.decide import REFUSED, UNDEFINED
from superopt.verify.equivalent import equivalent

INF, NAN = math.inf, math.nan
GENERATOR = torch.Generator().manual_seed(5)
M = torch.rand(4, 6, generator=GENERATOR) > 0.4
X, Y = (torch.randn(4, 6, generator=GENERATOR) for _ in range(2))

# The second program is undefined for numbers for which the first is defined; the other way round, they are
# equal.
UNDEFINED_SECOND = {
    "a logarithm where a mask is 0": (
        lambda m, y: torch.where(m, y.log(), 0.0),
        lambda m, y: m * y.log(),
        (M, Y),
    ),
    "a root where a mask is 0": (
        lambda m, y: torch.where(m, y.sqrt(), 0.0),
        lambda m, y: m * y.sqrt(),
        (M, Y),
    ),
    "a logarithm of what is not positive": (
        lambda x: torch.where(x > 0, x.log(), 0.0),
        lambda x: (x > 0) * x.log(),
        (X,),
    ),
    "the same in halves": (
        lambda x: torch.where(x > 0, x.log(), 0.0),
        lambda x: (x > 0) * x.log(),
        (X.half(),),
    ),
    "a logarithm far from zero": (
        lambda x: torch.where(x > 10, (x - 10).log(), 0.0),
        lambda x: (x > 10) * (x - 10).log(),
        (X,),
    ),
    "a quotient by what is compared with 0": (
        lambda x: torch.where(x != 0, 1 / x, 0.0),
        lambda x: (x != 0) * (1 / x),
        (X,),
    ),
    "a quotient by an integer": (
        lambda n: torch.where(n != 0, 1 / n, 0.0),
        lambda n: (n != 0) * (1 / n),
        (torch.arange(-5, 5),),
    ),
    "a factor that is 0 where a logarithm is infinite": (
        lambda x: torch.where(x > 0, x.abs().log(), 3.0),
        lambda x: (x > 0) * x.abs().log() + (x <= 0) * 3,
        (X,),
    ),
}


@pytest.mark.parametrize("name", UNDEFINED_SECOND)
def test_who_is_undefined_where_the_first_is_not_is_not_equal(name):
    first, second, inputs = UNDEFINED_SECOND[name]
    verdict = equivalent(first, second, *inputs)
    assert verdict.unknown, str(verdict)
    assert UNDEFINED in str(verdict)
    assert verdict.counterexample is not None
    assert math.isfinite(verdict.counterexample.left)
    assert not math.isfinite(verdict.counterexample.right)
    assert equivalent(second, first, *inputs).equal


# Infinity less infinity and 0 times infinity are no numbers, so none of these is equal to the first.
NO_NUMBERS = {
    "infinity added and taken away": (lambda x: 2 * x, lambda x: (2 * x + INF) - INF, (X,)),
    "0 times infinity": (lambda x: 2 * x, lambda x: 2 * x + 0 * (x + INF), (X,)),
    "infinity by infinity": (lambda x: x + x, lambda x: x * INF * 2 / INF, (X,)),
    "infinity less infinity where a mask is 0": (
        lambda m, x, y: torch.where(m, x - y, 0),
        lambda m, x, y: torch.where(m, x, INF) - torch.where(m, y, INF),
        (M, X, Y),
    ),
    "another sign of infinity": (lambda x: x + INF, lambda x: x - INF, (X,)),
    "what is no number": (lambda m, x: x * 1, lambda m, x: torch.where(m, x, NAN), (M, X)),
}


@pytest.mark.parametrize("floats", [False, True])
@pytest.mark.parametrize("name", NO_NUMBERS)
def test_infinity_is_no_number_that_cancels(name, floats):
    first, second, inputs = NO_NUMBERS[name]
    assert not equivalent(first, second, *inputs, floats=floats).equal


EQUAL = {
    "a number by infinity": (lambda x: 2 * x + x / INF, lambda x: 2 * x, (X,)),
    "a number less infinity": (lambda x: x - INF, lambda x: torch.full_like(x, -INF), (X,)),
    "an exponential of minus infinity": (lambda x: (x - INF).exp() + x, lambda x: x * 1, (X,)),
    "a selection shifted": (
        lambda m, x, y: torch.where(m, x, INF) + y,
        lambda m, x, y: torch.where(m, x + y, INF),
        (M, X, Y),
    ),
    "a maximum shifted": (
        lambda m, x: torch.where(m, 1 + x, -INF).amax(-1),
        lambda m, x: 1 + torch.where(m, x, -INF).amax(-1),
        (M, X),
    ),
    "a selection inverted": (
        lambda m, x: 1 / torch.where(m, x, INF),
        lambda m, x: torch.where(m, 1 / x, 0),
        (M, X),
    ),
    "a selection in a sigmoid": (
        lambda m, x: torch.where(m, x, -INF).sigmoid(),
        lambda m, x: torch.where(m, x.sigmoid(), 0.0),
        (M, X),
    ),
    "a softmax where a mask is 1": (
        lambda m, x: torch.where(m, x, -INF).softmax(-1),
        lambda m, x: (m * x.exp()) / (m * x.exp()).sum(-1, keepdim=True),
        (M, X),
    ),
    "a selection of a selection": (
        lambda m, x: torch.where(m, torch.where(m, x, INF), 0),
        lambda m, x: torch.where(m, x, 0),
        (M, X),
    ),
    # Accidents: a division by 0, and an overflow.
    "a number times itself by itself": (lambda x, y: x, lambda x, y: x * y / y, (X, Y)),
    "a logistic function": (lambda x: x.sigmoid(), lambda x: x.exp() / (1 + x.exp()), (X,)),
}


@pytest.mark.parametrize("name", EQUAL)
def test_infinities_and_accidents_keep_no_equality_from_its_proof(name):
    first, second, inputs = EQUAL[name]
    for one, other in ((first, second), (second, first)):
        verdict = equivalent(one, other, *inputs)
        assert verdict.equal, str(verdict)


def test_an_overflow_keeps_no_equality_from_its_proof():
    """Near zero, the second program loses about as many digits as floats may: for few seeds, more."""

    def first(x):
        return x * 1

    def second(x):
        return x.exp().exp().log().log()

    assert equivalent(first, second, X, floats=False).equal
    assert equivalent(second, first, X, floats=False).equal


def test_a_difference_with_infinity_is_refuted_by_numbers_alone():
    wrong = equivalent(lambda x: 2 * x + x / INF, lambda x: 3 * x, X)
    assert wrong.different
    assert wrong.counterexample is not None
    assert not equivalent(lambda x: 2 * x + x / INF, lambda x: 3 * x, X, floats=False).different


def _parabola(wanted: float) -> Any:
    def made(x: Tensor) -> Tensor:
        v = x * (200 - x)
        return torch.where(v > 9999.0, wanted, torch.sqrt(9999.0 - v))

    return made


def _either(x: Tensor, y: Tensor) -> Tensor:
    return torch.where((x >= 0) * (y >= 0), x.sqrt(), 0.0)


def _nested(value: float) -> Any:
    def made(x: Tensor, y: Tensor) -> Tensor:
        root = (x * y).sqrt()
        above = torch.where(y > 0, value, root)
        return torch.where(x < 0, above, torch.where(x > 0, torch.where(y < 0, value, root), root))

    return made


def _of_logarithm(value: float) -> Any:
    return lambda x, y: torch.where(x.log() < 0, value, x.log().sqrt()) + 0 * y


# The programs differ where a root that has no value there says nothing of the result.
ELSEWHERE: dict[str, tuple[Any, Any]] = {
    "another output": (
        lambda x, y: (x.sqrt(), 2 * x.relu() + y),
        lambda x, y: (x.sqrt(), 2 * x + y),
    ),
    "another element": (
        lambda x, y: x.sqrt()[0] + x.relu()[1] + y,
        lambda x, y: x.sqrt()[0] + x[1] + y,
    ),
    "elements that are spread": (
        lambda x, y: x.relu()[:, None] + x.sqrt()[None] + y,
        lambda x, y: x[:, None] + x.sqrt()[None] + y,
    ),
    "a product of masks": (_either, lambda x, y: _either(x, y) + torch.relu(-x)),
    "two conditions together": (_nested(5.0), _nested(7.0)),
    "a compared logarithm": (_of_logarithm(5.0), _of_logarithm(7.0)),
}


@pytest.mark.parametrize("name", ELSEWHERE)
def test_programs_are_compared_where_a_root_elsewhere_has_no_value(name: str) -> None:
    """Before: "equal", since trials in which some root has no value were not looked at."""
    first, second = ELSEWHERE[name]
    x, y = torch.randn(8), torch.randn(8)
    assert not equivalent(first, second, x, y, floats=False).equal
    assert equivalent(first, first, x, y, floats=False).equal


def test_what_is_divided_by_zero_is_above_nothing() -> None:
    x, a, b = torch.randn(3, 8).unbind()
    chosen = lambda x, a, b: torch.where(x / 0.0 > -1, a, b)  # noqa: E731
    assert not equivalent(chosen, lambda x, a, b: a * 1, x, a, b, floats=False).equal


HIDDEN = {
    "near one number alone": (_parabola(5.0), _parabola(7.0)),
    "of what is not negative": (
        lambda x: torch.where(x < 0, 5.0, x.sqrt()),
        lambda x: torch.where(x < 0, 7.0, x.sqrt()),
    ),
    "and a choice beside it": (
        lambda x: torch.relu(-x) + torch.where(x < 0, 5.0, x.sqrt()),
        lambda x: 2 * torch.relu(-x) + torch.where(x < 0, 5.0, x.sqrt()),
    ),
    "of a logarithm": (
        lambda x: torch.where(x > 1, 5.0, torch.log(1 - x)),
        lambda x: torch.where(x > 1, 7.0, torch.log(1 - x)),
    ),
}


@pytest.mark.parametrize("floats", [True, False])
@pytest.mark.parametrize("name", HIDDEN)
def test_where_a_root_is_left_out_programs_are_compared(name: str, floats: bool) -> None:
    """Before: only numbers were tried for which all roots are defined, where a condition is never met."""
    first, second = HIDDEN[name]
    assert not equivalent(first, second, torch.randn(8), floats=floats).equal
    assert equivalent(first, first, torch.randn(8), floats=floats).equal


def _root(x: Tensor) -> Tensor:
    return 0 * torch.linalg.cholesky(x) + x


S = torch.eye(4)
REFUSALS: dict[str, tuple[Any, Any, bool]] = {
    "by the second alone": (lambda x: x, _root, False),
    "by the first alone": (_root, lambda x: x, True),
    "by both": (_root, lambda x: x + 0 * torch.linalg.cholesky(x), True),
}


@pytest.mark.parametrize("name", REFUSALS)
def test_a_program_that_refuses_what_the_first_takes_is_not_equal(name: str) -> None:
    """Before: equal, with a note on float64."""
    first, second, equal = REFUSALS[name]
    verdict = equivalent(first, second, S, seed=0)
    assert verdict.equal == equal
    assert any(note.startswith(REFUSED) for note in verdict.notes) != equal
