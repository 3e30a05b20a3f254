"""Idioms of attention: scales, groups of heads, keys in parts, and what is absorbed."""

import math
from functools import partial

import torch
import torch.nn.functional as F
from torch import Tensor

from superopt.bench.verdicts.pairs import Pair

__all__ = ["IDIOMS", "ONE", "QKV", "SAME", "WRONG", "plain", "scores", "sdpa"]

equal = partial(Pair, family="attention")
wrong = partial(Pair, equal=False, family="attention")

sdpa = F.scaled_dot_product_attention
QKV = "f32[2,3,5,4] f32[2,3,5,4] f32[2,3,5,4]"
ONE = "f32[5,4] f32[7,4] f32[7,3]"
SAME = "f32[6,4] f32[6,4] f32[6,3]"


def scores(q: Tensor, k: Tensor) -> Tensor:
    """Return the scaled products of queries and keys."""
    return q @ k.transpose(-1, -2) / math.sqrt(q.shape[-1])


def plain(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """Return attention without a mask."""
    return scores(q, k).softmax(-1) @ v


def _in_parts(q: Tensor, k: Tensor, v: Tensor, at: int = 3) -> Tensor:
    """Keys in two parts, merged by their log-sum-exps."""
    s = scores(q, k)
    a, b = s[..., :at], s[..., at:]
    left, right = a.softmax(-1) @ v[..., :at, :], b.softmax(-1) @ v[..., at:, :]
    m, n = a.logsumexp(-1, keepdim=True), b.logsumexp(-1, keepdim=True)
    total = torch.logaddexp(m, n)
    return (m - total).exp() * left + (n - total).exp() * right


def _in_parts_by_weights(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    s = scores(q, k)
    p, r = s[..., :3].exp(), s[..., 3:].exp()
    top = p @ v[..., :3, :] + r @ v[..., 3:, :]
    return top / (p.sum(-1, keepdim=True) + r.sum(-1, keepdim=True))


def _online(q: Tensor, k: Tensor, v: Tensor, *, forget: bool = False) -> Tensor:
    """Keys one block after the other, with a running maximum and a running sum."""
    s = scores(q, k)
    m = s[..., :2].amax(-1, keepdim=True)
    e = (s[..., :2] - m).exp()
    total, out = e.sum(-1, keepdim=True), e @ v[..., :2, :]
    for at in (2, 4):
        part = s[..., at : at + 2]
        top = torch.maximum(m, part.amax(-1, keepdim=True))
        e = (part - top).exp()
        factor = (m - top).exp()
        total = total * factor + e.sum(-1, keepdim=True)
        out = (out if forget else out * factor) + e @ v[..., at : at + 2, :]
        m = top
    return out / total


def _grouped(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    return plain(q, k.repeat_interleave(3, 1), v.repeat_interleave(3, 1))


def _grouped_by_views(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    made = plain(q.reshape(2, 2, 3, 5, 4), k[:, :, None], v[:, :, None])
    return made.reshape(2, 6, 5, 4)


def _heads(x: Tensor, wq: Tensor, wk: Tensor, wv: Tensor, wo: Tensor) -> Tensor:
    q, k, v = ((x @ w).view(5, 2, 3).transpose(0, 1) for w in (wq, wk, wv))
    return plain(q, k, v).transpose(0, 1).reshape(5, 6) @ wo


def _heads_added(x: Tensor, wq: Tensor, wk: Tensor, wv: Tensor, wo: Tensor) -> Tensor:
    made = [plain(x @ wq[:, at], x @ wk[:, at], x @ wv[:, at]) @ wo[at] for at in (slice(0, 3), slice(3, 6))]
    return made[0] + made[1]


def _sink(q: Tensor, k: Tensor, v: Tensor, s: Tensor) -> Tensor:
    p = scores(q, k).exp()
    return (p @ v) / (p.sum(-1, keepdim=True) + s.exp())


def _sink_as_a_key(q: Tensor, k: Tensor, v: Tensor, s: Tensor) -> Tensor:
    with_sink = torch.cat([scores(q, k), s.expand(5, 1)], -1)
    return with_sink.softmax(-1)[:, :-1] @ v


def _linear(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    return (q @ k.T) @ v


IDIOMS = (
    equal("attention", sdpa, plain, QKV),
    equal(
        "attention, delayed division",
        sdpa,
        lambda q, k, v: (scores(q, k).exp() @ v) / scores(q, k).exp().sum(-1, keepdim=True),
        QKV,
    ),
    equal(
        "attention with a maximum",
        plain,
        lambda q, k, v: (
            ((scores(q, k) - scores(q, k).amax(-1, keepdim=True)).exp() @ v)
            / (scores(q, k) - scores(q, k).amax(-1, keepdim=True)).exp().sum(-1, keepdim=True)
        ),
        ONE,
    ),
    equal("queries scaled", sdpa, lambda q, k, v: sdpa(q * 0.5, k, v, scale=1.0), QKV),
    equal(
        "queries and keys scaled",
        sdpa,
        lambda q, k, v: ((q * 4**-0.25) @ (k * 4**-0.25).transpose(-1, -2)).softmax(-1) @ v,
        QKV,
    ),
    equal(
        "attention by einsum",
        sdpa,
        lambda q, k, v: torch.einsum(
            "bhij,bhjd->bhid", (torch.einsum("bhid,bhjd->bhij", q, k) / 2).softmax(-1), v
        ),
        QKV,
    ),
    equal(
        "attention by exp2",
        plain,
        lambda q, k, v: (lambda p: (p @ v) / p.sum(-1, keepdim=True))(
            (scores(q, k) * math.log2(math.e)).exp2()
        ),
        ONE,
    ),
    equal("groups of heads", _grouped, _grouped_by_views, "f32[2,6,5,4] f32[2,2,7,4] f32[2,2,7,4]"),
    equal(
        "groups of heads in sdpa",
        lambda q, k, v: sdpa(q, k, v, enable_gqa=True),
        _grouped_by_views,
        "f32[2,6,5,4] f32[2,2,7,4] f32[2,2,7,4]",
    ),
    equal(
        "one head of keys",
        lambda q, k, v: plain(q, k.expand(2, 3, 5, 4), v.expand(2, 3, 5, 4)),
        lambda q, k, v: plain(q.flatten(1, 2), k[:, 0], v[:, 0]).view(2, 3, 5, 4),
        "f32[2,3,5,4] f32[2,1,5,4] f32[2,1,5,4]",
    ),
    equal("keys in parts, merged by logsumexp", plain, _in_parts, ONE),
    equal("keys in parts, merged by weights", plain, _in_parts_by_weights, ONE),
    equal("keys one block after the other", plain, _online, SAME),
    equal("keys in another order", plain, lambda q, k, v: plain(q, k.flip(0), v.flip(0)), ONE),
    equal(
        "keys from a cache",
        lambda q, k, v, a, b: plain(q, torch.cat([a, k]), torch.cat([b, v])),
        lambda q, k, v, a, b: plain(q, torch.cat([k, a]), torch.cat([v, b])),
        ONE + " f32[2,4] f32[2,3]",
    ),
    equal(
        "one query of a batch",
        lambda q, k, v: plain(q, k, v)[2],
        lambda q, k, v: plain(q[2:3], k, v)[0],
        ONE,
    ),
    equal("heads added up", _heads, _heads_added, "f32[5,4] f32[4,6] f32[4,6] f32[4,6] f32[6,4]"),
    equal(
        "the output's weights absorbed",
        lambda q, k, v, w: plain(q, k, v) @ w,
        lambda q, k, v, w: plain(q, k, v @ w),
        ONE + " f32[3,2]",
    ),
    equal(
        "the keys' weights absorbed",
        lambda q, k, v, w: plain(q, k @ w, v),
        lambda q, k, v, w: ((q @ w.T) @ k.T / 2).softmax(-1) @ v,
        ONE + " f32[4,4]",
    ),
    equal("a sink", _sink, _sink_as_a_key, ONE + " f32[1]"),
    equal(
        "a soft cap of scores",
        lambda q, k, v: (20 * (scores(q, k) / 20).tanh()).softmax(-1) @ v,
        lambda q, k, v: (20.0 * (q @ k.T * (1 / 40)).tanh()).softmax(-1) @ v,
        ONE,
    ),
    equal(
        "sigmoid attention",
        lambda q, k, v: scores(q, k).sigmoid() @ v,
        lambda q, k, v: (1 / (1 + (-scores(q, k)).exp())) @ v,
        ONE,
    ),
    equal(
        "relu attention",
        lambda q, k, v: scores(q, k).relu() @ v,
        lambda q, k, v: ((q @ k.T).relu() @ v) / 2,
        ONE,
    ),
    equal("linear attention", _linear, lambda q, k, v: q @ (k.T @ v), ONE),
    equal(
        "causal linear attention",
        lambda q, k, v: (q @ k.T).tril() @ v,
        lambda q, k, v: torch.stack([q[i] @ (k[: i + 1].T @ v[: i + 1]) for i in range(6)]),
        SAME,
    ),
    equal(
        "a differential of two softmaxes",
        lambda q, k, v: (scores(q, k).softmax(-1) - 0.8 * scores(k[:5], k).softmax(-1)) @ v,
        lambda q, k, v: plain(q, k, v) - 0.8 * plain(k[:5], k, v),
        ONE,
    ),
    equal(
        "queries normalized",
        lambda q, k, v: plain(F.normalize(q, dim=-1, eps=0.0), k, v),
        lambda q, k, v: (q @ k.T / (2 * q.square().sum(-1, keepdim=True).sqrt())).softmax(-1) @ v,
        ONE,
    ),
)

WRONG = (
    wrong("no scale", sdpa, lambda q, k, v: (q @ k.transpose(-1, -2)).softmax(-1) @ v, QKV),
    wrong("a scale by the size", sdpa, lambda q, k, v: sdpa(q, k, v, scale=0.25), QKV),
    wrong(
        "a scale of the keys' number",
        sdpa,
        lambda q, k, v: (q @ k.transpose(-1, -2) / 5**0.5).softmax(-1) @ v,
        QKV,
    ),
    wrong("softmax over queries", plain, lambda q, k, v: scores(q, k).softmax(0) @ v, SAME),
    wrong("keys for values", sdpa, lambda q, k, v: sdpa(q, v, k), QKV),
    wrong("queries for keys", sdpa, lambda q, k, v: sdpa(k, q, v), QKV),
    wrong(
        "groups interleaved otherwise",
        _grouped,
        lambda q, k, v: plain(q, k.repeat(1, 3, 1, 1), v.repeat(1, 3, 1, 1)),
        "f32[2,6,5,4] f32[2,2,7,4] f32[2,2,7,4]",
    ),
    wrong(
        "groups of keys only",
        _grouped,
        lambda q, k, v: plain(q, k.repeat_interleave(3, 1), v.repeat(1, 3, 1, 1)),
        "f32[2,6,5,4] f32[2,2,7,4] f32[2,2,7,4]",
    ),
    wrong(
        "parts merged without weights",
        plain,
        lambda q, k, v: (plain(q, k[:3], v[:3]) + plain(q, k[3:], v[3:])) / 2,
        ONE,
    ),
    wrong("parts of unlike values", plain, lambda q, k, v: _in_parts(q, k, torch.cat([v[1:], v[:1]])), ONE),
    wrong("a running sum not rescaled", plain, lambda q, k, v: _online(q, k, v, forget=True), SAME),
    wrong("values in another order", plain, lambda q, k, v: plain(q, k, v.flip(0)), ONE),
    wrong("a key less", plain, lambda q, k, v: plain(q, k[:6], v[:6]), ONE),
    wrong(
        "heads not transposed back",
        lambda q, k, v: plain(q, k, v).transpose(1, 2).reshape(2, 5, 12),
        lambda q, k, v: plain(q, k, v).reshape(2, 5, 12),
        QKV,
    ),
    wrong("a sink dropped", _sink, lambda q, k, v, s: plain(q, k, v), ONE + " f32[1]"),
    wrong(
        "a soft cap dropped", lambda q, k, v: (20 * (scores(q, k) / 20).tanh()).softmax(-1) @ v, plain, ONE
    ),
    wrong("linear attention, causal or not", lambda q, k, v: (q @ k.T).tril() @ v, _linear, SAME),
)
