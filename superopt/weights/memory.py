"""Memory: the numbers of tensors where they lie, and large pages for those that are kept.

Kernels that read weights once in each call wait less for the addresses of large pages: reading 128 MiB on a
virtual machine went from 23 to 30 GB/s.
"""

import ctypes
import mmap
from math import prod
from typing import Any

import numpy as np
import torch
from torch import Tensor

__all__ = ["array_of", "in_large_pages"]

_PAGE = 2 << 20  # bytes of a large page
_ADVICE = getattr(mmap, "MADV_HUGEPAGE", None)  # only Linux has it


def array_of(tensor: Tensor) -> "np.ndarray[Any, Any]":
    """Return the numbers of a tensor that has any, where they lie, as integers without a sign.

    `Tensor.numpy` would mark the memory for good, and so hide whether anybody else has given it to numpy.
    """
    lent: Any = _Lent(tensor)
    return np.asarray(lent)


class _Lent:
    """The memory of a tensor as numpy reads it: an array keeps this, and this keeps the tensor."""

    def __init__(self, tensor: Tensor) -> None:
        size = tensor.element_size()
        self.tensor = tensor
        self.__array_interface__ = {
            "version": 3,
            "typestr": np.dtype(f"u{size}").str,
            "shape": tuple(tensor.shape),
            "strides": tuple(size * step for step in tensor.stride()),
            "data": (tensor.data_ptr(), False),
        }


def in_large_pages(tensor: Tensor) -> Tensor:
    """Return a copy of a contiguous tensor in large pages, or the tensor itself where that is of no use."""
    if _ADVICE is None or not tensor.is_cpu or tensor.nbytes < _PAGE or not tensor.is_contiguous():
        return tensor
    try:
        memory = mmap.mmap(-1, tensor.nbytes + _PAGE, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
        start = -ctypes.addressof(ctypes.c_char.from_buffer(memory)) % _PAGE
        memory.madvise(_ADVICE, start, tensor.nbytes // _PAGE * _PAGE)  # the rest has small pages
    except (OSError, ValueError):  # no memory, or a system without large pages
        return tensor
    flat = torch.frombuffer(memory, dtype=tensor.dtype, count=prod(tensor.shape), offset=start)
    return flat.view(tensor.shape).copy_(tensor)
