"""Idioms around calls outside the algebra, and results that are no tensors."""

from functools import partial

import torch
import torch.nn.functional as F
from torch import Tensor

from superopt.bench.verdicts.pairs import Function, Pair

__all__ = ["IDIOMS", "WRONG"]

equal = partial(Pair, family="calls")
wrong = partial(Pair, equal=False, family="calls")

cat = torch.cat


def _swapped(x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
    later = y.cumsum(-1)
    return x.cumsum(-1), later


def _buffer(scale: float) -> Function:
    held = torch.arange(5.0) * scale
    return lambda x: x * held.to(x.dtype)


IDIOMS = (
    equal("two cumsums swapped", lambda x, y: (x.cumsum(-1), y.cumsum(-1)), _swapped, "f32[4,5] f32[4,5]"),
    equal(
        "a sum of two cumsums",
        lambda x, y: x.cumsum(0) + y.cumsum(0),
        lambda x, y: y.cumsum(0) + x.cumsum(0),
        "f32[4,5] f32[4,5]",
    ),
    equal(
        "a cumsum of a doubled row", lambda x: (2 * x).cumsum(-1), lambda x: (x + x).cumsum(-1), "f32[4,5]"
    ),
    equal(
        "a cumsum, then algebra", lambda x: x.cumsum(-1) * 2 + 2, lambda x: 2 * (1 + x.cumsum(-1)), "f32[4,5]"
    ),
    equal("a cumsum of a scaled row", lambda x: (2 * x).cumsum(-1), lambda x: 2 * x.cumsum(-1), "f32[4,5]"),
    equal(
        "a cumsum by a triangle",
        lambda x: x.cumsum(-1),
        lambda x: x @ torch.ones(5, 5, dtype=x.dtype).triu(),
        "f32[4,5]",
    ),
    equal("the last of a cumsum", lambda x: x.cumsum(-1)[:, -1], lambda x: x.sum(-1), "f32[4,5]"),
    equal("a sorted row's sum", lambda x: x.sort(-1).values.sum(-1), lambda x: x.sum(-1), "f32[4,5]"),
    equal("a sorted row's last", lambda x: x.sort(-1).values[:, -1], lambda x: x.amax(-1), "f32[4,5]"),
    equal(
        "a sort of a sum",
        lambda x, y: (x + y).sort(-1).values,
        lambda x, y: (y + x).sort(-1).values,
        "f32[4,5] f32[4,5]",
    ),
    equal(
        "a sort of a shifted row",
        lambda x: (x + 1).sort(-1).values,
        lambda x: x.sort(-1).values + 1,
        "f32[4,5]",
    ),
    equal(
        "an embedding doubled",
        lambda i, w: F.embedding(i, w) * 2,
        lambda i, w: F.embedding(i, w) + F.embedding(i, w),
        "i64[4]<6 f32[6,3]",
    ),
    equal(
        "an embedding of doubled weights",
        lambda i, w: F.embedding(i, 2 * w),
        lambda i, w: 2 * F.embedding(i, w),
        "i64[4]<6 f32[6,3]",
    ),
    equal("an embedding as an index", F.embedding, lambda i, w: w[i], "i64[4]<6 f32[6,3]"),
    equal(
        "an embedding projected",
        lambda i, w, v: F.embedding(i, w) @ v,
        lambda i, w, v: F.embedding(i, w @ v),
        "i64[4]<6 f32[6,3] f32[3,2]",
    ),
    equal(
        "an embedding by one hot",
        F.embedding,
        lambda i, w: F.one_hot(i, 6).to(w.dtype) @ w,
        "i64[4]<6 f32[6,3]",
    ),
    equal("an index of a function", lambda x, i: x.exp()[i], lambda x, i: x[i].exp(), "f32[6,3] i64[4]<6"),
    equal(
        "an index of a doubled tensor",
        lambda x, i: (2 * x)[i].exp(),
        lambda x, i: (x + x)[i].exp(),
        "f32[6,3] i64[4]<6",
    ),
    equal(
        "two indices, one after the other",
        lambda x, i, j: x[i][:, j],
        lambda x, i, j: x[:, j][i],
        "f32[6,5] i64[3]<6 i64[2]<5",
    ),
    equal(
        "gather of a sum",
        lambda x, y, i: (x + y).gather(1, i),
        lambda x, y, i: x.gather(1, i) + y.gather(1, i),
        "f32[4,5] f32[4,5] i64[4,2]<5",
    ),
    equal(
        "a convolution of a doubled image",
        lambda x, w: F.conv2d(2 * x, w),
        lambda x, w: 2 * F.conv2d(x, w),
        "f32[2,3,5,5] f32[4,3,3,3]",
    ),
    equal(
        "a convolution of doubled weights",
        lambda x, w: F.conv2d(x, 2 * w),
        lambda x, w: 2 * F.conv2d(x, w),
        "f32[2,3,5,5] f32[4,3,3,3]",
    ),
    equal(
        "a convolution with its bias",
        F.conv2d,
        lambda x, w, b: F.conv2d(x, w) + b[:, None, None],
        "f32[2,3,5,5] f32[4,3,3,3] f32[4]",
    ),
    equal(
        "a convolution of a sum",
        lambda x, y, w: F.conv2d(x + y, w),
        lambda x, y, w: F.conv2d(x, w) + F.conv2d(y, w),
        "f32[2,3,5,5] f32[2,3,5,5] f32[4,3,3,3]",
    ),
    equal(
        "a convolution by one",
        F.conv2d,
        lambda x, w: torch.einsum("bchw,oc->bohw", x, w[:, :, 0, 0]),
        "f32[2,3,4,4] f32[5,3,1,1]",
    ),
    equal(
        "a convolution as shifted products",
        lambda x, w: F.conv1d(x[:, None], w[None, None])[:, 0],
        lambda x, w: x[:, :-2] * w[0] + x[:, 1:-1] * w[1] + x[:, 2:] * w[2],
        "f32[4,7] f32[3]",
    ),
    equal(
        "an average pool as a convolution",
        lambda x: F.avg_pool1d(x, 2),
        lambda x: (x[..., ::2] + x[..., 1::2]) / 2,
        "f32[2,3,6]",
    ),
    equal(
        "a maximum pool as a maximum",
        lambda x: F.max_pool1d(x, 2),
        lambda x: torch.maximum(x[..., ::2], x[..., 1::2]),
        "f32[2,3,6]",
    ),
    equal(
        "relu after a maximum pool",
        lambda x: F.max_pool2d(x, 2).relu(),
        lambda x: F.max_pool2d(x.relu(), 2),
        "f32[2,3,4,4]",
    ),
    equal(
        "a global average pool",
        lambda x: F.adaptive_avg_pool2d(x, 1)[:, :, 0, 0],
        lambda x: x.mean((2, 3)),
        "f32[2,3,4,4]",
    ),
    equal(
        "algebra around argmax",
        lambda x, y: (y + y, x.argmax(-1)),
        lambda x, y: (2 * y, x.argmax(-1)),
        "f32[4,5] f32[5]",
    ),
    equal("argmax of a scaled row", lambda x: (2 * x).argmax(-1), lambda x: x.argmax(-1), "f32[4,5]"),
    equal("top of one", lambda x: x.topk(1, -1).values[:, 0], lambda x: x.amax(-1), "f32[4,5]"),
    equal(
        "index add of a doubled tensor",
        lambda x, i, y: x.index_add(0, i, 2 * y),
        lambda x, i, y: x.index_add(0, i, y + y),
        "f32[6,3] i64[4]<6 f32[4,3]",
    ),
    equal("a tuple of a tensor and a number", lambda x: (x * 2, 3), lambda x: (x + x, 3), "f32[5]"),
    equal("a dict", lambda x: {"a": x * 2, "b": x.exp()}, lambda x: {"a": x + x, "b": x.exp()}, "f32[5]"),
    equal(
        "a nested result", lambda x: (x, [x * 2, {"c": -x}]), lambda x: (x, [x + x, {"c": 0 - x}]), "f32[5]"
    ),
    equal("a result with None", lambda x: (x * 2, None), lambda x: (x + x, None), "f32[5]"),
    equal(
        "a buffer of equal numbers", _buffer(2.0), lambda x: x * (2 * torch.arange(5).to(x.dtype)), "f32[5]"
    ),
    equal("several results", lambda x: (x + x, x.exp()), lambda x: (2 * x, x.exp()), "f32[5]"),
    equal("an input that nothing reads", lambda x, y: x + x, lambda x, y: 2 * x, "f32[5] f32[5]"),
)

WRONG = (
    wrong(
        "indices deduplicated",
        lambda x, i, j: x[i, i, j],
        lambda x, i, j: x[i, j, j],
        "f32[4,4,4] i64[5]<4 i64[5]<4",
    ),
    wrong("indices swapped", lambda x, i, j: x[i, j], lambda x, i, j: x[j, i], "f32[5,5] i64[4]<5 i64[4]<5"),
    wrong("an index of the wrong axis", lambda x, i: x[i], lambda x, i: x[:, i].T, "f32[5,5] i64[5]<5"),
    wrong(
        "two cumsums mixed up",
        lambda x, y: (x.cumsum(-1), y.cumsum(-1)),
        lambda x, y: (y.cumsum(-1), x.cumsum(-1)),
        "f32[4,5] f32[4,5]",
    ),
    wrong(
        "one cumsum of the wrong tensor",
        lambda x, y: (x.cumsum(-1), y.cumsum(-1)),
        lambda x, y: (x.cumsum(-1), x.cumsum(-1)),
        "f32[4,5] f32[4,5]",
    ),
    wrong("a cumsum of the other axis", lambda x: x.cumsum(0), lambda x: x.cumsum(1), "f32[5,5]"),
    wrong("a cumsum of a row less", lambda x: x[:, 1:].cumsum(-1), lambda x: x.cumsum(-1)[:, 1:], "f32[4,5]"),
    wrong(
        "a slice off by one beside a cumsum",
        lambda x: x.cumsum(-1)[:, 1:4],
        lambda x: x.cumsum(-1)[:, 0:3],
        "f32[4,5]",
    ),
    wrong("a cumsum for a cumulative product", lambda x: x.cumsum(-1), lambda x: x.cumprod(-1), "f32[4,5]"),
    wrong(
        "a cumsum of a square", lambda x: x.square().cumsum(-1), lambda x: x.cumsum(-1).square(), "f32[4,5]"
    ),
    wrong(
        "a sort downwards",
        lambda x: x.sort(-1).values,
        lambda x: x.sort(-1, descending=True).values,
        "f32[4,5]",
    ),
    wrong("a sort of minus", lambda x: (-x).sort(-1).values, lambda x: -x.sort(-1).values, "f32[4,5]"),
    wrong("a sort dropped", lambda x: x.sort(-1).values, lambda x: x * 1, "f32[4,5]"),
    wrong(
        "an embedding of another token",
        F.embedding,
        lambda i, w: F.embedding((i + 1) % 6, w),
        "i64[4]<6 f32[6,3]",
    ),
    wrong(
        "an embedding of other weights",
        lambda i, v, w: F.embedding(i, v),
        lambda i, v, w: F.embedding(i, w),
        "i64[4]<6 f32[6,3] f32[6,3]",
    ),
    wrong(
        "a slice off by one after an embedding",
        lambda i, w: F.embedding(i, w)[:, :2],
        lambda i, w: F.embedding(i, w)[:, 1:],
        "i64[4]<6 f32[6,3]",
    ),
    wrong(
        "a convolution of a shifted image",
        lambda x, w: F.conv2d(x + 1, w),
        lambda x, w: F.conv2d(x, w) + 1,
        "f32[2,3,5,5] f32[4,3,3,3]",
    ),
    wrong(
        "a slice off by one after a convolution",
        lambda x, w: F.conv1d(x, w)[..., 1:],
        lambda x, w: F.conv1d(x, w)[..., :-1],
        "f32[2,3,7] f32[4,3,3]",
    ),
    wrong(
        "a convolution with its weights turned",
        F.conv2d,
        lambda x, w: F.conv2d(x, w.flip(3)),
        "f32[2,3,5,5] f32[4,3,3,3]",
    ),
    wrong(
        "a stride of two",
        lambda x, w: F.conv1d(x, w)[..., ::2],
        lambda x, w: F.conv1d(x, w)[..., 1::2],
        "f32[2,3,8] f32[4,3,3]",
    ),
    wrong(
        "a maximum pool for an average pool",
        lambda x: F.max_pool1d(x, 2),
        lambda x: F.avg_pool1d(x, 2),
        "f32[2,3,6]",
    ),
    wrong(
        "padding counted in an average",
        lambda x: F.avg_pool1d(x, 3, padding=1, stride=1),
        lambda x: F.avg_pool1d(x, 3, padding=1, stride=1, count_include_pad=False),
        "f32[2,3,6]",
    ),
    wrong("argmax for argmin", lambda x: x.argmax(-1), lambda x: x.argmin(-1), "f32[4,5]"),
    wrong("argmax of minus", lambda x: (-x).argmax(-1), lambda x: x.argmax(-1), "f32[4,5]"),
    wrong(
        "the last maximum for the first",
        lambda x: x.argmax(-1),
        lambda x: 4 - x.flip(-1).argmax(-1),
        "f32[4,5]",
    ),
    wrong(
        "second for top",
        lambda x: x.topk(2, -1).values[:, 0],
        lambda x: x.topk(2, -1).values[:, 1],
        "f32[4,5]",
    ),
    wrong(
        "gather of another axis",
        lambda x, i: x.gather(0, i),
        lambda x, i: x.gather(1, i),
        "f32[5,5] i64[5,5]<5",
    ),
    wrong(
        "index add of another row",
        lambda x, i, y: x.index_add(0, i, y),
        lambda x, i, y: x.index_add(0, i.flip(0), y),
        "f32[6,3] i64[4]<6 f32[4,3]",
    ),
    wrong(
        "index copy for index add",
        lambda x, i, y: x.index_add(0, i, y),
        lambda x, i, y: x.index_copy(0, i, y),
        "f32[6,3] i64[4]<6 f32[4,3]",
    ),
    wrong(
        "gelu and a call with a wrong factor",
        lambda x: F.gelu(x).cumsum(-1) * 2,
        lambda x: F.gelu(x).cumsum(-1) * 2.001,
        "f64[4,5]",
    ),
    # results that are no tensors
    wrong("another number beside", lambda x: (x * 2, 3), lambda x: (x * 2, 4), "f32[5]"),
    wrong("a number for a text", lambda x: (x * 2, 3), lambda x: (x * 2, "3"), "f32[5]"),
    wrong("None for a number", lambda x: (x * 2, None), lambda x: (x * 2, 0), "f32[5]"),
    wrong("another key", lambda x: {"a": x * 2}, lambda x: {"b": x * 2}, "f32[5]"),
    wrong("keys swapped", lambda x: {"a": x * 2, "b": x * 3}, lambda x: {"a": x * 3, "b": x * 2}, "f32[5]"),
    wrong("a list for a tuple", lambda x: (x * 2, x), lambda x: [x * 2, x], "f32[5]"),
    wrong("nested otherwise", lambda x: (x, (x * 2, -x)), lambda x: ((x, x * 2), -x), "f32[5]"),
    wrong("a tuple of one", lambda x: x * 2, lambda x: (x * 2,), "f32[5]"),
    wrong("results swapped", lambda x: (x * 2, x * 3), lambda x: (x * 3, x * 2), "f32[5]"),
    wrong("one result more", lambda x: (x * 2,), lambda x: (x * 2, x), "f32[5]"),
    wrong("another shape", lambda x: x * 2, lambda x: (x * 2)[None], "f32[5]"),
    wrong("another dtype", lambda x: x * 2, lambda x: (x * 2).half(), "f32[5]"),
    wrong("a buffer of other numbers", _buffer(2.0), _buffer(3.0), "f32[5]"),
    wrong("a buffer of nearly the same numbers", _buffer(2.0), _buffer(2.0 + 1e-6), "f64[5]"),
)
