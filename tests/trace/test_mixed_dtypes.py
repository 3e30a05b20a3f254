"""Numbers that meet tensors of other dtypes: what is computed is what PyTorch computes, or stays a call."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from superopt import equivalent
from superopt.trace import run_graph, trace

_OPERATORS = (
    "{a} + {b}",
    "{a} * {b}",
    "{a} & {b}",
    "{a} | {b}",
    "{a} ^ {b}",
    "{a} ** {b}",
    "{a} == {b}",
    "torch.add({a}, {b}, alpha=2)",
    "torch.add({b}, {a}, alpha=2)",
    "torch.sub({b}, {a}, alpha=3)",
    "torch.rsub({a}, {b}, alpha=3)",
    "torch.where({a} > 0, {b}, {a})",
    "{a}.masked_fill(m, {b})",
    "{a}.clone().fill_({b})",
    "{a}.clone().copy_({b})",
    "{a}.index_put((m,), torch.as_tensor({b}))",
    "torch.full_like({a}, {b}) + i",
    "{a}.new_full((4,), {b}) + i",
)
_NUMBERS = ("True", "False", "0", "1", "2", "-1", "0.5", "2.5")
_OTHERS = (
    "(x > 0) + (x > 1) + 1",
    "torch.where(x > 0, 1, 0) + m",
    "torch.where(x > 0, True, False) + m",
    "m.any() + 1",
    "m.all() + True",
    "m.any(()) + m.all(()) + 1",
    "torch.cat([m, ~m]) + 1",
    "x.sum(0, dtype=torch.int64)",
    "m.sum(0, dtype=torch.bool)",
    "x.cumsum(0, dtype=torch.int64)",
    "x.prod(0, dtype=torch.int64)",
    "i.cumprod(0, dtype=torch.bool)",
    "torch.full_like(x, 5, dtype=torch.bool) * i",
    "torch.full((4,), 2.5, dtype=torch.int64) * i",
    "torch.scalar_tensor(2.5, dtype=torch.int64) * i",
    "torch.arange(0.5, 4.5, dtype=torch.int64) * i",
    "torch.linspace(0, 5, 4, dtype=torch.int64) * i",
    "m.clone().copy_(i)",
    "m.masked_fill(m, torch.tensor(7)) + 0",
    "torch.addcmul(m, m, x, value=2)",
    "torch.addcmul(m, x, m)",
    "torch.addcdiv(m, m, x, value=2)",
    "torch.addcmul(x, m, i, value=2)",
    "torch.lerp(x, x * m, 0.3)",
    "i ** (i - 2)",
    "False ** i",
)


def _written() -> list[str]:
    found = [op.format(a=a, b=b) for op in _OPERATORS for a in "xmi" for b in (*_NUMBERS, "m")]
    return [*found, *_OTHERS]


@pytest.mark.parametrize("for_proof", [False, True])
def test_a_number_does_not_become_a_truth_value_or_lose_its_fraction(for_proof: bool) -> None:
    random = torch.Generator().manual_seed(0)
    x = torch.randn(3, 4, dtype=torch.float64, generator=random)
    m, i = x > 0.3, torch.randint(-2, 4, (3, 4), generator=random)
    checked = 0
    # What an integer or a truth value is shows where something reads it: a result would be cast to its dtype.
    for text in [shown for one in _written() for shown in (one, f"({one}) * 1.5")]:
        function = eval(f"lambda x, m, i: {text}", {"torch": torch})
        try:
            expected: Tensor = function(x.clone(), m.clone(), i.clone())
        except (RuntimeError, TypeError):  # of dtypes that PyTorch does not let meet
            continue
        found = trace(function, x, m, i, for_proof=for_proof).run(x, m, i)
        same = torch.allclose(found.double(), expected.double(), equal_nan=True)
        assert same, f"{text}: {found} against {expected}"
        checked += 1
    assert checked > 300


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_a_number_is_rounded_before_half_precisions_are_compared_with_it(dtype: torch.dtype) -> None:
    def function(x: torch.Tensor) -> torch.Tensor:
        return torch.where(x >= 0.1, 1.0, 0.0) + torch.where(x == 0.3, 1.0, 0.0)

    x = torch.tensor([0.1, 0.3, -torch.inf], dtype=dtype)
    torch.testing.assert_close(trace(function, x).run(x), function(x))


_HALF = torch.full((8,), 0.3, dtype=torch.bfloat16)
_WIDE = torch.linspace(-2, 2, 24).reshape(4, 6)
_SMALL = torch.tensor([3, 5, -7], dtype=torch.int8)
_T = torch.tensor(0.3)
_E4M3 = torch.float8_e4m3fn
_BYTES = torch.tensor([200, 100, 0], dtype=torch.uint8)
_SQUARE = torch.tensor([[0, 1, 2], [3, 1, 0], [2, 0, 1]])


def _outcomes(x: Tensor) -> Tensor:
    return (x > 0).to(torch.int8) * 100


def _fires(x: Tensor) -> Tensor:
    level, made = torch.zeros_like(x[0]), torch.zeros_like(x[0])
    for row in x:
        level = level * 0.5 + row
        fired = (level > 1) * 1.0
        level, made = level - fired, made + fired
    return made


def _count(x: Tensor) -> Tensor:
    return (x > 0).sum(-1, keepdim=True)


_ROUNDED: dict[str, tuple[Callable[..., Any], tuple[Tensor, ...]]] = {
    "a half against a float of no dimensions": (lambda x: torch.where(x > _T, x, 0), (_HALF,)),
    "a float of no dimensions against a half": (lambda x: torch.where(x.mean() < x, x, 0), (_HALF,)),
    "a float input of no dimensions": (lambda x, t: torch.where(x >= t, x, 0), (_HALF, _T)),
    "an integer of no dimensions": (lambda x: x * (x >= torch.tensor(257)), (_HALF * 0 + 256,)),
    "a cast to 8 bits": (lambda x: x.to(_E4M3).float() * 0.5, (_WIDE,)),
    "a copy to 8 bits": (lambda x: torch.zeros(x.shape, dtype=_E4M3).copy_(x).float(), (_WIDE,)),
    "a residual": (lambda x: (x.bfloat16(), x - x.bfloat16().float()), (_WIDE,)),
    "a residual as a sum": (lambda x: -(x * 3).half().float() + x * 3, (_WIDE,)),
    "a residual with a factor": (lambda x: torch.sub(x.half(), x, alpha=1), (_WIDE,)),
    "a residual in two steps": (lambda x: (x * 2).exp() - (x.half() * 2).float().exp(), (_WIDE,)),
    "a rounding that is compared": (lambda x: x * (x.half().float() == x), (_WIDE,)),
    "a residual of a copy": (lambda x: x - torch.empty(x.shape, dtype=torch.half).copy_(x), (_WIDE,)),
    "a negative number as bytes": (lambda x: x + torch.full((6,), -1, dtype=torch.uint8), (_WIDE,)),
    "a negative number like another": (lambda x: x * torch.full_like(x, -1, dtype=torch.uint8), (_WIDE,)),
    "positions as bytes": (lambda x: x + torch.arange(0, 600, 100).to(torch.uint8), (_WIDE,)),
    "positions copied to bytes": (
        lambda x: x + torch.empty(6, dtype=torch.uint8).copy_(torch.arange(0, 600, 100)), (_WIDE,)
    ),
    "a number of outcomes": (
        lambda x: ((x > 0).to(torch.uint8) * 200 + (x < 1).to(torch.uint8) * 200) * x, (_WIDE,)
    ),
    "a range of halves": (lambda x: x[:, :4] * torch.arange(7 / 2), (_WIDE,)),
    "a whole range up to a half": (lambda x: x[:, :3] * torch.arange(7 / 2, dtype=torch.long), (_WIDE,)),
    "a range of few bits": (lambda x: x[:, :4] * torch.arange(7 / 2, dtype=torch.int32), (_WIDE,)),
    "a range whose quotient rounds": (lambda x: x[:, :3] * torch.arange(0, 0.9, 0.3), (_WIDE,)),
    "a range downwards": (lambda x: x[:, :3] * torch.arange(5, -1, -2), (_WIDE,)),
    "a number and bits": (lambda x: torch.where(torch.bitwise_and(True, x > 0), x, 0.0), (_WIDE,)),
    "a number or bits": (lambda x: torch.where(torch.bitwise_or(False, x > 0), x, 0.0), (_WIDE,)),
    "a number against bits": (lambda x: torch.where(torch.bitwise_xor(True, x > 0), x, 0.0), (_WIDE,)),
    "bits of a number": (lambda i: torch.bitwise_and(7, i) * 0.5, (_SMALL,)),
    "a number that is shifted": (lambda i: (1000 >> i.abs().int()) * 0.5, (_SMALL,)),
    "a sum of bytes into floats": (lambda b: torch.add(b, b, out=torch.zeros(3)), (_BYTES,)),
    "a sum of few bits into more": (
        lambda x: torch.add(_outcomes(x), _outcomes(x), out=torch.zeros(4, 6, dtype=torch.long)) * x, (_WIDE,)
    ),
    "a fraction into integers": (
        lambda x: torch.full((6,), 2.5, out=torch.empty(6, dtype=torch.long)) * x, (_WIDE,)
    ),
    "a fraction into truth values": (
        lambda x: torch.full((6,), 2.5, out=torch.empty(6, dtype=torch.bool)) + x, (_WIDE,)
    ),
    "a range into integers": (
        lambda x: torch.arange(0.5, 6.5, out=torch.empty(6, dtype=torch.long)) * x, (_WIDE,)
    ),
    "a sum of fractions into integers": (
        lambda x: torch.sum(x, 0, out=torch.empty(6, dtype=torch.long)) * 1.5, (_WIDE,)
    ),
    "means of integers": (lambda i: F.avg_pool2d(i.view(1, 3, 3), 2) * 2, (_SQUARE,)),
    "a fraction of a product": (lambda i: torch.addmm(i, i, i, alpha=0.5, beta=1.5) * 2, (_SQUARE,)),
    "a fraction of products": (lambda i: torch.addcmul(i, i, i, value=0.5) * 2, (_SQUARE,)),
    "a fraction of a count": (
        lambda x: torch.addcmul(_count(x), _count(x), _count(x), value=0.5) * x, (_WIDE,)
    ),
    "fractions that bound integers": (lambda i: F.hardtanh(i, -1.5, 1.5) * 2, (_SMALL.long(),)),
    "a fraction that bounds a count": (lambda x: F.hardtanh(_count(x), 0, 2.5) * x, (_WIDE,)),
    "a fractional threshold": (lambda i: F.threshold(i, -0.5, 7), (_SQUARE - 1,)),
    "truth values that are added": (
        lambda b: b.index_add(0, torch.tensor([0, 0, 1]), b) * 1.5, (_BYTES > 1,)
    ),
    "truth values that overlap": (
        lambda x: F.fold((x > -9).view(1, 4, 6)[..., :4], (3, 3), 2) * 1.5, (_WIDE,)
    ),
    "bytes against a negative number": (lambda x: (_outcomes(x).to(torch.uint8) > -1) * x, (_WIDE,)),
    "few bits against a larger number": (lambda x: (_outcomes(x) == 356) * x, (_WIDE,)),
    "few bits against another tensor": (lambda x: (_outcomes(x) >= torch.tensor(300)) * x, (_WIDE,)),
    "casts that are compared": (lambda x: torch.where(x.half() == (x + 1e-5).half(), x, 3.0), (_WIDE,)),
    "a cast view that is compared": (lambda x: (x.half().T.contiguous() > x.T) * 1.5, (_WIDE,)),
    "a cast that is rounded down": (lambda x: x.bfloat16().float().floor(), (_WIDE * 0 + 0.9999,)),
    "a cast to integers of a cast": (lambda x: x.bfloat16().to(torch.int64) * 0.5, (_WIDE * 0 + 0.9999,)),
    "the largest of a cast": (lambda x: x.bfloat16().argmax(-1), (_WIDE * 1e-6 + 1,)),
    "a part of a cast": (lambda x: (x.half().unbind(0)[0] > (x + 1e-5).half()[0]) * 1.5, (_WIDE,)),
    "whether a cast is 0": (lambda x: x.half().logical_not() * 1.5, (_WIDE * 1e-9 + 1e-9,)),
    "signs of a cast": (lambda x: x.half().sgn() * 1.5, (_WIDE * 1e-9 + 1e-9,)),
    "the bits of a cast": (lambda x: x.bfloat16().float().view(torch.int32) & 0xFFFF, (_WIDE,)),
}  # fmt: skip


@pytest.mark.parametrize("for_proof", [False, True])
@pytest.mark.parametrize("name", _ROUNDED)
def test_what_pytorch_rounds_or_wraps_is_no_algebra(name: str, for_proof: bool) -> None:
    function, inputs = _ROUNDED[name]
    traced = trace(function, *inputs, for_proof=for_proof)
    torch.testing.assert_close(traced.run(*inputs), function(*inputs))


_KEPT: dict[str, tuple[Callable[..., Any], tuple[Tensor, ...]]] = {
    "weights of 8 bits": (lambda x, w: x.half() @ w.to(torch.half), (_WIDE, _WIDE.T.to(_E4M3))),
    "truth values as 8 bits": (lambda x: (x > 0).to(_E4M3).float() * x, (_WIDE,)),
    "casts to and fro": (lambda x: (x.half() * 2).float() + x, (_WIDE,)),
    "a difference of one cast": (lambda x: x.half() * 2 - x.half().float(), (_WIDE,)),
    "a shorter float of no dimensions": (lambda x: x * (x > torch.tensor(0.25).bfloat16()), (_WIDE,)),
    "a count": (lambda x: (x > 0).sum(-1) * 2, (_WIDE,)),
    "a huge number as a half": (lambda x: x.half() + torch.full((6,), -1e9).half(), (_WIDE,)),
    "some blocks of truth values": (
        lambda x, m: torch.where(m[:4, :6], x, 0.0), (_WIDE, torch.ones(8, 8) > 0)
    ),
    "truth values side by side": (lambda x: torch.cat([x > 0, x[:, :2] > 1], -1)[:, :6] * x, (_WIDE,)),
    "an additive mask that is compared": (
        lambda x: torch.where(torch.zeros_like(x).masked_fill(x > 1, -1e9) > -1, x, 0.0), (_WIDE,)
    ),
    "the sign of a cast": (lambda x: F.elu((x * 2).bfloat16()), (_WIDE,)),
    "a cast less its maximum": (
        lambda x: (x.bfloat16() - x.bfloat16().max(-1, keepdim=True).values).exp(), (_WIDE,)
    ),
    "a constant that is spread and compared": (
        lambda x: (x > torch.full((4, 1), 0.1).expand(4, 6)) * x, (_WIDE,)
    ),
    "a long chain": (lambda x: _fires(x.repeat(60, 1)), (_WIDE,)),
    "a count of few bits": (lambda x: (x > 0).sum(-1, dtype=torch.int32) * 2, (_WIDE,)),
    "positions that fit": (
        lambda x: x + torch.empty(6, dtype=torch.uint8).copy_(torch.arange(250, 256)), (_WIDE,)
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", _KEPT)
def test_what_is_exact_stays_algebra(name: str) -> None:
    function, inputs = _KEPT[name]
    traced = trace(function, *inputs)
    assert not traced.program.opaque
    torch.testing.assert_close(traced.run(*inputs), function(*inputs), rtol=1e-2, atol=1e-2)


def test_only_casts_whose_rounding_is_computed_stay_calls() -> None:
    def function(x: Tensor) -> tuple[Tensor, Tensor]:
        y = x.half().float() * 2
        return (y + x).exp(), y.exp() - y.exp().bfloat16().float()

    traced = trace(function, _WIDE)
    assert [call.target for call in traced.program.opaque] == ["aten._to_copy.default"]
    assert traced.run(_WIDE)[1].abs().max() > 0


@pytest.mark.parametrize("order", [(0, 1), (1, 0)])
def test_truth_values_of_unequal_length_leave_out_what_is_no_number(order: tuple[int, int]) -> None:
    masks = (_WIDE > 0)[:, :2].contiguous(), (_WIDE > -1)[:, 2:].contiguous()

    def function(a: Tensor, b: Tensor, x: Tensor) -> Tensor:
        parts = a, b
        return torch.where(torch.cat([parts[at] for at in order], -1), x, 0.0)

    inputs = *masks, torch.full((4, 6), torch.inf)
    traced = trace(function, *inputs)
    assert not traced.program.opaque
    torch.testing.assert_close(traced.run(*inputs), function(*inputs))


_LARGE: dict[str, Callable[[Tensor], Any]] = {
    "a count": lambda x: (x > 0).sum(),
    "a count of few bits": lambda x: (x > 0).sum(dtype=torch.int32),
    "a count of repeated numbers": lambda x: (x[:1] > 0).expand(len(x)).sum(),
    "positions": lambda x: torch.arange(1, len(x) + 1),
    "a number": lambda x: torch.where(x > 0, len(x), 0),
}


@pytest.mark.parametrize("name", _LARGE)
def test_integers_that_kernels_would_round_are_no_algebra_that_runs(name: str) -> None:
    held, rounded = (torch.empty(size, device="meta") for size in (2**24, 2**24 + 1))
    assert not trace(_LARGE[name], held).program.opaque
    assert trace(_LARGE[name], rounded).program.opaque


def test_a_proof_counts_further_than_kernels() -> None:
    x = torch.empty(2**24 + 1, device="meta")
    assert not trace(lambda x: (x > 0).sum(), x, for_proof=True).program.opaque


@pytest.mark.parametrize(("size", "held"), [(2**20, True), (2**21, False)])
def test_sums_of_stored_bits_are_algebra_as_far_as_kernels_hold_them(size: int, held: bool) -> None:
    x = torch.empty(size, dtype=torch.uint8, device="meta")
    assert bool(trace(lambda x: (x & 15).sum(), x).program.opaque) != held


TRUTHS = torch.tensor([[False, True, True], [True, True, False]])
AGAIN = [
    pytest.param(lambda a: torch.add(a[0], a[1], alpha=0).float(), TRUTHS, id="no part of truth values"),
    pytest.param(
        lambda x: x + (torch.zeros(3, dtype=torch.uint8) - 1).float(), torch.rand(3), id="below bytes"
    ),
    pytest.param(lambda x: x + (torch.arange(100, dtype=torch.int8) * 2)[-3:], torch.rand(3), id="positions"),
    pytest.param(
        lambda x: x + torch.full((3,), 2**30, dtype=torch.int32) * 4, torch.rand(3), id="above int32"
    ),
    pytest.param(
        lambda x: x.index_put((torch.tensor(1),), torch.tensor(5.0)),
        torch.rand(3),
        id="a place of no dimensions",
    ),
    pytest.param(
        lambda x: torch.select_scatter(torch.zeros(2, 3, dtype=torch.int64), x, 0, 1) * 2.0,
        torch.rand(3),
        id="a row of integers",
    ),
    pytest.param(
        lambda x: torch.slice_scatter(torch.zeros(7, dtype=torch.int64), x, 0, 2, 5) * 2.0,
        torch.rand(3),
        id="a slice of integers",
    ),
    pytest.param(
        lambda x: torch.diagonal_scatter(torch.zeros(3, 3, dtype=torch.int64), x) * 2.0,
        torch.rand(3),
        id="a diagonal of integers",
    ),
    pytest.param(
        lambda a: torch.where(a[:, 1:], torch.full((2, 2), torch.inf), 0.0),
        TRUTHS,
        id="a part of truth values",
    ),
    pytest.param(
        lambda a: torch.where(a.amin(0), torch.full((3,), torch.inf), 0.0), TRUTHS, id="the least truth value"
    ),
    pytest.param(lambda x: torch.where(x == 0.1, 1.0, 0.0), torch.tensor([0.1, 0.3]), id="a rounded number"),
]


@pytest.mark.parametrize("for_proof", [False, True])
@pytest.mark.parametrize(("function", "given"), AGAIN)
def test_numbers_are_those_of_eager_pytorch(
    function: Callable[[Tensor], Tensor], given: Tensor, for_proof: bool
) -> None:
    """Before: each of these was traced as something else."""
    made = trace(function, given, for_proof=for_proof).run(given)
    torch.testing.assert_close(made, function(given), check_dtype=False)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_a_number_that_fills_a_tensor_of_a_half_type_is_rounded_to_it(dtype: torch.dtype) -> None:
    """Before: it stayed 0.1 where a wider tensor read it, and was proven equal to 0.1."""
    x = torch.randn(4, 8)
    for filled in (
        lambda x: x * torch.full((), 0.1, dtype=dtype),
        lambda x: x * torch.full_like(x, 0.1, dtype=dtype),
        lambda x: x * torch.scalar_tensor(0.1, dtype=dtype).float(),
        lambda x: torch.where(x > 0, x, x.new_full((8,), 0.1, dtype=dtype)),
    ):
        found = trace(filled, x).program
        [graph] = [region.graph for region in found.regions]
        [made] = run_graph(graph, {port.name: x for port in graph.inputs}).values()
        torch.testing.assert_close(made, filled(x), rtol=1e-6, atol=1e-7, check_dtype=False)
    half = equivalent(lambda x: x * torch.full((), 0.1, dtype=dtype), lambda x: x * 0.1, x)
    assert not half.equal
    assert equivalent(lambda x: x * torch.full((), 0.5, dtype=dtype), lambda x: x * 0.5, x).equal
    assert equivalent(lambda x: x * torch.full((), 0.1), lambda x: x * 0.1, x).equal
