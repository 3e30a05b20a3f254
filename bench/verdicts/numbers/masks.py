"""Idioms of masks: branches, thresholds, equality with constants, ties and zeros."""

from functools import partial
from math import inf

import torch

from superopt.bench.verdicts.pairs import Pair

__all__ = ["IDIOMS", "WRONG"]

equal = partial(Pair, family="masks")
wrong = partial(Pair, equal=False, family="masks")

where, maximum, minimum = torch.where, torch.maximum, torch.minimum


IDIOMS = (
    equal(
        "where turned",
        lambda m, a, b: where(m, a, b),
        lambda m, a, b: where(~m, b, a),
        "bool[5] f32[5] f32[5]",
    ),
    equal(
        "where by masked fill",
        lambda m, x: where(m, 0.0, x),
        lambda m, x: x.masked_fill(m, 0.0),
        "bool[4,6] f32[4,6]",
    ),
    equal("a mask as a product", lambda m, x: where(m, x, 0.0), lambda m, x: x * m, "bool[4,6] f32[4,6]"),
    equal(
        "a mask as floats",
        lambda m, x: where(m, x, 0.0),
        lambda m, x: x * m.to(x.dtype),
        "bool[4,6] f32[4,6]",
    ),
    equal(
        "where as a blend",
        lambda m, a, b: where(m, a, b),
        lambda m, a, b: a * m + b * (1 - m.to(a.dtype)),
        "bool[5] f32[5] f32[5]",
    ),
    equal("where of equal branches", lambda m, x: where(m, x, x), lambda m, x: x * 1, "bool[5] f32[5]"),
    equal(
        "where of sums",
        lambda m, a, b, c: where(m, a + c, b + c),
        lambda m, a, b, c: where(m, a, b) + c,
        "bool[5] f32[5] f32[5] f32[5]",
    ),
    equal(
        "where of where",
        lambda m, a, b, c: where(m, where(m, a, b), c),
        lambda m, a, b, c: where(m, a, c),
        "bool[5] f32[5] f32[5] f32[5]",
    ),
    equal(
        "two masks at once",
        lambda m, n, x: x.masked_fill(m, 0.0).masked_fill(n, 0.0),
        lambda m, n, x: x.masked_fill(m | n, 0.0),
        "bool[5] bool[5] f32[5]",
    ),
    equal("De Morgan", lambda m, n, x: x * ~(m & n), lambda m, n, x: x * (~m | ~n), "bool[5] bool[5] f32[5]"),
    equal(
        "exclusive or", lambda m, n, x: x * (m ^ n), lambda m, n, x: x * (m != n), "bool[5] bool[5] f32[5]"
    ),
    equal("not less", lambda a, b, x: x * ~(a < b), lambda a, b, x: x * (a >= b), "f32[5] f32[5] f32[5]"),
    equal("greater turned", lambda a, b, x: x * (a > b), lambda a, b, x: x * (b < a), "f32[5] f32[5] f32[5]"),
    equal(
        "greater by a difference",
        lambda a, b, x: x * (a - b > 0),
        lambda a, b, x: x * (a > b),
        "f32[5] f32[5] f32[5]",
    ),
    equal(
        "equal both ways",
        lambda a, b, x: x * (a == b),
        lambda a, b, x: x * ((a >= b) & (a <= b)),
        "f32[5] f32[5] f32[5]",
    ),
    equal(
        "unequal either way",
        lambda a, b, x: x * (a != b),
        lambda a, b, x: x * ((a > b) | (a < b)),
        "f32[5] f32[5] f32[5]",
    ),
    equal(
        "equal as not unequal",
        lambda b, x: where(b == 1, x, 2 * x),
        lambda b, x: where(b != 1, 2 * x, x),
        "f32[5] f32[5]",
    ),
    equal("equal to itself", lambda x, y: where(x == x, y, 0.0), lambda x, y: y * 1, "f32[5] f32[5]"),
    equal("less than itself", lambda x, y: where(x < x, y, 0.0), lambda x, y: 0 * y, "f32[5] f32[5]"),
    equal("a threshold scaled", lambda x, a: a * (2 * x > 100), lambda x, a: a * (x > 50), "f32[5] f32[5]"),
    equal("a threshold shifted", lambda x, a: a * (x - 50 > 0), lambda x, a: a * (x > 50), "f32[5] f32[5]"),
    equal(
        "a threshold implied",
        lambda x, a: a * ((x > 50) & (x > 60)),
        lambda x, a: a * (x > 60),
        "f32[5] f32[5]",
    ),
    equal(
        "a threshold either way",
        lambda x, a, b: where(x > 50, a, b),
        lambda x, a, b: where(x <= 50, b, a),
        "f32[5] f32[5] f32[5]",
    ),
    equal("the sign of exp", lambda x, a: where(x.exp() > 0, a, 0.0), lambda x, a: a * 1, "f32[5] f32[5]"),
    equal(
        "a float mask filled",
        lambda s, b, v: s.masked_fill(b == 1, -inf).softmax(-1) @ v,
        lambda s, b, v: where(b != 1, s, -inf).softmax(-1) @ v,
        "f32[4,5] f32[4,5] f32[5,3]",
    ),
    equal(
        "a float mask as a product",
        lambda b, s, v: s.masked_fill(b == 1, 0.0) @ v,
        lambda b, s, v: (s * (b != 1)) @ v,
        "f32[4,5] f32[4,5] f32[5,3]",
    ),
    equal(
        "safe division",
        lambda x, n: x / where(n == 0, 1.0, n),
        lambda x, n: where(n == 0, x, x / where(n == 0, 1.0, n)),
        "f32[5] f32[5]",
    ),
    equal(
        "any as a maximum",
        lambda m, x: m.any(-1) * x,
        lambda m, x: m.to(x.dtype).amax(-1) * x,
        "bool[4,6] f32[4]",
    ),
    equal(
        "all as not any not", lambda m, x: m.all(-1) * x, lambda m, x: ~(~m).any(-1) * x, "bool[4,6] f32[4]"
    ),
    equal(
        "the sign by comparisons", torch.sign, lambda x: (x > 0).to(x.dtype) - (x < 0).to(x.dtype), "f32[6]"
    ),
    equal(
        "a count of positives",
        lambda x: (x > 0).sum(-1),
        lambda x: x.shape[-1] - (x <= 0).sum(-1),
        "f32[4,6]",
    ),
)

WRONG = (
    wrong("one more where positive", lambda x: x * 1, lambda x: x * (1 + (x > 0)), "f32[6]"),
    wrong("two added to a mask", lambda x: (x > 0) + 1, lambda x: (x > 0) + 2, "f32[6]"),
    wrong("bits of a mask", lambda x: (x > 0) | 2, lambda x: (x > 0) | 1, "f32[6]"),
    wrong(
        "a sum of whole numbers",
        lambda x: x.sum(dtype=torch.int64),
        lambda x: x.sum().to(torch.int64),
        "f64[6]",
    ),
    wrong(
        "a float mask dropped before softmax",
        lambda s, b, v: s.masked_fill(b == 1, -inf).softmax(-1) @ v,
        lambda s, b, v: s.softmax(-1) @ v,
        "f32[4,5] f32[4,5] f32[5,3]",
    ),
    wrong(
        "a float mask dropped before a product",
        lambda s, b, v: s.masked_fill(b == 1, 0.0) @ v,
        lambda s, b, v: s @ v,
        "f32[4,5] f32[4,5] f32[5,3]",
    ),
    wrong(
        "a branch by equality dropped",
        lambda c, x, w: where(c == 1, x, 2 * x) @ w,
        lambda c, x, w: (2 * x) @ w,
        "f32[4,5] f32[4,5] f32[5,3]",
    ),
    wrong(
        "a mask by equality with zero dropped",
        lambda b, x: x.masked_fill(b == 0, 0.0),
        lambda b, x: x * 1,
        "f32[5] f32[5]",
    ),
    wrong(
        "a mask by equality with 0.37 dropped",
        lambda b, x: x.masked_fill(b == 0.37, 0.0),
        lambda b, x: x * 1,
        "f64[5] f64[5]",
    ),
    wrong(
        "equal to one for equal to zero",
        lambda b, x: where(b == 1, x, 0.0),
        lambda b, x: where(b == 0, x, 0.0),
        "f32[5] f32[5]",
    ),
    wrong(
        "one of two float masks dropped",
        lambda b, c, x: x * (b != 1) * (c != 1),
        lambda b, c, x: x * (b != 1),
        "f32[5] f32[5] f32[5]",
    ),
    wrong(
        "a segment mask dropped",
        lambda i, s, v: s.masked_fill(i[:, None] != i[None], -inf).softmax(-1) @ v,
        lambda i, s, v: s.softmax(-1) @ v,
        "i64[5]<3 f32[5,5] f32[5,3]",
    ),
    wrong(
        "padding by a token dropped",
        lambda i, x: x.masked_fill((i == 0)[:, None], 0.0),
        lambda i, x: x * 1,
        "i64[5]<7 f32[5,3]",
    ),
    wrong(
        "a mask by equality of computed numbers dropped",
        lambda a, b, x: x.masked_fill(a + b == 1, 0.0),
        lambda a, b, x: x * 1,
        "f32[5] f32[5] f32[5]",
    ),
    wrong(
        "a threshold of 50 for one of 60",
        lambda x, a, b: where(x > 50, a, b),
        lambda x, a, b: where(x > 60, a, b),
        "f32[5] f32[5] f32[5]",
    ),
    wrong(
        "a threshold of 255 for one of 127",
        lambda x: (x > 255).to(x.dtype),
        lambda x: (x > 127).to(x.dtype),
        "f32[5]",
    ),
    wrong(
        "a threshold of 9 for one of 10",
        lambda x, a, b: where(x > 9, a, b),
        lambda x, a, b: where(x > 10, a, b),
        "f32[5] f32[5] f32[5]",
    ),
    wrong(
        "a threshold of 0.5 for one of 0.51",
        lambda x, a: a * (x > 0.5),
        lambda x, a: a * (x > 0.51),
        "f32[5] f32[5]",
    ),
    wrong("a threshold far out dropped", lambda x, a: a * (x < 200), lambda x, a: a * 1, "f32[5] f32[5]"),
    wrong(
        "a threshold of minus 50 for one of 50",
        lambda x, a: a * (x > -50),
        lambda x, a: a * (x > 50),
        "f32[5] f32[5]",
    ),
    wrong(
        "a threshold of a sum",
        lambda x, y, a: a * (x + y > 9),
        lambda x, y, a: a * (x + y > 8),
        "f32[5] f32[5] f32[5]",
    ),
    wrong(
        "a threshold of a square",
        lambda x, a: a * (x * x > 90),
        lambda x, a: a * (x * x > 100),
        "f32[5] f32[5]",
        pool=(9.7,),
    ),
    wrong(
        "a threshold by less or equal in integers",
        lambda i, x: x * (i < 3),
        lambda i, x: x * (i <= 3),
        "i64[5]<7 f32[5]",
    ),
    wrong(
        "greater for greater or equal",
        lambda x: (x > 0).to(x.dtype),
        lambda x: (x >= 0).to(x.dtype),
        "f32[5]",
    ),
    wrong(
        "greater for greater or equal of two",
        lambda a, b, x: x * (a > b),
        lambda a, b, x: x * (a >= b),
        "f32[5] f32[5] f32[5]",
    ),
    wrong(
        "equal for never",
        lambda x, y, z: where(x == y, z, 0.0),
        lambda x, y, z: 0 * z,
        "f32[5] f32[5] f32[5]",
    ),
    wrong("equal as false", lambda x, y: x == y, lambda x, y: (x == y) & False, "f32[5] f32[5]"),
    wrong("unequal for always", lambda x, y, z: z * (x != y), lambda x, y, z: z * 1, "f32[5] f32[5] f32[5]"),
    wrong(
        "less or greater for always",
        lambda x, y, z: z * ((x < y) | (x > y)),
        lambda x, y, z: z * 1,
        "f32[5] f32[5] f32[5]",
    ),
    wrong(
        "safe division made unsafe",
        lambda x, n: x / where(n == 0, 1.0, n),
        lambda x, n: x / n,
        "f32[5] f32[5]",
    ),
    wrong(
        "a count guarded by 1",
        lambda x, m: (x * m).sum(-1) / m.sum(-1).clamp(min=1),
        lambda x, m: (x * m).sum(-1) / m.sum(-1),
        "f32[4,6] bool[4,6]",
    ),
    wrong(
        "sign at equal numbers",
        lambda a, b: (a - b).sign(),
        lambda a, b: where(a > b, 1.0, -1.0).to(a.dtype),
        "f32[5] f32[5]",
    ),
    wrong(
        "a tie of three",
        lambda a, b, c: (a >= b) & (b >= c),
        lambda a, b, c: (a > b) & (b >= c),
        "f32[5] f32[5] f32[5]",
    ),
    wrong(
        "a tie of computed numbers",
        lambda a, b: (2 * a > b).to(a.dtype),
        lambda a, b: (2 * a >= b).to(a.dtype),
        "f32[5] f32[5]",
    ),
    wrong(
        "ties counted with the maximum",
        lambda x: (x == x.amax(-1, keepdim=True)).sum(-1),
        lambda x: (x == x).sum(-1) * 0 + 1,
        "f32[4,6]",
    ),
    wrong(
        "branches swapped",
        lambda m, a, b: where(m, a, b),
        lambda m, a, b: where(m, b, a),
        "bool[5] f32[5] f32[5]",
    ),
    wrong(
        "a mask turned",
        lambda m, x: x.masked_fill(m, 0.0),
        lambda m, x: x.masked_fill(~m, 0.0),
        "bool[5] f32[5]",
    ),
    wrong("and for or", lambda m, n, x: x * (m & n), lambda m, n, x: x * (m | n), "bool[5] bool[5] f32[5]"),
    wrong(
        "exclusive or for or",
        lambda m, n, x: x * (m ^ n),
        lambda m, n, x: x * (m | n),
        "bool[5] bool[5] f32[5]",
    ),
    wrong(
        "De Morgan half done",
        lambda m, n, x: x * ~(m & n),
        lambda m, n, x: x * (~m & ~n),
        "bool[5] bool[5] f32[5]",
    ),
    wrong("any for all", lambda m, x: m.any(-1) * x, lambda m, x: m.all(-1) * x, "bool[4,6] f32[4]"),
    wrong(
        "less than itself for equal to itself",
        lambda x, y: where(x < x, y, 0.0),
        lambda x, y: where(x <= x, y, 0.0),
        "f32[5] f32[5]",
    ),
)
