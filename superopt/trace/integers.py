"""Integers: between which numbers those lie that are made of stored integers, so that none wraps around."""

from collections.abc import Mapping
from dataclasses import dataclass
from math import floor, inf, isfinite, isnan

import torch

from superopt.dtypes import dtype_text
from superopt.ops import OPS
from superopt.trace.builder import Builder, Sym, UnsupportedError

__all__ = ["check_wraps"]

_READ = frozenset({"rename", "select", "where", "window", "maximum", "minimum", "relu"})


@dataclass(frozen=True, slots=True)
class _Span:
    """The least and the largest number, and whether some stored integer is among what they are made of."""

    low: float
    high: float
    stored: bool


def check_wraps(b: Builder, sym: Sym, dtypes: Mapping[int, torch.dtype]) -> None:
    """Refuse integers of a tensor that its dtype may not hold, of which PyTorch would drop the upper bits.

    What is made of positions alone is not looked at. `dtypes` are those of the values that are inputs.
    """
    if sym.dtype.is_floating_point or sym.dtype == torch.bool or sym.value in dtypes:
        return
    span, kind = _span(b, sym.value, dtypes, {}), torch.iinfo(sym.dtype)
    if span.stored and not (kind.min <= span.low and span.high <= kind.max):
        raise UnsupportedError(f"works on {dtype_text(sym.dtype)} data, which may wrap around")


def _span(b: Builder, value: int, dtypes: Mapping[int, torch.dtype], known: dict[int, _Span]) -> _Span:
    if value not in known:
        span = _found(b, value, dtypes, known)
        unbounded = isnan(span.low) or isnan(span.high)  # such as inf - inf
        known[value] = _Span(-inf, inf, span.stored) if unbounded else span
    return known[value]


def _found(b: Builder, value: int, dtypes: Mapping[int, torch.dtype], known: dict[int, _Span]) -> _Span:
    node = b.nodes[value]
    if node.op == "input":
        dtype = dtypes[value]
        stored = not (dtype.is_floating_point or dtype.is_complex or dtype == torch.bool)
        kind = torch.iinfo(dtype) if stored else None
        return _Span(kind.min, kind.max, True) if kind else _Span(-inf, inf, False)
    if node.value is not None:
        return _Span(float(node.value), float(node.value), False)
    if node.mask or (node.op in OPS and OPS[node.op].mask):
        return _Span(0, 1, False)
    if node.op == "index":
        return _Span(0, b.axes.extent(node.axes) - 1, False)
    parts = [_span(b, one, dtypes, known) for one in node.inputs]
    stored = any(one.stored for one in parts)
    if value in b.spans:
        return _Span(*b.spans[value], stored)
    match node.op, parts:
        case "add", [x, y]:
            return _Span(x.low + y.low, x.high + y.high, stored)
        case "sub", [x, y]:
            return _Span(x.low - y.high, x.high - y.low, stored)
        case "neg", [x]:
            return _Span(-x.high, -x.low, stored)
        case "floor", [x]:
            low, high = (floor(end) if isfinite(end) else end for end in (x.low, x.high))
            return _Span(low, high, stored)
        case "mul", [x, y]:
            ends = [i * j if i and j else 0 for i in (x.low, x.high) for j in (y.low, y.high)]  # 0 * inf is 0
            return _Span(min(ends), max(ends), stored)
        case op, _ if op in _READ:
            read = [*parts, _Span(0, 0, False)]
            return _Span(min(one.low for one in read), max(one.high for one in read), stored)
    return _Span(-inf, inf, stored)
