"""Every operator: what the traced program computes is what PyTorch computes, in float64."""

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from superopt.ir import parse_graph, print_graph
from superopt.trace import trace

inf = math.inf

M, N, B = (3, 4), (4, 5), (2, 3, 4)

POINTWISE: dict[str, tuple[Callable[..., Any], tuple[tuple[int, ...], ...]]] = {
    "add": (lambda x, y: x + y, (M, M)),
    "add-broadcast": (lambda x, y: x + y, (M, (4,))),
    "add-outer": (lambda x, y: x[:, None] + y[None, :], ((3,), (3,))),
    "add-self-outer": (lambda x: x[:, None] + x[None, :], ((3,),)),
    "add-alpha": (lambda x, y: torch.add(x, y, alpha=3), (M, M)),
    "sub": (lambda x, y: x - y, (M, M)),
    "sub-alpha": (lambda x, y: torch.sub(x, y, alpha=0.5), (M, M)),
    "rsub": (lambda x: 1 - x, (M,)),
    "mul": (lambda x, y: x * y, (M, M)),
    "mul-scalar": (lambda x: 0.1 * x, (M,)),
    "div": (lambda x, y: x / y, (M, M)),
    "rdiv": (lambda x: 3 / x, (M,)),
    "neg": (lambda x: -x, (M,)),
    "pow-int": (lambda x: x**3 + x**2 + x**1 + x**0 + x**7, (M,)),
    "pow-negative-int": (lambda x: x**-2, (M,)),
    "pow-half": (lambda x: x.abs() ** 0.5 + x.abs() ** -0.5, (M,)),
    "pow-other": (lambda x: x.abs() ** 1.7, (M,)),
    "pow-tensor": (lambda x, y: x.abs() ** y, (M, M)),
    "pow-scalar-base": (lambda x: 2.0**x, (M,)),
    "square": (lambda x: x.square(), (M,)),
    "sqrt": (lambda x: x.abs().sqrt(), (M,)),
    "rsqrt": (lambda x: x.abs().rsqrt(), (M,)),
    "reciprocal": (lambda x: x.reciprocal(), (M,)),
    "exp": (lambda x: x.exp(), (M,)),
    "exp2": (lambda x: x.exp2(), (M,)),
    "expm1": (lambda x: torch.expm1(x), (M,)),
    "log": (lambda x: x.abs().log(), (M,)),
    "log2": (lambda x: x.abs().log2(), (M,)),
    "log1p": (lambda x: x.abs().log1p(), (M,)),
    "sigmoid": (lambda x: x.sigmoid(), (M,)),
    "tanh": (lambda x: x.tanh(), (M,)),
    "silu": (F.silu, (M,)),
    "gelu": (F.gelu, (M,)),
    "gelu-tanh": (lambda x: F.gelu(x, approximate="tanh"), (M,)),
    "relu": (F.relu, (M,)),
    "relu6": (F.relu6, (M,)),
    "leaky-relu": (F.leaky_relu, (M,)),
    "softplus": (F.softplus, (M,)),
    "glu": (F.glu, (M,)),
    "erf": (torch.erf, (M,)),
    "sin-cos": (lambda x: x.sin() * x.cos(), (M,)),
    "clamp-both": (lambda x: x.clamp(-0.5, 0.5), (M,)),
    "clamp-low": (lambda x: x.clamp(min=0.1), (M,)),
    "clamp-high": (lambda x: x.clamp(max=0.1), (M,)),
    "clamp-tensor": (lambda x, y: torch.clamp(x, y, y + 1), (M, (4,))),
    "clamp-min-max": (lambda x: x.clamp_min(-1).clamp_max(0.3), (M,)),
    "abs": (lambda x: x.abs(), (M,)),
    "minimum": (torch.minimum, (M, M)),
    "maximum": (torch.maximum, (M, M)),
    "where": (lambda x, y: torch.where(x > 0, x, y), (M, M)),
    "where-scalar": (lambda x: torch.where(x > 0, x, -1.5), (M,)),
    "where-zero": (lambda x: torch.where(x > 0, x, 0.0) + torch.where(x > 1, 0.0, x), (M,)),
    "compare": (lambda x, y: (x < y).double() + (x <= y).double() * 2 + (x > 0) * 4, (M, M)),
    "compare-equal": (lambda x, y: x == y, (M, M)),
    "compare-unequal": (lambda x, y: (x != y) | (x >= 0), (M, M)),
    "logical": (lambda x, y: ((x > 0) & ~(y > 0)) ^ (x > 1) | (y < -1), (M, M)),
    "logical-float": (lambda x, y: torch.logical_and(x, torch.logical_not(y)), (M, M)),
    "logical-xor": (lambda x, y: torch.logical_xor(x > 0, y > 0), (M, M)),
    "bool-add": (lambda x: ((x > 0) + (x < -1)) * (x < 2), (M,)),
    "elu": (lambda x: F.elu(x, 0.7) + F.selu(x) - F.celu(x, 1.3), (M,)),
    "hardtanh": (lambda x: F.hardtanh(9 * x) + F.hardtanh(9 * x, -1, 1) + F.hardtanh(x, 0, 2), (M,)),
    "hard": (lambda x: F.hardswish(3 * x) + F.hardsigmoid(3 * x) * F.hardtanh(x), (M,)),
    "shrink": (lambda x: F.softshrink(x, 0.3) - F.hardshrink(x, 0.4) + F.threshold(x, 0.1, 2.0), (M,)),
    "mish": (lambda x: F.mish(x) + F.softsign(x) + F.tanhshrink(x), (M,)),
    "logsigmoid": (lambda x: F.logsigmoid(1e3 * x) + F.logsigmoid(x), (M,)),
    "prelu": (F.prelu, (B, (3,))),
    "sign": (lambda x: torch.sign(x) - torch.sgn(x * (x > 0)), (M,)),
    "logit": (lambda x: x.sigmoid().logit() + torch.logit(x.abs(), eps=0.1), (M,)),
    "logit-crossed": (lambda x: torch.logit(x, eps=0.6) + torch.logit(x.sigmoid(), 0.7), ((9, 4),)),
    "log10": (lambda x: x.abs().log10(), (M,)),
    "xlogy": (lambda x, y: torch.xlogy(x.relu(), y.relu()) + torch.xlogy(x, 2.0), (M, M)),
    "kl-div": (
        lambda x, y: (
            F.kl_div(x, y.relu(), reduction="sum") + F.kl_div(x, y, reduction="batchmean", log_target=True)
        ),
        (M, M),
    ),
    "smooth-l1": (lambda x, y: F.smooth_l1_loss(x, y, beta=0.5) + F.huber_loss(x, y, delta=0.3), (M, M)),
    "bce": (lambda x, y: F.binary_cross_entropy(x.sigmoid(), y.sigmoid()), (M, M)),
    "bce-logits": (lambda x, y: F.binary_cross_entropy_with_logits(9 * x, y.sigmoid()), (M, M)),
    "hinge": (lambda x, y: F.soft_margin_loss(x, y.sign()), (M, M)),
    "batch-norm": (lambda x, m, v, w: F.batch_norm(x, m, v.abs(), w, m, eps=0.1), (B, (3,), (3,), (3,))),
    "batch-norm-fresh": (lambda x, w: F.batch_norm(x, None, None, w, None, True), (B, (3,))),
    "group-norm": (lambda x, w: F.group_norm(x, 2, w, w), ((2, 4, 3), (4,))),
    "instance-norm": (F.instance_norm, (B,)),
    "pixel-shuffle": (lambda x: F.pixel_shuffle(x, 2) * 2, ((2, 4, 3, 5),)),
    "pixel-unshuffle": (lambda x: F.pixel_unshuffle(x, 2) * 2, ((2, 3, 4, 6),)),
    "channel-shuffle": (lambda x: F.channel_shuffle(x, 2) * 2, ((2, 4, 3, 5),)),
    "pools": (lambda x: F.avg_pool2d(x, 2) + F.max_pool2d(x, (2, 2)), ((2, 3, 4, 6),)),
    "pools-whole": (
        lambda x: F.avg_pool2d(x, (4, 6), 1, divisor_override=5) - F.max_pool2d(x, (4, 6), 3, 0, 1, True),
        ((3, 4, 6),),
    ),
    "pools-back": (
        lambda x, y: (
            torch.ops.aten.avg_pool2d_backward(y, x, [2, 3], [2, 3], [0, 0], False, True, None)
            + torch.ops.aten.avg_pool2d_backward(y[..., :1, :1], x, [4, 6], [1], [0], True, False, 5)
        ),
        ((2, 3, 4, 6), (2, 3, 2, 2)),
    ),
    "writes": (
        lambda x, y, z: (
            x.slice_scatter(y, 1, 2, 4) - x.slice_scatter(z, 1, 1, 6, 2) * x.slice_scatter(y, 1, -2)
        ),
        ((4, 6), (4, 2), (4, 3)),
    ),
    "pools-1d": (lambda x: F.avg_pool1d(x, 3) * F.max_pool1d(x, 3), ((2, 3, 6),)),
    "adaptive": (lambda x: F.adaptive_avg_pool2d(x, 2) + F.adaptive_max_pool2d(x, (2, 1)), ((2, 3, 4, 6),)),
    "lerp": (lambda x, y: torch.lerp(x, y, 0.3), (M, M)),
    "addcmul": (lambda x, y, z: torch.addcmul(x, y, z, value=2), (M, M, M)),
    "addcdiv": (lambda x, y, z: torch.addcdiv(x, y, z, value=2), (M, M, M)),
    "in-place": (lambda x: (x * 2).add_(1).mul_(x).relu_(), (M,)),
    "identities": (lambda x: F.dropout(x.clone().contiguous().detach(), 0.0) * 1, (M,)),
    "dropout-eval": (lambda x: F.dropout(x, 0.5, training=False) + 0, (M,)),
    "casts": (lambda x: x.double().type_as(x).to(torch.float64) + 1, (M,)),
    "zero-d": (lambda x: x * torch.tensor(3.0) + torch.tensor(2), (M,)),
    "mse": (lambda x, y: F.mse_loss(x, y), (M, M)),
}

REDUCTIONS: dict[str, tuple[Callable[..., Any], tuple[tuple[int, ...], ...]]] = {
    "cumsum": (lambda x: x.cumsum(1), (M,)),
    "cumsum-rows-of-products": (lambda x, y: (x @ y).cumsum(0), (M, N)),
    "cumsum-of-infinity": (lambda x, y: x.masked_fill(y > 0, inf).cumsum(1), (M, M)),
    "logsumexp-of-one": (lambda x: torch.logsumexp(1000 * x, -1), ((4, 1),)),
    "softmax-of-one": (lambda x: torch.softmax(1000 * x, -1), ((4, 1),)),
    "sum": (lambda x: x.sum(-1), (B,)),
    "sum-all": (lambda x: x.sum(), (B,)),
    "sum-keep": (lambda x: x.sum((0, 2), keepdim=True), (B,)),
    "sum-expanded": (lambda x: x[:, None].expand(3, 7, 4).sum(1), (M,)),
    "sum-bool": (lambda x: (x > 0).sum(-1), (M,)),
    "mean": (lambda x: x.mean(-1), (M,)),
    "mean-two": (lambda x: x.mean((0, -1)), (B,)),
    "mean-expanded": (lambda x: x[:, None].expand(3, 7, 4).mean((1, 2)), (M,)),
    "var": (lambda x: x.var(-1), (M,)),
    "var-population": (lambda x: x.var(-1, correction=0), (M,)),
    "var-correction": (lambda x: x.var((0, 1), correction=2, keepdim=True), (M,)),
    "std": (lambda x: x.std(-1), (M,)),
    "var-mean": (lambda x: torch.var_mean(x, -1, correction=0), (M,)),
    "std-mean": (lambda x: torch.std_mean(x, 0), (M,)),
    "amax": (lambda x: x.amax(-1), (M,)),
    "amin": (lambda x: x.amin((0, 1)), (M,)),
    "max-values": (lambda x: x.max(-1).values, (M,)),
    "min-values": (lambda x: x.min(0, keepdim=True)[0], (M,)),
    "max-all": (lambda x: x.max() - x.min(), (M,)),
    "any-all-of-nothing": (lambda x: (x[:, :0].any(-1), (x[:, :0] > 0).all(1), x[:0].any(0)), (M,)),
    "one-dimension-of-none": (
        lambda x: (x[1, 1].softmax(0), x[1, 1].max(-1).values, x[1, 1].mean(0), x[1, 1].logsumexp(-1)),
        (M,),
    ),
    "any-all": (lambda x: ((x > 0).any(-1), (x > -1).all(0)), (M,)),
    "softmax": (lambda x: x.softmax(-1), (M,)),
    "softmax-0": (lambda x: x.softmax(0), (M,)),
    "softmax-by-hand": (
        lambda x: (x - x.amax(-1, True)).exp() / (x - x.amax(-1, True)).exp().sum(-1, True),
        (M,),
    ),
    "log-softmax": (lambda x: x.log_softmax(-1), (M,)),
    "logsumexp": (lambda x: x.logsumexp((0, 1)), (M,)),
    "logsumexp-keep": (lambda x: x.logsumexp(-1, keepdim=True), (M,)),
    "cross-entropy": (lambda x, y: F.cross_entropy(x, y.softmax(-1)), (M, M)),
    "rms-norm": (lambda x, g: F.rms_norm(x, (4,), g, eps=1e-5), (B, (4,))),
    "rms-norm-plain": (lambda x: F.rms_norm(x, (3, 4)), (B,)),
    "layer-norm": (lambda x, g, b: F.layer_norm(x, (4,), g, b), (B, (4,), (4,))),
    "layer-norm-plain": (lambda x: F.layer_norm(x, (3, 4)), (B,)),
    "norm": (lambda x: x.norm(dim=-1), (M,)),
    "norm-1": (lambda x: torch.linalg.vector_norm(x, 1, dim=0), (M,)),
    "norm-inf": (lambda x: torch.linalg.vector_norm(x, inf), (M,)),
    "normalize": (lambda x: F.normalize(x, dim=-1), (M,)),
}

PRODUCTS: dict[str, tuple[Callable[..., Any], tuple[tuple[int, ...], ...]]] = {
    "matmul": (lambda x, y: x @ y, (M, N)),
    "matmul-batch": (lambda x, y: x @ y, ((2, 6, 3, 4), (2, 6, 4, 5))),
    "matmul-broadcast": (lambda x, y: x @ y, ((2, 6, 3, 4), (6, 4, 5))),
    "matmul-broadcast-1": (lambda x, y: x @ y, ((2, 1, 3, 4), (1, 6, 4, 5))),
    "matmul-3-2": (lambda x, y: x @ y, (B, N)),
    "matmul-vector": (lambda x, y: x @ y, (M, (4,))),
    "vector-matmul": (lambda x, y: x @ y, ((3,), M)),
    "dot": (lambda x, y: x @ y, ((4,), (4,))),
    "inner-1": (lambda x, y: x @ y, ((3, 1), (1, 5))),
    "mm": (torch.mm, (M, N)),
    "bmm": (torch.bmm, (B, (2, 4, 5))),
    "linear": (F.linear, (M, (5, 4))),
    "linear-bias": (F.linear, (B, (5, 4), (5,))),
    "addmm": (lambda x, y, z: torch.addmm(x, y, z, beta=0.5, alpha=2), ((5,), M, N)),
    "addmm-beta-0": (lambda x, y, z: torch.addmm(x, y, z, beta=0), ((5,), M, N)),
    "baddbmm": (lambda x, y, z: torch.baddbmm(x, y, z, alpha=0.5), ((3, 5), B, (2, 4, 5))),
    "addmv": (torch.addmv, ((3,), M, (4,))),
    "outer": (torch.outer, ((3,), (4,))),
    "outer-self": (lambda x: torch.outer(x, x), ((3,),)),
    "einsum": (lambda x, y: torch.einsum("ij,jk->ik", x, y), (M, N)),
    "einsum-elementwise": (lambda x, y: torch.einsum("ij,ij->ij", x, y), (M, M)),
    "einsum-repeated-operand": (lambda x: torch.einsum("ij,kj->ik", x, x), (M,)),
    "einsum-ellipsis": (lambda x, y: torch.einsum("...ij,...jk->...ik", x, y), ((2, 3, 4), (2, 4, 5))),
    "einsum-attention": (lambda x, y: torch.einsum("bshd,bthd->bhst", x, y), ((2, 3, 4, 5), (2, 6, 4, 5))),
    "einsum-three": (lambda x, y, z: torch.einsum("ij,ij,kj->k", x, y, z), (M, M, (5, 4))),
    "einsum-sum": (lambda x: torch.einsum("ij->j", x), (M,)),
    "einsum-transpose": (lambda x: torch.einsum("ijk->kij", x), (B,)),
    "ones-matmul": (lambda x: x @ torch.ones(4, 2, dtype=x.dtype), (M,)),
    "ones-ones": (lambda x: torch.ones(3, 4, dtype=x.dtype) @ torch.ones(4, 4, dtype=x.dtype) * x, (M,)),
    "mask-matmul": (lambda x: torch.ones(3, 3, dtype=x.dtype).tril() @ x, (M,)),
}

LAYOUT: dict[str, tuple[Callable[..., Any], tuple[tuple[int, ...], ...]]] = {
    "unfold-tiles": (lambda x: x.unfold(1, 2, 2), (M,)),
    "unfold-with-gaps": (lambda x: x.unfold(0, 2, 3) * 2, ((6, 4),)),
    "permute": (lambda x: x.permute(2, 0, 1) + 0, (B,)),
    "transpose": (lambda x: x.transpose(0, 2) + 0, (B,)),
    "t": (lambda x: x.t() + 0, (M,)),
    "t-only": (lambda x: x.t(), (M,)),
    "view-split": (lambda x: x.view(3, 2, 2).sum(1), (M,)),
    "view-merge": (lambda x: x.view(6, 4).sum(0), (B,)),
    "view-both": (lambda x: x.view(12, 2).sum(0), (B,)),
    "flatten": (lambda x: x.flatten(1).softmax(-1), (B,)),
    "unflatten": (lambda x: x.unflatten(-1, (2, 2)).sum(-2), (B,)),
    "reshape-transposed": (lambda x: x.transpose(0, 1).reshape(3, 8) * 2, (B,)),
    "view-then-full": (lambda x, y: x.view(3, 2, 2).sum(2) + y.sum() + x.sum(), (M, M)),
    "view-late-split": (lambda x, y: (x + y).view(3, 2, 2) * y.view(3, 2, 2), (M, M)),
    "split-index": (lambda x: (x * torch.arange(4)).view(3, 2, 2).sum(1), (M,)),
    "expand": (lambda x: x[:, None].expand(3, 5, 4) * 2, (M,)),
    "expand-only": (lambda x: x.expand(3, 4), ((4,),)),
    "expand-add-self": (lambda x: x.expand(4, 4) + x.expand(4, 4).T, ((4,),)),
    "repeat": (lambda x: x.repeat(2, 3) + 1, (M,)),
    "repeat-interleave": (lambda x: x.repeat_interleave(3, 1) + 1, (M,)),
    "unsqueeze": (lambda x: x.unsqueeze(0).unsqueeze(-1) + 1, (M,)),
    "squeeze": (lambda x: x.squeeze(1) + x.squeeze(), ((3, 1, 4),)),
    "select": (lambda x: x[:, 1] + x[:, -1], (M,)),
    "select-view": (lambda x: x.view(3, 2, 2)[:, 1, 0] + x[:, 2], (M,)),
    "slice-half": (lambda x: x[:, :2] * x[:, 2:], (M,)),
    "slice-step": (lambda x: x[:, ::2] * x[:, 1::2], (M,)),
    "slice-uneven": (lambda x: x[:, :3] + x[:, 1:], (M,)),
    "slice-one": (lambda x: x[:, 1:2] * 2, (M,)),
    "slice-none": (lambda x: x[:, 2:2] * 2, (M,)),
    "slice-expanded": (lambda x: x[:, None].expand(3, 7, 4)[:, :5] + 1, (M,)),
    "qkv-split": (lambda x: [p.sum(-1) for p in x.split([8, 2, 2], -1)], ((3, 12),)),
    "chunk": (lambda x: [p * 2 for p in x.chunk(2, -1)], (M,)),
    "chunk-uneven": (lambda x: [p * 2 for p in x.chunk(3, -1)], (M,)),
    "unbind": (lambda x: [p * 2 for p in x.unbind(1)], (M,)),
    "narrow": (lambda x: x.narrow(1, 2, 2) * 2, (M,)),
    "slice-repeated": (lambda x: x.repeat(3)[1:4] * 2, ((2,),)),
    "slice-repeated-elements": (lambda x: x[:, None].expand(2, 3).reshape(6)[1:5] * 2, ((2,),)),
    "slice-repeated-beside": (
        lambda x, y: (y * x.repeat(3)[1:3]).sum(0) + 0 * (x.repeat(3).view(3, 2) * y).sum(0),
        ((2,), (3, 2)),
    ),
    "mask-assigned": (lambda x: _assigned(x, x > 0.3, 0.5), (M,)),
    "rows-assigned": (lambda x: _assigned(x, x.sum(1) > 0.3, float("-inf")).exp(), (M,)),
    "cat": (lambda x, y: torch.cat([x, y], 0), (M, M)),
    "cat-repeated": (lambda x: torch.cat([x.repeat(3), x[:1]]) * 2, ((2,),)),
    "cat-same": (lambda x: torch.cat([x, x * 2, x], 1), (M,)),
    "cat-uneven": (lambda x, y: torch.cat([x, y], -1), (M, (3, 2))),
    "cat-uneven-expanded": (lambda x, y: torch.cat([x.expand(3, 4), y], -1), ((3, 1), (3, 2))),
    "cat-bool": (lambda x: torch.cat([x > 0, x > 1], -1), (M,)),
    "cat-masked": (lambda x: torch.cat([x.masked_fill(x > 0, -inf), x], -1).softmax(-1), (M,)),
    "stack": (lambda x, y: torch.stack([x, y, x], 1), (M, M)),
    "stack-last": (lambda x: torch.stack([-x, x], -1).flatten(-2), (M,)),
    "swap-halves": (lambda x: torch.cat([x[:, 2:], x[:, :2]], -1) + x, (M,)),
    "copy": (lambda x: torch.empty_like(x).copy_(x) + 1, (M,)),
}

MADE: dict[str, tuple[Callable[..., Any], tuple[tuple[int, ...], ...]]] = {
    "arange": (lambda x: x * torch.arange(4), (M,)),
    "arange-step": (lambda x: x * torch.arange(1, 9, 2), (M,)),
    "arange-float": (lambda x: x * torch.arange(0, 1, 0.25), (M,)),
    "arange-slice": (lambda x: x * torch.arange(7)[3:], (M,)),
    "linspace": (lambda x: x * torch.linspace(0, 1, 4, dtype=x.dtype), (M,)),
    "ones-zeros": (lambda x: x * torch.ones(4) + torch.zeros(3, 1) + torch.ones_like(x), (M,)),
    "full": (lambda x: x + torch.full((3, 4), 0.3, dtype=x.dtype) + x.new_full((4,), 2.0), (M,)),
    "full-like": (lambda x: x * torch.full_like(x, 0.3) + torch.zeros_like(x) + x.new_zeros(4), (M,)),
    "eye": (lambda x: x @ torch.eye(4, dtype=x.dtype), (M,)),
    "constant-output": (lambda x: (x + 1, torch.ones(2, dtype=x.dtype)), (M,)),
    "arange-output": (lambda x: torch.arange(5) * 2, (M,)),
    "input-output": (lambda x, y: (x, y * 2, x), (M, M)),
    "structure": (lambda x: {"a": x + 1, "b": [x * 2, (x, None, 3)]}, (M,)),
    "tril": (lambda x: x.tril() + x.triu(1) * 2 + x.tril(-1), ((4, 4),)),
    "triu-batch": (lambda x: x.triu(-1), ((2, 3, 4),)),
}


def _assigned(x: Tensor, mask: Tensor, value: float) -> Tensor:
    result = x.clone()
    result[mask] = value
    return result


def _softmax(x: Tensor) -> Tensor:
    return x.softmax(-1)


def _causal(n: int, m: int) -> Tensor:
    return torch.ones(n, m, dtype=torch.bool).tril()


MASKS: dict[str, tuple[Callable[..., Any], tuple[tuple[int, ...], ...]]] = {
    "masked-fill": (lambda x: _softmax(x.masked_fill(~_causal(3, 4), -inf)), (M,)),
    "where": (lambda x: _softmax(torch.where(_causal(3, 4), x, -inf)), (M,)),
    "where-other-way": (lambda x: _softmax(torch.where(~_causal(3, 4), -inf, x)), (M,)),
    "arange": (lambda x: _softmax(x.masked_fill(torch.arange(4) > torch.arange(3)[:, None], -inf)), (M,)),
    "arange-offset": (
        lambda x: _softmax(x.masked_fill(torch.arange(4) > torch.arange(3)[:, None] + 1, -inf)),
        (M,),
    ),
    "window": (
        lambda x: _softmax(torch.where((torch.arange(4) - torch.arange(4)[:, None]).abs() < 2, x, -inf)),
        ((4, 4),),
    ),
    "additive": (lambda x: _softmax(x + torch.zeros(3, 4).masked_fill(~_causal(3, 4), -inf)), (M,)),
    "additive-where": (lambda x: _softmax(x + torch.where(_causal(3, 4), 0.0, -inf)), (M,)),
    "additive-triu": (lambda x: _softmax(x + torch.full((4, 4), -inf).triu(1)), ((4, 4),)),
    "additive-triu-full": (
        lambda x: _softmax(torch.triu(torch.full((4, 4), -inf, dtype=x.dtype), 1) + x),
        ((4, 4),),
    ),
    "scaled-after": (lambda x: _softmax((x.masked_fill(~_causal(3, 4), -inf) + 1) * 0.5 / 3 - 2), (M,)),
    "two-masks": (lambda x: _softmax(x.masked_fill(~_causal(3, 4), -inf).masked_fill(x > 3, -inf)), (M,)),
    "finite": (lambda x: _softmax(torch.where(_causal(3, 4), x, torch.finfo(x.dtype).min)), (M,)),
    "minus-1e9": (lambda x: _softmax(x + (1 - _causal(3, 4).double()) * -1e9), (M,)),
    "by-hand": (
        lambda x: (
            x.masked_fill(~_causal(3, 4), -inf) - x.masked_fill(~_causal(3, 4), -inf).amax(-1, True)
        ).exp(),
        (M,),
    ),
    "log-softmax": (lambda x: x.masked_fill(~_causal(3, 4), -inf).log_softmax(-1), (M,)),
    "logsumexp": (lambda x: x.masked_fill(~_causal(3, 4), -inf).logsumexp(-1), (M,)),
    "after-softmax": (lambda x: _softmax(x).masked_fill(~_causal(3, 4), 0.0), (M,)),
    "output": (lambda x: x.masked_fill(~_causal(3, 4), -inf), (M,)),
    "relu-of-masked": (lambda x: x.masked_fill(~_causal(3, 4), -inf).relu(), (M,)),
    "negative-scale": (lambda x: (x.masked_fill(~_causal(3, 4), -inf) * -1).exp().reciprocal(), (M,)),
    "plus-infinity": (lambda x: x.masked_fill(~_causal(3, 4), inf).neg().exp(), (M,)),
    "input-mask": (lambda x, y: _softmax(x.masked_fill(y > 0.9, -inf)), (M, M)),
}

_on_cpu = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu

ATTENTION: dict[str, tuple[Callable[..., Any], tuple[tuple[int, ...], ...]]] = {
    "plain": (F.scaled_dot_product_attention, ((2, 3, 4, 5), (2, 3, 6, 5), (2, 3, 6, 7))),
    "scale": (
        lambda q, k, v: F.scaled_dot_product_attention(q, k, v, scale=0.3),
        ((2, 3, 4, 5), (2, 3, 6, 5), (2, 3, 6, 7)),
    ),
    "causal": (
        lambda q, k, v: F.scaled_dot_product_attention(q, k, v, is_causal=True),
        ((2, 3, 4, 5), (2, 3, 4, 5), (2, 3, 4, 5)),
    ),
    "causal-longer": (
        lambda q, k, v: F.scaled_dot_product_attention(q, k, v, is_causal=True),
        ((2, 3, 4, 5), (2, 3, 6, 5), (2, 3, 6, 5)),
    ),
    "causal-shorter": (
        lambda q, k, v: F.scaled_dot_product_attention(q, k, v, is_causal=True),
        ((2, 3, 6, 5), (2, 3, 4, 5), (2, 3, 4, 5)),
    ),
    "bool-mask": (
        lambda q, k, v, m: F.scaled_dot_product_attention(q, k, v, m < 1),
        ((2, 3, 4, 5), (2, 3, 6, 5), (2, 3, 6, 5), (4, 6)),
    ),
    "float-mask": (
        lambda q, k, v, m: F.scaled_dot_product_attention(q, k, v, attn_mask=m),
        ((2, 3, 4, 5), (2, 3, 6, 5), (2, 3, 6, 5), (2, 1, 4, 6)),
    ),
    "bool-mask-rows-hidden": (
        lambda q, k, v, m: F.scaled_dot_product_attention(q, k, v, (m < 2) & (m.amax(-1, keepdim=True) < 1)),
        ((2, 3, 4, 5), (2, 3, 6, 5), (2, 3, 6, 5), (4, 6)),
    ),
    "float-mask-rows-hidden": (
        lambda q, k, v, m: F.scaled_dot_product_attention(
            q, k, v, m.masked_fill(m.amax(-1, keepdim=True) > 1, -torch.inf)
        ),
        ((2, 3, 4, 5), (2, 3, 6, 5), (2, 3, 6, 5), (4, 6)),
    ),
    "gqa": (
        lambda q, k, v: F.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True),
        ((2, 6, 4, 5), (2, 3, 4, 5), (2, 3, 4, 5)),
    ),
    "gqa-mask": (
        lambda q, k, v, m: F.scaled_dot_product_attention(q, k, v, m, enable_gqa=True),
        ((2, 6, 4, 5), (2, 3, 4, 5), (2, 3, 4, 5), (6, 4, 4)),
    ),
    "mqa": (
        lambda q, k, v: F.scaled_dot_product_attention(q, k, v, enable_gqa=True),
        ((2, 6, 4, 5), (2, 1, 4, 5), (2, 1, 4, 5)),
    ),
    "on-cpu": (lambda q, k, v: _on_cpu(q, k, v)[0], ((2, 3, 4, 5), (2, 3, 6, 5), (2, 3, 6, 5))),
    "on-cpu-causal-gqa": (
        lambda q, k, v: _on_cpu(q, k, v, 0.0, True, scale=0.3)[0],
        ((2, 6, 4, 5), (2, 3, 4, 5), (2, 3, 4, 5)),
    ),
    "on-cpu-mask": (
        lambda q, k, v, m: _on_cpu(
            q, k, v, attn_mask=m.masked_fill(m.amax(-1, keepdim=True) > 1, -torch.inf)
        )[0],
        ((2, 3, 4, 5), (2, 3, 6, 5), (2, 3, 6, 5), (2, 1, 4, 6)),
    ),
    "self": (lambda x: F.scaled_dot_product_attention(x, x, x), ((2, 4, 5),)),
    "self-square": (lambda x: F.scaled_dot_product_attention(x, x, x, is_causal=True), ((4, 4),)),
}

ALL = {
    f"{family}/{name}": case
    for family, table in {
        "pointwise": POINTWISE,
        "reductions": REDUCTIONS,
        "products": PRODUCTS,
        "layout": LAYOUT,
        "made": MADE,
        "masks": MASKS,
        "attention": ATTENTION,
    }.items()
    for name, case in table.items()
}


@pytest.mark.parametrize("name", ALL)
def test_as_eager(name: str) -> None:
    function, shapes = ALL[name]
    generator = torch.Generator().manual_seed(0)
    inputs = [torch.randn(shape, dtype=torch.float64, generator=generator) for shape in shapes]
    expected = function(*inputs)
    traced = trace(function, *inputs)
    assert not traced.program.opaque, traced.program.opaque
    torch.testing.assert_close(traced.run(*inputs), expected, rtol=1e-9, atol=1e-12)
    for region in traced.program.regions:
        assert parse_graph(print_graph(region.graph)) == region.graph
