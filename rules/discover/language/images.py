"""Convolutions and pools: their shapes and their meaning, as windows that move over an image.

A window reads zeros beyond the border where the padding is `same`; then the image keeps its size, and half of
it where the stride is 2. Without padding the windows are those that lie in the image. A pool's window is 3 by
3; the average counts the zeros of the border, so that it is a convolution with a constant weight.

A convolution reads all channels, or it has two groups, of which the first half of the channels it makes reads
the first half of those it gets, or it goes over each channel apart (`depth`). Each has a variant with relu.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from fractions import Fraction
from functools import cache
from itertools import product
from typing import Any

import numpy as np
from numpy.typing import NDArray

from superopt.rules.discover.language.shapes import Shape, Word, computed, halves

__all__ = ["CONVOLUTIONS", "POOL", "RECORDS", "Convolution"]

POOL = 3
"""Rows and columns of the window of a pool."""

_SHARE = Fraction(1, POOL * POOL)

# What a typing asks of its unifier (`operators.Unifier`), which stands above this module.
_Typing = Callable[[Sequence[Shape], Any], tuple[Shape, ...] | None]
_Meaning = Callable[[Sequence[Any], int], tuple[Any, ...]]


@dataclass(frozen=True, slots=True)
class Convolution:
    """One kind of convolution: what its windows read beyond the border, its stride, groups and activation."""

    padding: str = "same"
    stride: int = 1
    groups: str = ""  # or "groups" or "depth"
    relu: bool = False

    @property
    def plain(self) -> str:
        """The name of the same convolution without relu."""
        words = [
            "valid" if self.padding == "valid" else "",
            "half" if self.stride == 2 else "",
            self.groups,
        ]
        return "_".join(["conv", *(word for word in words if word)] if any(words) else ["conv", "same"])

    @property
    def name(self) -> str:
        """The name of the operator."""
        return f"{self.plain}_relu" if self.relu else self.plain

    def typing(self, shapes: Sequence[Shape], unifier: Any) -> tuple[Shape, ...] | None:
        """Return the shape of the result."""
        image, weight = shapes
        if len(image) != 4 or len(weight) != 4 or not self._fit(image[1], weight, unifier):
            return None
        places = [_moved(self.padding, self.stride, image[at], weight[at], unifier) for at in (2, 3)]
        found = [place for place in places if place is not None]
        return ((image[0], weight[0], *found),) if len(found) == 2 else None

    def _fit(self, channels: Word, weight: Shape, unifier: Any) -> bool:
        """Return whether a weight reads so many channels."""
        if not self.groups:
            return bool(unifier.same(channels, weight[1]))
        if self.groups == "depth":
            return bool(unifier.same(channels, weight[0]) and unifier.same(weight[1], _ONE))
        read, made = halves(channels), halves(weight[0])
        if read is None or made is None:
            return False
        return bool(unifier.same(*read) and unifier.same(*made) and unifier.same(read[0], weight[1]))

    def meaning(self, values: Sequence[Any], at: int) -> tuple[Any, ...]:
        """Return the result."""
        image, weight = values
        groups = {"": 1, "groups": 2, "depth": image.shape[3]}[self.groups]
        found = _convolution(image, weight, self.padding, self.stride, groups)
        return (found.relu() if self.relu else found,)


_ONE: Word = ("1",)


def _moved(padding: str, stride: int, place: Word, window: Word, unifier: Any) -> Word | None:
    """Return what windows leave of a dimension of an image; only a dimension of one symbol has windows."""
    if len(place) != 1 or len(window) != 1 or not unifier.may_move(place, window):
        return None
    left = place[0] if padding == "same" else computed("out", place[0], window[0])
    return (left,) if stride == 1 else (computed("half", left),)


def _pooled(stride: int) -> _Typing:
    def typing(shapes: Sequence[Shape], unifier: Any) -> tuple[Shape, ...] | None:
        (image,) = shapes
        if len(image) != 4:
            return None
        places = [_moved("same", stride, image[at], (str(POOL),), unifier) for at in (2, 3)]
        found = [place for place in places if place is not None]
        return ((image[0], image[1], *found),) if len(found) == 2 else None

    return typing


def _enlarged(*axes: int) -> _Typing:
    def typing(shapes: Sequence[Shape], unifier: Any) -> tuple[Shape, ...] | None:
        (weight,) = shapes
        if len(weight) != 4 or not all(len(weight[at]) == 1 and unifier.may_grow(weight[at]) for at in axes):
            return None
        return (
            tuple((computed("wide", word[0]),) if at in axes else word for at, word in enumerate(weight)),
        )

    return typing


@cache
def _reads(image: tuple[int, ...], window: tuple[int, int], padding: str, stride: int) -> NDArray[np.int64]:
    """Return what each window of an image reads, as places in its elements; -1 is a place beyond its border.

    The dimensions are samples, channels, rows, columns and the elements of a window.
    """
    samples, channels, height, width = image
    lines = []
    for size, part in zip((height, width), window, strict=True):
        first = np.arange(0, size if padding != "valid" else size - part + 1, stride)
        if padding != "valid":
            first = first - (part - 1) // 2
        line = first[:, None] + np.arange(part)
        lines.append(line.clip(0, size - 1) if padding == "edge" else np.where(line < size, line, -1))
    rows, cols = lines[0][:, None, :, None], lines[1][None, :, None, :]
    places = np.where((rows < 0) | (cols < 0), -1, rows * width + cols)
    places = places.reshape(*places.shape[:2], -1)
    starts = np.arange(samples * channels).reshape(samples, channels, 1, 1, 1) * (height * width)
    return np.where(places < 0, -1, places + starts)


def _taken(image: Any, places: NDArray[np.int64]) -> Any:
    """Return the elements at these places of an image, and zero beyond its border."""

    def taken(x: NDArray[Any]) -> NDArray[Any]:
        flat = x.reshape(*x.shape[:2], -1)
        if (places < 0).any():
            flat = np.concatenate((flat, np.zeros((*x.shape[:2], 1), dtype=x.dtype)), axis=2)
        return np.take(flat, places, axis=2)

    return image.each(taken, image)


def _convolution(image: Any, weight: Any, padding: str, stride: int, groups: int) -> Any:
    """Return a convolution as products of matrices, one for each group: places by what a window reads."""
    reads = _reads(image.shape[2:], weight.shape[-2:], padding, stride)
    samples, _, height, width, window = reads.shape
    made = weight.shape[2] // groups
    grouped = reads.reshape(samples, groups, -1, height, width, window)
    places = np.moveaxis(grouped, (1, 2), (0, 4)).reshape(groups, samples * height * width, -1)
    kernel = weight.each(lambda x: np.swapaxes(x.reshape(*x.shape[:2], groups, made, -1), -1, -2), weight)
    found = _taken(image, places).matmul(kernel)
    return found.each(
        lambda x: np.moveaxis(
            x.reshape(*x.shape[:2], groups, samples, height, width, made), (3, 2, 6), (2, 3, 4)
        ).reshape(*x.shape[:2], samples, groups * made, height, width),
        found,
    )


def _pool(stride: int, *, largest: bool) -> _Meaning:
    """Return the average of each window, or the largest of its elements that lie in the image."""

    def meaning(values: Sequence[Any], at: int) -> tuple[Any, ...]:
        (image,) = values
        # Beyond the border stands the nearest element, which is no larger than the largest.
        places = _reads(image.shape[2:], (POOL, POOL), "edge" if largest else "same", stride)
        found, *others = (_taken(image, places[..., element]) for element in range(POOL * POOL))
        for other in others:
            found = found.maximum(other) if largest else found + other
        return (found if largest else found * found.constant(_SHARE),)

    return meaning


def _border(rows: int, cols: int) -> _Meaning:
    def meaning(values: Sequence[Any], at: int) -> tuple[Any, ...]:
        (weight,) = values
        return (weight.each(lambda x: np.pad(x, [(0, 0)] * 4 + [(rows, rows), (cols, cols)]), weight),)

    return meaning


CONVOLUTIONS = tuple(
    Convolution(*kind) for kind in product(("same", "valid"), (1, 2), ("", "groups", "depth"), (False, True))
)
"""Every kind of convolution."""

RECORDS: tuple[tuple[str, int, _Typing, _Meaning], ...] = (
    *((one.name, 2, one.typing, one.meaning) for one in CONVOLUTIONS),
    ("avg_pool", 1, _pooled(1), _pool(1, largest=False)),
    ("max_pool", 1, _pooled(1), _pool(1, largest=True)),
    ("avg_pool_half", 1, _pooled(2), _pool(2, largest=False)),
    ("max_pool_half", 1, _pooled(2), _pool(2, largest=True)),
    ("enlarge", 1, _enlarged(2, 3), _border(1, 1)),
    ("enlarge_high", 1, _enlarged(2), _border(1, 0)),
    ("enlarge_wide", 1, _enlarged(3), _border(0, 1)),
)
"""The name, the number of operands, the typing and the meaning of each operator on images."""
