"""Lowerings of reductions, norms, softmax and everything made of products: matmuls and attention."""

from collections.abc import Sequence
from dataclasses import replace
from fractions import Fraction
from math import inf, sqrt
from typing import Any

import torch

from superopt.trace.builder import Builder, Sym, UnsupportedError
from superopt.trace.lower import flat, lower, normal_dims, takes_integers
from superopt.trace.lower_pointwise import truth
from superopt.trace.masks import add, choose, exp, pointwise, scale, sub

__all__ = ["mean", "total"]

_Dims = int | Sequence[int] | None
_NO_REDUCTION, _SUM = 0, 2  # of a loss, as ATen numbers them; 1 is the mean


def _without(b: Builder, x: Sym, dims: Sequence[int], keepdim: bool) -> tuple[tuple[int, ...], ...]:
    kept = enumerate(b.dims(x))
    if keepdim:
        return tuple(() if i in dims else dim for i, dim in kept)
    return tuple(dim for i, dim in kept if i not in dims)


def total(b: Builder, x: Sym, dims: _Dims = None, keepdim: bool = False) -> Sym:
    """Return the sum over dimensions; an axis that the value lacks counts by its size."""
    x = b.settle(x)
    chosen = normal_dims(dims, len(x.dims))
    axes = flat([b.dims(x)[dim] for dim in chosen])
    covers = b.covers(x.value)
    value = b.reduce("sum", x.value, [axis for axis in axes if axis in covers])
    value = b.apply("mul", value, b.size(tuple(axis for axis in axes if axis not in covers)))
    return Sym(value, _without(b, x, chosen, keepdim), x.dtype)


def mean(b: Builder, x: Sym, dims: _Dims = None, keepdim: bool = False) -> Sym:
    """Return the mean over dimensions; an axis that the value lacks changes nothing."""
    x = b.settle(x)
    chosen = normal_dims(dims, len(x.dims))
    covers = b.covers(x.value)
    axes = tuple(axis for axis in flat([b.dims(x)[dim] for dim in chosen]) if axis in covers)
    value = b.apply("div", b.reduce("sum", x.value, axes), b.size(axes))
    return Sym(value, _without(b, x, chosen, keepdim), x.dtype)


def _largest(b: Builder, x: Sym, dims: _Dims = None, keepdim: bool = False) -> Sym:
    x = b.settle(x)
    chosen = normal_dims(dims, len(x.dims))
    covers = b.covers(x.value)
    axes = [axis for axis in flat([b.dims(x)[dim] for dim in chosen]) if axis in covers]
    return Sym(b.reduce("max", x.value, axes), _without(b, x, chosen, keepdim), x.dtype)


def _smallest(b: Builder, x: Sym, dims: _Dims = None, keepdim: bool = False) -> Sym:
    return pointwise(b, "neg", _largest(b, pointwise(b, "neg", x), dims, keepdim))


@lower("sum")
def _sum(
    b: Builder, x: Sym, dim: _Dims = None, keepdim: bool = False, dtype: torch.dtype | None = None
) -> Sym:
    return total(b, x, dim, keepdim)


@lower("mean")
def _mean(
    b: Builder, x: Sym, dim: _Dims = None, keepdim: bool = False, dtype: torch.dtype | None = None
) -> Sym:
    return mean(b, x, dim, keepdim)


@lower("amax")
def _amax(b: Builder, x: Sym, dim: _Dims = None, keepdim: bool = False) -> Sym:
    return _largest(b, x, dim, keepdim)


@lower("amin")
def _amin(b: Builder, x: Sym, dim: _Dims = None, keepdim: bool = False) -> Sym:
    return _smallest(b, x, dim, keepdim)


@lower("max")
def _max(b: Builder, x: Sym, dim: Any = None, keepdim: bool = False) -> Sym | tuple[Sym, None]:
    if isinstance(dim, Sym):
        return pointwise(b, "maximum", x, dim)
    return _largest(b, x) if dim is None else (_largest(b, x, dim, keepdim), None)


@lower("min")
def _min(b: Builder, x: Sym, dim: Any = None, keepdim: bool = False) -> Sym | tuple[Sym, None]:
    if isinstance(dim, Sym):
        return pointwise(b, "minimum", x, dim)
    return _smallest(b, x) if dim is None else (_smallest(b, x, dim, keepdim), None)


@lower("any")
def _any(b: Builder, x: Sym, dim: _Dims = None, keepdim: bool = False) -> Sym:
    return _largest(b, truth(b, x), dim, keepdim)


@lower("all")
def _all(b: Builder, x: Sym, dim: _Dims = None, keepdim: bool = False) -> Sym:
    return pointwise(b, "not", _largest(b, pointwise(b, "not", truth(b, x)), dim, keepdim))


def _moments(b: Builder, x: Sym, dims: _Dims, correction: float | None, keepdim: bool) -> tuple[Sym, Sym]:
    """Return the variance and the mean."""
    x = b.settle(x)
    chosen = normal_dims(dims, len(x.dims))
    middle = mean(b, x, chosen, keepdim=True)
    squares = total(b, pointwise(b, "square", sub(b, x, middle)), chosen, keepdim)
    count = b.size(flat([b.dims(x)[dim] for dim in chosen]))
    freedom = b.apply("sub", count, b.const(Fraction(1 if correction is None else correction)))
    variance = scale(b, "div", squares, Sym(freedom, (), x.dtype))
    return variance, replace(middle, dims=_without(b, x, chosen, keepdim))


@lower("var")
def _var(
    b: Builder, x: Sym, dim: _Dims = None, correction: float | None = None, keepdim: bool = False
) -> Sym:
    return _moments(b, x, dim, correction, keepdim)[0]


@lower("std")
def _std(
    b: Builder, x: Sym, dim: _Dims = None, correction: float | None = None, keepdim: bool = False
) -> Sym:
    return pointwise(b, "sqrt", _moments(b, x, dim, correction, keepdim)[0])


@lower("var_mean")
def _var_mean(
    b: Builder, x: Sym, dim: _Dims = None, correction: float | None = None, keepdim: bool = False
) -> tuple[Sym, Sym]:
    return _moments(b, x, dim, correction, keepdim)


@lower("std_mean")
def _std_mean(
    b: Builder, x: Sym, dim: _Dims = None, correction: float | None = None, keepdim: bool = False
) -> tuple[Sym, Sym]:
    variance, middle = _moments(b, x, dim, correction, keepdim)
    return pointwise(b, "sqrt", variance), middle


@lower("linalg_vector_norm", "norm")
def _norm(
    b: Builder,
    x: Sym,
    order: float | None = 2,
    dim: _Dims = None,
    keepdim: bool = False,
    dtype: torch.dtype | None = None,
) -> Sym:
    if order in (2, None):
        return pointwise(b, "sqrt", total(b, pointwise(b, "square", x), dim, keepdim))
    if order == 1:
        return total(b, pointwise(b, "abs", x), dim, keepdim)
    if order == inf:
        return _largest(b, pointwise(b, "abs", x), dim, keepdim)
    raise UnsupportedError(f"no rule for the norm of order {order}")


@lower("_softmax", "softmax")
def _softmax(b: Builder, x: Sym, dim: int, half_to_float: bool = False, dtype: Any = None) -> Sym:
    grown = exp(b, x)
    return scale(b, "div", grown, total(b, grown, dim, keepdim=True))


@lower("_safe_softmax")
def _safe_softmax(b: Builder, x: Sym, dim: int, dtype: Any = None) -> Sym:
    made = _softmax(b, x, dim)
    if x.mask is None:
        return made
    visible = replace(x, value=x.mask, mask=None, dtype=torch.bool)
    return _zero_unless(b, visible, dim, made)


@lower("_log_softmax", "log_softmax")
def _log_softmax(b: Builder, x: Sym, dim: int, half_to_float: bool = False, dtype: Any = None) -> Sym:
    return sub(b, x, pointwise(b, "log", total(b, exp(b, x), dim, keepdim=True)))


takes_integers("nll_loss_forward")


@lower("nll_loss_forward")
def _nll_loss(
    b: Builder, x: Sym, target: Sym, weight: Sym | None, reduction: int, ignore_index: int
) -> tuple[Sym, Sym]:
    if weight is not None:
        raise UnsupportedError("weighs classes by the data of an index tensor")
    x = b.settle(x)
    classes = Sym(b.index(x.dims[-1]), (x.dims[-1],), torch.int64)
    chosen = pointwise(b, "eq", classes, replace(target, dims=(*target.dims, ())))
    rows = pointwise(b, "neg", total(b, scale(b, "mul", x, replace(chosen, dtype=torch.bool)), -1, False))
    counted = pointwise(b, "ne", target, b.scalar(ignore_index, torch.int64))
    count = total(b, replace(counted, dtype=x.dtype), None, False)
    if reduction == _NO_REDUCTION:
        return rows, count
    whole = total(b, rows, None, False)
    return (whole if reduction == _SUM else scale(b, "div", whole, count)), count


@lower("logsumexp")
def _logsumexp(b: Builder, x: Sym, dim: _Dims, keepdim: bool = False) -> Sym:
    return pointwise(b, "log", total(b, exp(b, x), dim, keepdim))


@lower("native_layer_norm")
def _layer_norm(
    b: Builder, x: Sym, shape: Sequence[int], weight: Sym | None, bias: Sym | None, eps: float
) -> tuple[Sym, Sym, Sym]:
    dims = range(len(x.dims) - len(shape), len(x.dims))
    middle = mean(b, x, tuple(dims), keepdim=True)
    centered = sub(b, x, middle)
    variance = mean(b, pointwise(b, "square", centered), tuple(dims), keepdim=True)
    scale_by = pointwise(b, "rsqrt", add(b, variance, b.scalar(eps, x.dtype)))
    out = scale(b, "mul", centered, scale_by)
    if weight is not None:
        out = scale(b, "mul", out, weight)
    return out if bias is None else add(b, out, bias), middle, scale_by


@lower("_fused_rms_norm", "rms_norm")
def _rms_norm(
    b: Builder,
    input: Sym,
    normalized_shape: Sequence[int],
    weight: Sym | None = None,
    eps: float | None = None,
) -> tuple[Sym, Sym]:
    dims = tuple(range(len(input.dims) - len(normalized_shape), len(input.dims)))
    if eps is None:
        eps = torch.finfo(torch.float64 if input.dtype == torch.float64 else torch.float32).eps
    power = mean(b, pointwise(b, "square", input), dims, keepdim=True)
    scale_by = pointwise(b, "rsqrt", add(b, power, b.scalar(eps, input.dtype)))
    out = scale(b, "mul", input, scale_by)
    return out if weight is None else scale(b, "mul", out, weight), scale_by


def product(b: Builder, x: Sym, x_labels: str, y: Sym, y_labels: str, out: str) -> Sym:
    """Return the sum of products in einsum's notation; labels absent from `out` are summed."""
    (x, y), placed = b.join([(b.settle(x), x_labels), (b.settle(y), y_labels)])
    covers = b.covers(x.value) | b.covers(y.value)
    summed = flat(
        [
            placed[label]
            for label in dict.fromkeys(x_labels + y_labels)
            if label in placed and label not in out
        ]
    )
    value = b.contract(x.value, y.value, [axis for axis in summed if axis in covers])
    value = b.apply("mul", value, b.size(tuple(axis for axis in summed if axis not in covers)))
    return Sym(value, tuple(placed.get(label, ()) for label in out), x.dtype)


@lower("mm")
def _mm(b: Builder, x: Sym, y: Sym) -> Sym:
    return product(b, x, "ik", y, "kj", "ij")


@lower("bmm")
def _bmm(b: Builder, x: Sym, y: Sym) -> Sym:
    return product(b, x, "bik", y, "bkj", "bij")


@lower("mv")
def _mv(b: Builder, x: Sym, y: Sym) -> Sym:
    return product(b, x, "ik", y, "k", "i")


@lower("dot", "vdot")
def _dot(b: Builder, x: Sym, y: Sym) -> Sym:
    return product(b, x, "k", y, "k", "")


def _plus(b: Builder, x: Sym, made: Sym, beta: float, alpha: float) -> Sym:
    if alpha != 1:
        made = scale(b, "mul", made, b.scalar(alpha, x.dtype))
    if beta == 0:
        return made
    return add(b, made, x if beta == 1 else scale(b, "mul", x, b.scalar(beta, x.dtype)))


@lower("addmm")
def _addmm(b: Builder, x: Sym, y: Sym, z: Sym, beta: float = 1, alpha: float = 1) -> Sym:
    return _plus(b, x, _mm(b, y, z), beta, alpha)


@lower("baddbmm")
def _baddbmm(b: Builder, x: Sym, y: Sym, z: Sym, beta: float = 1, alpha: float = 1) -> Sym:
    return _plus(b, x, _bmm(b, y, z), beta, alpha)


@lower("addmv")
def _addmv(b: Builder, x: Sym, y: Sym, z: Sym, beta: float = 1, alpha: float = 1) -> Sym:
    return _plus(b, x, _mv(b, y, z), beta, alpha)


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
    factor = scale_of(b, query) if scale is None else scale
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
    scores = _scaled(b, scores, factor)
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
    visible = None if attn_mask is None else _visible(b, flat_heads, attn_mask)
    weights = grown = exp(b, flat_heads)
    if grouped:
        parts = b.axes.cut(weights.dims[-3], (kv_heads, heads // kv_heads))
        assert parts is not None
        weights = replace(weights, dims=(*weights.dims[:-3], *parts, *weights.dims[-2:]))
    out = product(b, weights, labels + "ls", value, shared + "sd", labels + "ld")
    out = replace(out, dims=_merge_groups(out)) if grouped else out
    out = _divided(b, out, total(b, grown, -1, keepdim=True))  # once per result, not once per weight
    return out if visible is None else _zero_unless(b, visible, -1, out)


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


def _zero_unless(b: Builder, visible: Sym, dim: int, made: Sym) -> Sym:
    """Return what was made of rows that see anything along a dimension, and zero, not 0 / 0, elsewhere."""
    seen = _largest(b, visible, dim, keepdim=True)
    return replace(pointwise(b, "guard", seen, made), dtype=made.dtype)


def _visible(b: Builder, scores: Sym, bias: Sym) -> Sym:
    """Return which keys a row of scores sees."""
    seen = None if bias.dtype == torch.bool else pointwise(b, "gt", bias, b.scalar(-inf, bias.dtype))
    if scores.mask is not None:
        masked = replace(scores, value=scores.mask, mask=None)
        seen = masked if seen is None else pointwise(b, "and", seen, masked)
    assert seen is not None
    return replace(seen, dtype=torch.bool)


def scale_of(b: Builder, query: Sym) -> float:
    """Return PyTorch's default scale of attention scores."""
    return 1 / sqrt(b.shape(query)[-1])


def _scaled(b: Builder, scores: Sym, factor: float) -> Sym:
    return scale(b, "mul", scores, b.scalar(factor, scores.dtype))


def _divided(b: Builder, x: Sym, y: Sym) -> Sym:
    return scale(b, "div", x, y)


def _merge_groups(x: Sym) -> tuple[tuple[int, ...], ...]:
    """Return dimensions [.., h, g, l, s] as [.., (h g), l, s]."""
    return (*x.dims[:-4], x.dims[-4] + x.dims[-3], *x.dims[-2:])
