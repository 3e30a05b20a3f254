"""Lowerings of pools whose windows lie side by side: each axis in parts, and each part reduced."""

from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from math import prod
from typing import Any

from superopt.trace.builder import Builder, Sym, UnsupportedError
from superopt.trace.lowering.reduce import largest, mean, total
from superopt.trace.lowering.table import lower

__all__ = ["Sizes", "divided", "each"]

Sizes = int | Sequence[int]
"""A number for all dimensions of an image, or one for each of them."""


def each(value: Sizes, rank: int) -> Sequence[int]:
    """Return a number for each dimension of an image."""
    listed = (value,) if isinstance(value, int) else tuple(value)
    return listed * rank if len(listed) == 1 else listed


def divided(b: Builder, x: Sym, divisor: int) -> Sym:
    """Return a tensor divided by a number that a pool is given."""
    return replace(x, value=b.apply("div", x.value, b.const(divisor)))


def _apart(b: Builder, x: Sym, lengths: Sequence[int]) -> tuple[Sym, list[int]]:
    """Return an image in windows of such lengths, and its dimensions of places within windows.

    Two dimensions replace each one of the image: which window, and where within.
    """
    outer = len(x.dims) - len(lengths)
    dims = list(x.dims[:outer])
    for dim, length in zip(b.dims(x)[outer:], lengths, strict=True):
        count, rest = divmod(b.axes.extent(dim), length) if length else (0, 1)
        parts = None if rest else b.axes.cut(dim, (count, length))
        if parts is None:
            raise UnsupportedError("windows that share elements, leave some out, or differ in length")
        dims += parts
    return replace(x, dims=tuple(dims)), list(range(outer + 1, len(dims), 2))


def _side_by_side(
    b: Builder, x: Sym, kernel: Sizes, stride: Sizes, padding: Sizes, dilation: Sizes, rank: int
) -> tuple[Sym, list[int]]:
    """Return an image in the windows of a pool, if nothing lies between them or in two of them."""
    lengths = each(kernel, rank)
    settings = zip(
        b.shape(x)[-rank:],
        lengths,
        each(stride or kernel, rank),
        each(padding, rank),
        each(dilation, rank),
        strict=True,
    )
    for size, length, step, border, gap in settings:
        spread, overlap = gap != 1 and length != 1, step != length and size != length
        if border or spread or overlap:
            raise UnsupportedError("a sliding window over an axis")
    return _apart(b, x, lengths)


def _average(
    rank: int,
    b: Builder,
    x: Sym,
    kernel: Sizes,
    stride: Sizes = (),
    padding: Sizes = 0,
    ceil_mode: bool = False,
    count_include_pad: bool = True,
    divisor_override: int | None = None,
) -> Sym:
    x, within = _side_by_side(b, x, kernel, stride, padding, 1, rank)
    if divisor_override is None:
        return mean(b, x, within)
    return divided(b, total(b, x, within), divisor_override)


def _average_backward(
    rank: int,
    b: Builder,
    grad: Sym,
    x: Sym,
    kernel: Sizes,
    stride: Sizes,
    padding: Sizes,
    ceil_mode: bool,
    count_include_pad: bool,
    divisor_override: int | None,
) -> Sym:
    """Return the gradient of an average: each window's own, divided among all of its places."""
    lengths = each(kernel, rank)
    _side_by_side(b, x, kernel, stride, padding, 1, rank)
    dims = [dim + b.axes.dim(size) for dim, size in zip(b.dims(grad)[-rank:], lengths, strict=True)]
    spread = replace(b.settle(grad), dims=(*grad.dims[:-rank], *dims))
    return divided(b, spread, prod(lengths) if divisor_override is None else divisor_override)


def _maximum(
    rank: int,
    b: Builder,
    x: Sym,
    kernel: Sizes,
    stride: Sizes = (),
    padding: Sizes = 0,
    dilation: Sizes = 1,
    ceil_mode: bool = False,
) -> tuple[Sym, None]:
    x, within = _side_by_side(b, x, kernel, stride, padding, dilation, rank)
    return largest(b, x, within), None


def _lengths(b: Builder, x: Sym, counts: Sequence[int]) -> list[int]:
    """Return how long so many windows are in each dimension, 0 where they are not of one length."""
    sizes = b.shape(x)[len(x.dims) - len(counts) :]
    return [
        0 if not count or size % count else size // count for size, count in zip(sizes, counts, strict=True)
    ]


def _adaptive_average(b: Builder, x: Sym, counts: Sequence[int]) -> Sym:
    return mean(b, *_apart(b, x, _lengths(b, x, counts)))


def _adaptive_maximum(b: Builder, x: Sym, counts: Sequence[int]) -> tuple[Sym, None]:
    return largest(b, *_apart(b, x, _lengths(b, x, counts))), None


def _register() -> None:
    for rank in (2, 3):
        average: Any = partial(_average, rank)
        maximum: Any = partial(_maximum, rank)
        lower(f"avg_pool{rank}d")(average)
        backward: Any = partial(_average_backward, rank)
        lower(f"avg_pool{rank}d_backward")(backward)
        lower(f"max_pool{rank}d_with_indices")(maximum)
        lower(f"_adaptive_avg_pool{rank}d")(_adaptive_average)
        lower(f"adaptive_max_pool{rank}d")(_adaptive_maximum)


_register()
