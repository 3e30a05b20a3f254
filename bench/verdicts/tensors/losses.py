"""Idioms of training: errors, cross entropy, divergences, updates of weights."""

import math
from functools import partial

import torch
import torch.nn.functional as F
from torch import Tensor

from superopt.bench.verdicts.pairs import Pair

__all__ = ["IDIOMS", "WRONG"]

equal = partial(Pair, family="losses")
wrong = partial(Pair, equal=False, family="losses")

_LOGITS = "f32[4,5] i64[4]<5"


def _picked(x: Tensor, t: Tensor) -> Tensor:
    return x.gather(-1, t[:, None])[:, 0]


def _adam(p: Tensor, g: Tensor, m: Tensor, v: Tensor) -> Tensor:
    m, v = 0.9 * m + 0.1 * g, 0.999 * v + 0.001 * g * g
    return p - 0.01 * (m / 0.1) / ((v / 0.001).sqrt() + 1e-8)


IDIOMS = (
    equal("mean squared error", F.mse_loss, lambda x, y: (x - y).square().mean(), "f32[4,5] f32[4,5]"),
    equal("mean squared error turned", F.mse_loss, lambda x, y: F.mse_loss(y, x), "f32[4,5] f32[4,5]"),
    equal("mean absolute error", F.l1_loss, lambda x, y: (x - y).abs().mean(), "f32[4,5] f32[4,5]"),
    equal(
        "Huber",
        F.huber_loss,
        lambda x, y: torch.where((x - y).abs() <= 1, 0.5 * (x - y).square(), (x - y).abs() - 0.5).mean(),
        "f32[4,5] f32[4,5]",
    ),
    equal(
        "Huber by clamp",
        lambda x, y: F.huber_loss(x, y, reduction="none"),
        lambda x, y: (x - y).abs().clamp(max=1) * ((x - y).abs() - 0.5 * (x - y).abs().clamp(max=1)),
        "f32[5] f32[5]",
    ),
    equal("smooth l1", F.smooth_l1_loss, F.huber_loss, "f32[4,5] f32[4,5]"),
    equal(
        "cross entropy of soft labels",
        F.cross_entropy,
        lambda x, p: -(p * x.log_softmax(-1)).sum(-1).mean(),
        "f32[4,5] f32[4,5]",
    ),
    # Of a class that is ignored, the written-out loss would raise.
    equal("cross entropy", lambda x, t: -_picked(x.log_softmax(-1), t).mean(), F.cross_entropy, _LOGITS),
    equal(
        "cross entropy by logsumexp",
        lambda x, t: (x.logsumexp(-1) - _picked(x, t)).mean(),
        F.cross_entropy,
        _LOGITS,
    ),
    equal(
        "cross entropy by one hot",
        lambda x, t: -(F.one_hot(t, 5) * x.log_softmax(-1)).sum(-1).mean(),
        F.cross_entropy,
        _LOGITS,
    ),
    equal("nll", lambda x, t: F.nll_loss(x.log_softmax(-1), t), F.cross_entropy, _LOGITS),
    equal(
        "label smoothing",
        lambda x, t: F.cross_entropy(x, t, label_smoothing=0.1, reduction="sum"),
        lambda x, t: (
            0.9 * F.cross_entropy(x, t, reduction="sum")
            - 0.1 * (x.log_softmax(-1).mean(-1) * (t != -100)).sum()
        ),
        _LOGITS,
    ),
    equal(
        "binary cross entropy of logits",
        lambda x, y: F.binary_cross_entropy_with_logits(x, y),
        lambda x, y: (F.softplus(x) - x * y).mean(),
        "f32[4,5] f32[4,5]",
    ),
    equal(
        "binary cross entropy, stable",
        lambda x, y: F.binary_cross_entropy_with_logits(x, y),
        lambda x, y: (x.relu() - x * y + (-x.abs()).exp().log1p()).mean(),
        "f32[4,5] f32[4,5]",
    ),
    equal(
        "KL of logits",
        lambda x, y: F.kl_div(x.log_softmax(-1), y.log_softmax(-1), log_target=True, reduction="sum"),
        lambda x, y: (y.softmax(-1) * (y.log_softmax(-1) - x.log_softmax(-1))).sum(),
        "f32[4,5] f32[4,5]",
    ),
    equal(
        "hinge",
        lambda x, y: (1 - x * y).relu().mean(),
        lambda x, y: (1 - x * y).clamp(min=0).mean(),
        "f32[5] f32[5]",
    ),
    equal(
        "a triplet's margin",
        lambda a, b: (a - b + 0.2).relu(),
        lambda a, b: torch.maximum(a + 0.2, b) - b,
        "f32[5] f32[5]",
    ),
    equal(
        "KL of normals",
        lambda m, s: -0.5 * (1 + s - m.square() - s.exp()).sum(),
        lambda m, s: 0.5 * (s.exp() + m * m - s - 1).sum(),
        "f32[5] f32[5]",
    ),
    equal(
        "a contrastive loss",
        lambda a, b: F.cross_entropy(a @ b.T, torch.arange(4)),
        lambda a, b: ((a @ b.T).logsumexp(-1) - (a * b).sum(-1)).mean(),
        "f32[4,5] f32[4,5]",
    ),
    equal(
        "a policy's clipped ratio",
        lambda r, a: torch.minimum(r * a, r.clamp(0.8, 1.2) * a),
        lambda r, a: torch.where(
            a >= 0, torch.minimum(r, r.clamp(0.8, 1.2)) * a, torch.maximum(r, r.clamp(0.8, 1.2)) * a
        ),
        "f32[5] f32[5]",
    ),
    equal(
        "an update with momentum",
        lambda p, g, m: p - 0.1 * (0.9 * m + g),
        lambda p, g, m: p - 0.09 * m - 0.1 * g,
        "f64[5] f64[5] f64[5]",
    ),
    equal(
        "weight decay",
        lambda p, g: p * (1 - 0.01 * 0.1) - 0.01 * g,
        lambda p, g: p - 0.01 * (g + 0.1 * p),
        "f64[5] f64[5]",
    ),
    equal(
        "Adam's corrections",
        _adam,
        lambda p, g, m, v: (
            p - 0.1 * (0.9 * m + 0.1 * g) / ((0.999 * v + 0.001 * g * g).sqrt() / math.sqrt(0.001) + 1e-8)
        ),
        "f64[5] f64[5] f64[5] f64[5]",
    ),
)

WRONG = (
    wrong(
        "an ignored class counted",
        lambda x, t: F.nll_loss(x, t, ignore_index=2, reduction="sum"),
        lambda x, t: F.nll_loss(x, t, reduction="sum"),
        _LOGITS,
    ),
    wrong("a sum for a mean of errors", F.mse_loss, lambda x, y: (x - y).square().sum(), "f32[4,5] f32[4,5]"),
    wrong(
        "Huber without its half",
        F.huber_loss,
        lambda x, y: torch.where((x - y).abs() <= 1, 0.5 * (x - y).square(), (x - y).abs()).mean(),
        "f32[4,5] f32[4,5]",
    ),
    wrong(
        "Huber with another delta",
        F.huber_loss,
        lambda x, y: F.huber_loss(x, y, delta=1.5),
        "f32[4,5] f32[4,5]",
    ),
    wrong(
        "cross entropy of another target", F.cross_entropy, lambda x, t: F.cross_entropy(x, 4 - t), _LOGITS
    ),
    wrong(
        "cross entropy of probabilities",
        F.cross_entropy,
        lambda x, t: F.cross_entropy(x.softmax(-1), t),
        _LOGITS,
    ),
    wrong(
        "cross entropy summed", F.cross_entropy, lambda x, t: F.cross_entropy(x, t, reduction="sum"), _LOGITS
    ),
    wrong("nll of logits", F.nll_loss, F.cross_entropy, _LOGITS),
    wrong("a target left out", lambda x, t: F.cross_entropy(x, t, ignore_index=0), F.cross_entropy, _LOGITS),
    wrong(
        "label smoothing of another share",
        lambda x, t: F.cross_entropy(x, t, label_smoothing=0.1),
        lambda x, t: 0.8 * F.cross_entropy(x, t) - 0.2 * x.log_softmax(-1).mean(),
        _LOGITS,
    ),
    wrong(
        "KL turned",
        lambda x, y: F.kl_div(x.log_softmax(-1), y.softmax(-1), reduction="sum"),
        lambda x, y: F.kl_div(y.log_softmax(-1), x.softmax(-1), reduction="sum"),
        "f32[4,5] f32[4,5]",
    ),
    wrong(
        "binary cross entropy with a sign",
        F.binary_cross_entropy_with_logits,
        lambda x, y: (F.softplus(-x) - x * y).mean(),
        "f32[4,5] f32[4,5]",
    ),
    wrong(
        "a hinge of another margin",
        lambda x, y: (1 - x * y).relu(),
        lambda x, y: (1.1 - x * y).relu(),
        "f32[5] f32[5]",
    ),
    wrong(
        "a policy's ratio clipped only",
        lambda r, a: torch.minimum(r * a, r.clamp(0.8, 1.2) * a),
        lambda r, a: r.clamp(0.8, 1.2) * a,
        "f32[5] f32[5]",
    ),
    wrong(
        "Adam's epsilon inside the root",
        _adam,
        lambda p, g, m, v: (
            p - 0.1 * (0.9 * m + 0.1 * g) / ((0.999 * v + 0.001 * g * g) / 0.001 + 1e-8).sqrt()
        ),
        "f64[5] f64[5] f64[5] f64[5]",
    ),
    wrong(
        "a decay of 0.999 for 0.9990001",
        lambda v, g: 0.999 * v + 0.001 * g,
        lambda v, g: 0.9990001 * v + 0.001 * g,
        "f64[5] f64[5]",
    ),
)
