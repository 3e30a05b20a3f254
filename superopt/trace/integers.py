"""Integers: between which numbers they lie, so that none wraps around, and none is rounded by a kernel."""

from dataclasses import dataclass, replace
from math import floor, inf, isfinite, isnan

import torch

from superopt.dtypes import dtype_text
from superopt.ir import COMPARISONS
from superopt.ops import OPS
from superopt.trace.builder import Builder, Node, Sym, UnsupportedError

__all__ = ["check_fits", "check_holds", "compares_beyond", "is_held", "with_own_numbers", "wrapped"]

_HELD = 1 << 24  # float32, in which kernels compute, holds all whole numbers up to this

_READ = frozenset({"rename", "select", "where", "window", "maximum", "minimum", "relu", "max"})

_ALWAYS_WHOLE = frozenset({"index", "size", "floor", "infinity"})
"""Operators that make whole numbers of anything."""

_KEEPS_WHOLE = _READ | {"add", "sub", "mul", "neg", "square", "abs", "sum", "contract", "guard"}
"""Operators that make whole numbers of whole numbers."""


@dataclass(frozen=True, slots=True)
class _Span:
    """The least and the largest number, and whether they are made of stored integers."""

    low: float
    high: float
    stored: bool = False

    def fits(self, dtype: torch.dtype) -> bool:
        """Return whether a dtype holds all numbers."""
        kind = torch.iinfo(dtype)
        return kind.min <= self.low and self.high <= kind.max


def check_holds(b: Builder, sym: Sym) -> None:
    """Refuse integers of a tensor that kernels would round, or of which PyTorch would drop the upper bits.

    Kernels compute in float32; PyTorch counts more than 2^24 elements exactly, in 64 bits.
    """
    if sym.dtype.is_floating_point or sym.dtype == torch.bool or sym.value in b.stored:
        return
    span = _span(b, sym.value, {})
    if not span.fits(sym.dtype):
        raise UnsupportedError(f"works on {dtype_text(sym.dtype)} data, which may wrap around")
    if span.low < -_HELD or span.high > _HELD:
        raise UnsupportedError("makes integers beyond 2^24, which a float32 does not hold")


def check_fits(b: Builder, sym: Sym, dtype: torch.dtype) -> None:
    """Refuse to store a tensor's integers in a dtype that may not hold them."""
    if sym.dtype == torch.bool or dtype == torch.bool:
        return
    own = torch.iinfo(sym.dtype)
    if not (_Span(own.min, own.max).fits(dtype) or _span(b, sym.value, {}).fits(dtype)):
        raise UnsupportedError(f"stores {dtype_text(sym.dtype)} data as {dtype_text(dtype)}")


def compares_beyond(b: Builder, value: int) -> bool:
    """Return whether a value compares positions of which a float32 does not hold all.

    A kernel may be called with more positions than there are here, up to the next power of two.
    """
    node = b.nodes[value]
    if node.op not in COMPARISONS:
        return False
    spans = [_span(b, one, {}) for one in node.inputs if _is_position(b, one)]
    return any(one.low <= -_HELD or one.high >= _HELD for one in spans)


def _is_position(b: Builder, value: int) -> bool:
    """Whether a value is worked out from positions and sizes alone, by arithmetic."""
    node = b.nodes[value]
    if node.op in ("index", "size"):
        return True
    arithmetic = node.op in ("add", "sub", "mul", "neg", "maximum", "minimum")
    return node.tensorless and arithmetic and any(_is_position(b, one) for one in node.inputs)


def is_held(b: Builder, sym: Sym, most: int) -> bool:
    """Return whether all numbers of a tensor surely lie between a number and its negative."""
    span = _span(b, sym.value, {})
    return -most <= span.low and span.high <= most


def with_own_numbers(b: Builder, sym: Sym) -> Sym:
    """Return a tensor of integers or of booleans, as its dtype holds what the algebra makes.

    PyTorch makes True of any number but 0. It drops what is behind the point of numbers that an operator on
    integers makes or is given: such an operator is refused.
    """
    if sym.dtype.is_floating_point or sym.value in b.stored:
        return sym
    if sym.dtype == torch.bool:
        span = _span(b, sym.value, {})
        if span.low >= 0 and span.high <= 1 and _is_whole(b, sym.value, {}):
            return sym
        return replace(sym, value=b.apply("ne", sym.value, b.const(0)))
    if not _is_whole(b, sym.value, {}):
        raise UnsupportedError(f"may make fractions of {dtype_text(sym.dtype)} data, which PyTorch rounds")
    return sym


def _is_whole(b: Builder, value: int, known: dict[int, bool]) -> bool:
    """Whether all numbers of a value are surely whole."""
    if value not in known:
        node = b.nodes[value]
        if node.value is not None:
            known[value] = node.value.denominator == 1
        elif _is_mask(node) or node.op in _ALWAYS_WHOLE:
            known[value] = True
        elif node.op == "input":
            known[value] = not b.stored[value].is_floating_point
        else:
            parts = node.inputs[1:] if node.op == "where" else node.inputs
            known[value] = node.op in _KEEPS_WHOLE and all(_is_whole(b, one, known) for one in parts)
    return known[value]


def _is_mask(node: Node) -> bool:
    """Whether a value is always 0 or 1."""
    return node.mask or (node.op in OPS and OPS[node.op].mask)


def wrapped(number: int, dtype: torch.dtype) -> int:
    """Return what an integer dtype holds of a number: its lower bits."""
    kind = torch.iinfo(dtype)
    return (number - kind.min) % (kind.max - kind.min + 1) + kind.min


def _span(b: Builder, value: int, known: dict[int, _Span]) -> _Span:
    if value not in known:
        span = _found(b, value, known)
        unbounded = isnan(span.low) or isnan(span.high)  # such as inf - inf
        known[value] = _Span(-inf, inf, span.stored) if unbounded else span
    return known[value]


def _found(b: Builder, value: int, known: dict[int, _Span]) -> _Span:
    node = b.nodes[value]
    if node.value is not None:
        return _Span(float(node.value), float(node.value))
    if _is_mask(node):
        return _Span(0, 1)
    if node.op == "input":
        dtype = b.stored[value]
        stored = not (dtype.is_floating_point or dtype.is_complex or dtype == torch.bool)
        kind = torch.iinfo(dtype) if stored else None
        return _Span(kind.min, kind.max, stored=True) if kind else _Span(-inf, inf)
    if node.op == "index":
        return _Span(0, b.axes.extent(node.axes) - 1)
    if node.op == "size":
        return _Span(b.axes.extent(node.axes), b.axes.extent(node.axes))
    if value in b.picks:
        one = _span(b, b.picks[value], known)
        return _Span(min(0, one.low), max(0, one.high), one.stored)
    parts = [_span(b, one, known) for one in node.inputs]
    stored = any(one.stored for one in parts)
    low, high = b.spans.get(value) or _ends(b, value, parts)
    return _Span(low, high, stored)


def _ends(b: Builder, value: int, parts: list[_Span]) -> tuple[float, float]:
    """Return the least and the largest number that an operator makes."""
    node = b.nodes[value]
    count = b.axes.extent(node.axes) if node.op in ("sum", "contract") else 1
    match node.op, parts:
        case "add", [x, y]:
            return x.low + y.low, x.high + y.high
        case "sub", [x, y]:
            return x.low - y.high, x.high - y.low
        case "neg", [x]:
            return -x.high, -x.low
        case "floor", [x]:
            low, high = (floor(end) if isfinite(end) else end for end in (x.low, x.high))
            return low, high
        case "sum", [x]:
            return x.low * count, x.high * count
        case (("mul" | "contract"), [x, y]):
            ends = [i * j if i and j else 0 for i in (x.low, x.high) for j in (y.low, y.high)]  # 0 * inf is 0
            return min(ends) * count, max(ends) * count
        case "square", [x]:
            return 0, max(x.low * x.low, x.high * x.high)
        case "abs", [x]:
            return 0, max(-x.low, x.high)
        case op, _ if op in _READ:
            return min(0, *(one.low for one in parts)), max(0, *(one.high for one in parts))
    return -inf, inf
