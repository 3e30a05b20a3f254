"""Shapes, strides and dtypes of the common operators' results.

PyTorch's own kernels for the meta device compute the same, but those written in Python import sympy
and Dynamo on their first call, which takes over a second. A rule here returns None for any use
it does not know, also a wrong one: then PyTorch decides, and words the error.
"""

from collections.abc import Callable, Sequence
from functools import reduce
from typing import Any

import torch
from torch import Tensor

__all__ = ["RULES", "attention", "rms_norm"]

Rule = Callable[..., Tensor | tuple[Tensor, ...] | None]


def _empty(shape: Sequence[int], dtype: torch.dtype | None, strides: Sequence[int] | None = None) -> Tensor:
    if strides is None:
        return torch.empty(tuple(shape), dtype=dtype, device="meta")
    return torch.empty_strided(tuple(shape), tuple(strides), dtype=dtype, device="meta")


def _broadcast(shapes: Sequence[Sequence[int]]) -> tuple[int, ...] | None:
    rank = max(map(len, shapes))
    result = [1] * rank
    for shape in shapes:
        for i, size in enumerate(shape, rank - len(shape)):
            if size != 1 and result[i] not in (1, size):
                return None
            result[i] = size if result[i] == 1 else result[i]
    return tuple(result)


def _strides(shape: tuple[int, ...], tensors: Sequence[Tensor]) -> tuple[int, ...]:
    """Return the strides of an elementwise result, in its operands' order as TensorIterator finds it."""
    padded = []
    for tensor in tensors:
        missing = len(shape) - tensor.dim()
        own = [0 if size == 1 else stride for size, stride in zip(tensor.shape, tensor.stride(), strict=True)]
        padded.append([0] * missing + own)

    def order(i: int, j: int) -> int:
        for strides in padded:
            if strides[i] == 0 or strides[j] == 0:
                continue
            if strides[i] != strides[j]:
                return -1 if strides[i] < strides[j] else 1
            if shape[i] > shape[j]:
                return 1
        return 0

    inner_first = list(range(len(shape)))[::-1]
    for i in range(1, len(shape)):
        at = i
        for j in range(i - 1, -1, -1):
            found = order(inner_first[j], inner_first[at])
            if found < 0:
                break
            if found > 0:
                inner_first[j], inner_first[at] = inner_first[at], inner_first[j]
                at = j
    result, step = [0] * len(shape), 1
    for dim in inner_first:
        result[dim] = step
        step *= max(shape[dim], 1)
    return tuple(result)


def _elementwise(*operands: Any, dtype: torch.dtype | None = None) -> Tensor | None:
    """Return the result of an elementwise operator; by default of the operands' common float dtype."""
    tensors = [operand for operand in operands if isinstance(operand, Tensor)]
    shape = _broadcast([tensor.shape for tensor in tensors])
    if shape is None:
        return None
    if dtype is None:
        dtype = reduce(torch.promote_types, [torch.result_type(tensors[0], operand) for operand in operands])
        if len(tensors) > 1:
            dtype = _common(operands)
        if not dtype.is_floating_point:
            return None
    return _empty(shape, dtype, _strides(shape, tensors))


def _common(operands: Sequence[Any]) -> torch.dtype:
    """Return the dtype of several operands: tensors with dimensions count before 0-d ones and numbers."""
    found = operands[0]
    for operand in operands[1:]:
        dtype = torch.result_type(found, operand)
        wide = max((t.dim() for t in (found, operand) if isinstance(t, Tensor)), default=0)
        found = _empty((1,) * min(wide, 1), dtype)
    assert isinstance(found, Tensor)
    return found.dtype


def rms_norm(
    input: Tensor, normalized_shape: Sequence[int], weight: Tensor | None = None, eps: float | None = None
) -> Tensor | None:
    """Return the result of an RMS norm."""
    shape = list(normalized_shape)
    fits = list(input.shape[input.dim() - len(shape) :]) == shape and len(shape) <= input.dim()
    if not fits or (weight is not None and list(weight.shape) != shape):
        return None
    return _elementwise(input) if input.is_floating_point() else None


def _unary(x: Tensor, *options: Any, **named: Any) -> Tensor | None:
    numbers = all(option is None or isinstance(option, int | float | str) for option in options)
    return _elementwise(x) if numbers and x.is_floating_point() else None


def _binary(x: Any, y: Any, *_factors: Any, **options: Any) -> Tensor | None:
    return _elementwise(x, y) if options.get("rounding_mode") is None else None


def _logical(*operands: Any) -> Tensor | None:
    return _elementwise(*operands, dtype=torch.bool)


def _bitwise(*operands: Any) -> Tensor | None:
    if all(isinstance(operand, Tensor) and operand.dtype == torch.bool for operand in operands):
        return _elementwise(*operands, dtype=torch.bool)
    return None


def _where(condition: Tensor, x: Any = None, y: Any = None) -> Tensor | None:
    if not isinstance(x, Tensor) or not isinstance(y, Tensor):
        return None
    return _elementwise(condition, x, y, dtype=torch.result_type(x, y))


def _softmax(x: Tensor, dim: int, half_to_float: bool = False, **options: Any) -> Tensor | None:
    if not -max(x.dim(), 1) <= dim < max(x.dim(), 1):
        return None
    return _empty(x.shape, torch.float32 if half_to_float else options.get("dtype") or x.dtype)


def _reduced(x: Tensor, dims: Any, keepdim: bool, dtype: torch.dtype | None = None) -> Tensor | None:
    listed = [dims] if isinstance(dims, int) else dims or list(range(x.dim()))
    if not x.is_floating_point() or any(not -x.dim() <= dim < x.dim() for dim in listed):
        return None
    gone = {dim % x.dim() for dim in listed}
    if len(gone) != len(listed):
        return None
    if keepdim:
        return _empty([1 if i in gone else size for i, size in enumerate(x.shape)], dtype or x.dtype)
    return _empty([size for i, size in enumerate(x.shape) if i not in gone], dtype or x.dtype)


def _reduction(x: Tensor, dims: Any = None, keepdim: bool = False, **options: Any) -> Tensor | None:
    return _reduced(x, dims, keepdim, options.get("dtype"))


def _norm(
    x: Tensor, order: Any = 2, dims: Any = None, keepdim: bool = False, dtype: torch.dtype | None = None
) -> Tensor | None:
    return None if 0 in x.shape else _reduced(x, dims, keepdim, dtype)


def _layer_norm(
    x: Tensor, shape: Sequence[int], weight: Tensor | None, bias: Tensor | None, eps: float
) -> tuple[Tensor, ...] | None:
    outer = x.dim() - len(shape)
    fits = all(tensor is None or list(tensor.shape) == list(shape) for tensor in (weight, bias))
    if outer < 0 or list(x.shape[outer:]) != list(shape) or not fits:
        return None
    rows = [*x.shape[:outer], *([1] * len(shape))]
    wide = torch.promote_types(x.dtype, torch.float32)
    return _empty(x.shape, x.dtype), _empty(rows, wide), _empty(rows, wide)


def _mm(x: Tensor, y: Tensor) -> Tensor | None:
    if x.dim() != 2 or y.dim() != 2 or x.shape[1] != y.shape[0] or x.dtype != y.dtype:
        return None
    return _empty((x.shape[0], y.shape[1]), x.dtype)


def _bmm(x: Tensor, y: Tensor) -> Tensor | None:
    fits = x.dim() == y.dim() == 3 and x.shape[0] == y.shape[0] and x.shape[2] == y.shape[1]
    return _empty((*x.shape[:2], y.shape[2]), x.dtype) if fits and x.dtype == y.dtype else None


def _addmm(bias: Tensor, x: Tensor, y: Tensor, **options: Any) -> Tensor | None:
    made = _mm(x, y)
    fits = made is not None and _broadcast([bias.shape, made.shape]) == tuple(made.shape)
    return made if fits and bias.dtype == x.dtype else None


def _cat(parts: Sequence[Tensor], dim: int = 0) -> Tensor | None:
    first = parts[0]
    if any(part.dim() != first.dim() or part.dtype != first.dtype for part in parts) or not first.dim():
        return None
    if not -first.dim() <= dim < first.dim() or any(_channels_last(part) for part in parts):
        return None
    at = dim % first.dim()
    if len({(*part.shape[:at], *part.shape[at + 1 :]) for part in parts}) > 1:
        return None
    length = sum(part.shape[at] for part in parts)
    return _empty((*first.shape[:at], length, *first.shape[at + 1 :]), first.dtype)


def _channels_last(x: Tensor) -> bool:
    """Whether an image may lie so; one of one channel is contiguous as well."""
    return x.dim() >= 4 and x.stride(1) == 1


def _stack(parts: Sequence[Tensor], dim: int = 0) -> Tensor | None:
    first = parts[0]
    if any(part.shape != first.shape or part.dtype != first.dtype for part in parts):
        return None
    if any(_channels_last(part) for part in parts):
        return None
    if not -first.dim() - 1 <= dim <= first.dim():
        return None
    at = dim % (first.dim() + 1)
    return _empty((*first.shape[:at], len(parts), *first.shape[at:]), first.dtype)


def _copy(x: Tensor, *, dtype: torch.dtype | None = None, **options: Any) -> Tensor | None:
    layout = options.get("memory_format") or torch.preserve_format
    if layout not in (torch.preserve_format, torch.contiguous_format):
        return None
    strides = _strides(tuple(x.shape), [x]) if layout == torch.preserve_format else None
    return _empty(x.shape, dtype or x.dtype, strides)


def _masked_fill(x: Tensor, mask: Tensor, value: Any) -> Tensor | None:
    made = _elementwise(x, mask, dtype=x.dtype) if mask.dtype == torch.bool else None
    return None if made is None else _empty(made.shape, x.dtype)  # never laid out as its operand is


def _filled(shape: Any, *strides: Any, dtype: torch.dtype | None = None, **options: Any) -> Tensor | None:
    return None if strides else _empty(shape, dtype)


def attention(query: Tensor, key: Tensor, value: Tensor, *rest: Any, **options: Any) -> Tensor | None:
    """Return the result of scaled dot product attention."""
    if query.dim() < 2 or not query.dim() == key.dim() == value.dim():
        return None
    fits = query.shape[-1] == key.shape[-1] and key.shape[-2] == value.shape[-2]
    batch = _broadcast([query.shape[:-2], key.shape[:-2]])
    grouped = query.shape[:-3] == key.shape[:-3] and options.get("enable_gqa", False)
    if not fits or query.dtype != key.dtype or (batch is None and not grouped):
        return None
    if key.shape[:-2] != value.shape[:-2]:
        return None
    outer = query.shape[:-2] if batch is None or grouped else batch
    shape = (*outer, query.shape[-2], value.shape[-1])
    # Where PyTorch has one kernel, the result lies as the query does.
    return _empty(shape, query.dtype, _strides(shape, [query]) if shape == tuple(query.shape) else None)


def _table() -> dict[str, Rule]:
    families: list[tuple[str, Rule]] = [
        ("abs cos erf exp exp2 expm1 log log1p log2 neg reciprocal relu rsqrt sigmoid silu sin sqrt", _unary),
        ("tanh gelu leaky_relu hardtanh softplus clamp clamp_min clamp_max", _unary),
        ("add sub rsub mul div maximum minimum pow", _binary),
        ("eq ne lt le gt ge logical_and logical_or logical_xor logical_not", _logical),
        ("bitwise_and bitwise_or bitwise_xor bitwise_not", _bitwise),
        ("_softmax _safe_softmax _log_softmax", _softmax),
        ("sum mean logsumexp", _reduction),
        (
            "amax amin",
            lambda x, dims=None, keepdim=False: None if 0 in x.shape else _reduced(x, dims, keepdim),
        ),
        ("var std", lambda x, dims=None, *, correction=None, keepdim=False: _reduced(x, dims, keepdim)),
        ("tril triu", lambda x, diagonal=0: _empty(x.shape, x.dtype) if x.dim() >= 2 else None),
        ("clone _to_copy", _copy),
        ("ones zeros empty", _filled),
    ]
    return {name: rule for names, rule in families for name in names.split()} | {
        "where": _where,
        "masked_fill": _masked_fill,
        "linalg_vector_norm": _norm,
        "native_layer_norm": _layer_norm,
        "mm": _mm,
        "bmm": _bmm,
        "addmm": _addmm,
        "cat": _cat,
        "stack": _stack,
        "full": lambda shape, value, *, dtype=None, **options: (
            None if dtype is None and not isinstance(value, float) else _empty(shape, dtype)
        ),
        "scalar_tensor": lambda value, *, dtype=None, **options: _empty((), dtype),
        "_unsafe_view": lambda x, shape: _empty(shape, x.dtype),
    }


RULES: dict[str, Rule] = _table()
"""By operator name; called with the operator's own arguments on meta tensors."""
