"""Lowerings of attention."""

from dataclasses import replace
from math import inf, sqrt

import torch

from superopt.trace.builder import Builder, Sym, UnsupportedError
from superopt.trace.lowering import masks
from superopt.trace.lowering.masks import add, choose, exp, seen
from superopt.trace.lowering.reduce import product, total, zero_unless
from superopt.trace.lowering.table import lower

__all__: list[str] = []


@lower("scaled_dot_product_attention")
def _attention(
    b: Builder,
    query: Sym,
    key: Sym,
    value: Sym,
    attn_mask: Sym | None = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    *,
    scale: float | None = None,
    enable_gqa: bool = False,
) -> Sym:
    if dropout_p:
        raise UnsupportedError("random numbers")
    factor = 1 / sqrt(b.shape(query)[-1]) if scale is None else scale
    rank = max(len(one.dims) for one in (query, key, value))
    query, key, value = (
        replace(one, dims=((),) * (rank - len(one.dims)) + one.dims) for one in (query, key, value)
    )
    grouped = enable_gqa and b.shape(query)[-3] != b.shape(key)[-3]
    labels = "uvwxyz"[: len(query.dims) - 2]
    if grouped:
        heads, kv_heads = b.shape(query)[-3], b.shape(key)[-3]
        if b.shape(value)[-3] != kv_heads or heads % kv_heads:
            raise UnsupportedError(f"{heads} query heads do not share {kv_heads} key heads evenly")
        parts = b.axes.cut(query.dims[-3], (kv_heads, heads // kv_heads))
        if parts is None:
            raise UnsupportedError("the query heads do not factor into key heads and groups")
        query = replace(query, dims=(*query.dims[:-3], *parts, *query.dims[-2:]))
        labels = labels + "g"
    shared = labels.replace("g", "")[-(len(key.dims) - 2) :] if len(key.dims) > 2 else ""
    scores = product(b, query, labels + "le", key, shared + "se", labels + "ls")
    scores = masks.scale(b, "mul", scores, b.scalar(factor, scores.dtype))
    flat_heads = scores
    if grouped:
        flat_heads = replace(scores, dims=_merge_groups(scores))
    if is_causal:
        rows, columns = b.dims(scores)[-2:]
        causal = b.apply("ge", b.index(rows), b.index(columns))
        low = b.scalar(-inf, query.dtype)
        flat_heads = choose(b, Sym(causal, (rows, columns), torch.bool), flat_heads, low)
    if attn_mask is not None:
        if attn_mask.dtype == torch.bool:
            flat_heads = choose(b, attn_mask, flat_heads, b.scalar(-inf, query.dtype))
        else:
            flat_heads = add(b, flat_heads, attn_mask)
    visible = None if attn_mask is None else seen(b, flat_heads)
    weights = grown = exp(b, flat_heads)
    if grouped:
        parts = b.axes.cut(weights.dims[-3], (kv_heads, heads // kv_heads))
        assert parts is not None
        weights = replace(weights, dims=(*weights.dims[:-3], *parts, *weights.dims[-2:]))
    out = product(b, weights, labels + "ls", value, shared + "sd", labels + "ld")
    out = replace(out, dims=_merge_groups(out)) if grouped else out
    out = masks.scale(
        b, "div", out, total(b, grown, -1, keepdim=True)
    )  # once per result, not once per weight
    return out if visible is None else zero_unless(b, visible, -1, out)


@lower("_scaled_dot_product_flash_attention_for_cpu")
def _attention_on_cpus(
    b: Builder,
    query: Sym,
    key: Sym,
    value: Sym,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    *,
    attn_mask: Sym | None = None,
    scale: float | None = None,
) -> tuple[Sym, Sym | None]:
    """Return the attention alone: whoever reads the logarithms of its sums, as backward passes do, cannot."""
    out = _attention(b, query, key, value, attn_mask, dropout_p, is_causal, scale=scale, enable_gqa=True)
    return out, None


def _merge_groups(x: Sym) -> tuple[tuple[int, ...], ...]:
    """Return dimensions [.., h, g, l, s] as [.., (h g), l, s]."""
    return (*x.dims[:-4], x.dims[-4] + x.dims[-3], *x.dims[-2:])
