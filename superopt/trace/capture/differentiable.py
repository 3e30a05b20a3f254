"""Differentiable: the functions that a trace keeps whole, written out where something looks into them.

Autograd knows nothing of a function that is kept whole, and would leave its gradients out. A transform such
as `torch.vmap` has tensors of its own, of which the tape knows nothing. What PyTorch cannot rewrite as an
operator that writes nothing is written out always.
"""

from collections.abc import Callable, Sequence
from math import inf, sqrt
from typing import Any

import torch
from torch import Tensor

__all__ = ["WRITTEN_OUT"]


def _attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attn_mask: Tensor | None = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    *,
    scale: float | None = None,
    enable_gqa: bool = False,
) -> Any:
    if dropout_p or (is_causal and attn_mask is not None):
        return NotImplemented
    if enable_gqa:
        group = query.shape[-3] // key.shape[-3]
        key, value = (one.repeat_interleave(group, -3) for one in (key, value))
    scores = query @ key.transpose(-2, -1) * (1 / sqrt(query.shape[-1]) if scale is None else scale)
    if is_causal:
        seen = torch.ones(scores.shape[-2:], dtype=torch.bool, device=scores.device).tril()
        return scores.masked_fill(~seen, -inf).softmax(-1) @ value
    if attn_mask is None:
        return scores.softmax(-1) @ value
    seen = attn_mask if attn_mask.dtype == torch.bool else attn_mask > -inf
    blind = ~seen.any(-1, keepdim=True)  # a query that sees no key has no weights
    scores = scores.masked_fill(~seen, -inf) if seen is attn_mask else scores + attn_mask
    return scores.masked_fill(blind, 0).softmax(-1).masked_fill(blind, 0) @ value


def _rms_norm(
    input: Tensor, normalized_shape: Sequence[int], weight: Tensor | None = None, eps: float | None = None
) -> Any:
    if eps is None:
        eps = torch.finfo(torch.float64 if input.dtype == torch.float64 else torch.float32).eps
    dims = list(range(-len(normalized_shape), 0))
    made = input * torch.rsqrt(input.square().mean(dims, keepdim=True) + eps)
    return (made if weight is None else made * weight).to(input.dtype)


def _fill_diagonal(tensor: Tensor, fill_value: float, wrap: bool = False) -> Any:
    if tensor.dim() != 2 or wrap:
        return NotImplemented
    tensor.diagonal().fill_(fill_value)
    return tensor


WRITTEN_OUT: dict[str, Callable[..., Any]] = {
    "fill_diagonal_": _fill_diagonal,
    "scaled_dot_product_attention": _attention,
    "rms_norm": _rms_norm,
}
