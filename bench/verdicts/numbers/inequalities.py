"""Idioms of inequalities: what follows from the order of real numbers, and what does not."""

from functools import partial

import torch

from superopt.bench.verdicts.pairs import Pair

__all__ = ["IDIOMS", "WRONG"]

equal = partial(Pair, family="inequalities")
wrong = partial(Pair, equal=False, family="inequalities")

where, maximum, minimum = torch.where, torch.maximum, torch.minimum
_TWO = "f32[5] f32[5]"
_THREE = "f32[5] f32[5] f32[5]"
_FOUR = "f32[5] f32[5] f32[5] f32[5]"


IDIOMS = (
    equal("a square is not negative", lambda x, a, b: where(x * x >= 0, a, b), lambda x, a, b: a * 1, _THREE),
    equal(
        "a square and one are positive",
        lambda x, a, b: where(x * x + 1 > 0, a, b),
        lambda x, a, b: a * 1,
        _THREE,
    ),
    equal(
        "a sum of squares is not negative",
        lambda x, y, a: a * (x * x + y * y >= 0),
        lambda x, y, a: a * 1,
        _THREE,
    ),
    equal("a norm is not negative", lambda x: x.norm(dim=-1).relu(), lambda x: x.norm(dim=-1), "f32[4,6]"),
    equal("a variance is not negative", lambda x: x.var(-1).clamp(min=0), lambda x: x.var(-1), "f32[4,6]"),
    equal(
        "order is transitive",
        lambda x, y, z, a: a * ((x > y) & (y > z) & (x > z)),
        lambda x, y, z, a: a * ((x > y) & (y > z)),
        _FOUR,
    ),
    equal(
        "equality is transitive",
        lambda x, y, z, a: a * ((x == y) & (y == z) & (x == z)),
        lambda x, y, z, a: a * ((x == y) & (y == z)),
        _FOUR,
    ),
    equal(
        "order is total", lambda x, y, a: a * ((x < y) | (x == y) | (x > y)), lambda x, y, a: a * 1, _THREE
    ),
    equal(
        "more than one is more than zero",
        lambda x, a: a * ((x > 1) & (x > 0)),
        lambda x, a: a * (x > 1),
        _TWO,
    ),
    equal("one more is more", lambda x, a: a * (x + 1 > x), lambda x, a: a * 1, _TWO),
    equal(
        "a sum of positives is positive",
        lambda x, y, a: a * ((x > 0) & (y > 0) & (x + y > 0)),
        lambda x, y, a: a * ((x > 0) & (y > 0)),
        _THREE,
    ),
    equal(
        "a product of positives is positive",
        lambda x, y, a: a * ((x > 0) & (y > 0) & (x * y > 0)),
        lambda x, y, a: a * ((x > 0) & (y > 0)),
        _THREE,
    ),
    equal(
        "the sign of a product",
        lambda x, y, a: a * (x * y > 0),
        lambda x, y, a: a * (((x > 0) & (y > 0)) | ((x < 0) & (y < 0))),
        _THREE,
    ),
    equal("exp rises", lambda x, y, a: a * (x.exp() > y.exp()), lambda x, y, a: a * (x > y), _THREE),
    equal("exp above one", lambda x, a: a * (x.exp() > 1), lambda x, a: a * (x > 0), _TWO),
    equal("sigmoid above a half", lambda x, a: a * (x.sigmoid() > 0.5), lambda x, a: a * (x > 0), _TWO),
    equal("tanh above zero", lambda x, a: a * (x.tanh() > 0), lambda x, a: a * (x > 0), _TWO),
    equal("a square above four", lambda x, a: a * (x * x > 4), lambda x, a: a * (x.abs() > 2), _TWO),
    equal("abs above two", lambda x, a: a * (x.abs() > 2), lambda x, a: a * ((x > 2) | (x < -2)), _TWO),
    equal("minus above three", lambda x, a: a * (-x > 3), lambda x, a: a * (x < -3), _TWO),
    equal("relu above zero", lambda x, a: a * (x.relu() > 0), lambda x, a: a * (x > 0), _TWO),
    equal("a clamp above a half", lambda x, a: a * (x.clamp(0, 1) > 0.5), lambda x, a: a * (x > 0.5), _TWO),
    equal(
        "a maximum above",
        lambda x, y, z, a: a * (maximum(x, y) > z),
        lambda x, y, z, a: a * ((x > z) | (y > z)),
        _FOUR,
    ),
    equal(
        "a minimum above",
        lambda x, y, z, a: a * (minimum(x, y) > z),
        lambda x, y, z, a: a * ((x > z) & (y > z)),
        _FOUR,
    ),
    equal("a maximum is not less", lambda x, y, a: a * (maximum(x, y) >= x), lambda x, y, a: a * 1, _THREE),
    equal("abs is not less", lambda x: maximum(x, x.abs()), torch.abs, "f32[6]"),
    equal(
        "a maximum of a row is not less than its mean",
        lambda x: maximum(x.amax(-1), x.mean(-1)),
        lambda x: x.amax(-1),
        "f32[4,6]",
    ),
    equal(
        "softmax is between zero and one",
        lambda x: x.softmax(-1).clamp(0, 1),
        lambda x: x.softmax(-1),
        "f32[4,6]",
    ),
    equal(
        "logsumexp is not less than the maximum",
        lambda x: maximum(x.logsumexp(-1), x.amax(-1)),
        lambda x: x.logsumexp(-1),
        "f32[4,6]",
    ),
    equal("cosines are bounded", lambda x: x.cos().clamp(-1, 1), torch.cos, "f32[6]"),
    equal(
        "any above as the maximum above",
        lambda x, a: a * (x > 0.5).any(-1),
        lambda x, a: a * (x.amax(-1) > 0.5),
        "f32[4,6] f32[4]",
    ),
    equal(
        "all above as the minimum above",
        lambda x, a: a * (x > 0.5).all(-1),
        lambda x, a: a * (x.amin(-1) > 0.5),
        "f32[4,6] f32[4]",
    ),
    equal(
        "the triangle's side",
        lambda x, y, a: a * ((x + y).abs() <= x.abs() + y.abs() + 1),
        lambda x, y, a: a * 1,
        _THREE,
    ),
    equal(
        "an interval by its middle",
        lambda x, a: a * ((x > 2) & (x < 6)),
        lambda x, a: a * ((x - 4).abs() < 2),
        _TWO,
    ),
    equal(
        "a product with what is not negative",
        lambda a, b, c: maximum(a * c.abs(), b * c.abs()),
        lambda a, b, c: maximum(a, b) * c.abs(),
        _THREE,
    ),
    equal(
        "a maximum over a positive number",
        lambda a, b, c: maximum(a / c.exp(), b / c.exp()),
        lambda a, b, c: maximum(a, b) / c.exp(),
        _THREE,
    ),
)

WRONG = (
    wrong("a square is positive", lambda x, a, b: where(x * x > 0, a, b), lambda x, a, b: a * 1, _THREE),
    wrong(
        "a square less one is not negative",
        lambda x, a, b: where(x * x - 1 >= 0, a, b),
        lambda x, a, b: a * 1,
        _THREE,
    ),
    wrong(
        "order goes round",
        lambda x, y, z, a: a * ((x > y) & (y > z) & (x > z)),
        lambda x, y, z, a: a * ((x > y) & (x > z)),
        _FOUR,
    ),
    wrong(
        "unequal is transitive",
        lambda x, y, z, a: a * ((x != y) & (y != z) & (x != z)),
        lambda x, y, z, a: a * ((x != y) & (y != z)),
        _FOUR,
    ),
    wrong(
        "more than zero is more than one",
        lambda x, a: a * ((x > 1) & (x > 0)),
        lambda x, a: a * (x > 0),
        _TWO,
    ),
    wrong(
        "a difference of positives is positive",
        lambda x, y, a: a * ((x > 0) & (y > 0) & (x - y > 0)),
        lambda x, y, a: a * ((x > 0) & (y > 0)),
        _THREE,
    ),
    wrong(
        "the sign of a product by one side",
        lambda x, y, a: a * (x * y > 0),
        lambda x, y, a: a * ((x > 0) & (y > 0)),
        _THREE,
    ),
    wrong(
        "the sign of a product at zero",
        lambda x, y, a: a * (x * y >= 0),
        lambda x, y, a: a * (((x > 0) & (y > 0)) | ((x < 0) & (y < 0))),
        _THREE,
    ),
    wrong("a square above four by one side", lambda x, a: a * (x * x > 4), lambda x, a: a * (x > 2), _TWO),
    wrong("a square rises", lambda x, y, a: a * (x * x > y * y), lambda x, y, a: a * (x > y), _THREE),
    wrong(
        "exp above zero for above one", lambda x, a: a * (x.exp() > 1), lambda x, a: a * (x.exp() > 0), _TWO
    ),
    wrong(
        "sigmoid above a half, ties kept",
        lambda x, a: a * (x.sigmoid() > 0.5),
        lambda x, a: a * (x >= 0),
        _TWO,
    ),
    wrong("minus above three, sign kept", lambda x, a: a * (-x > 3), lambda x, a: a * (x < 3), _TWO),
    wrong("relu not below zero for above", lambda x, a: a * (x.relu() >= 0), lambda x, a: a * (x >= 0), _TWO),
    wrong("a clamp above its bound", lambda x, a: a * (x.clamp(0, 1) >= 1), lambda x, a: a * (x > 1), _TWO),
    wrong(
        "a maximum above by both",
        lambda x, y, z, a: a * (maximum(x, y) > z),
        lambda x, y, z, a: a * ((x > z) & (y > z)),
        _FOUR,
    ),
    wrong(
        "any above as the minimum above",
        lambda x, a: a * (x > 0.5).any(-1),
        lambda x, a: a * (x.amin(-1) > 0.5),
        "f32[4,6] f32[4]",
    ),
    wrong(
        "an interval with its ends",
        lambda x, a: a * ((x > 2) & (x < 6)),
        lambda x, a: a * ((x - 4).abs() <= 2),
        _TWO,
    ),
    wrong(
        "an interval elsewhere",
        lambda x, a: a * ((x > 2) & (x < 6)),
        lambda x, a: a * ((x - 5).abs() < 2),
        _TWO,
    ),
    wrong(
        "softmax is below a half", lambda x: x.softmax(-1).clamp(0, 0.5), lambda x: x.softmax(-1), "f32[4,6]"
    ),
    wrong("sines are not negative", lambda x: x.sin().clamp(0, 1), torch.sin, "f32[6]"),
    wrong(
        "a mean is not more than the median place",
        lambda x: maximum(x[:, 0], x.mean(-1)),
        lambda x: x.mean(-1),
        "f32[4,6]",
    ),
    wrong(
        "a cube is not negative", lambda x, a, b: where(x * x * x >= 0, a, b), lambda x, a, b: a * 1, _THREE
    ),
    # ties that come about in two ways, of which only one matters
    wrong(
        "a tie at a zero factor or at exp of zero",
        lambda x, y: x * (x * y.exp() != x),
        lambda x, y: x * 1,
        _TWO,
    ),
    wrong(
        "a tie at a zero factor or at a root of one",
        lambda x, y: x * (x / (1 + y * y).sqrt() != x),
        lambda x, y: x * 1,
        _TWO,
    ),
    wrong("a tie at a zero factor or at one", lambda x, y: x * (x * y != x), lambda x, y: x * 1, _TWO),
    wrong(
        "a tie at two roots", lambda x, y: y * (x * x + x != 6), lambda x, y: y * 1, _TWO, pool=(2.0, -3.0)
    ),
    wrong("a tie at a cube", lambda x, y: y * (x**3 != 8), lambda x, y: y * 1, _TWO),
)
