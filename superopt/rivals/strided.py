"""Strided: a view by explicit strides as the chain of plainer views that it is, where there is one."""

from collections.abc import Sequence
from typing import Any

import torch

__all__ = ["Step", "views_of"]

Step = tuple[Any, tuple[Any, ...]]
"""An operator of ATen, and its arguments after the tensor that is viewed."""

_ATEN = torch.ops.aten


def views_of(
    shape: Sequence[Any], strides: Sequence[Any], size: Sequence[Any], stride: Sequence[Any]
) -> list[Step] | None:
    """Return the views that make a tensor of one size and stride of another, from its first element on.

    The tensor that is viewed holds every element of a piece of memory once. None: no such views are known.
    """
    numbers = (*shape, *strides, *size, *stride)
    if not all(type(one) is int for one in numbers) or 0 in (*shape, *size):
        return None
    order = sorted((at for at, length in enumerate(shape) if length > 1), key=lambda at: -strides[at])
    count = _dense([shape[at] for at in order], [strides[at] for at in order])
    live = sorted(
        (at for at, length in enumerate(size) if length > 1 and stride[at]), key=lambda at: -stride[at]
    )
    lengths, apart = [size[at] for at in live], [stride[at] for at in live]
    if count is None:
        return None
    parts = _parts(count, lengths, apart)
    if parts is None:
        return None
    rest = [at for at in range(len(shape)) if at not in order]
    steps: list[Step] = [(_ATEN.permute.default, ([*order, *rest],)), (_ATEN.reshape.default, (parts,))]
    wanted = [*lengths, 1]
    steps += [(_ATEN.slice.Tensor, (at, 0, least)) for at, least in enumerate(wanted) if least < parts[at]]
    in_order = sorted(range(len(live)), key=lambda at: live[at])
    steps.append((_ATEN.permute.default, ([*in_order, len(live)],)))
    steps.append((_ATEN.reshape.default, ([length if at in live else 1 for at, length in enumerate(size)],)))
    steps.append((_ATEN.expand.default, (list(size),)))
    return steps


def _dense(lengths: Sequence[int], strides: Sequence[int]) -> int | None:
    """Return how many elements dimensions hold, the slowest first; None where these have gaps or overlap."""
    count = 1
    for length, stride in zip(reversed(lengths), reversed(strides), strict=True):
        if stride != count:
            return None
        count *= length
    return count


def _parts(count: int, lengths: Sequence[int], strides: Sequence[int]) -> list[int] | None:
    """Return the dimensions into which so many elements are cut, of which each begins with a wanted one.

    The last dimension is what lies between neighbours of the fastest one.
    """
    parts, outer = [], count
    for length, stride in zip(lengths, strides, strict=True):
        if outer % stride or outer // stride < length:
            return None
        parts.append(outer // stride)
        outer = stride
    return [*parts, outer]
