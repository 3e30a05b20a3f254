"""Idioms of masks in attention: causal ones, windows, segments, biases."""

from functools import partial
from math import inf

import torch
from torch import Tensor

from superopt.bench.verdicts.pairs import Pair
from superopt.bench.verdicts.tensors.attention import ONE, QKV, SAME, plain, scores, sdpa

__all__ = ["IDIOMS", "WRONG"]

equal = partial(Pair, family="causal")
wrong = partial(Pair, equal=False, family="causal")


def _causal(n: int, diagonal: int = 0) -> Tensor:
    return torch.ones(n, n, dtype=torch.bool).tril(diagonal)


def _masked(q: Tensor, k: Tensor, v: Tensor, mask: Tensor) -> Tensor:
    return scores(q, k).masked_fill(~mask, -inf).softmax(-1) @ v


def _window(n: int, width: int) -> Tensor:
    place = torch.arange(n)
    back = place[:, None] - place
    return (back >= 0) & (back < width)


def _alibi(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    place = torch.arange(6)
    bias = -0.25 * (place[:, None] - place).to(q.dtype)
    return (scores(q, k) + bias).masked_fill(~_causal(6), -inf).softmax(-1) @ v


def _alibi_of_keys(q: Tensor, k: Tensor, v: Tensor, slope: float = 0.25) -> Tensor:
    """What depends on the query alone does not change a softmax over keys."""
    bias = slope * torch.arange(6).to(q.dtype)
    return (scores(q, k) + bias).masked_fill(~_causal(6), -inf).softmax(-1) @ v


IDIOMS = (
    equal(
        "causal attention against a mask",
        lambda q, k, v: sdpa(q, k, v, is_causal=True),
        lambda q, k, v: _masked(q, k, v, _causal(5)),
        QKV,
    ),
    equal(
        "causal attention against a mask of sdpa",
        lambda q, k, v: sdpa(q, k, v, is_causal=True),
        lambda q, k, v: sdpa(q, k, v, attn_mask=_causal(5)),
        QKV,
    ),
    equal(
        "causal attention against a bias",
        lambda q, k, v: sdpa(q, k, v, is_causal=True),
        lambda q, k, v: sdpa(q, k, v, attn_mask=torch.full((5, 5), -inf, dtype=q.dtype).triu(1)),
        QKV,
    ),
    equal(
        "causal attention by tril of exp",
        lambda q, k, v: sdpa(q, k, v, is_causal=True),
        lambda q, k, v: (scores(q, k).exp().tril() @ v) / scores(q, k).exp().tril().sum(-1, keepdim=True),
        QKV,
    ),
    equal(
        "the first query sees one key",
        lambda q, k, v: _masked(q, k, v, _causal(6))[0],
        lambda q, k, v: v[0] * 1,
        SAME,
    ),
    equal(
        "the last query sees all",
        lambda q, k, v: _masked(q, k, v, _causal(6))[-1],
        lambda q, k, v: plain(q[-1:], k, v)[0],
        SAME,
    ),
    equal(
        "a causal mask by positions",
        lambda q, k, v: _masked(q, k, v, _causal(6)),
        lambda q, k, v: _masked(q, k, v, torch.arange(6)[:, None] >= torch.arange(6)),
        SAME,
    ),
    equal(
        "a window by positions",
        lambda q, k, v: _masked(q, k, v, _window(6, 3)),
        lambda q, k, v: _masked(q, k, v, _causal(6) & ~_causal(6, -3)),
        SAME,
    ),
    equal(
        "a window of all is causal",
        lambda q, k, v: _masked(q, k, v, _window(6, 6)),
        lambda q, k, v: _masked(q, k, v, _causal(6)),
        SAME,
    ),
    equal("a window of one", lambda q, k, v: _masked(q, k, v, _window(6, 1)), lambda q, k, v: v * 1, SAME),
    equal(
        "a bias",
        lambda q, k, v, b: sdpa(q, k, v, attn_mask=b),
        lambda q, k, v, b: (scores(q, k) + b).softmax(-1) @ v,
        QKV + " f32[5,5]",
    ),
    equal(
        "a bias of queries falls out",
        lambda q, k, v, b: plain(q, k, v),
        lambda q, k, v, b: (scores(q, k) + b[:, None]).softmax(-1) @ v,
        ONE + " f32[5]",
    ),
    equal(
        "a bias of queries' own falls out",
        lambda q, k, v, b: plain(q, k, v),
        lambda q, k, v, b: plain(q, k + b, v),
        ONE + " f32[4]",
    ),
    equal(
        "a bias of values goes outside",
        lambda q, k, v, b: plain(q, k, v + b),
        lambda q, k, v, b: plain(q, k, v) + b,
        ONE + " f32[3]",
    ),
    equal("ALiBi by keys alone", _alibi, _alibi_of_keys, SAME),
    equal(
        "a boolean mask as where",
        lambda m, q, k, v: _masked(q, k, v, m),
        lambda m, q, k, v: torch.where(m, scores(q, k), -inf).softmax(-1) @ v,
        "bool[5,7] " + ONE,
    ),
    equal(
        "a boolean mask as a factor",
        lambda m, q, k, v: _masked(q, k, v, m),
        lambda m, q, k, v: ((scores(q, k).exp() * m) @ v) / (scores(q, k).exp() * m).sum(-1, keepdim=True),
        "bool[5,7] " + ONE,
    ),
    equal(
        "a mask of keys in sdpa",
        lambda m, q, k, v: (
            (scores(q, k).exp() @ (v * m[:, None])) / (scores(q, k).exp() * m).sum(-1, keepdim=True)
        ),
        lambda m, q, k, v: sdpa(q, k, v, attn_mask=m[None]),
        "bool[7] " + ONE,
    ),
    equal(
        "two masks",
        lambda m, n, q, k, v: _masked(q, k, v, m & n),
        lambda m, n, q, k, v: scores(q, k).masked_fill(~m, -inf).masked_fill(~n, -inf).softmax(-1) @ v,
        "bool[5,7] bool[5,7] " + ONE,
    ),
    equal(
        "a mask by segments",
        lambda i, q, k, v: _masked(q, k, v, i[:, None] == i),
        lambda i, q, k, v: (
            torch.where(i != i[:, None], 0.0, scores(q, k).exp())
            @ v
            / (scores(q, k).exp() * (i == i[:, None])).sum(-1, keepdim=True)
        ),
        "i64[6]<3 " + SAME,
    ),
)

WRONG = (
    wrong("no causal mask", lambda q, k, v: sdpa(q, k, v, is_causal=True), sdpa, QKV),
    wrong(
        "a causal mask one off",
        lambda q, k, v: _masked(q, k, v, _causal(6)),
        lambda q, k, v: _masked(q, k, v, _causal(6, 1)),
        SAME,
    ),
    wrong(
        "a causal mask of what is past",
        lambda q, k, v: _masked(q, k, v, _causal(6)),
        lambda q, k, v: _masked(q, k, v, _causal(6).T),
        SAME,
    ),
    wrong(
        "a mask after the softmax",
        lambda q, k, v: _masked(q, k, v, _causal(6)),
        lambda q, k, v: scores(q, k).softmax(-1).tril() @ v,
        SAME,
    ),
    wrong(
        "a mask of the weights only",
        lambda q, k, v: _masked(q, k, v, _causal(6)),
        lambda q, k, v: (scores(q, k).exp().tril() @ v) / scores(q, k).exp().sum(-1, keepdim=True),
        SAME,
    ),
    wrong(
        "a mask filled by zero",
        lambda m, q, k, v: _masked(q, k, v, m),
        lambda m, q, k, v: scores(q, k).masked_fill(~m, 0.0).softmax(-1) @ v,
        "bool[5,7] " + ONE,
    ),
    wrong(
        "a mask filled by minus ten",
        lambda m, q, k, v: _masked(q, k, v, m),
        lambda m, q, k, v: scores(q, k).masked_fill(~m, -10.0).softmax(-1) @ v,
        "bool[5,7] " + ONE,
    ),
    wrong(
        "a mask turned round",
        lambda m, q, k, v: _masked(q, k, v, m),
        lambda m, q, k, v: _masked(q, k, v, ~m),
        "bool[5,7] " + ONE,
    ),
    wrong(
        "a mask dropped",
        lambda m, q, k, v: _masked(q, k, v, m),
        lambda m, q, k, v: plain(q, k, v),
        "bool[5,7] " + ONE,
    ),
    wrong(
        "a mask of keys dropped from the sum",
        lambda m, q, k, v: _masked(q, k, v, m),
        lambda m, q, k, v: (scores(q, k).exp() @ (v * m[:, None])) / scores(q, k).exp().sum(-1, keepdim=True),
        "bool[7] " + ONE,
    ),
    wrong(
        "one of two masks dropped",
        lambda m, n, q, k, v: _masked(q, k, v, m & n),
        lambda m, n, q, k, v: _masked(q, k, v, m),
        "bool[5,7] bool[5,7] " + ONE,
    ),
    wrong(
        "a window one wider",
        lambda q, k, v: _masked(q, k, v, _window(6, 3)),
        lambda q, k, v: _masked(q, k, v, _window(6, 4)),
        SAME,
    ),
    wrong(
        "a wide window one wider",
        lambda q, k, v: _masked(q, k, v, _window(40, 21)),
        lambda q, k, v: _masked(q, k, v, _window(40, 22)),
        "f32[40,2] f32[40,2] f32[40,2]",
    ),
    wrong(
        "a window that looks ahead",
        lambda q, k, v: _masked(q, k, v, _window(6, 3)),
        lambda q, k, v: _masked(q, k, v, _window(6, 3).T),
        SAME,
    ),
    wrong(
        "segments dropped",
        lambda i, q, k, v: _masked(q, k, v, i[:, None] == i),
        lambda i, q, k, v: plain(q, k, v),
        "i64[6]<3 " + SAME,
    ),
    wrong("ALiBi with another slope", _alibi, lambda q, k, v: _alibi_of_keys(q, k, v, 0.125), SAME),
    wrong("ALiBi with a sign", _alibi, lambda q, k, v: _alibi_of_keys(q, k, v, -0.25), SAME),
    wrong(
        "a bias of keys dropped",
        lambda q, k, v, b: plain(q, k, v),
        lambda q, k, v, b: (scores(q, k) + b).softmax(-1) @ v,
        ONE + " f32[7]",
    ),
    wrong(
        "a bias scaled as the scores",
        lambda q, k, v, b: (scores(q, k) + b).softmax(-1) @ v,
        lambda q, k, v, b: ((q @ k.T + b) / 2).softmax(-1) @ v,
        ONE + " f32[5,7]",
    ),
)
