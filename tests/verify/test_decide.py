"""Decide: floats find what differs, and take for equal what rounding and the meaning of constants explain."""

from typing import Any, NamedTuple

import pytest
import torch
import torch.nn.functional as F
from quick import few

from superopt.verify.decide import CONTRADICTION
from superopt.verify.equivalent import equivalent
from superopt.verify.floats.float64 import in_float64

GENERATOR = torch.Generator().manual_seed(7)
X = torch.randn(6, 8, generator=GENERATOR)
P = torch.rand(6, 8, generator=GENERATOR)


class _Pair(NamedTuple):
    a: torch.Tensor
    b: torch.Tensor


LEFT_OUT = {  # a condition leaves a root or a logarithm out, in equal programs
    "entropy": (
        lambda p: torch.where(p > 0, p * p.log(), 0.0).sum(-1),
        lambda p: (torch.where(p > 0, p.log(), 0.0) * p).sum(-1),
    ),
    "degrees": (
        lambda p: torch.where(p.sum(-1) > 0, p.sum(-1).rsqrt(), 0.0),
        lambda p: torch.where(p.sum(-1) <= 0, 0.0, 1 / p.sum(-1).sqrt()),
    ),
    "a root with a sign": (
        lambda p: torch.where(p < 0, -(-p).sqrt(), p.sqrt()),
        lambda p: torch.where(p >= 0, p.sqrt(), -(-p).sqrt()),
    ),
}


@pytest.mark.parametrize("name", LEFT_OUT)
@pytest.mark.parametrize("seed", [0, 1])
def test_what_a_condition_leaves_out_is_proven(name: str, seed: int) -> None:
    """Before: unknown, since trials in which a root has no value proved nothing."""
    assert equivalent(*LEFT_OUT[name], P, floats=False, seed=seed).equal


@pytest.mark.parametrize("seed", few(range(4), 0))
def test_where_a_root_is_left_out_a_difference_counts(seed: int) -> None:
    first = LEFT_OUT["a root with a sign"][0]
    unsigned = lambda p: torch.where(p < 0, (-p).sqrt(), p.sqrt())  # noqa: E731
    assert not equivalent(first, unsigned, P, floats=False, seed=seed).equal
    one = lambda p: torch.where(p > 0, p * p.log(), 1.0).sum(-1)  # noqa: E731
    assert not equivalent(LEFT_OUT["entropy"][0], one, P, floats=False, seed=seed).equal


TENTHS = {
    "compared": lambda c: lambda x: torch.where(x > c, x, 0.0),
    "multiplied": lambda c: lambda x: x * c,
    "as a tensor": lambda c: lambda x: torch.where(x > torch.tensor(c), x, 0.0),
}


@pytest.mark.parametrize("name", TENTHS)
def test_a_constant_of_float32_is_one_number_to_algebra_and_floats(name: str) -> None:
    """Before: "different", or "one of the two is at fault", of programs that compute the same bits."""
    tenth, rounded = (TENTHS[name](c) for c in (0.1, 0.10000000149011612))
    assert equivalent(tenth, rounded, X, seed=0).equal
    assert not equivalent(tenth, TENTHS[name](0.10001), X, seed=0).equal
    if name != "as a tensor":
        assert not equivalent(tenth, rounded, X.double(), seed=0).equal


@pytest.mark.parametrize("seed", few(range(3), 0))
def test_sums_that_nearly_cancel_are_no_difference(seed: int) -> None:
    """Before: "different" by the 11th digit."""
    first = lambda x: x / x.sum(-1, keepdim=True)  # noqa: E731
    second = lambda x: x / x.sort(-1).values.sum(-1, keepdim=True)  # noqa: E731
    x = torch.randn(1024, 64, dtype=torch.float64, generator=GENERATOR)
    assert equivalent(first, second, x, seed=seed).unknown
    assert equivalent(second, first, x, seed=seed).unknown


def test_a_small_difference_in_float64_is_one() -> None:
    first, second = (lambda x: x.sort(-1).values * 1.0), (lambda x: x.sort(-1).values * (1 + 1e-12))
    assert equivalent(first, second, X.double(), seed=0).different


def test_a_program_may_refuse_numbers_that_are_drawn() -> None:
    """Before: IndexError."""
    table = torch.randn(10, 4, generator=GENERATOR)
    first, second = (lambda x: table[(x * 10).long()]), (lambda x: table[(x * 10).long()] * 1.0)
    verdict = equivalent(first, second, torch.rand(8, generator=GENERATOR), seed=0)
    assert verdict.equal
    assert any("refuses numbers" in note for note in verdict.notes)


TENTH, TENTHS_TO_SEVEN = (lambda x: x / 10), (lambda x: x * torch.arange(8) / 10)
OF_NUMBERS: dict[str, tuple[Any, Any]] = {
    "a list": (lambda x: x * torch.tensor([0.1] * 8), TENTH),
    "a list as it is": (lambda x: x * torch.as_tensor([0.1] * 8), TENTH),
    "one number": (lambda x: x * torch.full((8,), 0.1), TENTH),
    "steps": (lambda x: x * torch.arange(0.0, 0.75, 0.1), TENTHS_TO_SEVEN),
    "a line": (lambda x: x * torch.linspace(0.0, 0.7, 8), TENTHS_TO_SEVEN),
}


@pytest.mark.parametrize("name", OF_NUMBERS)
def test_numbers_that_a_tensor_rounds_are_those_of_the_algebra(name: str) -> None:
    """Before: "one of the two is at fault", as float32 rounds what is made of numbers by default."""
    verdict = equivalent(*OF_NUMBERS[name], X, seed=0)
    assert verdict.equal
    assert CONTRADICTION not in verdict.notes
    assert not equivalent(*OF_NUMBERS[name], X.double(), seed=0).equal


WEIGHT = torch.randn(8, 8, generator=torch.Generator().manual_seed(1))
EPS = {torch.float32: 2.0**-20}
EPS_BY_BYTES = {4: 2.0**-20}


def _normed(x: torch.Tensor, eps: float) -> torch.Tensor:
    return x * torch.rsqrt(x.square().mean(-1, keepdim=True) + eps)


CASTS: dict[str, Any] = {
    "double": lambda x: x.double(),
    "float": lambda x: x.float(),
    "half": lambda x: x.half(),
    "to double": lambda x: x.to(torch.float64),
    "to float": lambda x: x.to(dtype=torch.float32),
    "to a copy": lambda x: x.to(torch.float32, copy=True),
    "type": lambda x: x.type(torch.float64),
    "type of another": lambda x: x.type_as(torch.zeros(1, dtype=torch.float64)),
    "type of its own": lambda x: x.type_as(torch.zeros(1)),
}


def _of_float32(x: torch.Tensor) -> torch.Tensor:
    assert x.dtype == torch.float32
    return x + x


OF_THE_DTYPE: dict[str, tuple[Any, Any]] = {
    "an epsilon by default": (
        lambda x: F.rms_norm(x, (8,)),
        lambda x: _normed(x, torch.finfo(torch.float32).eps),
    ),
    "the least number": (
        lambda x: x.relu().clamp_min(torch.finfo(x.dtype).tiny).log(),
        lambda x: x.relu().clamp_min(torch.finfo(torch.float32).tiny).log(),
    ),
    "of a value on the way": (
        lambda x: _normed(2 * x, torch.finfo((x * x).sum().dtype).eps),
        lambda x: _normed(x + x, 2.0**-23),
    ),
    "of a product with a weight": (
        lambda x: _normed(x @ WEIGHT, torch.finfo((x @ WEIGHT).dtype).eps),
        lambda x: _normed(x @ WEIGHT, 2.0**-23),
    ),
    "an epsilon after a linear layer": (
        lambda x: F.rms_norm(F.linear(x, WEIGHT), (8,)),
        lambda x: _normed(F.linear(x, WEIGHT), 2.0**-23),
    ),
    "an entry of a table": (lambda x: _normed(x, EPS[x.dtype]), lambda x: _normed(x, 2.0**-20)),
    "nothing else": (_of_float32, lambda x: 2 * x),
    "tenths in a tensor": (
        lambda x: x * torch.tensor([0.1, 0.3], dtype=x.dtype).repeat(4),
        lambda x: x * torch.tensor([0.1, 0.3], dtype=torch.float32).repeat(4),
    ),
}


@pytest.mark.parametrize("name", OF_THE_DTYPE)
def test_programs_are_told_their_own_dtype_in_float64(name: str) -> None:
    """Before: "different", or KeyError and AssertionError."""
    verdict = equivalent(*OF_THE_DTYPE[name], X, seed=0)
    assert verdict.equal
    assert not any("float64" in note for note in verdict.notes)


def test_dtypes_follow_what_operators_make() -> None:
    asked: list[torch.dtype] = []

    def program(x: torch.Tensor, h: torch.Tensor, d: torch.Tensor) -> torch.Tensor:
        made = (h + 1, h * x, h.sum() * x, x.to(h.dtype), h.float(), x + d, torch.zeros(8), h.add_(1), x.data)
        made += (x.double(), x.to(d), x.to(torch.float64), x.type(torch.float64), x.double() + x)
        made += (x.float(), x.to(x), d.double(), d.float(), d.to("cpu", torch.float64), h.type_as(d))
        asked.extend(one.dtype for one in made)
        return made[0]

    inputs = X, X.half(), X.double()
    program(*(one.clone() for one in inputs))
    expected = asked.copy()
    asked.clear()
    assert in_float64(program)(*inputs).dtype == torch.float64
    assert asked == expected


def _written_after(cast: Any) -> Any:
    def program(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        made = 2 * x
        other = cast(made)
        other.add_(1)
        return made, other

    return program


@pytest.mark.parametrize("name", CASTS)
def test_a_cast_in_float64_is_a_copy_where_it_is_one_in_pytorch(name: str) -> None:
    """Before: a write to x.double() was one to x, and a write to x.float() was none."""
    program = _written_after(CASTS[name])
    for made, expected in zip(in_float64(program)(X), program(X), strict=True):
        torch.testing.assert_close(made.float(), expected.float(), rtol=1e-2, atol=1e-2)
    assert equivalent(program, program, X, seed=0).equal


def test_a_program_that_cannot_be_run_in_float64_is_not_compared_in_floats() -> None:
    """Before: KeyError."""
    first = lambda x: _normed(x, EPS_BY_BYTES[x.element_size()])  # noqa: E731
    verdict = equivalent(first, lambda x: _normed(x, 2.0**-20), X, seed=0)
    assert verdict.equal
    assert any("cannot be run in float64 (KeyError: 8)" in note for note in verdict.notes)


def test_arguments_may_be_named_tuples() -> None:
    """Before: TypeError."""
    pair = _Pair(X, P)
    assert equivalent(lambda p: p.a * p.b, lambda p: p.b * p.a, pair, seed=0).equal


SEVERAL: dict[str, tuple[Any, bool]] = {
    "one that loses its last digits": (lambda x, h: ((x * 2 + 1e4) - 1e4, h * 3), True),
    "one that loses most of them": (lambda x, h: ((x * 2 + 1e12) - 1e12, h * 3), False),
}


@pytest.mark.parametrize("swapped", [False, True])
@pytest.mark.parametrize("name", SEVERAL)
def test_each_result_is_judged_by_its_own_dtype(name: str, swapped: bool) -> None:
    """Before: the rounding of halves was held against doubles, or allowed to them."""
    function, equal = SEVERAL[name]
    turn = (lambda made: made[::-1]) if swapped else (lambda made: made)
    first, second = (lambda x, h: turn((x * 2, h * 3))), (lambda x, h: turn(function(x, h)))
    assert equivalent(first, second, X.double(), X.half(), seed=0).equal == equal


def test_complex_results_are_compared_in_both_parts() -> None:
    """Before: bit by bit, or by the real part alone."""
    x = torch.randn(16, 64, generator=GENERATOR)
    first, second = (lambda x: torch.fft.rfft(x / 3 * 7)), (lambda x: torch.fft.rfft(x * 7 / 3))
    assert equivalent(first, second, x, seed=0).equal
    assert equivalent(torch.fft.rfft, lambda x: torch.fft.rfft(x).conj(), x, seed=0).different
