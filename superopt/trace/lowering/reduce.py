"""Lowerings of reductions, norms, losses, softmax and products of matrices."""

from collections.abc import Sequence
from dataclasses import replace
from fractions import Fraction
from functools import partial
from math import inf
from typing import Any

import torch

from superopt.trace.axes import Dim
from superopt.trace.builder import Builder, Sym, UnsupportedError
from superopt.trace.lowering.masks import add, exp, picked, pointwise, scale, seen, sub
from superopt.trace.lowering.pointwise import truth
from superopt.trace.lowering.table import check_rounds, flat, lower, lower_all, normal_dims, takes_integers

__all__ = [
    "NO_REDUCTION",
    "SUM",
    "earlier",
    "largest",
    "mean",
    "product",
    "running_total",
    "smallest",
    "total",
    "zero_unless",
]

_Dims = int | Sequence[int] | None
_SHORT = 64  # positions of a running total, up to which a triangle of ones costs about as much

NO_REDUCTION, SUM = 0, 2
"""How ATen numbers the reductions of a loss; 1 is the mean."""


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
    every = flat([b.dims(x)[dim] for dim in chosen])
    if b.axes.extent(every) == 0:
        raise UnsupportedError("a mean of no elements, which is no number")
    axes = tuple(axis for axis in every if axis in covers)
    value = b.apply("div", b.reduce("sum", x.value, axes), b.size(axes))
    return Sym(value, _without(b, x, chosen, keepdim), x.dtype)


def largest(b: Builder, x: Sym, dim: _Dims = None, keepdim: bool = False) -> Sym:
    """Return the maximum over dimensions; of truth values, whether any is true."""
    x = b.settle(x)
    chosen = normal_dims(dim, len(x.dims))
    covers = b.covers(x.value)
    axes = flat([b.dims(x)[at] for at in chosen])
    if b.nodes[x.value].mask and b.axes.extent(axes) == 0:
        value = b.const(0)  # among no truth values, none is true
    else:
        value = b.reduce("max", x.value, [axis for axis in axes if axis in covers])
    return Sym(value, _without(b, x, chosen, keepdim), x.dtype)


def smallest(b: Builder, x: Sym, dim: _Dims = None, keepdim: bool = False) -> Sym:
    """Return the minimum over dimensions."""
    return pointwise(b, "neg", largest(b, pointwise(b, "neg", x), dim, keepdim))


@lower("sum")
def _sum(
    b: Builder, x: Sym, dim: _Dims = None, keepdim: bool = False, dtype: torch.dtype | None = None
) -> Sym:
    check_rounds(x, dtype)
    return total(b, x, dim, keepdim)


def earlier(b: Builder, x: Sym, dim: int) -> tuple[int, Dim, int]:
    """Return a dimension, one like it for the results, and the mask of what each result reads."""
    at = dim % len(x.dims)
    old = b.dims(x)[at]
    made = b.axes.dim(b.axes.extent(old))
    b.axes.meet(old + made)
    return at, made, b.apply("le", b.index(old), b.index(made))


def running_total(b: Builder, x: Sym, dim: int, dtype: torch.dtype | None = None) -> Sym:
    """Return the sums of all elements up to each along a dimension."""
    check_rounds(x, dtype)
    if not x.dims:
        return x
    x = b.settle(x)
    at, made, mask = earlier(b, x, dim)
    value = picked(b, x.value, b.dims(x)[at], mask)
    return replace(x, value=value, dims=(*x.dims[:at], made, *x.dims[at + 1 :]))


@lower("cumsum")
def _cumsum(b: Builder, x: Sym, dim: int, dtype: torch.dtype | None = None) -> Sym:
    if x.dims and b.shape(x)[dim] > _SHORT:
        raise UnsupportedError(f"a running total along more than {_SHORT} positions")
    return running_total(b, x, dim, dtype)


@lower("max")
def _max(b: Builder, x: Sym, dim: Any = None, keepdim: bool = False) -> Sym | tuple[Sym, None]:
    if isinstance(dim, Sym):
        return pointwise(b, "maximum", x, dim)
    return largest(b, x) if dim is None else (largest(b, x, dim, keepdim), None)


@lower("min")
def _min(b: Builder, x: Sym, dim: Any = None, keepdim: bool = False) -> Sym | tuple[Sym, None]:
    if isinstance(dim, Sym):
        return pointwise(b, "minimum", x, dim)
    return smallest(b, x) if dim is None else (smallest(b, x, dim, keepdim), None)


@lower("any")
def _any(b: Builder, x: Sym, dim: _Dims = None, keepdim: bool = False) -> Sym:
    found = truth(b, x)
    return found if _none(dim) else largest(b, found, dim, keepdim)


@lower("all")
def _all(b: Builder, x: Sym, dim: _Dims = None, keepdim: bool = False) -> Sym:
    return pointwise(b, "not", _any(b, pointwise(b, "not", truth(b, x)), dim, keepdim))


def _none(dims: _Dims) -> bool:
    """Return whether no dimension is named, which means none to `any` and `all`, and all to others."""
    return isinstance(dims, Sequence) and not dims


def _moments(
    b: Builder, x: Sym, dim: _Dims = None, correction: float | None = None, keepdim: bool = False
) -> tuple[Sym, Sym]:
    """Return the variance and the mean."""
    x = b.settle(x)
    chosen = normal_dims(dim, len(x.dims))
    lost = Fraction(1 if correction is None else correction)
    if b.axes.extent(flat([b.dims(x)[at] for at in chosen])) < lost:
        raise UnsupportedError("a variance of fewer elements than its correction")
    middle = mean(b, x, chosen, keepdim=True)
    squares = total(b, pointwise(b, "square", sub(b, x, middle)), chosen, keepdim)
    count = b.size(flat([b.dims(x)[at] for at in chosen]))
    freedom = b.apply("sub", count, b.const(lost))
    variance = scale(b, "div", squares, Sym(freedom, (), x.dtype))
    return variance, replace(middle, dims=_without(b, x, chosen, keepdim))


def _deviation(
    b: Builder, x: Sym, dim: _Dims = None, correction: float | None = None, keepdim: bool = False
) -> tuple[Sym, Sym]:
    """Return the standard deviation and the mean."""
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
        return largest(b, pointwise(b, "abs", x), dim, keepdim)
    raise UnsupportedError(f"no rule for the norm of order {order}")


@lower("_softmax", "softmax")
def _softmax(b: Builder, x: Sym, dim: int, half_to_float: bool = False, dtype: Any = None) -> Sym:
    grown = exp(b, x)
    return scale(b, "div", grown, total(b, grown, dim, keepdim=True))


def zero_unless(b: Builder, visible: Sym, dim: int, made: Sym) -> Sym:
    """Return what was made of rows that see anything along a dimension, and zero, not 0 / 0, elsewhere."""
    any_visible = largest(b, visible, dim, keepdim=True)
    return replace(pointwise(b, "guard", any_visible, made), dtype=made.dtype)


@lower("_safe_softmax")
def _safe_softmax(b: Builder, x: Sym, dim: int, dtype: Any = None) -> Sym:
    """Return the softmax, and zeros for rows of nothing but minus infinity."""
    visible = seen(b, x)
    if visible is None:
        return _softmax(b, x, dim)
    grown = exp(b, x)
    share = pointwise(b, "reciprocal", total(b, grown, dim, keepdim=True))
    return scale(b, "mul", grown, zero_unless(b, visible, dim, share))


@lower("_log_softmax", "log_softmax")
def _log_softmax(b: Builder, x: Sym, dim: int, half_to_float: bool = False, dtype: Any = None) -> Sym:
    return sub(b, x, pointwise(b, "log", total(b, exp(b, x), dim, keepdim=True)))


takes_integers("nll_loss_forward", "nll_loss_backward", "_weight_int8pack_mm")


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
    if ignore_index >= 0:  # a class that is no class, which the sum above has met
        rows = scale(b, "mul", rows, replace(counted, dtype=torch.bool))
    count = total(b, replace(counted, dtype=x.dtype), None, False)
    if reduction == NO_REDUCTION:
        return rows, count
    whole = total(b, rows, None, False)
    return (whole if reduction == SUM else scale(b, "div", whole, count)), count


@lower("nll_loss_backward")
def _nll_loss_backward(
    b: Builder,
    grad: Sym,
    x: Sym,
    target: Sym,
    weight: Sym | None,
    reduction: int,
    ignore_index: int,
    total_weight: Sym,
) -> Sym:
    if weight is not None:
        raise UnsupportedError("weighs classes by the data of an index tensor")
    classes = Sym(b.index(x.dims[-1]), (x.dims[-1],), torch.int64)
    chosen = pointwise(b, "eq", classes, replace(target, dims=(*target.dims, ())))
    grad = replace(grad, dims=(*grad.dims, ())) if reduction == NO_REDUCTION else grad
    grad = grad if reduction in (NO_REDUCTION, SUM) else scale(b, "div", grad, total_weight)
    made = pointwise(b, "neg", scale(b, "mul", grad, replace(chosen, dtype=torch.bool)))
    if ignore_index >= 0:
        counted = pointwise(b, "ne", target, b.scalar(ignore_index, torch.int64))
        made = scale(b, "mul", made, replace(counted, dims=(*target.dims, ()), dtype=torch.bool))
    return replace(made, dtype=x.dtype)


@lower("mse_loss")
def _mse_loss(b: Builder, x: Sym, y: Sym, reduction: int = 1) -> Sym:
    error = pointwise(b, "square", sub(b, x, y))
    if reduction == NO_REDUCTION:
        return error
    return total(b, error) if reduction == SUM else mean(b, error)


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


def _plus(b: Builder, x: Sym, made: Sym, beta: float, alpha: float) -> Sym:
    if alpha != 1:
        made = scale(b, "mul", made, b.scalar(alpha, x.dtype))
    if beta == 0:
        return made
    return add(b, made, x if beta == 1 else scale(b, "mul", x, b.scalar(beta, x.dtype)))


def _product(labels: tuple[str, str, str], b: Builder, x: Sym, y: Sym) -> Sym:
    return product(b, x, labels[0], y, labels[1], labels[2])


def _added_product(
    labels: tuple[str, str, str], b: Builder, x: Sym, y: Sym, z: Sym, beta: float = 1, alpha: float = 1
) -> Sym:
    return _plus(b, x, _product(labels, b, y, z), beta, alpha)


_MM, _BMM, _MV, _DOT = ("ik", "kj", "ij"), ("bik", "bkj", "bij"), ("ik", "k", "i"), ("k", "k", "")
lower_all(
    {
        "mean": lambda b, x, dim=None, keepdim=False, dtype=None: mean(b, x, dim, keepdim),
        "amax": largest,
        "amin": smallest,
        "logsumexp": lambda b, x, dim, keepdim=False: pointwise(b, "log", total(b, exp(b, x), dim, keepdim)),
        "var_mean": _moments,
        "std_mean": _deviation,
        "var": lambda b, x, dim=None, correction=None, keepdim=False: _moments(
            b, x, dim, correction, keepdim
        )[0],
        "std": lambda b, x, dim=None, correction=None, keepdim=False: _deviation(
            b, x, dim, correction, keepdim
        )[0],
        "mm": partial(_product, _MM),
        "bmm": partial(_product, _BMM),
        "mv": partial(_product, _MV),
        "dot": partial(_product, _DOT),
        "vdot": partial(_product, _DOT),
        "addmm": partial(_added_product, _MM),
        "baddbmm": partial(_added_product, _BMM),
        "addmv": partial(_added_product, _MV),
        "_weight_int8pack_mm": lambda b, x, w, s: scale(b, "mul", product(b, x, "mk", w, "nk", "mn"), s),
    }
)
