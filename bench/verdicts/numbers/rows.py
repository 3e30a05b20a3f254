"""Idioms of rows: softmax, its logarithm, and log-sum-exp."""

import math
from functools import partial

import torch
import torch.nn.functional as F
from torch import Tensor

from superopt.bench.verdicts.pairs import Pair

__all__ = ["IDIOMS", "WRONG"]

equal = partial(Pair, family="rows")
wrong = partial(Pair, equal=False, family="rows")

maximum = torch.maximum


def _lse(x: Tensor) -> Tensor:
    return x.exp().sum(-1, keepdim=True).log()


def _online(x: Tensor) -> Tensor:
    """Softmax in two halves, each with its own maximum."""
    a, b = x[:, :3], x[:, 3:]
    m, n = a.amax(-1, keepdim=True), b.amax(-1, keepdim=True)
    top = maximum(m, n)
    p, q = (a - m).exp(), (b - n).exp()
    total = p.sum(-1, keepdim=True) * (m - top).exp() + q.sum(-1, keepdim=True) * (n - top).exp()
    return torch.cat([p * (m - top).exp(), q * (n - top).exp()], -1) / total


def _merged(x: Tensor) -> Tensor:
    return torch.logaddexp(x[:, :2].logsumexp(-1), x[:, 2:].logsumexp(-1))


def _entropy(x: Tensor) -> Tensor:
    p = x.softmax(-1)
    return -(p * p.log()).sum(-1)


IDIOMS = (
    equal("softmax", lambda x: x.softmax(-1), lambda x: x.exp() / x.exp().sum(-1, keepdim=True), "f32[4,6]"),
    equal(
        "softmax with its maximum",
        lambda x: x.softmax(-1),
        lambda x: (
            (x - x.amax(-1, keepdim=True)).exp() / (x - x.amax(-1, keepdim=True)).exp().sum(-1, keepdim=True)
        ),
        "f32[4,6]",
    ),
    equal("softmax shifted", lambda x: x.softmax(-1), lambda x: (x + 3).softmax(-1), "f32[4,6]"),
    equal(
        "softmax shifted by a row's number",
        lambda x, b: x.softmax(-1),
        lambda x, b: (x - b[:, None]).softmax(-1),
        "f32[4,6] f32[4]",
    ),
    equal(
        "softmax centred",
        lambda x: x.softmax(-1),
        lambda x: (x - x.mean(-1, keepdim=True)).softmax(-1),
        "f32[4,6]",
    ),
    equal("softmax over rows", lambda x: x.softmax(0), lambda x: x.T.softmax(-1).T, "f32[4,6]"),
    equal(
        "softmax of two is a sigmoid",
        lambda x: x.softmax(-1)[:, 0],
        lambda x: (x[:, 0] - x[:, 1]).sigmoid(),
        "f32[4,2]",
    ),
    equal("softmax of one is one", lambda x: x.softmax(-1), lambda x: torch.ones_like(x), "f32[5,1]"),
    equal(
        "softmax sums to one", lambda x, y: x.softmax(-1).sum(-1) * y, lambda x, y: y * 1, "f32[4,6] f32[4]"
    ),
    equal(
        "softmax at a temperature",
        lambda x: (x / 0.7).softmax(-1),
        lambda x: (x * (1 / 0.7)).softmax(-1),
        "f32[4,6]",
    ),
    equal("softmax of log", lambda x: x.log().softmax(-1), lambda x: x / x.sum(-1, keepdim=True), "f32[4,6]"),
    equal(
        "softmax of log softmax", lambda x: x.log_softmax(-1).softmax(-1), lambda x: x.softmax(-1), "f32[4,6]"
    ),
    equal("softmax in two halves", lambda x: x.softmax(-1), _online, "f32[4,7]"),
    equal("softmin", lambda x: F.softmin(x, -1), lambda x: (-x).softmax(-1), "f32[4,6]"),
    equal(
        "log softmax", lambda x: x.log_softmax(-1), lambda x: x - x.logsumexp(-1, keepdim=True), "f32[4,6]"
    ),
    equal("log softmax written out", lambda x: x.log_softmax(-1), lambda x: x - _lse(x), "f32[4,6]"),
    equal("log softmax as it says", lambda x: x.log_softmax(-1), lambda x: x.softmax(-1).log(), "f32[4,6]"),
    equal("exp of log softmax", lambda x: x.log_softmax(-1).exp(), lambda x: x.softmax(-1), "f32[4,6]"),
    equal(
        "log softmax with its maximum",
        lambda x: x.log_softmax(-1),
        lambda x: (x - x.amax(-1, keepdim=True)) - _lse(x - x.amax(-1, keepdim=True)),
        "f32[4,6]",
    ),
    equal("logsumexp", lambda x: x.logsumexp(-1), lambda x: x.exp().sum(-1).log(), "f32[4,6]"),
    equal(
        "logsumexp with its maximum",
        lambda x: x.logsumexp(-1),
        lambda x: (x - x.amax(-1, keepdim=True)).exp().sum(-1).log() + x.amax(-1),
        "f32[4,6]",
    ),
    equal("logsumexp shifted", lambda x: (x + 2).logsumexp(-1), lambda x: x.logsumexp(-1) + 2, "f32[4,6]"),
    equal("logsumexp merged from parts", lambda x: x.logsumexp(-1), _merged, "f32[4,7]"),
    equal(
        "logsumexp of parts",
        lambda x: x.logsumexp(-1),
        lambda x: torch.stack([x[:, :3].logsumexp(-1), x[:, 3:].logsumexp(-1)], -1).logsumexp(-1),
        "f32[4,7]",
    ),
    equal(
        "logsumexp of all", lambda x: x.logsumexp((0, 1)), lambda x: x.logsumexp(1).logsumexp(0), "f32[4,6]"
    ),
    equal("logaddexp", torch.logaddexp, lambda a, b: (a.exp() + b.exp()).log(), "f32[5] f32[5]"),
    equal("logaddexp by softplus", torch.logaddexp, lambda a, b: a + F.softplus(b - a), "f32[5] f32[5]"),
    equal("the exp of logsumexp", lambda x: x.logsumexp(-1).exp(), lambda x: x.exp().sum(-1), "f32[4,6]"),
    equal("entropy", _entropy, lambda x: x.logsumexp(-1) - (x.softmax(-1) * x).sum(-1), "f32[4,6]"),
    equal(
        "entropy by log softmax",
        _entropy,
        lambda x: -(x.log_softmax(-1).exp() * x.log_softmax(-1)).sum(-1),
        "f32[4,6]",
    ),
    equal(
        "a gumbel softmax's noise",
        lambda x, u: (x - (-u.log()).log()).softmax(-1),
        lambda x, u: (x.exp() / -u.log()) / (x.exp() / -u.log()).sum(-1, keepdim=True),
        "f32[4,6] f32[4,6]",
    ),
)

WRONG = (
    wrong("softmax over the other axis", lambda x: x.softmax(-1), lambda x: x.softmax(0), "f32[5,5]"),
    wrong("softmax scaled", lambda x: x.softmax(-1), lambda x: (2 * x).softmax(-1), "f32[4,6]"),
    wrong(
        "softmax shifted by a column's number",
        lambda x, b: x.softmax(-1),
        lambda x, b: (x - b).softmax(-1),
        "f32[4,6] f32[6]",
    ),
    wrong(
        "softmax in halves without rescaling",
        lambda x: x.softmax(-1),
        lambda x: torch.cat([x[:, :3].softmax(-1), x[:, 3:].softmax(-1)], -1) / 2,
        "f32[4,6]",
    ),
    wrong(
        "softmax with one maximum missing",
        lambda x: x.softmax(-1),
        lambda x: (x - x.amax(-1, keepdim=True)).exp() / x.exp().sum(-1, keepdim=True),
        "f32[4,6]",
    ),
    wrong(
        "softmax of two turned",
        lambda x: x.softmax(-1)[:, 0],
        lambda x: (x[:, 1] - x[:, 0]).sigmoid(),
        "f32[4,2]",
    ),
    wrong(
        "softmax of log softmax scaled",
        lambda x: (2 * x.log_softmax(-1)).softmax(-1),
        lambda x: x.softmax(-1),
        "f32[4,6]",
    ),
    wrong(
        "softmax plus one",
        lambda x: x.softmax(-1),
        lambda x: x.exp() / (1 + x.exp().sum(-1, keepdim=True)),
        "f32[4,6]",
    ),
    wrong(
        "softmax of a column less", lambda x: x.softmax(-1)[:, :5], lambda x: x[:, :5].softmax(-1), "f32[4,6]"
    ),
    wrong(
        "log softmax of a mean",
        lambda x: x.log_softmax(-1),
        lambda x: x - x.exp().mean(-1, keepdim=True).log(),
        "f32[4,6]",
    ),
    wrong(
        "log softmax base 2",
        lambda x: x.log_softmax(-1),
        lambda x: x - x.exp().sum(-1, keepdim=True).log2(),
        "f32[4,6]",
    ),
    wrong(
        "logsumexp without its maximum",
        lambda x: x.logsumexp(-1),
        lambda x: (x - x.amax(-1, keepdim=True)).exp().sum(-1).log(),
        "f32[4,6]",
    ),
    wrong(
        "logsumexp merged by a sum",
        lambda x: x.logsumexp(-1),
        lambda x: x[:, :2].logsumexp(-1) + x[:, 2:].logsumexp(-1),
        "f32[4,7]",
    ),
    wrong(
        "logsumexp merged with an overlap",
        lambda x: x.logsumexp(-1),
        lambda x: torch.logaddexp(x[:, :3].logsumexp(-1), x[:, 2:].logsumexp(-1)),
        "f32[4,7]",
    ),
    wrong("logsumexp for a maximum", lambda x: x.logsumexp(-1), lambda x: x.amax(-1), "f32[4,6]"),
    wrong(
        "logaddexp turned in one place", torch.logaddexp, lambda a, b: a + F.softplus(a - b), "f32[5] f32[5]"
    ),
    wrong(
        "logaddexp of a difference", torch.logaddexp, lambda a, b: a + (a - b).exp().log1p(), "f32[5] f32[5]"
    ),
    wrong("entropy with its sign", _entropy, lambda x: -_entropy(x), "f32[4,6]"),
    wrong("entropy in bits", _entropy, lambda x: _entropy(x) / math.log(2), "f32[4,6]"),
)
