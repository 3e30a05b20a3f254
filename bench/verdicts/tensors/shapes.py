"""Idioms of places: slices, concatenation, stacking, rolling, and indices."""

from functools import partial

import torch
import torch.nn.functional as F
from torch import Tensor

from superopt.bench.verdicts.pairs import Pair

__all__ = ["IDIOMS", "WRONG"]

equal = partial(Pair, family="shapes")
wrong = partial(Pair, equal=False, family="shapes")

cat, stack = torch.cat, torch.stack


def _qkv(x: Tensor, w: Tensor) -> tuple[Tensor, ...]:
    return (x @ w).chunk(3, -1)


def _rope(x: Tensor, c: Tensor, s: Tensor) -> Tensor:
    a, b = x.chunk(2, -1)
    return cat([a * c - b * s, a * s + b * c], -1)


def _rotated(x: Tensor, c: Tensor, s: Tensor) -> Tensor:
    a, b = x.chunk(2, -1)
    return x * cat([c, c], -1) + cat([-b, a], -1) * cat([s, s], -1)


def _pairwise(x: Tensor, c: Tensor, s: Tensor) -> Tensor:
    a, b = x[..., ::2], x[..., 1::2]
    return stack([a * c - b * s, a * s + b * c], -1).flatten(-2)


def _pairwise_signed(x: Tensor, c: Tensor, s: Tensor) -> Tensor:
    turned = stack([-x[..., 1::2], x[..., ::2]], -1).flatten(-2)
    return x * c.repeat_interleave(2, -1) + turned * s.repeat_interleave(2, -1)


IDIOMS = (
    equal("a cat of slices", lambda x: cat([x[:, :2], x[:, 2:]], 1), lambda x: x * 1, "f32[4,7]"),
    equal("a slice of a cat", lambda a, b: cat([a, b], 1)[:, :3], lambda a, b: a * 1, "f32[4,3] f32[4,5]"),
    equal(
        "a slice across a cat",
        lambda a, b: cat([a, b], 1)[:, 2:4],
        lambda a, b: cat([a[:, 2:], b[:, :1]], 1),
        "f32[4,3] f32[4,5]",
    ),
    equal("a slice of a slice", lambda x: x[:, 1:6][:, 2:4], lambda x: x[:, 3:5] * 1, "f32[4,7]"),
    equal("every second of every second", lambda x: x[:, ::2][:, ::2], lambda x: x[:, ::4] * 1, "f32[4,9]"),
    equal(
        "a cat of cats",
        lambda a, b, c: cat([cat([a, b]), c]),
        lambda a, b, c: cat([a, b, c]),
        "f32[2,3] f32[1,3] f32[4,3]",
    ),
    equal(
        "a function of a cat",
        lambda a, b: cat([a, b]).exp(),
        lambda a, b: cat([a.exp(), b.exp()]),
        "f32[2,3] f32[5,3]",
    ),
    equal(
        "a sum of a cat",
        lambda a, b: cat([a, b]).sum(0),
        lambda a, b: a.sum(0) + b.sum(0),
        "f32[2,3] f32[5,3]",
    ),
    equal(
        "a maximum of a cat",
        lambda a, b: cat([a, b]).amax(0),
        lambda a, b: torch.maximum(a.amax(0), b.amax(0)),
        "f32[2,3] f32[5,3]",
    ),
    equal(
        "a product with a cat",
        lambda x, v, w: x @ cat([v, w], 1),
        lambda x, v, w: cat([x @ v, x @ w], 1),
        "f32[4,5] f32[5,3] f32[5,2]",
    ),
    equal(
        "a product of cats",
        lambda a, b, v, w: cat([a, b], 1) @ cat([v, w], 0),
        lambda a, b, v, w: a @ v + b @ w,
        "f32[4,5] f32[4,2] f32[5,3] f32[2,3]",
    ),
    equal(
        "a slice of a product", lambda x, w: (x @ w)[:, 1:3], lambda x, w: x @ w[:, 1:3], "f32[4,5] f32[5,6]"
    ),
    equal(
        "the first rows of a product", lambda x, w: (x @ w)[:2], lambda x, w: x[:2] @ w, "f32[4,5] f32[5,6]"
    ),
    equal("the last row of a product", lambda x, w: (x @ w)[-1], lambda x, w: x[-1] @ w, "f32[4,5] f32[5,6]"),
    equal("a slice of a softmax", lambda x: x.softmax(-1)[1:], lambda x: x[1:].softmax(-1), "f32[4,6]"),
    equal(
        "a sum of a part",
        lambda x: x[:, :7].sum(-1),
        lambda x: x[:, :3].sum(-1) + x[:, 3:7].sum(-1),
        "f32[4,9]",
    ),
    equal(
        "a rotation by cat",
        lambda x: cat([x[:, 1:], x[:, :1]], 1) * x,
        lambda x: torch.roll(x, -1, 1) * x,
        "f32[4,7]",
    ),
    equal(
        "a rotation there and back",
        lambda x: torch.roll(torch.roll(x, 3, 1), -3, 1),
        lambda x: x * 1,
        "f32[4,7]",
    ),
    equal("two flips", lambda x: x.flip(1).flip(1), lambda x: x * 1, "f32[4,7]"),
    equal("a flip of a sum", lambda x: x.flip(1).sum(1), lambda x: x.sum(1), "f32[4,7]"),
    equal(
        "a stack as a cat",
        lambda a, b: stack([a, b], 1),
        lambda a, b: cat([a[:, None], b[:, None]], 1),
        "f32[4,3] f32[4,3]",
    ),
    equal("a stack unbound", lambda x: stack(x.unbind(1), 0), lambda x: x.transpose(0, 1) * 1, "f32[4,3]"),
    equal(
        "a mean of a stack", lambda a, b: stack([a, b]).mean(0), lambda a, b: (a + b) / 2, "f32[4,3] f32[4,3]"
    ),
    equal(
        "a stack of many", lambda x, y: stack([x, y] * 4).sum(0), lambda x, y: 4 * (x + y), "f32[3] f32[3]"
    ),
    equal("transposed twice", lambda x: x.transpose(0, 2).transpose(2, 0), lambda x: x * 1, "f32[2,3,4]"),
    equal("permuted around", lambda x: x.permute(1, 2, 0).permute(2, 0, 1), lambda x: x * 1, "f32[2,3,4]"),
    equal("reshaped there and back", lambda x: x.reshape(3, 4).exp().reshape(2, 6), torch.exp, "f32[2,6]"),
    equal("flattened before a sum", lambda x: x.flatten(1).sum(1), lambda x: x.sum((1, 2)), "f32[2,3,4]"),
    equal(
        "padding as cat",
        lambda x: F.pad(x, (1, 2)),
        lambda x: cat([x.new_zeros(4, 1), x, x.new_zeros(4, 2)], 1),
        "f32[4,3]",
    ),
    equal("padding cut off", lambda x: F.pad(x, (1, 2))[:, 1:-2], lambda x: x * 1, "f32[4,3]"),
    equal("padding before a sum", lambda x: F.pad(x, (1, 2)).sum(-1), lambda x: x.sum(-1), "f32[4,3]"),
    equal(
        "a difference of neighbours",
        lambda x: x[:, 1:] - x[:, :-1],
        lambda x: torch.diff(x, dim=1),
        "f32[4,7]",
    ),
    equal(
        "neighbours telescoped",
        lambda x: (x[:, 1:] - x[:, :-1]).sum(1),
        lambda x: x[:, -1] - x[:, 0],
        "f32[4,7]",
    ),
    equal(
        "repeated as expanded",
        lambda x: x.repeat(1, 3),
        lambda x: x[:, None].expand(4, 3, 5).reshape(4, 15),
        "f32[4,5]",
    ),
    equal(
        "heads repeated",
        lambda x: x.repeat_interleave(3, 1),
        lambda x: x[:, :, None].expand(2, 4, 3, 5).reshape(2, 12, 5),
        "f32[2,4,5]",
    ),
    equal(
        "a diagonal's sum",
        lambda x: x.diagonal().sum(),
        lambda x: (x * torch.eye(5, dtype=x.dtype)).sum(),
        "f32[5,5]",
    ),
    equal("lower and upper", lambda x: x.tril() + x.triu(1), lambda x: x * 1, "f32[5,5]"),
    equal("tril transposed", lambda x: x.tril().T, lambda x: x.T.triu(), "f32[5,5]"),
    equal(
        "tril by positions",
        torch.tril,
        lambda x: torch.where(torch.arange(5)[:, None] >= torch.arange(5), x, 0.0),
        "f32[5,5]",
    ),
    equal("tril of tril", lambda x: x.tril(1).tril(), torch.tril, "f32[5,5]"),
    equal(
        "one hot as a comparison",
        lambda i, x: F.one_hot(i, 5).to(x.dtype) @ x,
        lambda i, x: (i[:, None] == torch.arange(5)).to(x.dtype) @ x,
        "i64[4]<5 f32[5,3]",
    ),
    equal(
        "rows by constant indices", lambda x: x[[2, 0, 3]], lambda x: stack([x[2], x[0], x[3]]), "f32[4,5]"
    ),
    equal(
        "index select of constants",
        lambda x: x.index_select(1, torch.tensor([3, 1])),
        lambda x: cat([x[:, 3:4], x[:, 1:2]], 1),
        "f32[4,5]",
    ),
    # fused projections
    equal(
        "QKV fused",
        lambda x, q, k, v: (x @ q, x @ k, x @ v),
        lambda x, q, k, v: _qkv(x, cat([q, k, v], 1)),
        "f32[4,5] f32[5,6] f32[5,6] f32[5,6]",
    ),
    equal("QKV split", _qkv, lambda x, w: (x @ w[:, :3], x @ w[:, 3:6], x @ w[:, 6:]), "f32[4,5] f32[5,9]"),
    equal(
        "QKV split unevenly",
        lambda x, w: (x @ w).split([4, 2, 2], -1),
        lambda x, w: tuple(x @ part for part in w.split([4, 2, 2], 1)),
        "f32[4,5] f32[5,8]",
    ),
    equal(
        "gate and up fused",
        lambda x, w: F.silu((x @ w)[:, :3]) * (x @ w)[:, 3:],
        lambda x, w: F.silu(x @ w[:, :3]) * (x @ w[:, 3:]),
        "f32[4,5] f32[5,6]",
    ),
    equal("glu", F.glu, lambda x: x[:, :3] * x[:, 3:].sigmoid(), "f32[4,6]"),
    equal(
        "a linear layer of a cat",
        lambda a, b, w: F.linear(cat([a, b], -1), w),
        lambda a, b, w: a @ w[:, :2].T + b @ w[:, 2:].T,
        "f32[4,2] f32[4,3] f32[5,5]",
    ),
    # positions turned
    equal("rope by halves", _rope, _rotated, "f32[4,6] f32[4,3] f32[4,3]"),
    equal("rope by pairs", _pairwise, _pairwise_signed, "f32[4,6] f32[4,3] f32[4,3]"),
    equal(
        "rope keeps lengths",
        lambda x, t: _rope(x, t.cos(), t.sin()).square().sum(-1),
        lambda x, t: x.square().sum(-1) * (t.cos().square() + t.sin().square())[:, 0],
        "f32[4,2] f32[4,1]",
    ),
)

WRONG = (
    wrong("a slice one further", lambda x: x[:, 1:4], lambda x: x[:, 2:5], "f32[4,7]"),
    wrong(
        "a maximum over one less", lambda x: x[:, 6:12].amax(-1), lambda x: x[:, 6:11].amax(-1), "f32[3,16]"
    ),
    wrong("a sum over one less", lambda x: x[:, :7].sum(-1), lambda x: x[:, :6].sum(-1), "f32[4,9]"),
    wrong(
        "a window of 21 for one of 22",
        lambda x: x[:, 5:26].amax(-1),
        lambda x: x[:, 5:27].amax(-1),
        "f32[3,40]",
    ),
    wrong(
        "a window far inside", lambda x: x[:, 100:140].sum(-1), lambda x: x[:, 101:141].sum(-1), "f32[2,300]"
    ),
    wrong("one position of many", lambda x: x[:, 131] * 1, lambda x: x[:, 132] * 1, "f32[2,300]"),
    wrong(
        "a slice off by one after a gelu",
        lambda x: F.gelu(x)[:, 1:5].sum(-1),
        lambda x: F.gelu(x)[:, 0:4].sum(-1),
        "f32[4,7]",
    ),
    wrong(
        "a slice off by one before a sine", lambda x: x[:, 1:5].sin(), lambda x: x[:, 2:6].sin(), "f32[4,7]"
    ),
    wrong(
        "a slice off by one after a log",
        lambda x: x.exp().log()[:, 1:5],
        lambda x: x.exp().log()[:, 2:6],
        "f32[4,7]",
    ),
    wrong("parts swapped", lambda a, b: cat([a, b]), lambda a, b: cat([b, a]), "f32[3,4] f32[3,4]"),
    wrong(
        "a cat of the wrong one twice",
        lambda a, b: cat([a, a, b]),
        lambda a, b: cat([a, b, a]),
        "f32[2,3] f32[2,3]",
    ),
    wrong(
        "a stack in another order",
        lambda x, y: stack([x, y] * 35),
        lambda x, y: stack([x] * 35 + [y] * 35),
        "f32[3] f32[3]",
    ),
    wrong(
        "a stack along another axis",
        lambda a, b: stack([a, b], 0),
        lambda a, b: stack([a, b], 1).reshape(2, 2, 2),
        "f32[2,2] f32[2,2]",
    ),
    wrong(
        "a rotation the other way", lambda x: torch.roll(x, 1, 1), lambda x: torch.roll(x, -1, 1), "f32[4,7]"
    ),
    wrong(
        "a rotation by two",
        lambda x: cat([x[:, 1:], x[:, :1]], 1) * x,
        lambda x: cat([x[:, 2:], x[:, :2]], 1) * x,
        "f32[4,7]",
    ),
    wrong("a flip dropped", lambda x, y: x.flip(1) * y, lambda x, y: x * y, "f32[4,7] f32[4,7]"),
    wrong("a flip of the other axis", lambda x: x.flip(0), lambda x: x.flip(1), "f32[4,4]"),
    wrong("every second, from one", lambda x: x[:, ::2], lambda x: x[:, 1::2], "f32[4,8]"),
    wrong("a reshape for a transpose", lambda x: x.T.reshape(4, 6), lambda x: x.reshape(4, 6), "f32[6,4]"),
    wrong("padding on the other side", lambda x: F.pad(x, (1, 0)), lambda x: F.pad(x, (0, 1)), "f32[4,3]"),
    wrong("padding by one", lambda x: F.pad(x, (1, 1), value=1.0), lambda x: F.pad(x, (1, 1)), "f32[4,3]"),
    wrong(
        "repeated for interleaved", lambda x: x.repeat(1, 3), lambda x: x.repeat_interleave(3, 1), "f32[4,5]"
    ),
    wrong("tril one more", torch.tril, lambda x: x.tril(1), "f32[5,5]"),
    wrong("lower and upper, diagonal twice", lambda x: x.tril() + x.triu(), lambda x: x * 1, "f32[5,5]"),
    wrong(
        "one hot off by one",
        lambda i, x: F.one_hot(i, 5).to(x.dtype) @ x,
        lambda i, x: (i[:, None] == torch.arange(5) + 1).to(x.dtype) @ x,
        "i64[4]<5 f32[5,3]",
    ),
    wrong("rows in another order", lambda x: x[[2, 0, 3]], lambda x: x[[2, 3, 0]], "f32[4,5]"),
    wrong(
        "a neighbour on the other side",
        lambda x: x[:, 1:] - x[:, :-1],
        lambda x: x[:, :-1] - x[:, 1:],
        "f32[4,7]",
    ),
    wrong("Q for K", _qkv, lambda x, w: (x @ w[:, 3:6], x @ w[:, :3], x @ w[:, 6:]), "f32[4,5] f32[5,9]"),
    wrong(
        "QKV split one off",
        lambda x, w: (x @ w).split([4, 2, 2], -1)[1],
        lambda x, w: x @ w[:, 3:5],
        "f32[4,5] f32[5,8]",
    ),
    wrong("gate for up", F.glu, lambda x: x[:, 3:] * x[:, :3].sigmoid(), "f32[4,6]"),
    wrong("rope by halves for rope by pairs", _rope, _pairwise, "f32[4,6] f32[4,3] f32[4,3]"),
    wrong("rope with a sign", _rope, lambda x, c, s: _rope(x, c, -s), "f32[4,6] f32[4,3] f32[4,3]"),
    wrong("rope with sine for cosine", _rope, lambda x, c, s: _rope(x, s, c), "f32[4,6] f32[4,3] f32[4,3]"),
    wrong(
        "a product of cats, crossed",
        lambda a, b, v, w: cat([a, b], 1) @ cat([v, w], 0),
        lambda a, b, v, w: a @ w + b @ v,
        "f32[4,3] f32[4,3] f32[3,3] f32[3,3]",
    ),
)
