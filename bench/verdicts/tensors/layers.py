"""Idioms of layers: norms, projections, adapters, gated networks."""

import math
from functools import partial

import torch
import torch.nn.functional as F
from torch import Tensor

from superopt.bench.verdicts.pairs import Pair

__all__ = ["IDIOMS", "WRONG"]

equal = partial(Pair, family="layers")
wrong = partial(Pair, equal=False, family="layers")

_NORM = "f32[4,6] f32[6] f32[6]"
_BATCH = "f32[2,3,4,5] f32[3] f32[3] f32[3] f32[3]"


def _rms(x: Tensor, g: Tensor | float, eps: float = 1e-6) -> Tensor:
    return x * (x.square().mean(-1, keepdim=True) + eps).rsqrt() * g


def _layer(x: Tensor, g: Tensor, b: Tensor, eps: float = 1e-5, unbiased: bool = False) -> Tensor:
    mean = x.mean(-1, keepdim=True)
    return (x - mean) / (x.var(-1, unbiased=unbiased, keepdim=True) + eps).sqrt() * g + b


def _batch(x: Tensor, m: Tensor, v: Tensor, g: Tensor, b: Tensor) -> Tensor:
    return F.batch_norm(x, m, v.exp(), g, b, training=False, eps=1e-5)


def _folded(x: Tensor, m: Tensor, v: Tensor, g: Tensor, b: Tensor, eps: float = 1e-5) -> Tensor:
    scale = g * (v.exp() + eps).rsqrt()
    return x * scale[:, None, None] + (b - m * scale)[:, None, None]


def _group(x: Tensor, g: Tensor, b: Tensor, size: int = 2) -> Tensor:
    parts = x.reshape(2, size, -1)
    mean = parts.mean(-1, keepdim=True)
    parts = (parts - mean) * (parts.var(-1, unbiased=False, keepdim=True) + 1e-5).rsqrt()
    return parts.reshape(x.shape) * g[:, None] + b[:, None]


def _conv_folded(x: Tensor, w: Tensor, g: Tensor, m: Tensor) -> Tensor:
    return F.conv2d(x, w * g[:, None, None, None]) - (m * g)[:, None, None]


IDIOMS = (
    equal("rms norm", lambda x, g: F.rms_norm(x, (6,), g, eps=1e-6), _rms, "f32[4,6] f32[6]"),
    equal(
        "rms norm as a quotient",
        _rms,
        lambda x, g: x / (x.square().sum(-1, keepdim=True) / 6 + 1e-6).sqrt() * g,
        "f32[4,6] f32[6]",
    ),
    equal(
        "rms norm, its gain in the weights",
        lambda x, g, w: _rms(x, g) @ w,
        lambda x, g, w: (x @ (g[:, None] * w)) / (x.square().mean(-1, keepdim=True) + 1e-6).sqrt(),
        "f32[4,6] f32[6] f32[6,3]",
    ),
    equal(
        "rms norm of one more",
        lambda x, g: _rms(x, 1 + g),
        lambda x, g: _rms(x, g) + _rms(x, 1.0),
        "f32[4,6] f32[6]",
    ),
    equal("rms norm of a scaled row", lambda x, g: _rms(2 * x, g, 4e-6), _rms, "f32[4,6] f32[6]"),
    equal("layer norm", lambda x, g, b: F.layer_norm(x, (6,), g, b), _layer, _NORM),
    equal(
        "layer norm in one pass",
        lambda x, g, b: F.layer_norm(x, (6,), g, b),
        lambda x, g, b: (
            (x - x.mean(-1, keepdim=True))
            * (x.square().mean(-1, keepdim=True) - x.mean(-1, keepdim=True) ** 2 + 1e-5).rsqrt()
            * g
            + b
        ),
        _NORM,
    ),
    equal(
        "layer norm is rms norm of what is centred",
        lambda x, g, b: F.layer_norm(x, (6,), g, b),
        lambda x, g, b: _rms(x - x.mean(-1, keepdim=True), g, 1e-5) + b,
        _NORM,
    ),
    equal(
        "layer norm of a shifted row",
        lambda x, g, b: F.layer_norm(x + 3, (6,), g, b),
        lambda x, g, b: F.layer_norm(x, (6,), g, b),
        _NORM,
    ),
    equal(
        "layer norm into a linear layer",
        lambda x, g, b, w: F.layer_norm(x, (6,), g, b) @ w,
        lambda x, g, b, w: F.layer_norm(x, (6,)) @ (g[:, None] * w) + b @ w,
        _NORM + " f32[6,3]",
    ),
    equal(
        "batch norm",
        _batch,
        lambda x, m, v, g, b: (
            (x - m[:, None, None]) / (v.exp() + 1e-5).sqrt()[:, None, None] * g[:, None, None]
            + b[:, None, None]
        ),
        _BATCH,
    ),
    equal("batch norm folded", _batch, _folded, _BATCH),
    equal(
        "batch norm folded into a linear layer",
        lambda x, w, m, g: (x @ w - m) * g,
        lambda x, w, m, g: x @ (w * g) - m * g,
        "f32[4,5] f32[5,3] f32[3] f32[3]",
    ),
    equal(
        "batch norm folded into a convolution",
        lambda x, w, g, m: (F.conv2d(x, w) - m[:, None, None]) * g[:, None, None],
        _conv_folded,
        "f32[2,3,5,5] f32[4,3,3,3] f32[4] f32[4]",
    ),
    equal("group norm", lambda x, g, b: F.group_norm(x, 2, g, b), _group, "f32[2,4,3] f32[4] f32[4]"),
    equal(
        "group norm of one group",
        lambda x: F.group_norm(x, 1),
        lambda x: F.layer_norm(x, (4, 3)),
        "f32[2,4,3]",
    ),
    equal("instance norm", lambda x: F.instance_norm(x), lambda x: F.group_norm(x, 4), "f32[2,4,3]"),
    equal(
        "normalize",
        lambda x: F.normalize(x, dim=-1),
        lambda x: x / x.norm(dim=-1, keepdim=True).clamp(min=1e-12),
        "f32[4,6]",
    ),
    equal(
        "weight norm",
        lambda x, v, g: x @ (g[:, None] * v / v.norm(dim=1, keepdim=True)).T,
        lambda x, v, g: (x @ v.T) * (g / v.norm(dim=1)),
        "f32[4,5] f32[3,5] f32[3]",
    ),
    equal("a linear layer", F.linear, lambda x, w, b: x @ w.T + b, "f32[4,5] f32[3,5] f32[3]"),
    equal(
        "two linear layers",
        lambda x, v, w: F.linear(F.linear(x, v), w),
        lambda x, v, w: F.linear(x, w @ v),
        "f32[4,5] f32[3,5] f32[2,3]",
    ),
    equal(
        "a bias passed through",
        lambda x, b, w: (x + b) @ w,
        lambda x, b, w: x @ w + b @ w,
        "f32[4,5] f32[5] f32[5,3]",
    ),
    equal(
        "a residual",
        lambda x, w: x + x @ w,
        lambda x, w: x @ (torch.eye(5, dtype=x.dtype) + w),
        "f32[4,5] f32[5,5]",
    ),
    equal(
        "LoRA merged",
        lambda x, w, a, b: x @ w + 2 * (x @ a) @ b,
        lambda x, w, a, b: x @ (w + 2 * a @ b),
        "f32[4,5] f32[5,3] f32[5,2] f32[2,3]",
    ),
    equal(
        "LoRA with alpha over rank",
        lambda x, w, a, b: F.linear(x, w) + F.linear(F.linear(x, a), b) * (16 / 2),
        lambda x, w, a, b: F.linear(x, w + 8 * (b @ a)),
        "f32[4,5] f32[3,5] f32[2,5] f32[3,2]",
    ),
    equal(
        "two LoRAs stacked",
        lambda x, a, b, c, d: x @ a @ b + x @ c @ d,
        lambda x, a, b, c, d: x @ torch.cat([a, c], 1) @ torch.cat([b, d], 0),
        "f32[4,5] f32[5,2] f32[2,3] f32[5,2] f32[2,3]",
    ),
    equal(
        "a gated network",
        lambda x, g, u, d: (F.silu(x @ g) * (x @ u)) @ d,
        lambda x, g, u, d: ((x @ g) * (x @ u) / (1 + (-(x @ g)).exp())) @ d,
        "f32[4,5] f32[5,6] f32[5,6] f32[6,3]",
    ),
    equal(
        "a gated network by gelu",
        lambda x, g, u: F.gelu(x @ g) * (x @ u),
        lambda x, g, u: 0.5 * (x @ g) * (((x @ g) / math.sqrt(2)).erf() + 1) * (x @ u),
        "f32[4,5] f32[5,6] f32[5,6]",
    ),
    equal(
        "a relu network scaled",
        lambda x, v, w: (x @ (2 * v)).relu() @ w,
        lambda x, v, w: (x @ v).relu() @ (2 * w),
        "f32[4,5] f32[5,6] f32[6,3]",
    ),
    equal(
        "a network in parts",
        lambda x, v, w: (x @ v).relu() @ w,
        lambda x, v, w: (x @ v[:, :2]).relu() @ w[:2] + (x @ v[:, 2:]).relu() @ w[2:],
        "f32[4,5] f32[5,6] f32[6,3]",
    ),
    equal(
        "experts by weights",
        lambda x, r, a, b: r.softmax(-1)[:, :1] * (x @ a) + r.softmax(-1)[:, 1:] * (x @ b),
        lambda x, r, a, b: x @ b + (r[:, :1] - r[:, 1:]).sigmoid() * (x @ (a - b)),
        "f32[4,5] f32[4,2] f32[5,3] f32[5,3]",
    ),
    equal(
        "experts stacked",
        lambda x, r, w: torch.einsum("be,bk,ekn->bn", r, x, w),
        lambda x, r, w: sum(r[:, e : e + 1] * (x @ w[e]) for e in range(3)),
        "f32[4,5] f32[4,3] f32[3,5,2]",
    ),
    equal(
        "quantized weights",
        lambda x, w, s, z: x @ ((w - z) * s),
        lambda x, w, s, z: (x @ w - x.sum(-1, keepdim=True) * z) * s,
        "f32[4,5] f32[5,3] f32[3] f32[3]",
    ),
    equal(
        "a GRU's blend",
        lambda z, n, h: (1 - z.sigmoid()) * n + z.sigmoid() * h,
        lambda z, n, h: n + z.sigmoid() * (h - n),
        "f32[5] f32[5] f32[5]",
    ),
    equal(
        "modulation", lambda x, s, b: x * (1 + s) + b, lambda x, s, b: x + x * s + b, "f32[4,6] f32[6] f32[6]"
    ),
)

WRONG = (
    wrong("rms norm with another epsilon", _rms, lambda x, g: _rms(x, g, 1e-5), "f64[4,6] f64[6]"),
    wrong(
        "rms norm with its epsilon outside",
        _rms,
        lambda x, g: x / (x.square().mean(-1, keepdim=True).sqrt() + 1e-6) * g,
        "f64[4,6] f64[6]",
    ),
    wrong("rms norm without its epsilon", _rms, lambda x, g: _rms(x, g, 0.0), "f64[4,6] f64[6]"),
    wrong(
        "rms norm of a sum",
        _rms,
        lambda x, g: x * (x.square().sum(-1, keepdim=True) + 1e-6).rsqrt() * g,
        "f32[4,6] f32[6]",
    ),
    wrong(
        "rms norm over rows",
        _rms,
        lambda x, g: x * (x.square().mean(0) + 1e-6).rsqrt() * g,
        "f32[6,6] f32[6]",
    ),
    wrong(
        "rms norm scaled on the wrong axis",
        lambda x, g, w: (_rms(x, 1.0) * g) @ w,
        lambda x, g, w: (_rms(x, 1.0) @ w) * g,
        "f32[4,6] f32[6] f32[6,6]",
    ),
    wrong("rms norm of a scaled row, its epsilon kept", lambda x, g: _rms(2 * x, g), _rms, "f64[4,6] f64[6]"),
    wrong(
        "layer norm for rms norm",
        lambda x, g, b: F.layer_norm(x, (6,), g, b),
        lambda x, g, b: _rms(x, g, 1e-5) + b,
        _NORM,
    ),
    wrong(
        "layer norm of an unbiased variance",
        lambda x, g, b: F.layer_norm(x, (6,), g, b),
        lambda x, g, b: _layer(x, g, b, unbiased=True),
        _NORM,
    ),
    wrong(
        "layer norm with another epsilon",
        lambda x, g, b: F.layer_norm(x, (6,), g, b),
        lambda x, g, b: _layer(x, g, b, 1e-6),
        "f64[4,6] f64[6] f64[6]",
    ),
    wrong(
        "layer norm, gain and bias swapped",
        lambda x, g, b: F.layer_norm(x, (6,), g, b),
        lambda x, g, b: _layer(x, b, g),
        _NORM,
    ),
    wrong(
        "layer norm of a scaled row",
        lambda x, g, b: F.layer_norm(2 * x, (6,), g, b),
        lambda x, g, b: F.layer_norm(x, (6,), g, b),
        "f64[4,6] f64[6] f64[6]",
    ),
    wrong(
        "batch norm folded without its mean", _batch, lambda x, m, v, g, b: _folded(x, 0 * m, v, g, b), _BATCH
    ),
    wrong(
        "batch norm folded with another epsilon",
        _batch,
        lambda x, m, v, g, b: _folded(x, m, v, g, b, 1e-3),
        _BATCH,
    ),
    wrong(
        "group norm of four groups for two",
        lambda x, g, b: F.group_norm(x, 2, g, b),
        lambda x, g, b: F.group_norm(x, 4, g, b),
        "f32[2,4,3] f32[4] f32[4]",
    ),
    wrong(
        "normalize without its bound",
        lambda x: F.normalize(x, dim=-1),
        lambda x: x / (x.norm(dim=-1, keepdim=True) + 1e-3),
        "f32[4,6]",
    ),
    wrong("a linear layer without its bias", F.linear, lambda x, w, b: x @ w.T, "f32[4,5] f32[3,5] f32[3]"),
    wrong(
        "a bias not passed through",
        lambda x, b, w: (x + b) @ w,
        lambda x, b, w: x @ w + b,
        "f32[4,5] f32[5] f32[5,5]",
    ),
    wrong(
        "two linear layers swapped",
        lambda x, v, w: x @ v @ w,
        lambda x, v, w: x @ w @ v,
        "f32[4,5] f32[5,5] f32[5,5]",
    ),
    wrong(
        "LoRA unscaled",
        lambda x, w, a, b: x @ w + 2 * (x @ a) @ b,
        lambda x, w, a, b: x @ (w + a @ b),
        "f32[4,5] f32[5,3] f32[5,2] f32[2,3]",
    ),
    wrong(
        "LoRA left out",
        lambda x, w, a, b: x @ w + 1e-3 * (x @ a) @ b,
        lambda x, w, a, b: x @ w,
        "f32[4,5] f32[5,3] f32[5,2] f32[2,3]",
    ),
    wrong(
        "a gate on the other",
        lambda x, g, u: F.silu(x @ g) * (x @ u),
        lambda x, g, u: F.silu(x @ u) * (x @ g),
        "f32[4,5] f32[5,6] f32[5,6]",
    ),
    wrong(
        "gelu for silu in a network",
        lambda x, g, u: F.silu(x @ g) * (x @ u),
        lambda x, g, u: F.gelu(x @ g) * (x @ u),
        "f32[4,5] f32[5,6] f32[5,6]",
    ),
    wrong(
        "a relu network scaled by minus two",
        lambda x, v, w: (x @ (-2 * v)).relu() @ w,
        lambda x, v, w: (x @ v).relu() @ (-2 * w),
        "f32[4,5] f32[5,6] f32[6,3]",
    ),
    wrong(
        "a silu network scaled",
        lambda x, v, w: F.silu(x @ (2 * v)) @ w,
        lambda x, v, w: F.silu(x @ v) @ (2 * w),
        "f32[4,5] f32[5,6] f32[6,3]",
    ),
    wrong(
        "relu between dropped",
        lambda x, v, w: (x @ v).relu() @ w,
        lambda x, v, w: x @ (v @ w),
        "f32[4,5] f32[5,6] f32[6,3]",
    ),
    wrong(
        "quantized weights, zero point's sign",
        lambda x, w, s, z: x @ ((w - z) * s),
        lambda x, w, s, z: (x @ w + x.sum(-1, keepdim=True) * z) * s,
        "f32[4,5] f32[5,3] f32[3] f32[3]",
    ),
    wrong(
        "a GRU's blend turned",
        lambda z, n, h: (1 - z.sigmoid()) * n + z.sigmoid() * h,
        lambda z, n, h: h + z.sigmoid() * (h - n),
        "f32[5] f32[5] f32[5]",
    ),
)
