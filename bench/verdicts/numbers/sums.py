"""Idioms of sums: means, variances, norms, products of matrices."""

import math
from functools import partial

import torch
import torch.nn.functional as F

from superopt.bench.verdicts.pairs import Pair

__all__ = ["IDIOMS", "WRONG"]

equal = partial(Pair, family="sums")
wrong = partial(Pair, equal=False, family="sums")

maximum = torch.maximum


IDIOMS = (
    equal("a mean as a sum", lambda x: x.mean(-1), lambda x: x.sum(-1) / 6, "f32[4,6]"),
    equal("a mean as a scaled sum", lambda x: x.mean(-1), lambda x: (x * (1 / 6)).sum(-1), "f32[4,6]"),
    equal("a mean of means", lambda x: x.mean(), lambda x: x.mean(0).mean(), "f32[4,6]"),
    equal("a sum of all", lambda x: x.sum(), lambda x: x.sum(0).sum(), "f32[4,6]"),
    equal("a sum of halves", lambda x: x.sum(-1), lambda x: x[:, :3].sum(-1) + x[:, 3:].sum(-1), "f32[4,7]"),
    equal(
        "a sum of evens and odds",
        lambda x: x.sum(-1),
        lambda x: x[:, ::2].sum(-1) + x[:, 1::2].sum(-1),
        "f32[4,7]",
    ),
    equal("a sum of chunks", lambda x: x.sum(-1), lambda x: x.view(4, 2, 3).sum(-1).sum(-1), "f32[4,6]"),
    equal(
        "a sum of a sum",
        lambda a, b: (a + b).sum(-1),
        lambda a, b: a.sum(-1) + b.sum(-1),
        "f32[4,6] f32[4,6]",
    ),
    equal("a sum of a constant more", lambda x: (x + 2).sum(-1), lambda x: x.sum(-1) + 12, "f32[4,6]"),
    equal("a sum by a matrix of ones", lambda x: x.sum(-1), lambda x: x @ x.new_ones(6), "f32[4,6]"),
    equal(
        "a maximum of halves",
        lambda x: x.amax(-1),
        lambda x: maximum(x[:, :3].amax(-1), x[:, 3:].amax(-1)),
        "f32[4,7]",
    ),
    equal(
        "a variance in one pass",
        lambda x: x.var(-1, unbiased=False),
        lambda x: x.square().mean(-1) - x.mean(-1).square(),
        "f32[4,6]",
    ),
    equal(
        "an unbiased variance",
        lambda x: x.var(-1),
        lambda x: (x - x.mean(-1, keepdim=True)).square().sum(-1) / 5,
        "f32[4,6]",
    ),
    equal(
        "an unbiased variance from the other",
        lambda x: x.var(-1),
        lambda x: x.var(-1, unbiased=False) * 6 / 5,
        "f32[4,6]",
    ),
    equal("a standard deviation", lambda x: x.std(-1), lambda x: x.var(-1).sqrt(), "f32[4,6]"),
    equal(
        "deviations sum to zero",
        lambda x: (x - x.mean(-1, keepdim=True)).sum(-1),
        lambda x: 0 * x.sum(-1),
        "f32[4,6]",
    ),
    equal("a norm", lambda x: x.norm(dim=-1), lambda x: x.square().sum(-1).sqrt(), "f32[4,6]"),
    equal(
        "a norm of one", lambda x: torch.linalg.vector_norm(x, 1, -1), lambda x: x.abs().sum(-1), "f32[4,6]"
    ),
    equal(
        "a norm of infinity",
        lambda x: torch.linalg.vector_norm(x, math.inf, -1),
        lambda x: x.abs().amax(-1),
        "f32[4,6]",
    ),
    equal("a norm scaled", lambda x: (-3 * x).norm(dim=-1), lambda x: 3 * x.norm(dim=-1), "f32[4,6]"),
    equal("a product of a row", lambda x: x.prod(-1), lambda x: x[:, 0] * x[:, 1] * x[:, 2], "f32[4,3]"),
    equal(
        "squared distances",
        lambda x, y: (x[:, None] - y[None]).square().sum(-1),
        lambda x, y: x.square().sum(-1)[:, None] + y.square().sum(-1)[None] - 2 * x @ y.T,
        "f32[4,3] f32[5,3]",
    ),
    equal("a product turned", lambda a, b: a @ b, lambda a, b: (b.T @ a.T).T, "f32[4,5] f32[5,3]"),
    equal(
        "a product by einsum",
        lambda a, b: a @ b,
        lambda a, b: torch.einsum("mk,kn->mn", a, b),
        "f32[4,5] f32[5,3]",
    ),
    equal(
        "a product as a sum",
        lambda a, b: a @ b,
        lambda a, b: (a[:, :, None] * b[None]).sum(1),
        "f32[4,5] f32[5,3]",
    ),
    equal(
        "a product of scaled rows",
        lambda a, b, s: (a * s[:, None]) @ b,
        lambda a, b, s: (a @ b) * s[:, None],
        "f32[4,5] f32[5,3] f32[4]",
    ),
    equal(
        "a product of three",
        lambda a, b, c: a @ b @ c,
        lambda a, b, c: a @ (b @ c),
        "f32[4,5] f32[5,3] f32[3,2]",
    ),
    equal(
        "a product of a sum",
        lambda a, b, w: (a + b) @ w,
        lambda a, b, w: a @ w + b @ w,
        "f32[4,5] f32[4,5] f32[5,3]",
    ),
    equal(
        "a product in two parts",
        lambda a, b: a @ b,
        lambda a, b: a[:, :2] @ b[:2] + a[:, 2:] @ b[2:],
        "f32[4,5] f32[5,3]",
    ),
    equal(
        "a scale inside",
        lambda a, b, g: (a * g) @ b,
        lambda a, b, g: a @ (g[:, None] * b),
        "f32[4,5] f32[5,3] f32[5]",
    ),
    equal(
        "batched products",
        torch.bmm,
        lambda a, b: torch.einsum("bij,bjk->bik", a, b),
        "f32[2,4,5] f32[2,5,3]",
    ),
    equal(
        "batched products one by one",
        torch.bmm,
        lambda a, b: torch.stack([a[0] @ b[0], a[1] @ b[1]]),
        "f32[2,4,5] f32[2,5,3]",
    ),
    equal("an outer product", torch.outer, lambda a, b: a[:, None] * b[None], "f32[4] f32[5]"),
    equal(
        "a trace of a product",
        lambda a, b: (a @ b).diagonal().sum(),
        lambda a, b: (a * b.T).sum(),
        "f32[4,5] f32[5,4]",
    ),
    equal("a dot product", torch.dot, lambda a, b: (a * b).sum(), "f32[7] f32[7]"),
    equal(
        "addmm",
        lambda b, x, w: torch.addmm(b, x, w, beta=0.5, alpha=2),
        lambda b, x, w: b / 2 + 2 * (x @ w),
        "f32[3] f32[4,5] f32[5,3]",
    ),
    equal(
        "bilinear",
        lambda x, w, y: torch.einsum("bi,ij,bj->b", x, w, y),
        lambda x, w, y: ((x @ w) * y).sum(-1),
        "f32[4,5] f32[5,3] f32[4,3]",
    ),
    equal("a gram matrix", lambda x: x @ x.T, lambda x: (x @ x.T).T, "f32[4,6]"),
    equal(
        "a mean inside a product",
        lambda x, w: (x @ w).mean(0),
        lambda x, w: x.mean(0) @ w,
        "f32[4,5] f32[5,3]",
    ),
    equal(
        "a centring matrix",
        lambda x: x - x.mean(0),
        lambda x: (torch.eye(4, dtype=x.dtype) - 1 / 4) @ x,
        "f32[4,6]",
    ),
    equal(
        "cosine similarity",
        lambda a, b: F.cosine_similarity(a, b, dim=-1, eps=0.0),
        lambda a, b: (a * b).sum(-1) / (a.norm(dim=-1) * b.norm(dim=-1)),
        "f32[4,6] f32[4,6]",
    ),
)

WRONG = (
    wrong("a product of a row less one", lambda x: x.prod(-1), lambda x: x[:, 1:].prod(-1), "f32[4,6]"),
    wrong("a mean over one less", lambda x: x.mean(-1), lambda x: x.sum(-1) / 5, "f32[4,6]"),
    wrong(
        "a mean of uneven means",
        lambda x: x.mean(-1),
        lambda x: (x[:, :3].mean(-1) + x[:, 3:].mean(-1)) / 2,
        "f32[4,7]",
    ),
    wrong(
        "a sum of halves with a gap",
        lambda x: x.sum(-1),
        lambda x: x[:, :3].sum(-1) + x[:, 4:].sum(-1),
        "f32[4,7]",
    ),
    wrong(
        "a sum of halves that overlap",
        lambda x: x.sum(-1),
        lambda x: x[:, :4].sum(-1) + x[:, 3:].sum(-1),
        "f32[4,7]",
    ),
    wrong(
        "an unbiased variance for the other",
        lambda x: x.var(-1),
        lambda x: x.var(-1, unbiased=False),
        "f32[4,6]",
    ),
    wrong(
        "a variance in one pass without its square",
        lambda x: x.var(-1, unbiased=False),
        lambda x: x.square().mean(-1) - x.mean(-1),
        "f32[4,6]",
    ),
    wrong("a deviation for a variance", lambda x: x.var(-1), lambda x: x.std(-1), "f32[4,6]"),
    wrong("a norm without its root", lambda x: x.norm(dim=-1), lambda x: x.square().sum(-1), "f32[4,6]"),
    wrong(
        "a norm scaled with a sign",
        lambda x: (-3 * x).norm(dim=-1),
        lambda x: -3 * x.norm(dim=-1),
        "f32[4,6]",
    ),
    wrong(
        "squared distances with a sign",
        lambda x, y: (x[:, None] - y[None]).square().sum(-1),
        lambda x, y: x.square().sum(-1)[:, None] + y.square().sum(-1)[None] + 2 * x @ y.T,
        "f32[4,3] f32[5,3]",
    ),
    wrong("a product of a transposed operand", lambda a, b: a @ b, lambda a, b: a @ b.T, "f32[5,5] f32[5,5]"),
    wrong("a product swapped", lambda a, b: a @ b, lambda a, b: b @ a, "f32[5,5] f32[5,5]"),
    wrong(
        "a product in parts that overlap",
        lambda a, b: a @ b,
        lambda a, b: a[:, :3] @ b[:3] + a[:, 2:] @ b[2:],
        "f32[4,5] f32[5,3]",
    ),
    wrong(
        "scaled columns for scaled rows",
        lambda a, b, s: (a * s[:, None]) @ b,
        lambda a, b, s: (a @ b) * s,
        "f32[5,5] f32[5,5] f32[5]",
    ),
    wrong(
        "a product of maxima",
        lambda a, b: (a @ b).relu(),
        lambda a, b: a.relu() @ b.relu(),
        "f32[4,5] f32[5,3]",
    ),
    wrong(
        "a trace of a product not turned",
        lambda a, b: (a @ b).diagonal().sum(),
        lambda a, b: (a * b).sum(),
        "f32[5,5] f32[5,5]",
    ),
    wrong(
        "addmm with its factors swapped",
        lambda b, x, w: torch.addmm(b, x, w, beta=0.5, alpha=2),
        lambda b, x, w: 2 * b + (x @ w) / 2,
        "f32[3] f32[4,5] f32[5,3]",
    ),
    wrong("a matrix transposed", lambda w: w @ w, lambda w: (w @ w).T, "f32[5,5]"),
)
