"""Idioms of powers and their signs, of integers and casts, and of assignments to places."""

from functools import partial

import torch
from torch import Tensor

from superopt.bench.verdicts.pairs import Pair

__all__ = ["IDIOMS", "WRONG"]

equal = partial(Pair, family="powers")
wrong = partial(Pair, equal=False, family="powers")

where = torch.where


def _assigned(x: Tensor, first: int, last: int, value: float) -> Tensor:
    y = x.clone()
    y[:, first:last] = value
    return y


def _added(x: Tensor, first: int, last: int, value: float) -> Tensor:
    y = x.clone()
    y[:, first:last] += value
    return y


def _filled(x: Tensor, m: Tensor) -> Tensor:
    y = x.clone()
    y[m] = 0.0
    return y


def _in_place(x: Tensor) -> Tensor:
    return x.clone().mul_(2).add_(1).relu_()


def _through_a_view(x: Tensor) -> Tensor:
    y = x.clone()
    y.view(2, 2, 3)[:, 0].zero_()
    return y


IDIOMS = (
    equal("the power 1/2 of a square", lambda x: (x**2) ** 0.5, torch.abs, "f32[6]"),
    equal("the fourth root of a fourth power", lambda x: (x**4) ** 0.25, torch.abs, "f32[6]"),
    equal("the root of a fourth power", lambda x: (x**4).sqrt(), torch.square, "f32[6]"),
    equal("the power 3/2 of a square", lambda x: (x**2) ** 1.5, lambda x: x.abs() ** 3, "f32[6]"),
    equal(
        "the root of a product of squares",
        lambda x, y: (x * x * y * y).sqrt(),
        lambda x, y: (x * y).abs(),
        "f32[5] f32[5]",
    ),
    equal("the fourth power of a root", lambda x: x.sqrt() ** 4, lambda x: x * x, "f32[6]"),
    equal("one over the root of a square", lambda x: (x * x).rsqrt(), lambda x: 1 / x.abs(), "f32[6]"),
    equal("the root of exp", lambda x: x.exp().sqrt(), lambda x: (x / 2).exp(), "f32[6]"),
    equal("log of a square by abs", lambda x: (x * x).log(), lambda x: 2 * x.abs().log(), "f32[6]"),
    equal("the power of zero", lambda x, y: x**0 * y, lambda x, y: y * 1, "f32[5] f32[5]"),
    equal("minus one squared", lambda x: (-x) ** 2, torch.square, "f32[6]"),
    equal("minus one cubed", lambda x: (-x) ** 3, lambda x: -(x**3), "f32[6]"),
    equal("powers add up", lambda x: x**2 * x**3, lambda x: x**5, "f32[6]"),
    equal("halves of powers", lambda x: x**1.5, lambda x: x * x.sqrt(), "f32[6]"),
    equal("a base of two", lambda x: torch.pow(2.0, x), torch.exp2, "f32[6]"),
    equal("one more and one less", lambda i: i + 1 - 1, lambda i: i * 1, "i64[6]<9"),
    equal("an even number halved", lambda i: i * 2 // 2, lambda i: i * 1, "i64[6]<9"),
    equal("a remainder", lambda i: i % 3, lambda i: i - i // 3 * 3, "i64[6]<9"),
    equal("the last bit", lambda i, x: x * (i % 2 == 0), lambda i, x: x * (i % 2 != 1), "i64[6]<9 f32[6]"),
    equal(
        "a mask as a number and back",
        lambda m, x: x * m.to(x.dtype).bool(),
        lambda m, x: x * m,
        "bool[6] f32[6]",
    ),
    equal("a number as a mask", lambda b, x: x * b.bool(), lambda b, x: x * (b != 0), "f32[6] f32[6]"),
    equal("a count of a mask", lambda m: m.sum(-1), lambda m: m.long().sum(-1), "bool[4,6]"),
    equal(
        "masks added are or",
        lambda m, n, x: x * (m + n),
        lambda m, n, x: x * (m | n),
        "bool[6] bool[6] f32[6]",
    ),
    equal(
        "masks multiplied are and",
        lambda m, n, x: x * (m * n),
        lambda m, n, x: x * (m & n),
        "bool[6] bool[6] f32[6]",
    ),
    equal("integers halved as floats", lambda i, x: x * (i / 2), lambda i, x: x * i * 0.5, "i64[6]<9 f32[6]"),
    equal(
        "columns assigned",
        lambda x: _assigned(x, 1, 3, 0.0),
        lambda x: torch.cat([x[:, :1], torch.zeros_like(x[:, 1:3]), x[:, 3:]], 1),
        "f32[4,6]",
    ),
    equal(
        "columns added to",
        lambda x: _added(x, 1, 3, 2.0),
        lambda x: torch.cat([x[:, :1], x[:, 1:3] + 2, x[:, 3:]], 1),
        "f32[4,6]",
    ),
    equal("a mask assigned", _filled, lambda x, m: where(m, 0.0, x), "f32[4,6] bool[4,6]"),
    equal("in place", _in_place, lambda x: (2 * x + 1).relu(), "f32[6]"),
    equal("through a view", _through_a_view, lambda x: torch.cat([0 * x[:, :3], x[:, 3:]], 1), "f32[2,6]"),
)

WRONG = (
    wrong("the power 1/2 of a square, sign kept", lambda x: (x**2) ** 0.5, lambda x: x * 1, "f32[6]"),
    wrong(
        "the fourth root of a fourth power, sign kept", lambda x: (x**4) ** 0.25, lambda x: x * 1, "f32[6]"
    ),
    wrong("the power 3/2 of a square, sign kept", lambda x: (x**2) ** 1.5, lambda x: x**3, "f32[6]"),
    wrong(
        "the root of a product of squares, sign kept",
        lambda x, y: (x * x * y * y).sqrt(),
        lambda x, y: x * y,
        "f32[5] f32[5]",
    ),
    wrong("one over the root of a square, sign kept", lambda x: (x * x).rsqrt(), lambda x: 1 / x, "f32[6]"),
    wrong("the root of exp with a sign", lambda x: x.exp().sqrt(), lambda x: -(x / 2).exp(), "f32[6]"),
    wrong("minus one squared, sign kept", lambda x: (-x) ** 2, lambda x: -(x**2), "f32[6]"),
    wrong("minus one cubed, sign lost", lambda x: (-x) ** 3, lambda x: x**3, "f32[6]"),
    wrong("powers multiplied", lambda x: x**2 * x**3, lambda x: x**6, "f32[6]"),
    wrong("halves of powers, sign kept", lambda x: x.abs() ** 1.5, lambda x: x * x.abs().sqrt(), "f32[6]"),
    wrong("a quarter for a half", lambda x: (x**4) ** 0.25, lambda x: (x**4) ** 0.5, "f32[6]"),
    wrong("a base of ten", lambda x: torch.pow(10.0, x), torch.exp, "f32[6]"),
    wrong("base and exponent swapped", lambda x: torch.pow(2.0, x), lambda x: x**2, "f32[6]"),
    wrong("halved and doubled", lambda i: i // 2 * 2, lambda i: i * 1, "i64[6]<9"),
    wrong("a remainder of another number", lambda i: i % 3, lambda i: i % 4, "i64[6]<9"),
    wrong(
        "halved with and without a rest",
        lambda i, x: x * (i / 2),
        lambda i, x: x * (i // 2),
        "i64[6]<9 f32[6]",
    ),
    wrong("cast to whole numbers", lambda x: x.long().to(x.dtype), lambda x: x * 1, "f32[6]"),
    wrong("cast to whole numbers for floor", lambda x: x.long().to(x.dtype), torch.floor, "f32[6]"),
    wrong("cast to a mask", lambda x, y: x.bool() * y, lambda x, y: x * y, "f32[6] f32[6]"),
    wrong(
        "masks added as numbers",
        lambda m, n, x: x * (m + n),
        lambda m, n, x: x * (m.to(x.dtype) + n.to(x.dtype)),
        "bool[6] bool[6] f32[6]",
    ),
    wrong(
        "masks counted for or",
        lambda m, n, x: x * (m | n),
        lambda m, n, x: x * (m ^ n),
        "bool[6] bool[6] f32[6]",
    ),
    wrong(
        "a column too many assigned",
        lambda x: _assigned(x, 1, 3, 0.0),
        lambda x: _assigned(x, 1, 4, 0.0),
        "f32[4,6]",
    ),
    wrong(
        "another number assigned",
        lambda x: _assigned(x, 1, 3, 0.0),
        lambda x: _assigned(x, 1, 3, 1.0),
        "f32[4,6]",
    ),
    wrong(
        "assigned for added to", lambda x: _assigned(x, 1, 3, 2.0), lambda x: _added(x, 1, 3, 2.0), "f32[4,6]"
    ),
    wrong("a mask assigned the other way", _filled, lambda x, m: _filled(x, ~m), "f32[4,6] bool[4,6]"),
    wrong("a view not followed", _through_a_view, lambda x: x * 1, "f32[2,6]"),
    wrong("in place, another order", _in_place, lambda x: ((x + 1) * 2).relu(), "f32[6]"),
)
