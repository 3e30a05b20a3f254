"""Idioms of integers that come as data: look-ups, comparisons, and arithmetic with them."""

from functools import partial

import torch
import torch.nn.functional as F
from torch import Tensor

from superopt.bench.verdicts.pairs import Pair

__all__ = ["IDIOMS", "WRONG"]

equal = partial(Pair, family="integers")
wrong = partial(Pair, equal=False, family="integers")

where = torch.where
_TABLE = "f32[10,3] i64[4]<10"
_LONG = "f32[1000,3] i64[4]<1000"


def _distinct(i: Tensor) -> Tensor:
    """Return whether five numbers are all different."""
    found = i[0] == i[0]
    for a in range(5):
        for b in range(a):
            found = found & (i[a] != i[b])
    return found


def _positions(x: Tensor) -> Tensor:
    return torch.arange(x.shape[0])


IDIOMS = (
    equal("a look-up of a product with a mask", lambda w, i: (w * 2)[i], lambda w, i: w[i] * 2, _TABLE),
    equal(
        "a look-up by a product",
        lambda w, i: F.embedding(i, w),
        lambda w, i: (i[:, None] == _positions(w)).to(w.dtype) @ w,
        _TABLE,
    ),
    equal(
        "one row of a table set to zero",
        lambda w, i: F.embedding(i, where(_positions(w)[:, None] == 7, 0.0, w)),
        lambda w, i: where(i[:, None] == 7, 0.0, F.embedding(i, w)),
        _TABLE,
    ),
    equal(
        "the rows of two tables",
        lambda v, w, i: F.embedding(i, v + w),
        lambda v, w, i: v[i] + w.index_select(0, i),
        "f32[10,3] f32[10,3] i64[4]<10",
    ),
    equal(
        "rows in two steps",
        lambda w, i, j: w[i][j],
        lambda w, i, j: w[i[j]],
        "f32[10,3] i64[6]<10 i64[4]<6",
    ),
    equal(
        "a gather of a scaled row",
        lambda x, i: (3 * x).gather(1, i),
        lambda x, i: 3 * x.gather(1, i),
        "f32[4,10] i64[4,2]<10",
    ),
    equal(
        "two indices side by side",
        lambda x, i, j: x[i, j],
        lambda x, i, j: x.T[j, i],
        "f32[5,6] i64[4]<5 i64[4]<5",
    ),
    equal(
        "an index of rows and columns",
        lambda x, i, j: x[i[:, None], j],
        lambda x, i, j: x[i][:, j],
        "f32[5,6] i64[4]<5 i64[3]<6",
    ),
    equal(
        "a mask of lengths turned",
        lambda x, n: x * (torch.arange(6) < n[:, None]),
        lambda x, n: where(torch.arange(6) >= n[:, None], 0.0, x),
        "f32[4,6] i64[4]<7",
    ),
    equal(
        "at least one is above zero", lambda x, i: x * (i >= 1), lambda x, i: x * (i > 0), "f32[4] i64[4]<9"
    ),
    equal(
        "a square of a sum of integers",
        lambda i, j: (i + j) ** 2,
        lambda i, j: i * i + 2 * i * j + j * j,
        "i64[4]<9 i64[4]<9",
    ),
    equal(
        "an index added to",
        lambda x, i, y: x.index_add(0, i, y + y),
        lambda x, i, y: x.index_add(0, i, y).index_add(0, i, y),
        "f32[6,3] i64[4]<6 f32[4,3]",
    ),
    equal(
        "weights of classes",
        lambda x, t, w: F.nll_loss(x, t, w, reduction="sum"),
        lambda x, t, w: F.nll_loss(x * w, t, reduction="sum"),
        "f32[4,5] i64[4]<5 f32[5]",
    ),
)

WRONG = (
    wrong("one index apart", lambda w, i: w[i], lambda w, i: where(i[:, None] == 7, 0.0, w[i]), _TABLE),
    wrong(
        "one row set to zero, counted from the end",
        lambda w, i: where(_positions(w)[:, None] == 7, 0.0, w)[i - 10],
        lambda w, i: where(i[:, None] == 7, 1.0, w[i - 10]),
        _TABLE,
    ),
    wrong("one row apart", lambda w, i: w[i], lambda w, i: (w * (_positions(w) != 7)[:, None])[i], _TABLE),
    wrong(
        "the last row apart", lambda w, i: w[i], lambda w, i: (w * (_positions(w) != 9)[:, None])[i], _TABLE
    ),
    wrong(
        "one index of many apart",
        lambda w, i: w[i],
        lambda w, i: w[i] * (i != 777)[:, None],
        _LONG,
        pool=(777.0,),
    ),
    wrong("half of the indices apart", lambda w, i: w[i], lambda w, i: w[i] * (i < 500)[:, None], _LONG),
    wrong(
        "half of the rows apart",
        lambda w, i: w[i],
        lambda w, i: (w * (_positions(w) < 500)[:, None])[i],
        _LONG,
    ),
    wrong(
        "an index doubled apart",
        lambda w, i: w[i],
        lambda w, i: where(i[:, None] * 2 == 14, 0.0, w[i]),
        _TABLE,
    ),
    wrong(
        "an index squared apart",
        lambda w, i: w[i],
        lambda w, i: where(i[:, None] ** 2 == 49, 0.0, w[i]),
        _TABLE,
    ),
    wrong(
        "an index in an interval apart",
        lambda w, i: w[i],
        lambda w, i: where((i[:, None] - 7).abs() < 1, 0.0, w[i]),
        _TABLE,
    ),
    wrong("a remainder apart", lambda w, i: w[i], lambda w, i: where(i[:, None] % 8 == 7, 0.0, w[i]), _TABLE),
    wrong(
        "an index as a float apart",
        lambda w, i: w[i],
        lambda w, i: where(i.float()[:, None] / 2 == 3.5, 0.0, w[i]),
        _TABLE,
    ),
    wrong(
        "an index of a function apart",
        lambda w, i: w[i].exp(),
        lambda w, i: where(i[:, None] == 7, 1.0, w[i].exp()),
        _TABLE,
    ),
    wrong(
        "a padding index",
        lambda w, i: F.embedding(i, w),
        lambda w, i: F.embedding(i, w) * (i != 0)[:, None],
        _TABLE,
    ),
    wrong(
        "one class fewer",
        lambda w, i: F.embedding(i, w),
        lambda w, i: (i[:, None] == _positions(w)[:9]).to(w.dtype) @ w[:9],
        _TABLE,
    ),
    wrong(
        "a column apart",
        lambda x, i: x.gather(1, i),
        lambda x, i: x.gather(1, i) * (i != 7),
        "f32[4,10] i64[4,2]<10",
    ),
    wrong(
        "an index added to but for one",
        lambda x, i, y: x.index_add(0, i, y),
        lambda x, i, y: x.index_add(0, i, y * (i != 4)[:, None]),
        "f32[6,3] i64[4]<6 f32[4,3]",
    ),
    wrong(
        "a class apart",
        lambda x, t: F.nll_loss(x, t, reduction="none"),
        lambda x, t: where(t == 7, 0.0, F.nll_loss(x, t, reduction="none")),
        "f32[4,10] i64[4]<10",
    ),
    wrong(
        "weights of classes averaged",
        lambda x, t, w: F.nll_loss(x, t, w),
        lambda x, t, w: F.nll_loss(x * w, t),
        "f32[4,5] i64[4]<5 f32[5]",
    ),
    wrong(
        "a polynomial with four roots", lambda i: i * (i - 1) * (i - 2) * (i - 3), lambda i: i * 0, "i64[6]<9"
    ),
    wrong("a polynomial with two roots", lambda i, x: x * i * i, lambda i, x: x * i, "i64[6]<9 f32[6]"),
    wrong("five different numbers", lambda i, x: x * _distinct(i), lambda i, x: x * 0, "i64[5]<9 f32[3]"),
    wrong(
        "in range or below",
        lambda i, x: x * (i[:, None] == torch.arange(10)).any(-1),
        lambda i, x: x * (i - 3 < 10),
        "i64[4]<14 f32[4]",
    ),
    wrong(
        "a length counted twice",
        lambda x, n: x * (torch.arange(6) < n[:, None]),
        lambda x, n: x * (torch.arange(6) <= n[:, None]),
        "f32[4,6] i64[4]<7",
    ),
    wrong(
        "a length above fifty",
        lambda x, n: x * (torch.arange(100) < n[:, None]),
        lambda x, n: x * (torch.arange(100) < n[:, None].clamp(max=50)),
        "f32[2,100] i64[2]<101",
    ),
    wrong(
        "a window of positions",
        lambda x, n: x * (torch.arange(100) < n[:, None]),
        lambda x, n: x * ((torch.arange(100) < n[:, None]) & (n[:, None] != 50)),
        "f32[2,100] i64[2]<101",
        pool=(50.0,),
    ),
    wrong(
        "numbers that are alike in two tensors",
        lambda x, i, j: x * (i == j),
        lambda x, i, j: x * ((i == j) & (i < 3)),
        "f32[6] i64[6]<9 i64[6]<9",
    ),
    wrong(
        "a flat index apart",
        lambda w, i: w.reshape(100)[i],
        lambda w, i: w.reshape(100)[i] * (i != 37),
        "f32[20,5] i64[40]<100",
        pool=(37.0,),
    ),
    wrong(
        "indices of two tables",
        lambda v, w, i: v[i] * w[i],
        lambda v, w, i: v[i] * w[i] * (i[:, None] != 8),
        "f32[10,3] f32[20,3] i64[4]<10",
    ),
)
