"""Proof lowerings of sliding windows: convolutions, pools, and images taken apart into patches."""

from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from math import inf
from typing import Any

import torch

from superopt.trace.builder import Builder, Sym, UnsupportedError
from superopt.trace.lowering.masks import add, choose, picked
from superopt.trace.lowering.proof.moves import check_affordable, inside, moved
from superopt.trace.lowering.reduce import largest, product, total
from superopt.trace.lowering.table import lower
from superopt.trace.lowering.windows import (
    KERNEL,
    OUTPUTS,
    Sizes,
    averaged_windows,
    divided,
    divided_by_counts,
    each,
    grouped,
    starts_of,
)

__all__: list[str] = []


def _windows(
    b: Builder, x: Sym, at: int, starts: Sequence[int], lengths: Sequence[int], dilation: int = 1
) -> tuple[Sym, int | None]:
    """Return a tensor whose dimension `at` is taken apart into windows, and the places they are read at.

    Two dimensions replace it: which window, and where within. Without places nothing lies outside.
    """
    size, longest = b.shape(x)[at], max(lengths)
    tiles = list(starts) == list(range(0, size, longest)) and size % longest == 0 and min(lengths) == longest
    if tiles and (dilation == 1 or longest == 1):
        parts = b.axes.cut(b.dims(x)[at], (len(starts), longest))
        if parts is not None:
            return replace(x, dims=(*x.dims[:at], *parts, *x.dims[at + 1 :])), None
    windows, within = b.axes.dim(len(starts)), b.axes.dim(longest)
    b.axes.meet(windows + within)
    step = b.apply("mul", b.index(within), b.const(dilation))
    place = b.apply("add", b.table(windows, starts), step)
    if min(lengths) < longest:
        short = b.apply("lt", b.index(within), b.table(windows, lengths))
        place = b.apply("where", short, place, b.const(-1))
    outside = min(starts) < 0 or min(lengths) < longest
    outside |= max(starts) + dilation * (longest - 1) >= size
    return moved(b, x, at, (windows, within), place), place if outside else None


def _even_windows(b: Builder, x: Sym, at: int, starts: Sequence[int], length: int) -> tuple[Sym, Any]:
    return _windows(b, x, at, starts, [length] * len(starts))


@lower("convolution", "_convolution", for_proof=True)
def _convolution(
    b: Builder,
    x: Sym,
    weight: Sym,
    bias: Sym | None,
    stride: Sizes,
    padding: Sizes,
    dilation: Sizes,
    transposed: bool,
    output_padding: Sizes,
    groups: int,
    *backends: bool,
) -> Sym:
    rank = len(x.dims) - 2
    settings = zip(*(each(one, rank) for one in (stride, padding, dilation, output_padding)), strict=True)
    image, kernel = grouped(b, b.settle(x), 1, groups), grouped(b, weight, 0, groups)
    for i, (step, pad, apart, more) in enumerate(settings):
        at, count = 3 + 2 * i, b.shape(weight)[2 + i]
        if transposed:
            size = (b.shape(image)[at] - 1) * step - 2 * pad + apart * (count - 1) + more + 1
            image = _spread(b, image, at, size, count, step, pad, apart)
        else:
            starts = starts_of(b.shape(image)[at], count, step, pad, apart, ceil=False)
            image, _ = _windows(b, image, at, starts, [count] * len(starts), apart)
    outputs, places = OUTPUTS[:rank], KERNEL[:rank]
    labels = "ngc" + "".join(map("".join, zip(outputs, places, strict=True)))
    made = product(b, image, labels, kernel, ("gcf" if transposed else "gfc") + places, "ngf" + outputs)
    dims = (made.dims[0], made.dims[1] + made.dims[2], *made.dims[3:])
    made = replace(made, dims=dims)
    return made if bias is None else add(b, made, replace(bias, dims=(*bias.dims, *[()] * rank)))


def _spread(
    b: Builder, x: Sym, at: int, size: int, count: int, stride: int, padding: int, dilation: int
) -> Sym:
    """Return where each element of a dimension goes, for each place of a kernel: windows read backwards."""
    made, within = b.axes.dim(size), b.axes.dim(count)
    b.axes.meet(made + within)
    old = b.dims(x)[at]
    check_affordable(b, old, made + within)
    place = _reached(b, b.index(old), b.index(within), stride, padding, dilation)
    value = picked(b, x.value, old, b.apply("eq", b.index(made), place), several=True)
    return replace(x, value=value, dims=(*x.dims[:at], made, within, *x.dims[at + 1 :]))


def _reached(b: Builder, window: int, within: int, stride: int, padding: int, dilation: int) -> int:
    """Return the place of an image that an index within a window stands for."""
    start = b.apply("sub", b.apply("mul", window, b.const(stride)), b.const(padding))
    return b.apply("add", start, b.apply("mul", within, b.const(dilation)))


@lower("im2col", for_proof=True)
def _im2col(b: Builder, x: Sym, kernel: Sizes, dilation: Sizes, padding: Sizes, stride: Sizes) -> Sym:
    outer = len(x.dims) - 3
    settings = zip(*(each(one, 2) for one in (kernel, dilation, padding, stride)), strict=True)
    for i, (count, apart, pad, step) in enumerate(settings):
        at = outer + 1 + 2 * i
        starts = starts_of(b.shape(x)[at], count, step, pad, apart, ceil=False)
        x, _ = _windows(b, x, at, starts, [count] * len(starts), apart)
    channels, rows, down, columns, right = x.dims[outer:]
    return replace(x, dims=(*x.dims[:outer], channels + down + right, rows + columns))


@lower("col2im", for_proof=True)
def _col2im(
    b: Builder,
    x: Sym,
    size: Sizes,
    kernel: Sizes,
    dilation: Sizes,
    padding: Sizes,
    stride: Sizes,
) -> Sym:
    x = b.settle(x)
    sizes, kernels = each(size, 2), each(kernel, 2)
    settings = list(zip(*(each(one, 2) for one in (dilation, padding, stride)), strict=True))
    counts = [
        len(starts_of(one, count, step, pad, apart, ceil=False))
        for one, count, (apart, pad, step) in zip(sizes, kernels, settings, strict=True)
    ]
    channels = b.shape(x)[-2] // (kernels[0] * kernels[1])
    inner = b.axes.cut(b.dims(x)[-2], (channels, *kernels))
    places = b.axes.cut(b.dims(x)[-1], tuple(counts))
    if inner is None or places is None:
        raise UnsupportedError("patches that do not factor into channels, rows and columns")
    value, dims = x.value, [*x.dims[:-2], inner[0]]
    for one, within, window, (apart, pad, step) in zip(sizes, inner[1:], places, settings, strict=True):
        made = b.axes.dim(one)
        check_affordable(b, window + within, made)
        place = _reached(b, b.index(window), b.index(within), step, pad, apart)
        value = picked(b, value, window + within, b.apply("eq", b.index(made), place), several=True)
        dims.append(made)
    return replace(x, value=value, dims=tuple(dims))


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
    outer = len(x.dims) - rank
    x, divisors = averaged_windows(
        b, x, rank, kernel, stride, padding, ceil_mode, count_include_pad, _even_windows
    )
    made = total(b, x, [outer + 2 * i + 1 for i in range(rank)])
    if divisor_override is not None:
        return divided(b, made, divisor_override)
    return divided_by_counts(b, made, outer, divisors)


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
    outer = len(x.dims) - rank
    settings = zip(*(each(one, rank) for one in (kernel, stride or kernel, padding, dilation)), strict=True)
    for i, (count, step, pad, apart) in enumerate(settings):
        at = outer + 2 * i
        starts = starts_of(b.shape(x)[at], count, step, pad, apart, ceil_mode)
        x = _with_border(b, x, at, starts, [count] * len(starts), apart)
    return largest(b, x, [outer + 2 * i + 1 for i in range(rank)]), None


def _with_border(
    b: Builder, x: Sym, at: int, starts: Sequence[int], lengths: Sequence[int], dilation: int = 1
) -> Sym:
    """Return the windows of a dimension, minus infinity where they reach outside."""
    size = b.shape(x)[at]
    x, place = _windows(b, x, at, starts, lengths, dilation)
    if place is None:
        return x
    dims = (*b.dims(x)[at : at + 2], *[()] * (len(x.dims) - at - 2))
    return choose(b, Sym(inside(b, place, size), dims, torch.bool), x, b.scalar(-inf, x.dtype))


def _shares(size: int, count: int) -> tuple[list[int], list[int]]:
    """Return where so many adaptive windows begin, and how long they are."""
    starts = [i * size // count for i in range(count)]
    return starts, [-(-(i + 1) * size // count) - start for i, start in enumerate(starts)]


def _adaptive(b: Builder, x: Sym, sizes: Sequence[int], *, maximum: bool) -> Any:
    rank = len(sizes)
    outer = len(x.dims) - rank
    divisors = []
    for i, count in enumerate(sizes):
        at = outer + 2 * i
        starts, lengths = _shares(b.shape(x)[at], count)
        divisors.append(lengths)
        if maximum:
            x = _with_border(b, x, at, starts, lengths)
        else:
            x, _ = _windows(b, x, at, starts, lengths)
    within = [outer + 2 * i + 1 for i in range(rank)]
    return (
        (largest(b, x, within), None)
        if maximum
        else divided_by_counts(b, total(b, x, within), outer, divisors)
    )


def _register_pools() -> None:
    for rank in (2, 3):
        lower(f"avg_pool{rank}d", for_proof=True)(partial(_average, rank))
        lower(f"max_pool{rank}d_with_indices", for_proof=True)(partial(_maximum, rank))
        lower(f"_adaptive_avg_pool{rank}d", for_proof=True)(partial(_adaptive, maximum=False))
        lower(f"adaptive_max_pool{rank}d", for_proof=True)(partial(_adaptive, maximum=True))


_register_pools()
