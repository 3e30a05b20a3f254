"""Memory: large tensors that are kept lie in large pages, where the system has them.

Kernels that read weights once in each call then wait less for the addresses of pages: reading 128 MiB on a
virtual machine went from 23 to 30 GB/s.
"""

import ctypes
import mmap
from math import prod

import torch
from torch import Tensor

__all__ = ["in_large_pages"]

_PAGE = 2 << 20  # bytes of a large page
_ADVICE = getattr(mmap, "MADV_HUGEPAGE", None)  # only Linux has it


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
