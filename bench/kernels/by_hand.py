"""Attention as a user of PyTorch writes it by hand: by `scaled_dot_product_attention`."""

from collections.abc import Callable, Mapping
from math import sqrt
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from torch import Tensor

__all__ = ["hand_written"]


def hand_written(workload: str) -> Mapping[str, Callable[..., Any]]:
    """Return the rivals of a workload that a person would write with PyTorch's fused functions."""
    return _HAND_WRITTEN.get(workload, {})


def _sdpa(q: "Tensor", k: "Tensor", v: "Tensor", **options: Any) -> "Tensor":
    from torch.nn import functional as F

    return F.scaled_dot_product_attention(q, k, v, **options)


def _mha(q: "Tensor", k: "Tensor", v: "Tensor") -> "Tensor":
    return _sdpa(q, k, v, is_causal=True)


def _gqa(q: "Tensor", k: "Tensor", v: "Tensor") -> "Tensor":
    return _sdpa(q, k, v, is_causal=True, enable_gqa=True)


def _mqa(q: "Tensor", k: "Tensor", v: "Tensor") -> "Tensor":
    return _sdpa(q, k.unsqueeze(1), v.unsqueeze(1), is_causal=True, enable_gqa=True)


def _gqa_decode(q: "Tensor", k: "Tensor", v: "Tensor") -> "Tensor":
    return _sdpa(q, k, v, enable_gqa=True)


def _gqa_folded(q: "Tensor", k: "Tensor", v: "Tensor") -> "Tensor":
    """Take the heads that share keys as rows: the keys are read once."""
    batch, heads, rows, size = q.shape
    folded = q.reshape(batch, k.shape[1], -1, size)
    return _sdpa(folded, k, v).reshape(batch, heads, rows, size)


def _mqa_decode(q: "Tensor", k: "Tensor", v: "Tensor") -> "Tensor":
    return _sdpa(q, k.unsqueeze(1), v.unsqueeze(1), enable_gqa=True)


def _mqa_folded(q: "Tensor", k: "Tensor", v: "Tensor") -> "Tensor":
    return _gqa_folded(q, k.unsqueeze(1), v.unsqueeze(1))


def _qknorm(q: "Tensor", k: "Tensor", v: "Tensor", gq: "Tensor", gk: "Tensor") -> "Tensor":
    from torch.nn import functional as F

    size = (q.shape[-1],)
    return _sdpa(F.rms_norm(q, size, gq, 1e-6), F.rms_norm(k, size, gk, 1e-6), v)


def _mla(q: "Tensor", qr: "Tensor", c: "Tensor", kr: "Tensor") -> "Tensor":
    import torch

    rows, keys = torch.cat([q, qr], -1), torch.cat([c, kr], -1)
    scale = 1 / sqrt(128 + qr.shape[-1])
    return _sdpa(rows.unsqueeze(1), keys.unsqueeze(1), c.unsqueeze(1), scale=scale).squeeze(1)


def _llama(
    x: "Tensor", cos: "Tensor", sin: "Tensor", g1: "Tensor", wq: "Tensor", wk: "Tensor", wv: "Tensor",
    wo: "Tensor", g2: "Tensor", w1: "Tensor", w2: "Tensor", w3: "Tensor",
) -> "Tensor":  # fmt: skip
    import torch
    from torch.nn import functional as F

    def rotate(one: "Tensor") -> "Tensor":
        left, right = one.chunk(2, -1)
        return one * cos + torch.cat([-right, left], -1) * sin

    size = cos.shape[-1]
    h = F.rms_norm(x, x.shape[-1:], g1, 1e-6)
    q, k, v = ((h @ w).view(*h.shape[:2], -1, size).transpose(1, 2) for w in (wq, wk, wv))
    out = _sdpa(rotate(q), rotate(k), v, is_causal=True, enable_gqa=True)
    x = x + out.transpose(1, 2).flatten(2) @ wo
    h = F.rms_norm(x, x.shape[-1:], g2, 1e-6)
    return x + (F.silu(h @ w1) * (h @ w2)) @ w3


_HAND_WRITTEN: dict[str, dict[str, Callable[..., Any]]] = {
    "mha": {"sdpa": _mha},
    "gqa": {"sdpa": _gqa},
    "mqa": {"sdpa": _mqa},
    "mha-decode": {"sdpa": _sdpa},
    "gqa-decode": {"sdpa": _gqa_decode, "sdpa, heads as rows": _gqa_folded},
    "mqa-decode": {"sdpa": _mqa_decode, "sdpa, heads as rows": _mqa_folded},
    "qknorm-attention": {"sdpa": _qknorm},
    "mla": {"sdpa": _mla},
    "llama-layer": {"sdpa": _llama},
}
