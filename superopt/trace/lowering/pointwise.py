"""Lowerings of elementwise operators, comparisons, casts and choices."""

import math
from collections.abc import Sequence
from dataclasses import replace
from fractions import Fraction
from functools import partial
from typing import Any

import torch

from superopt.dtypes import dtype_text
from superopt.ir import COMPARISONS
from superopt.trace.builder import Builder, Sym, UnsupportedError
from superopt.trace.integers import check_fits, wrapped
from superopt.trace.lowering.layout import slice_dim
from superopt.trace.lowering.masks import add, choose, exp, pointwise, scale, sub
from superopt.trace.lowering.table import (
    as_sym,
    check_quantizes,
    flat,
    held,
    lower,
    lower_all,
    takes_integers,
)

__all__ = ["inverts_integers"]

_LONGEST_POWER = 16
_LOG_10 = 2.302585092994046
_BITS = (torch.int8, torch.uint8)  # integers whose bits are algebra: all floats hold them, and their parts

_UNARY = (
    "abs", "cos", "erf", "exp2", "expm1", "log", "log1p", "log2", "neg", "reciprocal", "relu",
    "rsqrt", "sigmoid", "silu", "sin", "sqrt", "square", "tanh",
)  # fmt: skip


@lower("add")
def _add(b: Builder, x: Any, y: Any, alpha: float = 1) -> Sym:
    x, y = _tensors(b, x, y)
    if x.dtype == y.dtype == torch.bool:
        if not alpha:
            raise UnsupportedError("adds no part of truth values")
        if b.nodes[x.value].mask and b.nodes[y.value].mask:
            return pointwise(b, "or", x, y)
        one = b.scalar(1, torch.bool)  # of parts that were joined, nothing tells that they are masks
        return sub(b, one, scale(b, "mul", sub(b, one, x), sub(b, one, y)))
    return _plus(b, x, y, alpha)


def _plus(b: Builder, x: Sym, y: Sym, alpha: float) -> Sym:
    """Return x + alpha y."""
    return add(b, x, y if alpha == 1 else scale(b, "mul", y, b.scalar(alpha, x.dtype)))


def _tensors(b: Builder, x: Any, y: Any) -> tuple[Sym, Sym]:
    """Return two operands, of which at most one is a number, as tensors."""
    if isinstance(x, Sym):
        return x, as_sym(b, y, x)
    return as_sym(b, x, y), y


@lower("sub")
def _sub(b: Builder, x: Any, y: Any, alpha: float = 1) -> Sym:
    x, y = _tensors(b, x, y)
    return sub(b, x, y if alpha == 1 else scale(b, "mul", y, b.scalar(alpha, x.dtype)))


@lower("div", "true_divide")
def _div(b: Builder, x: Sym, y: Any, rounding_mode: str | None = None) -> Sym:
    if rounding_mode is not None:
        raise UnsupportedError("rounds to integers")
    return scale(b, "div", x, as_sym(b, y, x))


@lower("pow")
def _pow(b: Builder, x: Any, y: Any) -> Sym:
    if not isinstance(x, Sym):
        x = b.scalar(x, y.dtype)
    exponent = b.constant(y.value) if isinstance(y, Sym) else y
    number = exponent if isinstance(exponent, int | float | Fraction) and math.isfinite(exponent) else None
    if number is not None and not inverts_integers(x, y, number):
        power = _small_power(b, b.settle(x), Fraction(number))
        if power is not None:
            dims = b.broadcast(x, y)[1] if isinstance(y, Sym) else x.dims
            return replace(power, dims=dims)
    y = as_sym(b, y, x)
    if not (x.dtype.is_floating_point or y.dtype.is_floating_point):
        raise UnsupportedError("rounds powers of integers whose exponents may be negative")
    return pointwise(b, "pow", x, y)


def inverts_integers(x: Sym, y: Any, exponent: float | Fraction) -> bool:
    """Return whether a power has a negative exponent and is an integer, so that PyTorch rounds it to 0."""
    floats = x.dtype.is_floating_point or not isinstance(y, Sym) or y.dtype.is_floating_point
    return exponent < 0 and not floats


def _small_power(b: Builder, x: Sym, exponent: Fraction) -> Sym | None:
    """Return an integer power as products, ±1/2 as a root, and None for any other."""
    if exponent < 0:
        if exponent == Fraction(-1, 2):
            return pointwise(b, "rsqrt", x)
        power = _small_power(b, x, -exponent) if exponent.denominator == 1 else None
        return None if power is None else pointwise(b, "reciprocal", power)
    if exponent == Fraction(1, 2):
        return pointwise(b, "sqrt", x)
    if exponent.denominator != 1 or exponent > _LONGEST_POWER:
        return None
    if exponent == 0:
        return replace(x, value=b.const(1), mask=None)
    result, square, rest = None, x.value, int(exponent)
    while True:
        if rest & 1:
            result = square if result is None else b.apply("mul", square, result)
        rest >>= 1
        if not rest:
            assert result is not None
            return replace(x, value=result)
        square = b.apply("square", square)


@lower("leaky_relu")
def _leaky_relu(b: Builder, x: Sym, negative_slope: float = 0.01) -> Sym:
    below = scale(b, "mul", b.settle(x), b.scalar(negative_slope, x.dtype))
    return choose(b, pointwise(b, "gt", x, b.scalar(0, x.dtype)), b.settle(x), below)


@lower("softplus")
def _softplus(b: Builder, x: Sym, beta: float = 1, threshold: float = 20) -> Sym:
    x = b.settle(x)
    scaled = scale(b, "mul", x, b.scalar(beta, x.dtype))
    soft = scale(b, "div", pointwise(b, "log1p", exp(b, scaled)), b.scalar(beta, x.dtype))
    return choose(b, pointwise(b, "gt", scaled, b.scalar(threshold, x.dtype)), x, soft)


def _between(b: Builder, x: Sym, low: Any, high: Any) -> Sym:
    """Return a tensor with each number in a range; where the bounds cross, it is the upper one."""
    if low is not None:
        x = pointwise(b, "maximum", x, as_sym(b, low, x))
    if high is not None:
        x = pointwise(b, "minimum", x, as_sym(b, high, x))
    return x


@lower("where")
def _where(b: Builder, condition: Sym, x: Any = None, y: Any = None) -> Sym:
    if x is None or y is None:
        raise UnsupportedError("the positions of true elements depend on the data")
    like = x if isinstance(x, Sym) else y if isinstance(y, Sym) else condition
    return choose(b, truth(b, condition), as_sym(b, x, like), as_sym(b, y, like))


@lower("index_put")
def _index_put(
    b: Builder, x: Sym, indices: Sequence[Sym | None], values: Sym, accumulate: bool = False
) -> Sym:
    """Return the tensor with one number in the places of a mask."""
    mask = indices[0] if len(indices) == 1 else None
    if mask is None or mask.dtype != torch.bool or accumulate or b.axes.extent(flat(values.dims)) != 1:
        raise UnsupportedError("writes to places that the data of a tensor tell")
    missing = len(x.dims) - len(mask.dims)
    number = replace(held(b, values, x.dtype), dims=())
    return choose(b, replace(mask, dims=(*mask.dims, *[()] * missing)), number, x)


def truth(b: Builder, x: Sym) -> Sym:
    """Return a tensor as 0 or 1: whether it is not 0."""
    if x.dtype == torch.bool or (b.nodes[x.value].mask and x.mask is None):
        return x
    return replace(pointwise(b, "ne", x, b.scalar(0, x.dtype)), dtype=torch.bool)


def _logical(b: Builder, op: str, x: Sym, y: Any) -> Sym:
    return pointwise(b, op, truth(b, x), truth(b, as_sym(b, y, x)))


takes_integers("bitwise_and", "__and__", "bitwise_right_shift", "__rshift__")


@lower("bitwise_right_shift", "__rshift__")
def _shifted(b: Builder, x: Any, y: Any) -> Sym:
    """Return the upper bits of integers: a shift keeps the sign, so it rounds down."""
    x, y = _tensors(b, x, y)
    by = b.constant(y.value)
    if x.dtype not in _BITS or by is None or not 0 <= by < 8 or by != int(by):
        raise UnsupportedError("works on the bits of integers")
    return pointwise(b, "floor", scale(b, "mul", x, b.scalar(0.5 ** int(by), torch.float32)))


def _lower_bits(b: Builder, x: Sym, y: Sym) -> Sym:
    """Return the lower bits of integers, where a number of 2^n - 1 picks them."""
    mask = b.constant(y.value)
    if x.dtype not in _BITS or mask is None or mask not in (1, 3, 7, 15, 31, 63, 127):
        raise UnsupportedError("works on the bits of integers")
    upper = _shifted(b, x, int(mask).bit_length())
    made = sub(b, x, scale(b, "mul", upper, b.scalar(int(mask) + 1, torch.float32)))
    b.spans[made.value] = 0, int(mask)
    return made


def _bitwise(op: str, b: Builder, x: Any, y: Any) -> Sym:
    x, y = _tensors(b, x, y)
    if b.constant(x.value) is not None:
        x, y = y, x
    if op == "and" and not x.dtype.is_floating_point and x.dtype != torch.bool:
        return _lower_bits(b, x, y)
    if x.dtype != torch.bool or y.dtype != torch.bool:
        raise UnsupportedError("works on the bits of integers")
    return pointwise(b, op, x, y)


@lower("bitwise_not")
def _bitwise_not(b: Builder, x: Sym) -> Sym:
    if x.dtype != torch.bool:
        raise UnsupportedError("works on the bits of integers")
    return pointwise(b, "not", x)


@lower("_to_copy", "to")
def _to_copy(b: Builder, x: Sym, dtype: torch.dtype | None = None, **options: Any) -> Sym:
    """Between floats a cast is the identity of the algebra; the ports keep the dtypes."""
    if dtype is None or dtype == x.dtype:
        return x
    if dtype.is_complex or x.dtype.is_complex:
        raise UnsupportedError("complex numbers")
    if dtype == torch.bool:
        return truth(b, x)
    if not dtype.is_floating_point and x.dtype.is_floating_point:
        raise UnsupportedError("rounds to integers")
    check_quantizes(x, dtype)
    if not dtype.is_floating_point:
        check_fits(b, x, dtype)
    return x


@lower("sign", "sgn")
def _sign(b: Builder, x: Sym) -> Sym:
    """Return 1 for positive numbers, -1 for negative ones, and 0 for 0."""
    zero = b.scalar(0, x.dtype)
    return sub(b, pointwise(b, "gt", x, zero), pointwise(b, "lt", x, zero))


@lower("logit")
def _logit(b: Builder, x: Sym, eps: float | None = None) -> Sym:
    x = b.settle(x)
    if eps is not None and eps <= 0.5:
        x = _between(b, x, eps, 1 - eps)
    elif eps is not None:  # the bounds cross: numbers between them become the upper one
        low, high = b.scalar(eps, x.dtype), b.scalar(1 - eps, x.dtype)
        x = choose(b, pointwise(b, "lt", x, low), low, pointwise(b, "minimum", x, high))
    odds = scale(b, "div", x, sub(b, b.scalar(1, x.dtype), x))
    return pointwise(b, "log", odds)


@lower("xlogy")
def _xlogy(b: Builder, x: Any, y: Any) -> Sym:
    """Return x log y; 0 where x is 0, whatever y is."""
    like = x if isinstance(x, Sym) else y
    x, y = as_sym(b, x, like), as_sym(b, y, like)
    product = scale(b, "mul", x, pointwise(b, "log", y))
    nonzero = pointwise(b, "ne", x, b.scalar(0, x.dtype))
    return pointwise(b, "guard", nonzero, product)


@lower("log_sigmoid_forward")
def _log_sigmoid(b: Builder, x: Sym) -> tuple[Sym, None]:
    """Return the logarithm of the sigmoid, such that large numbers of either sign keep their digits."""
    size = pointwise(b, "abs", x)
    rest = pointwise(b, "log1p", exp(b, pointwise(b, "neg", size)))
    return sub(b, pointwise(b, "minimum", x, b.scalar(0, x.dtype)), rest), None


def _compare(op: str, b: Builder, x: Sym, y: Any) -> Sym:
    """Compare a tensor with another or with a number.

    PyTorch gives what has no dimensions the dtype of what has some, which may round it.
    """
    if not isinstance(y, Sym):
        y = as_sym(b, _as_held(y, x.dtype), x)
    elif x.dims and not y.dims:
        y = _as_dtype(b, y, x.dtype)
    elif y.dims and not x.dims:
        x = _as_dtype(b, x, y.dtype)
    return pointwise(b, op, x, y)


def _as_held(number: float | int | bool, dtype: torch.dtype) -> float | int | bool:
    """Return what a float of 32 or fewer bits makes of a number, and integers of a whole one.

    Integers take its lower bits: for uint8, -1 is 255. Other dtypes leave it as it is.
    """
    if type(number) is int and not (dtype.is_floating_point or dtype == torch.bool):
        return wrapped(number, dtype)
    if dtype not in (torch.float16, torch.bfloat16, torch.float32):
        return number
    rounded = float(torch.tensor(number, dtype=torch.float64).to(dtype))
    return rounded if math.isfinite(rounded) else number


def _as_dtype(b: Builder, x: Sym, dtype: torch.dtype) -> Sym:
    """Return a number of no dimensions as a dtype holds it; a float dtype, where the number is known."""
    floats = x.dtype.is_floating_point
    if not floats and not dtype.is_floating_point and torch.bool not in (x.dtype, dtype):
        number = b.constant(x.value)
        if number is not None and number.denominator == 1:
            return replace(x, value=b.const(wrapped(int(number), dtype)))
        check_fits(b, x, dtype)
        return x
    kept = torch.promote_types(x.dtype, dtype) == dtype if floats else x.dtype in (torch.bool, *_BITS)
    if not dtype.is_floating_point or kept or x.mask is not None or b.nodes[x.value].op == "infinity":
        return x
    number = b.constant(x.value)
    if number is not None:
        return replace(x, value=b.const(_as_held(float(number), dtype)))
    if floats or dtype.itemsize == 2:
        raise UnsupportedError(f"rounds {dtype_text(x.dtype)} to {dtype_text(dtype)} before it compares")
    return x


@lower("glu")
def _glu(b: Builder, x: Sym, dim: int = -1) -> Sym:
    half = b.shape(x)[dim] // 2
    gate = pointwise(b, "sigmoid", slice_dim(b, x, dim, half, 2 * half, 1))
    return scale(b, "mul", slice_dim(b, x, dim, 0, half, 1), gate)


lower_all(
    {name: lambda b, x, op=name: pointwise(b, op, x) for name in _UNARY}
    | {name: partial(_compare, name) for name in sorted(COMPARISONS)}
    | {name: lambda b, x, y, op=name: pointwise(b, op, x, y) for name in ("maximum", "minimum")}
    | {
        "exp": exp,
        "log10": lambda b, x: scale(b, "div", pointwise(b, "log", x), b.scalar(_LOG_10, x.dtype)),
        "rsub": lambda b, x, y, alpha=1: _sub(b, y, x, alpha),
        "mul": lambda b, x, y: scale(b, "mul", x, as_sym(b, y, x)),
        "addcmul": lambda b, x, y, z, value=1: _plus(b, x, scale(b, "mul", y, z), value),
        "addcdiv": lambda b, x, y, z, value=1: _plus(b, x, scale(b, "div", y, z), value),
        "lerp": lambda b, x, y, weight: add(b, x, scale(b, "mul", as_sym(b, weight, x), sub(b, y, x))),
        "gelu": lambda b, x, approximate="none": pointwise(
            b, "gelu_tanh" if approximate == "tanh" else "gelu", x
        ),
        "clamp": lambda b, x, min=None, max=None: _between(b, x, min, max),
        "clamp_min": lambda b, x, low: _between(b, x, low, None),
        "clamp_max": lambda b, x, high: _between(b, x, None, high),
        "hardtanh": lambda b, x, min_val=-1, max_val=1: _between(b, x, min_val, max_val),
        "softshrink": lambda b, x, lambd=0.5: sub(b, x, _between(b, x, -lambd, lambd)),
        "masked_fill": lambda b, x, mask, value: choose(b, truth(b, mask), held(b, value, x.dtype), x),
        "logical_not": lambda b, x: pointwise(b, "not", truth(b, x)),
        "logical_and": lambda b, x, y: _logical(b, "and", x, y),
        "logical_or": lambda b, x, y: _logical(b, "or", x, y),
        "logical_xor": lambda b, x, y: _logical(b, "ne", x, y),
    }
)
for _op, _names in {
    "and": "bitwise_and __and__",
    "or": "bitwise_or __or__",
    "ne": "bitwise_xor __xor__",
}.items():
    lower(*_names.split())(partial(_bitwise, _op))
