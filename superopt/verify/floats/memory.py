"""Memory: where tensors lie: large ones one after the other, as fresh memory takes longer than a matmul."""

from typing import Any

import torch
from torch import Tensor

__all__ = ["Memory", "laid_out", "lying_apart"]

_LARGE = 2**16  # elements from which memory is used again


class Memory:
    """Memory for each place in a list of inputs; a large tensor lies where the one before it lay."""

    def __init__(self) -> None:
        self._held: dict[int, tuple[Any, Tensor]] = {}

    def like(self, at: int, value: Tensor, dtype: torch.dtype) -> Tensor:
        """Return a tensor in the shape and layout of the one at some place, whose numbers mean nothing."""
        device = torch.device("cpu") if value.is_meta else value.device
        kind = (value.shape, value.stride(), dtype, device)
        known, held = self._held.get(at, (None, None))
        if held is None or known != kind:
            held = torch.empty_like(value, dtype=dtype, device=device)
            if value.numel() >= _LARGE:
                self._held[at] = kind, held
        return held

    def holds(self, tensor: Tensor) -> bool:
        """Whether a tensor lies in this memory, so that another may overwrite it."""
        start = tensor.untyped_storage().data_ptr()
        return any(held.untyped_storage().data_ptr() == start for _, held in self._held.values())


def lying_apart(tensor: Tensor) -> Tensor:
    """Return the numbers of a tensor that have memory of their own: one of those that an `expand` repeats."""
    if 0 not in tensor.stride():
        return tensor
    return tensor[tuple(slice(0, 1) if stride == 0 else slice(None) for stride in tensor.stride())]


def laid_out(tensor: Tensor, like: Tensor) -> Tensor:
    """Return a tensor's numbers in the strides of another; of those that share a place there, one."""
    if tensor.shape == like.shape and tensor.stride() == like.stride():
        return tensor
    first = tensor[tuple(slice(0, 1) if stride == 0 else slice(None) for stride in like.stride())]
    fresh = torch.empty_strided(first.shape, like.stride(), dtype=tensor.dtype, device=tensor.device)
    return fresh.copy_(first).expand(like.shape)
