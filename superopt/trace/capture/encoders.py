"""Encoders: the two operators of PyTorch that are a whole attention and a whole encoder layer, taken apart.

`nn.MultiheadAttention` and `nn.TransformerEncoderLayer` call them at inference. No compiler sees into them,
so that no part of such a model could be fused or searched.
"""

from collections.abc import Callable, Mapping
from math import inf, sqrt
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

__all__ = ["ENCODERS"]

_DEVICES = ("cpu", "meta")  # elsewhere PyTorch's kernels approximate the gelu
_DTYPES = (torch.float32, torch.float64)  # in half precision, what Inductor makes of the parts is slower
_SHAPES: Mapping[int, Callable[[Tensor], Tensor]] = {
    0: lambda mask: mask[None, None],  # of queries and keys
    1: lambda mask: mask[:, None, None],  # of the keys of each sequence
    2: lambda mask: mask,
}
"""How a mask is spread over sequences and heads, by PyTorch's number for its kind."""


def _attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    embed_dim: int,
    num_head: int,
    qkv_weight: Tensor,
    qkv_bias: Tensor,
    proj_weight: Tensor,
    proj_bias: Tensor,
    mask: Tensor | None = None,
    need_weights: bool = True,
    average_attn_weights: bool = True,
    mask_type: int | None = None,
) -> Any:
    """Return the attention of three tensors after their projections, and its weights if they are wanted."""
    known = mask is None or mask_type in _SHAPES
    if query.device.type not in _DEVICES or query.dtype not in _DTYPES or 0 in query.shape or not known:
        return NotImplemented
    batch, length, _ = query.shape

    def heads(x: Tensor) -> Tensor:
        return x.reshape(batch, length, num_head, embed_dim // num_head).transpose(1, 2)

    q, k, v = map(heads, _projected((query, key, value), qkv_weight, qkv_bias))
    if mask is None and not need_weights:
        weights, made = query.new_empty(0), F.scaled_dot_product_attention(q, k, v)
    else:
        scores = q / sqrt(embed_dim // num_head) @ k.transpose(-1, -2)
        if mask is not None:
            assert mask_type is not None
            scores = scores.masked_fill(_SHAPES[mask_type](mask.to(torch.bool)), -inf)
        weights = scores.softmax(-1)
        made = weights @ v
        weights = weights.mean(1) if average_attn_weights else weights
    out = F.linear(made.transpose(1, 2).reshape(batch, length, embed_dim), proj_weight, proj_bias)
    return out, weights if need_weights else query.new_empty(0)


def _projected(inputs: tuple[Tensor, Tensor, Tensor], weight: Tensor, bias: Tensor) -> tuple[Tensor, ...]:
    """Return queries, keys and values: by one product where all are made of one tensor."""
    first, *others = inputs
    if all(one is first for one in others):
        return F.linear(first, weight, bias).chunk(3, -1)
    parts = zip(inputs, weight.chunk(3), bias.chunk(3), strict=True)
    return tuple(F.linear(x, own, shift) for x, own, shift in parts)


def _layer(
    src: Tensor,
    embed_dim: int,
    num_heads: int,
    qkv_weight: Tensor,
    qkv_bias: Tensor,
    proj_weight: Tensor,
    proj_bias: Tensor,
    use_gelu: bool,
    norm_first: bool,
    eps: float,
    norm_weight_1: Tensor,
    norm_bias_1: Tensor,
    norm_weight_2: Tensor,
    norm_bias_2: Tensor,
    ffn_weight_1: Tensor,
    ffn_bias_1: Tensor,
    ffn_weight_2: Tensor,
    ffn_bias_2: Tensor,
    mask: Tensor | None = None,
    mask_type: int | None = None,
) -> Any:
    """Return an encoder layer: attention and a network for each token, each with a norm and a residual."""

    def first_norm(x: Tensor) -> Tensor:
        return F.layer_norm(x, (embed_dim,), norm_weight_1, norm_bias_1, eps)

    def second_norm(x: Tensor) -> Tensor:
        return F.layer_norm(x, (embed_dim,), norm_weight_2, norm_bias_2, eps)

    x = first_norm(src) if norm_first else src
    weights = qkv_weight, qkv_bias, proj_weight, proj_bias
    found = _attention(x, x, x, embed_dim, num_heads, *weights, mask, False, True, mask_type)
    if found is NotImplemented:
        return NotImplemented
    x = src + found[0]
    x = x if norm_first else first_norm(x)
    wide = F.linear(second_norm(x) if norm_first else x, ffn_weight_1, ffn_bias_1)
    x = x + F.linear(F.gelu(wide) if use_gelu else F.relu(wide), ffn_weight_2, ffn_bias_2)
    return x if norm_first else second_norm(x)


ENCODERS: Mapping[Any, Callable[..., Any]] = {
    torch.ops.aten._native_multi_head_attention.default: _attention,
    torch.ops.aten._transformer_encoder_layer_fwd.default: _layer,
}
"""What computes each of the operators by others; NotImplemented where it is left as it is."""
