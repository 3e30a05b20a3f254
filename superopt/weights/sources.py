"""Sources: the weights that something was made from, and whether they still are what they were.

PyTorch counts most writes to a tensor (`_version`), and `writes` counts others; but nobody counts those by
numpy or by code in other languages. So the numbers themselves are looked at too, where they lie on a CPU: all
of a small weight, and of a large one so many, far apart, that no update of a whole weight passes unseen.
"""

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from superopt.codegen.forms import is_plain
from superopt.weights.compiled_check import Check, Known, Reads, Sample, compiled_check
from superopt.weights.memory import array_of
from superopt.weights.writes import watch_writes

__all__ = ["Sources", "can_be_watched"]

_WHOLE = 2048  # bytes of a weight that is looked at whole
_SAMPLED = 12  # numbers of a larger one that are looked at
_INTEGERS = {1: torch.int8, 2: torch.int16, 4: torch.int32, 8: torch.int64}


def can_be_watched(tensor: Tensor) -> bool:
    """Whether it can be told that a tensor has changed: others may write to shared memory at any time."""
    if not is_plain(tensor) or tensor.is_inference() or tensor.is_meta:
        return False
    if tensor.layout != torch.strided or tensor.is_neg() or tensor.is_conj() or tensor._is_zerotensor():
        return False
    if tensor.is_cuda:  # its memory always says that it is shared
        return True
    return not tensor.is_shared()  # type: ignore[no-untyped-call]


class Sources:
    """Weights as they were at one time.

    Shapes, strides and dtypes are not looked at: what changes them is a write that is counted.
    """

    def __init__(self, tensors: Sequence[Tensor]) -> None:
        self._writes = watch_writes(tensors)
        self._written = [one.count() for one in self._writes]
        self.counted = min(self._written) >= 0
        # An alias of each keeps its memory, so that other numbers cannot come to lie at the same address.
        self._aliases = tuple(one.detach() for one in tensors)
        self._known = tuple((id(one), one._version, one.data_ptr()) for one in tensors)
        views = [_sampled(one) for one in self._aliases if one.is_cpu and one.numel()]
        self._numbers = tuple((view.tobytes, view.tobytes()) for view in views)
        self._samples = [sample for view in views for sample in _samples(view)]
        self._check = self.compiled_check(tensors)

    def compiled_check(self, tensors: Sequence[Tensor], reads: Reads | None = None) -> Check:
        """Return compiled code that gives what a kernel reads, as long as these tensors are what they were.

        It gives None where they may have changed, so that Python has to look.
        """
        known = [
            Known(one, version, address, writes, written)
            for one, (_, version, address), writes, written in zip(
                tensors, self._known, self._writes, self._written, strict=True
            )
        ]
        return compiled_check(known, self._samples, self._aliases, reads)

    def state(self) -> tuple[object, ...]:
        """Return what says whether the same weights hold the same numbers, wherever they lie."""
        known = tuple(known[:2] for known in self._known)
        return known, tuple(numbers for _, numbers in self._numbers)

    def same(self, given: Sequence[Tensor]) -> bool:
        """Whether these are the weights, hold the numbers that they held, and lie where they lay."""
        return self._check(given) is not None or self._same(given)

    def _same(self, given: Sequence[Tensor]) -> bool:
        """Check the same in Python, which also sees writes that PyTorch does not count."""
        for tensor, (known, version, address) in zip(given, self._known, strict=False):
            if id(tensor) != known or tensor._version != version or tensor.data_ptr() != address:
                return False
        for read, numbers in self._numbers:
            if read() != numbers:
                return False
        if [one.count() for one in self._writes] != self._written:
            return False
        for one in self._writes:
            if one.aliases:
                one.drop_aliases()  # with aliases left, the compiled code would always give None
        return True


def _sampled(tensor: Tensor) -> "np.ndarray[Any, Any]":
    """Return some numbers of a tensor as a view of its memory, which shows what they are later on."""
    dims = sorted(range(tensor.dim()), key=tensor.stride, reverse=True)
    ordered = tensor.permute(dims).view(_INTEGERS[tensor.element_size()])
    if ordered.is_contiguous():
        flat = ordered.view(-1)
        few = flat.numel() * flat.element_size() <= _WHOLE
        # Steps of an odd length come to all columns of a matrix.
        return array_of(flat[:: 1 if few else -(-flat.numel() // _SAMPLED) | 1])
    each = max(round(_SAMPLED ** (1 / ordered.dim())), 2)
    for dim, size in enumerate(ordered.shape):
        ordered = ordered[(slice(None),) * dim + (slice(None, None, max(size // each, 1)),)]
    return array_of(ordered)


def _samples(view: "np.ndarray[Any, Any]") -> Iterator[Sample]:
    """Yield what a view shows, as numbers that are equally far apart."""
    if view.ndim > 1:
        for part in view:
            yield from _samples(part)
    else:
        address = view.__array_interface__["data"][0]
        yield Sample(address, view.strides[0], view.size, view.itemsize, view.tobytes())
