"""Lowerings of what slides over a tensor: convolutions and pools.

Windows that lie side by side are parts of an axis; a step of the IR reads others (`superopt.ir.windows`).
"""

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from math import inf, prod
from typing import Any

import torch

from superopt.trace.builder import Builder, Sym, UnsupportedError
from superopt.trace.lowering.layout import unfolded_apart
from superopt.trace.lowering.masks import add, choose
from superopt.trace.lowering.readings import read_dim
from superopt.trace.lowering.reduce import largest, mean, product, total
from superopt.trace.lowering.table import held, lower

__all__ = [
    "KERNEL",
    "OUTPUTS",
    "Sizes",
    "Slid",
    "averaged_windows",
    "divided",
    "divided_by_counts",
    "each",
    "grouped",
    "starts_of",
    "why_no_phases",
]

OUTPUTS, KERNEL = "uvw", "xyz"
"""Labels of the dimensions of an image, and of those of its windows."""

Sizes = int | Sequence[int]
"""A number for all dimensions of an image, or one for each of them."""

Slid = Callable[[Builder, Sym, int, range, int], tuple[Sym, Any]]
"""What takes a dimension apart into windows that begin at some places and have some length."""


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


def starts_of(size: int, kernel: int, stride: int, padding: int, dilation: int, ceil: bool = False) -> range:
    """Return where windows begin, before 0 in the padding."""
    room = size + 2 * padding - dilation * (kernel - 1) - 1
    count = (room + (stride - 1 if ceil else 0)) // stride + 1
    if ceil and (count - 1) * stride >= size + padding:
        count -= 1
    return range(-padding, count * stride - padding, stride)


def _slid(
    b: Builder, x: Sym, at: int, starts: range, count: int, dilation: int = 1
) -> tuple[Sym, Sym | None]:
    """Return a tensor with two dimensions in the place of one: which window, and which place in it.

    Outside the tensor it is 0. The mask, of these two dimensions, says what lies inside; None where all does.
    """
    x = b.settle(x)
    dim, size = b.dims(x)[at], b.shape(x)[at]
    if not size:
        raise UnsupportedError("windows of an empty dimension")
    if starts == range(size) and count == 1:
        return replace(x, dims=(*x.dims[: at + 1], (), *x.dims[at + 1 :])), None
    if starts == range(0, size, count) and size % count == 0 and (dilation == 1 or count == 1):
        parts = b.axes.cut(dim, (len(starts), count))
        if parts is not None:
            return replace(x, dims=(*x.dims[:at], *parts, *x.dims[at + 1 :])), None
    window, within = b.axes.dim(len(starts)), b.axes.dim(count)
    terms = ((window, starts.step), (within, dilation))
    value = b.window(x.value, dim, terms, starts.start)
    found = replace(x, value=value, dims=(*x.dims[:at], window, within, *x.dims[at + 1 :]))
    if starts.start >= 0 and starts[-1] + dilation * (count - 1) < size:
        return found, None
    place = b.const(starts.start)
    for one, factor in terms:
        place = b.apply("add", place, b.apply("mul", b.index(one), b.const(factor)))
    inside = b.apply("and", b.apply("ge", place, b.const(0)), b.apply("lt", place, b.const(size)))
    return found, Sym(inside, (window, within), torch.bool)


@lower("unfold")
def _unfold(b: Builder, x: Sym, dim: int, size: int, step: int) -> Sym:
    if not x.dims:
        raise UnsupportedError("windows of a single number")
    if step >= size:
        return unfolded_apart(b, x, dim, size, step)
    at = dim % len(x.dims)
    x, _ = _slid(b, x, at, range(0, b.shape(x)[at] - size + 1, step), size)
    return replace(x, dims=(*x.dims[: at + 1], *x.dims[at + 2 :], x.dims[at + 1]))


@lower("im2col")
def _im2col(b: Builder, x: Sym, kernel: Sizes, dilation: Sizes, padding: Sizes, stride: Sizes) -> Sym:
    outer = len(x.dims) - 2
    settings = zip(*(each(one, 2) for one in (kernel, stride, padding, dilation)), strict=True)
    for i, (count, step, pad, apart) in enumerate(settings):
        at = outer + 2 * i
        x, _ = _slid(b, x, at, starts_of(b.shape(x)[at], count, step, pad, apart), count, apart)
    *batch, channels, row, tap, column, other = x.dims
    return replace(x, dims=(*batch, channels + tap + other, row + column))


def grouped(b: Builder, x: Sym, at: int, groups: int) -> Sym:
    """Return a tensor with a dimension of channels taken apart into groups."""
    parts = b.axes.cut(b.dims(x)[at], (groups, b.shape(x)[at] // groups))
    if parts is None:
        raise UnsupportedError(f"channels that do not factor into {groups} groups")
    return replace(x, dims=(*x.dims[:at], *parts, *x.dims[at + 1 :]))


@lower("convolution", "_convolution")
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
    rank = len(weight.dims) - 2
    if transposed:
        numbers = [each(one, rank) for one in (stride, padding, dilation, output_padding)]
        made = _transposed(b, x, weight, list(zip(*numbers, strict=True)), groups)
        return _with_bias(b, made, bias, rank)
    image, kernel = grouped(b, b.settle(x), 1, groups), grouped(b, weight, 0, groups)
    settings = zip(*(each(one, rank) for one in (stride, padding, dilation)), strict=True)
    for i, (step, pad, apart) in enumerate(settings):
        at, count = 3 + 2 * i, b.shape(weight)[2 + i]
        starts = starts_of(b.shape(image)[at], count, step, pad, apart)
        image, _ = _slid(b, image, at, starts, count, apart)
    outputs, taps = OUTPUTS[:rank], KERNEL[:rank]
    labels = "ngc" + "".join(map("".join, zip(outputs, taps, strict=True)))
    made = product(b, image, labels, kernel, "gfc" + taps, "ngf" + outputs)
    made = replace(made, dims=(made.dims[0], made.dims[1] + made.dims[2], *made.dims[3:]))
    return _with_bias(b, made, bias, rank)


def _with_bias(b: Builder, made: Sym, bias: Sym | None, rank: int) -> Sym:
    return made if bias is None else add(b, made, replace(bias, dims=(*bias.dims, *[()] * rank)))


def why_no_phases(stride: Sizes, dilation: Sizes, output_dims: int) -> str | None:
    """Return why a transposed convolution is left to libraries, or None where it is not."""
    settings = zip(each(stride, output_dims), each(dilation, output_dims), strict=True)
    if any(step > 1 < distance for step, distance in settings):
        return "a transposed convolution of stride and dilation"
    return None


def _transposed(
    b: Builder, x: Sym, weight: Sym, settings: Sequence[tuple[int, int, int, int]], groups: int
) -> Sym:
    """Return a transposed convolution, phase by phase, so that no zeros between elements are multiplied.

    With a stride s, the output at s*q + t is a sum over j of the image at q - j and the kernel at s*j + t,
    both shifted by the padding; t is one more axis of the kernel. Where the output is no multiple of s, it is
    the first part of one that is.
    """
    rank = len(settings)
    image, kernel = grouped(b, b.settle(x), 1, groups), grouped(b, b.settle(weight), 0, groups)
    sizes, counts = b.shape(image)[3:], b.shape(kernel)[3:]
    lengths = [
        (size - 1) * step - 2 * pad + apart * (count - 1) + 1 + more
        for size, count, (step, pad, apart, more) in zip(sizes, counts, settings, strict=True)
    ]
    if min(*lengths, *sizes, *counts) < 1:
        raise UnsupportedError("windows of an empty dimension")
    if why := why_no_phases([one[0] for one in settings], [one[2] for one in settings], rank):
        raise UnsupportedError(why)
    for i, (step, pad, apart, _) in enumerate(settings):
        size, count, at = sizes[i], counts[i], 3 + 2 * i
        outer = b.axes.dim(-(-lengths[i] // step))
        taps, start, offset = _taps(count, step, pad)
        kernel = _phases(b, kernel, at, taps, step, start)
        read = b.dims(image)[at]
        if taps == 1 and offset == 0 and b.axes.extent(outer) == size:
            image = replace(image, dims=(*image.dims[:at], image.dims[at], (), *image.dims[at + 1 :]))
            continue
        tap = b.axes.dim(taps)
        value = b.window(image.value, read, ((outer, 1), (tap, -apart)), offset)
        image = replace(image, value=value, dims=(*image.dims[:at], outer, tap, *image.dims[at + 1 :]))
    outputs, taps_, phases = OUTPUTS[:rank], KERNEL[:rank], "rst"[:rank]
    pairs = "".join(map("".join, zip(outputs, taps_, strict=True)))
    parts = "".join(map("".join, zip(taps_, phases, strict=True)))
    result = "".join(map("".join, zip(outputs, phases, strict=True)))
    made = product(b, image, "ngc" + pairs, kernel, "gcf" + parts, "ngf" + result)
    joined = [made.dims[at] + made.dims[at + 1] for at in range(3, 3 + 2 * rank, 2)]
    made = replace(made, dims=(made.dims[0], made.dims[1] + made.dims[2], *joined))
    for at, length in enumerate(lengths, 2):
        made = read_dim(b, made, at, range(length)) if length < b.shape(made)[at] else made
    return made


def _taps(count: int, step: int, pad: int) -> tuple[int, int, int]:
    """Return how many taps a phase of a kernel has, where the first begins, and its place in the image."""
    if step == 1:
        return count, 0, pad
    begin, end = -((step - 1 + pad) // step), (count - 1 - pad) // step
    return end - begin + 1, pad + step * begin, -begin


@lower("col2im")
def _col2im(
    b: Builder, x: Sym, size: Sizes, kernel: Sizes, dilation: Sizes, padding: Sizes, stride: Sizes
) -> Sym:
    """Return the sum of patches, each at its place: as a transposed convolution does, without weights."""
    x = b.settle(x)
    sizes, counts = each(size, 2), each(kernel, 2)
    settings = list(zip(*(each(one, 2) for one in (stride, padding, dilation)), strict=True))
    if why := why_no_phases([one[0] for one in settings], [one[2] for one in settings], 2):
        raise UnsupportedError(why)
    windows = [
        len(starts_of(one, count, *own)) for one, count, own in zip(sizes, counts, settings, strict=True)
    ]
    inner = b.axes.cut(b.dims(x)[-2], (b.shape(x)[-2] // (counts[0] * counts[1]), *counts))
    outer = b.axes.cut(b.dims(x)[-1], tuple(windows))
    if inner is None or outer is None:
        raise UnsupportedError("patches that do not factor into channels, rows and columns")
    x = replace(x, dims=(*x.dims[:-2], inner[0], outer[0], inner[1], outer[1], inner[2]))
    first = len(x.dims) - 4
    for i, (length, count, (step, pad, apart)) in enumerate(zip(sizes, counts, settings, strict=True)):
        taps, start, offset = _taps(count, step, pad)
        x = _phases(b, x, first + 2 * i + 1, taps, step, start)
        window, tap, phase = b.dims(x)[first + 2 * i : first + 2 * i + 3]
        made = b.axes.dim(-(-length // step))
        value = b.window(x.value, window, ((made, 1), (tap, -apart)), offset)
        x = replace(
            x, value=value, dims=(*x.dims[: first + 2 * i], made + phase, tap, *x.dims[first + 2 * i + 3 :])
        )
    x = total(b, x, [first + 1, first + 3])
    for at, length in enumerate(sizes, first):
        x = read_dim(b, x, at, range(length)) if length < b.shape(x)[at] else x
    return x


def _phases(b: Builder, kernel: Sym, at: int, taps: int, step: int, start: int) -> Sym:
    """Return a kernel with a dimension as taps and phases, 0 where it has no such element."""
    dim, count = b.dims(kernel)[at], b.shape(kernel)[at]
    parts = b.axes.cut(dim, (taps, step)) if count == taps * step and start == 0 else None
    if parts is not None:
        return replace(kernel, dims=(*kernel.dims[:at], *parts, *kernel.dims[at + 1 :]))
    tap, phase = b.axes.dim(taps), b.axes.dim(step)
    value = b.window(kernel.value, dim, ((tap, step), (phase, 1)), start)
    return replace(kernel, value=value, dims=(*kernel.dims[:at], tap, phase, *kernel.dims[at + 1 :]))


@lower("constant_pad_nd")
def _padded(b: Builder, x: Sym, pad: Sequence[int], value: float = 0) -> Sym:
    x = b.settle(x)
    rank, masks = len(x.dims), list[Sym]()
    for number, (before, after) in enumerate(zip(pad[::2], pad[1::2], strict=True)):
        at = rank - 1 - number
        size = b.shape(x)[at]
        if size + before + after < 1:
            raise UnsupportedError("windows of an empty dimension")
        x, inside = _slid(b, x, at, range(-before, size + after), 1)
        x = replace(x, dims=(*x.dims[: at + 1], *x.dims[at + 2 :]))
        if inside is not None:
            masks.append(replace(inside, dims=(inside.dims[0], *[()] * number)))
    for inside in masks if value != 0 else ():
        x = choose(b, inside, x, held(b, value, x.dtype))
    return x


def averaged_windows(
    b: Builder,
    x: Sym,
    rank: int,
    kernel: Sizes,
    stride: Sizes,
    padding: Sizes,
    ceil_mode: bool,
    count_include_pad: bool,
    slid: Slid,
) -> tuple[Sym, list[list[int]]]:
    """Return an image in windows, and how many places count in each of them, for every dimension."""
    outer = len(x.dims) - rank
    settings = zip(*(each(one, rank) for one in (kernel, stride or kernel, padding)), strict=True)
    counts: list[list[int]] = []
    for i, (count, step, pad) in enumerate(settings):
        at = outer + 2 * i
        size = b.shape(x)[at]
        starts = starts_of(size, count, step, pad, 1, ceil_mode)
        low, high = (-pad, size + pad) if count_include_pad else (0, size)
        counts.append([min(start + count, high) - max(start, low) for start in starts])
        x, _ = slid(b, x, at, starts, count)
    return x, counts


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
    x, counts = averaged_windows(b, x, rank, kernel, stride, padding, ceil_mode, count_include_pad, _slid)
    within = [outer + 2 * i + 1 for i in range(rank)]
    if divisor_override is not None:
        return divided(b, total(b, x, within), divisor_override)
    if all(set(one) == {size} for one, size in zip(counts, (b.shape(x)[at] for at in within), strict=True)):
        return mean(b, x, within)
    return divided_by_counts(b, total(b, x, within), outer, counts)


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
    """Return the gradient of averages side by side: each window's own, divided among its places."""
    lengths = each(kernel, rank)
    steps = zip(b.shape(x)[-rank:], lengths, each(stride or kernel, rank), each(padding, rank), strict=True)
    if any(border or (step != length and size != length) for size, length, step, border in steps):
        raise UnsupportedError("the gradient of windows that share elements, or leave some out")
    _apart(b, x, lengths)
    dims = [dim + b.axes.dim(size) for dim, size in zip(b.dims(grad)[-rank:], lengths, strict=True)]
    spread = replace(b.settle(grad), dims=(*grad.dims[:-rank], *dims))
    return divided(b, spread, prod(lengths) if divisor_override is None else divisor_override)


def divided_by_counts(b: Builder, x: Sym, outer: int, counts: Sequence[Sequence[int]]) -> Sym:
    """Return a tensor divided by one number for each place of each dimension of an image."""
    value = x.value
    for dim, numbers in zip(b.dims(x)[outer:], counts, strict=True):
        value = b.apply("div", value, b.table(dim, numbers))
    return replace(x, value=value)


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
    masks: list[Sym] = []
    for i, (count, step, pad, apart) in enumerate(settings):
        at = outer + 2 * i
        starts = starts_of(b.shape(x)[at], count, step, pad, apart, ceil_mode)
        x, inside = _slid(b, x, at, starts, count, apart)
        after = [()] * 2 * (rank - 1 - i)
        masks += [] if inside is None else [replace(inside, dims=(*inside.dims, *after))]
    for inside in masks:
        x = choose(b, inside, x, b.scalar(-inf, x.dtype))
    return largest(b, x, [outer + 2 * i + 1 for i in range(rank)]), None


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
