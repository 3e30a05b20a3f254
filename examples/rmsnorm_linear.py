"""RMSNorm followed by a linear layer, twice: as it is usually written, and with the scaling delayed.

superopt verify examples/rmsnorm_linear.py:naive examples/rmsnorm_linear.py:delayed \
    --inputs "f32[16,256] f32[256] f32[256,384]"
"""

import torch
from torch import Tensor


def naive(x: Tensor, g: Tensor, w: Tensor) -> Tensor:
    """Normalize each row, then multiply: two passes over x."""
    return x * torch.rsqrt(x.square().mean(-1, keepdim=True)) * g @ w


def delayed(x: Tensor, g: Tensor, w: Tensor) -> Tensor:
    """Multiply, then divide each row by its norm: one pass over x."""
    return (x * g) @ w * torch.rsqrt(x.square().mean(-1, keepdim=True))


def wrong(x: Tensor, g: Tensor, w: Tensor) -> Tensor:
    """Scale by the sum of squares and forget to divide by how many there are."""
    return (x * g) @ w * torch.rsqrt(x.square().sum(-1, keepdim=True))
