"""Convolutions: contractions of windows that are left to torch, on tensors with named axes."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from math import prod

import torch
from torch import Tensor
from torch.nn import functional as F

from superopt.codegen.operands import alike
from superopt.ir.mugraph import Convolution, Slid

__all__ = ["convolve"]

_ONEDNN = (torch.float32, torch.bfloat16)


@dataclass(frozen=True, slots=True)
class _Setting:
    """What a library is told of one dimension of an image, and what is done to the image before."""

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


def convolve(
    convolution: Convolution, image: Sequence[str], kernel: Sequence[str], sizes: Mapping[str, int]
) -> Callable[[Tensor, Tensor], Tensor]:
    """Return a convolution of an image with a kernel, of these axes; the result has `convolution.order`."""
    one, slid = convolution, convolution.slid
    settings = [_Setting.of(each, sizes) for each in slid]
    lone = len(slid) == 1  # libraries have faster code for images of two dimensions
    depth = prod(sizes[axis] for axis in (*one.groups, *one.channels))
    seen = [*one.batch, *one.groups, *one.channels, *(each.axis for each in slid)]
    image_order = [image.index(axis) for axis in seen]
    image_shape = [prod(sizes[axis] for axis in one.batch), depth, *([1] * lone)]
    image_shape += [sizes[each.axis] for each in slid]
    taps = [each.tap for each in slid if each.tap is not None]
    kernel_order = [kernel.index(axis) for axis in (*one.groups, *one.filters, *one.channels, *taps)]
    groups, filters = (prod(sizes[axis] for axis in part) for part in (one.groups, one.filters))
    kernel_shape = [groups * filters, depth // groups, *([1] * lone)]
    kernel_shape += [1 if each.tap is None else sizes[each.tap] for each in slid]
    flipped = [at for at, each in enumerate(slid, 2 + lone) if each.dilation < 0 and each.tap is not None]
    around = [number for each in reversed(settings) for number in (each.before, each.after)]
    strides = [*([1] * lone), *(each.stride for each in settings)]
    dilations = [*([1] * lone), *(each.dilation for each in settings)]
    paddings = [*([0] * lone), *(each.padding for each in settings)]
    zeros = [0] * len(strides)
    made = [sizes[axis] for axis in one.order]
    turned = [0, *range(2, 2 + len(strides)), 1] if one.channels_last else []

    def run(x: Tensor, y: Tensor) -> Tensor:
        x, y = alike(x, y)
        x = x.permute(image_order).reshape(image_shape)
        if any(around):
            x = F.pad(x, around)
        y = y.permute(kernel_order).reshape(kernel_shape)
        if flipped:
            y = y.flip(flipped)
        if x.is_cpu and x.dtype in _ONEDNN and _has_onednn(x.dtype):
            found = torch.mkldnn_convolution(x, y, None, paddings, strides, dilations, groups)
        else:
            found = torch.convolution(x, y, None, strides, paddings, dilations, False, zeros, groups)
        return (found.permute(turned) if turned else found).reshape(made)

    return run


def _has_onednn(dtype: torch.dtype) -> bool:
    """Whether oneDNN convolves tensors of a dtype here; torch itself has it do so for large images alone."""
    if not (torch.backends.mkldnn.is_available() and torch.backends.mkldnn.enabled):  # type: ignore[no-untyped-call]
        return False
    return dtype == torch.float32 or bool(torch.ops.mkldnn._is_mkldnn_bf16_supported())
