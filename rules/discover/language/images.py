"""Convolutions and pools: their shapes and their meaning, as windows that move over an image.

A window reads zeros beyond the border where the padding is `same`; then the image keeps its size, and half of
it where the stride is 2. Without padding the windows are those that lie in the image. A pool's window is 3 by
3; the average counts the zeros of the border, so that it is a convolution with a constant weight.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from fractions import Fraction
from typing import Any

import numpy as np

from superopt.rules.discover.language.shapes import Shape, Word, computed, halves

__all__ = ["POOL", "RECORDS"]

POOL = 3
"""Rows and columns of the window of a pool."""

_SHARE = Fraction(1, POOL * POOL)

# What a typing asks of its unifier (`operators.Unifier`), which stands above this module.
_Typing = Callable[[Sequence[Shape], Any], tuple[Shape, ...] | None]
_Meaning = Callable[[Sequence[Any], int], tuple[Any, ...]]


def _moved(padding: str, stride: int, place: Word, window: Word) -> Word | None:
    """Return what windows leave of a dimension of an image; only a dimension of one symbol has windows."""
    if len(place) != 1 or len(window) != 1:
        return None
    left = place[0] if padding == "same" else computed("out", place[0], window[0])
    return (left,) if stride == 1 else (computed("half", left),)


def _convolved(padding: str, stride: int, groups: int) -> _Typing:
    def typing(shapes: Sequence[Shape], unifier: Any) -> tuple[Shape, ...] | None:
        image, weight = shapes
        if len(image) != 4 or len(weight) != 4:
            return None
        if groups == 1:
            if not unifier.same(image[1], weight[1]):
                return None
        else:
            read, made = halves(image[1]), halves(weight[0])
            if read is None or made is None:
                return None
            if not (unifier.same(*read) and unifier.same(*made) and unifier.same(read[0], weight[1])):
                return None
        places = [_moved(padding, stride, image[at], weight[at]) for at in (2, 3)]
        found = [place for place in places if place is not None]
        return ((image[0], weight[0], *found),) if len(found) == 2 else None

    return typing


def _pooled(shapes: Sequence[Shape], unifier: Any) -> tuple[Shape, ...] | None:
    (image,) = shapes
    return (image,) if len(image) == 4 and all(len(image[at]) == 1 for at in (2, 3)) else None


def _enlarged(shapes: Sequence[Shape], unifier: Any) -> tuple[Shape, ...] | None:
    (weight,) = shapes
    if len(weight) != 4 or any(len(weight[at]) != 1 for at in (2, 3)):
        return None
    return ((weight[0], weight[1], *((computed("wide", weight[at][0]),) for at in (2, 3))),)


def _padded(value: Any, rows: int, cols: int) -> Any:
    """Return an image with the border that windows of this size read."""
    border = [(0, 0)] * 4 + [((size - 1) // 2, size // 2) for size in (rows, cols)]
    return value.each(lambda x: np.pad(x, border), value)


def _windows(image: Any, rows: int, cols: int) -> Iterator[Any]:
    """Yield the image that each place of a window reads."""
    height, width = (size - window + 1 for size, window in zip(image.shape[-2:], (rows, cols), strict=True))
    for row in range(rows):
        for col in range(cols):
            yield image.each(lambda x, row=row, col=col: x[..., row : row + height, col : col + width], image)


def _convolution(image: Any, weight: Any, padding: str) -> Any:
    """Return a convolution of stride 1 as one product of matrices: places by channels and windows."""
    rows, cols = weight.shape[-2:]
    read = list(_windows(_padded(image, rows, cols) if padding == "same" else image, rows, cols))
    samples, (height, width) = image.shape[2], read[0].shape[-2:]
    made = weight.shape[2]
    places = image.each(
        lambda *parts: np.moveaxis(np.stack(parts, axis=4), (2, 5, 6), (2, 3, 4)).reshape(
            *image.shape[:2], samples * height * width, -1
        ),
        *read,
    )
    kernel = weight.each(lambda x: np.swapaxes(x.reshape(*x.shape[:2], made, -1), 2, 3), weight)
    found = places.matmul(kernel)
    return found.each(
        lambda x: np.moveaxis(x.reshape(*x.shape[:2], samples, height, width, made), 5, 3), found
    )


def _convolve(padding: str, stride: int, groups: int, *, relu: bool) -> _Meaning:
    def meaning(values: Sequence[Any], at: int) -> tuple[Any, ...]:
        image, weight = values
        read, made = image.shape[3] // groups, weight.shape[2] // groups
        parts = [
            _convolution(
                image.each(lambda x, g=group: x[:, :, :, g * read : (g + 1) * read], image),
                weight.each(lambda x, g=group: x[:, :, g * made : (g + 1) * made], weight),
                padding,
            )
            for group in range(groups)
        ]
        found = parts[0].each(lambda *x: np.concatenate(x, axis=3)[..., ::stride, ::stride], *parts)
        return (found.relu() if relu else found,)

    return meaning


def _average(values: Sequence[Any], at: int) -> tuple[Any, ...]:
    (image,) = values
    total, *others = _windows(_padded(image, POOL, POOL), POOL, POOL)
    for other in others:
        total = total + other
    return (total * total.constant(_SHARE),)


def _largest(values: Sequence[Any], at: int) -> tuple[Any, ...]:
    """Return the largest of each window; beyond the border stands the nearest element, which is no larger."""
    (image,) = values
    edge = image.each(lambda x: np.pad(x, [(0, 0)] * 4 + [(1, 1)] * 2, mode="edge"), image)
    largest, *others = _windows(edge, POOL, POOL)
    for other in others:
        largest = largest.maximum(other)
    return (largest,)


def _border(values: Sequence[Any], at: int) -> tuple[Any, ...]:
    (weight,) = values
    return (weight.each(lambda x: np.pad(x, [(0, 0)] * 4 + [(1, 1)] * 2), weight),)


RECORDS: tuple[tuple[str, int, _Typing, _Meaning], ...] = (
    ("conv_same", 2, _convolved("same", 1, 1), _convolve("same", 1, 1, relu=False)),
    ("conv_same_relu", 2, _convolved("same", 1, 1), _convolve("same", 1, 1, relu=True)),
    ("conv_valid", 2, _convolved("valid", 1, 1), _convolve("valid", 1, 1, relu=False)),
    ("conv_half", 2, _convolved("same", 2, 1), _convolve("same", 2, 1, relu=False)),
    ("conv_groups", 2, _convolved("same", 1, 2), _convolve("same", 1, 2, relu=False)),
    ("avg_pool", 1, _pooled, _average),
    ("max_pool", 1, _pooled, _largest),
    ("enlarge", 1, _enlarged, _border),
)
"""The name, the number of operands, the typing and the meaning of each operator on images.

`conv_groups` has two groups: the first half of the channels it makes reads the first half of those it gets.
"""
