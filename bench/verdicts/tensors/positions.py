"""Idioms of many positions: lists, tables and moves too long for a proof to look at every position."""

from collections.abc import Sequence
from functools import partial
from typing import TypeVar

import torch
import torch.nn.functional as F

from superopt.bench.verdicts.pairs import Pair

__all__ = ["IDIOMS", "WRONG"]

equal = partial(Pair, family="positions")
wrong = partial(Pair, equal=False, family="positions")

_Number = TypeVar("_Number", int, float)

cat, tensor, where = torch.cat, torch.tensor, torch.where
_TABLE = "f32[1000,3] i64[4]<1000"


def _mixed(count: int) -> list[int]:
    return [(37 * i + 11) % count for i in range(count)]


def _changed(places: Sequence[_Number], at: int, to: _Number) -> list[_Number]:
    return [to if i == at else place for i, place in enumerate(places)]


def _swapped(places: Sequence[_Number], a: int, b: int) -> list[_Number]:
    other = {a: b, b: a}
    return [places[other.get(i, i)] for i in range(len(places))]


_LIST = _mixed(100)
_INVERSE = [_LIST.index(i) for i in range(100)]
_SHORT = _mixed(100)[:70]
_NUMBERS = [float(i) for i in range(100)]
_BUCKETS = [min(i, 63) for i in range(100)]


IDIOMS = (
    equal("a long list of a product", lambda x: (x * 2)[:, _LIST], lambda x: x[:, _LIST] * 2, "f32[3,100]"),
    equal(
        "a long list by its name",
        lambda x: x.index_select(0, tensor(_LIST)).exp(),
        lambda x: x.exp()[_LIST],
        "f32[100,2]",
    ),
    equal("a long flip of a product", lambda x: (3 * x).flip(1), lambda x: 3 * x.flip(1), "f32[2,100]"),
    equal(
        "a row of a long table of a product",
        lambda w, i: F.embedding(i, w) * 2,
        lambda w, i: (w * 2)[i],
        _TABLE,
    ),
    equal(
        "a long row scaled by its place",
        lambda x: x * torch.arange(100),
        lambda x: torch.arange(100) * x,
        "f32[2,100]",
    ),
    equal(
        "a long mask of lengths",
        lambda x, n: x.masked_fill(torch.arange(100) >= n[:, None], 0.0),
        lambda x, n: x * (torch.arange(100) < n[:, None]),
        "f32[3,100] i64[3]<101",
    ),
)

WRONG = (
    wrong(
        "two of a long list swapped",
        lambda x: x[:, _LIST],
        lambda x: x[:, _swapped(_LIST, 71, 88)],
        "f32[3,100]",
    ),
    wrong(
        "one of a long list changed",
        lambda x: x[:, _LIST],
        lambda x: x[:, _changed(_LIST, 80, 5)],
        "f32[3,100]",
    ),
    wrong(
        "the last of a long list changed",
        lambda x: x[_LIST],
        lambda x: x[_changed(_LIST, 99, 5)],
        "f32[100,2]",
    ),
    wrong(
        "two of a long list swapped before a product",
        lambda x, y: (x[_LIST] * y).sum(),
        lambda x, y: (x[_swapped(_LIST, 66, 99)] * y).sum(),
        "f32[100] f32[100]",
    ),
    wrong(
        "one of a long list twice in a sum",
        lambda x: x.sum(),
        lambda x: x[_changed(_LIST, 99, 5)].sum(),
        "f32[100]",
    ),
    wrong(
        "a long list not quite undone",
        lambda x: x * 1,
        lambda x: x[_LIST][_swapped(_INVERSE, 65, 68)],
        "f32[100]",
    ),
    wrong(
        "two of a long index tensor swapped",
        lambda x: x.index_select(1, tensor(_LIST)),
        lambda x: x.index_select(1, tensor(_swapped(_LIST, 0, 99))),
        "f32[2,100]",
    ),
    wrong(
        "two of a long gather swapped",
        lambda x: x.gather(1, tensor([_LIST, _LIST])),
        lambda x: x.gather(1, tensor([_LIST, _swapped(_LIST, 98, 99)])),
        "f32[2,100]",
    ),
    wrong(
        "a long flip but for two",
        lambda x: x.flip(1),
        lambda x: x[:, _swapped(range(99, -1, -1), 98, 99)],
        "f32[2,100]",
    ),
    wrong("a long roll by one more", lambda x: x.roll(77, 1), lambda x: x.roll(78, 1), "f32[2,100]"),
    wrong(
        "long padding moved by one", lambda x: F.pad(x, (65, 3)), lambda x: F.pad(x, (66, 2)), "f32[2,100]"
    ),
    wrong(
        "long steps but for one",
        lambda x: x[:, ::3],
        lambda x: cat([x[:, :96:3], x[:, 97:98], x[:, 99:]], 1),
        "f32[2,100]",
    ),
    wrong(
        "a long diagonal but for its end",
        lambda x: x.diagonal(),
        lambda x: cat([x.diagonal()[:99], x[98:99, 99]]),
        "f32[100,100]",
    ),
    wrong(
        "a long cat in another order",
        lambda x, y: cat([x, y], 1),
        lambda x, y: cat([y, x], 1),
        "f32[2,80] f32[2,80]",
    ),
    wrong(
        "the end of a long cat from the other",
        lambda x, y: cat([x, y], 1).sum(1),
        lambda x, y: cat([x, y[:, :-1], x[:, -1:]], 1).sum(1),
        "f32[2,80] f32[2,80]",
    ),
    wrong(
        "a long running total without its end",
        lambda x: x.cumsum(1),
        lambda x: cat([x.cumsum(1)[:, :-1], x[:, :-1].sum(1, keepdim=True)], 1),
        "f32[2,100]",
    ),
    wrong(
        "a long half turned but for its end",
        lambda x: cat([-x[:, 64:], x[:, :64]], 1),
        lambda x: cat([-x[:, 64:127], x[:, 127:], x[:, :64]], 1),
        "f32[2,128]",
    ),
    wrong(
        "one row of a long table apart",
        lambda w, i: F.embedding(i, w),
        lambda w, i: F.embedding(i, where(torch.arange(1000)[:, None] == 777, 0.0, w)),
        _TABLE,
        pool=(777.0,),
    ),
    wrong(
        "the last row of a long table apart",
        lambda w, i: w[i],
        lambda w, i: where(torch.arange(1000)[:, None] >= 999, 0.0, w)[i],
        _TABLE,
        pool=(999.0,),
    ),
    wrong(
        "one remainder of an index apart",
        lambda w, i: w[i],
        lambda w, i: w[i] * (1 + (i % 1000 == 777))[:, None],
        _TABLE,
        pool=(777.0,),
    ),
    wrong(
        "two long tables joined off by one",
        lambda v, w, i: cat([v, w])[i],
        lambda v, w, i: where((i < 500)[:, None], v[i.clamp(max=499)], w[(i - 501).clamp(min=0)]),
        "f32[500,2] f32[500,2] i64[4]<1000",
    ),
    wrong(
        "a long table mirrored off by one",
        lambda w, i: w[i],
        lambda w, i: w.flip(0)[998 - i],
        "f32[1000,3] i64[4]<999",
    ),
    wrong(
        "one column of a long gather apart",
        lambda x, i: x.gather(1, i),
        lambda x, i: cat([x[:, :150], x[:, 151:152], x[:, 151:]], 1).gather(1, i),
        "f32[2,300] i64[2,4]<300",
        pool=(150.0,),
    ),
    wrong(
        "the last index of many cut off",
        lambda x, i: x.index_select(0, i),
        lambda x, i: x.index_select(0, i.clamp(max=98)),
        "f32[100,2] i64[5]<100",
        pool=(99.0,),
    ),
    wrong(
        "one class of many cut off",
        lambda i: F.one_hot(i, 100).float(),
        lambda i: F.one_hot(i.clamp(max=98), 100).float(),
        "i64[5]<100",
        pool=(99.0,),
    ),
    wrong(
        "buckets of a long table, one less",
        lambda w, i: w[tensor(_BUCKETS)[i]],
        lambda w, i: w[tensor([min(i, 62) for i in range(100)])[i]],
        "f32[64,2] i64[4]<100",
    ),
    wrong(
        "two numbers of a long table swapped",
        lambda i: tensor(_NUMBERS)[i],
        lambda i: tensor(_swapped(_NUMBERS, 90, 91))[i],
        "i64[4]<100",
        pool=(90.0, 91.0),
    ),
    wrong(
        "one factor of many changed",
        lambda x: x * torch.arange(100.0),
        lambda x: x * tensor(_changed(_NUMBERS, 77, 78.0)),
        "f32[2,100]",
    ),
    wrong(
        "one place of a long mask changed",
        lambda x: x * tensor([i % 7 != 3 for i in range(100)]),
        lambda x: x * tensor([i % 7 != 3 or i == 94 for i in range(100)]),
        "f32[2,100]",
    ),
    wrong(
        "two written places of many swapped",
        lambda x, y: x.index_put((tensor(_SHORT),), y),
        lambda x, y: x.index_put((tensor(_swapped(_SHORT, 65, 66)),), y),
        "f32[100,2] f32[70,2]",
    ),
    wrong(
        "two copied places of many swapped",
        lambda x, y: x.index_copy(0, tensor(_SHORT), y),
        lambda x, y: x.index_copy(0, tensor(_swapped(_SHORT, 68, 69)), y),
        "f32[100,2] f32[70,2]",
    ),
    wrong(
        "two added places of many swapped",
        lambda x, y: x.index_add(0, tensor(_SHORT), y),
        lambda x, y: x.index_add(0, tensor(_swapped(_SHORT, 65, 66)), y),
        "f32[100,2] f32[70,2]",
    ),
    wrong(
        "two scattered places of many swapped",
        lambda x, y: x.scatter(0, tensor(_SHORT), y),
        lambda x, y: x.scatter(0, tensor(_swapped(_SHORT, 0, 69)), y),
        "f32[100] f32[70]",
    ),
    wrong(
        "long segments of one more",
        lambda x: x.view(2, 8, 16).sum(-1),
        lambda x: (x[:, None] * (torch.arange(128) // 17 == torch.arange(8)[:, None])).sum(-1),
        "f32[2,128]",
    ),
    wrong(
        "a long mask of lengths but for the last",
        lambda x, n: x.masked_fill(torch.arange(100) >= n[:, None], 0.0),
        lambda x, n: x.masked_fill((torch.arange(100) >= n[:, None]) | (torch.arange(100) == 99), 0.0),
        "f32[3,100] i64[3]<101",
        pool=(100.0,),
    ),
    wrong(
        "a long matrix of places, two swapped",
        lambda x: x @ torch.eye(100).to(x)[_LIST],
        lambda x: x @ torch.eye(100).to(x)[_swapped(_LIST, 90, 91)],
        "f32[2,100]",
    ),
)
