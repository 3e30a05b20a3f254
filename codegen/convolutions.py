"""Convolutions: contractions of windows that are left to torch, on tensors with named axes."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from math import prod

import torch
from torch import Tensor
from torch.nn import functional as F

from superopt.codegen.operands import alike
from superopt.ir.mugraph import Convolution, Slid

__all__ = ["convolve", "library_call"]

_ONEDNN = (torch.float32, torch.bfloat16)


@dataclass(frozen=True, slots=True)
class _Setting:
    """How a library is called along one dimension of an image, and what is done to the image before."""

    stride: int
    dilation: int
    padding: int = 0
    before: int = 0  # zeros, or elements that are left out where it is below 0
    after: int = 0

    @classmethod
    def of(cls, one: Slid, sizes: Mapping[str, int]) -> "_Setting":
        """Return the setting under which as many results are made, of the same places, as there are."""
        size, results = sizes[one.axis], sizes[one.made]
        reach = abs(one.dilation) * (sizes.get(one.tap or "", 1) - 1)
        begin = one.begin - (reach if one.dilation < 0 else 0)
        end = begin + one.stride * (results - 1) + reach + 1
        dilation = abs(one.dilation)
        if begin <= 0 and (size - 2 * begin - reach - 1) // one.stride + 1 == results:
            return cls(one.stride, dilation, -begin)
        return cls(one.stride, dilation, 0, -begin, end - size)


@dataclass(frozen=True, slots=True)
class LibraryCall:
    """How a library is called for a convolution: how tensors are arranged for it, and its settings."""

    image_order: tuple[int, ...]
    image_shape: tuple[int, ...]  # the batch first, all in one
    around: tuple[int, ...]  # zeros around the image, or elements that are left out where below 0
    kernel_order: tuple[int, ...]
    kernel_shape: tuple[int, ...]
    flipped: tuple[int, ...]  # dimensions of the kernel that are read backward
    strides: tuple[int, ...]
    paddings: tuple[int, ...]
    dilations: tuple[int, ...]
    groups: int
    turned: tuple[int, ...]  # the order of the result's dimensions, where it is another one


def library_call(
    one: Convolution, image: Sequence[str], kernel: Sequence[str], sizes: Mapping[str, int]
) -> LibraryCall:
    """Return how a library convolves an image with a kernel, of these axes; the result has `order`."""
    slid = one.slid
    settings = [_Setting.of(each, sizes) for each in slid]
    lone = (1,) * (len(slid) == 1)  # libraries have faster code for images of two dimensions
    depth = prod(sizes[axis] for axis in (*one.groups, *one.channels))
    seen = [*one.batch, *one.groups, *one.channels, *(each.axis for each in slid)]
    batch = prod(sizes[axis] for axis in one.batch)
    taps = [each.tap for each in slid if each.tap is not None]
    groups, filters = (prod(sizes[axis] for axis in part) for part in (one.groups, one.filters))
    counts = (1 if each.tap is None else sizes[each.tap] for each in slid)
    backward = (
        at for at, each in enumerate(slid, 2 + len(lone)) if each.dilation < 0 and each.tap is not None
    )
    around = tuple(number for each in reversed(settings) for number in (each.before, each.after))
    return LibraryCall(
        image_order=tuple(image.index(axis) for axis in seen),
        image_shape=(batch, depth, *lone, *(sizes[each.axis] for each in slid)),
        around=around if any(around) else (),
        kernel_order=tuple(kernel.index(axis) for axis in (*one.groups, *one.filters, *one.channels, *taps)),
        kernel_shape=(groups * filters, depth // groups, *lone, *counts),
        flipped=tuple(backward),
        strides=(*lone, *(each.stride for each in settings)),
        paddings=(*(0 for _ in lone), *(each.padding for each in settings)),
        dilations=(*lone, *(each.dilation for each in settings)),
        groups=groups,
        turned=(0, *range(2, 2 + len(lone) + len(slid)), 1) if one.channels_last else (),
    )


def convolve(
    convolution: Convolution, image: Sequence[str], kernel: Sequence[str], sizes: Mapping[str, int]
) -> Callable[[Tensor, Tensor], Tensor]:
    """Return a convolution of an image with a kernel, of these axes; the result has `convolution.order`."""
    call = library_call(convolution, image, kernel, sizes)
    made = [sizes[axis] for axis in convolution.order]
    paddings, strides, dilations, groups = call.paddings, call.strides, call.dilations, call.groups
    zeros = [0] * len(strides)

    def run(x: Tensor, y: Tensor) -> Tensor:
        x, y = alike(x, y)
        x = x.permute(call.image_order).reshape(call.image_shape)
        if call.around:
            x = F.pad(x, call.around)
        y = y.permute(call.kernel_order).reshape(call.kernel_shape)
        if call.flipped:
            y = y.flip(call.flipped)
        if x.is_cpu and x.dtype in _ONEDNN and _has_onednn(x.dtype):
            found = torch.mkldnn_convolution(x, y, None, paddings, strides, dilations, groups)
        else:
            found = torch.convolution(x, y, None, strides, paddings, dilations, False, zeros, groups)
        return (found.permute(call.turned) if call.turned else found).reshape(made)

    return run


def _has_onednn(dtype: torch.dtype) -> bool:
    """Whether oneDNN convolves tensors of a dtype here; torch itself has it do so for large images alone."""
    if not (torch.backends.mkldnn.is_available() and torch.backends.mkldnn.enabled):  # type: ignore[no-untyped-call]
        return False
    return dtype == torch.float32 or bool(torch.ops.mkldnn._is_mkldnn_bf16_supported())
