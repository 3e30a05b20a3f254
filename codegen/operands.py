"""Operands: the tensors that a library multiplies, in the dtype in which it does."""

import torch
from torch import Tensor

__all__ = ["alike"]

_FP8 = (torch.float8_e4m3fn, torch.float8_e5m2)


def alike(x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
    """Return the operands of a product in one dtype, the wider one.

    Torch does not multiply fp8: it becomes the other one's dtype, or fp32 where both are fp8. On a CPU it
    becomes fp32, in which the product takes no longer and is not rounded to a half.
    """
    if x.dtype == y.dtype and x.dtype not in _FP8:
        return x, y
    known = [torch.float32 if one.is_cpu and one.dtype in _FP8 else one.dtype for one in (x, y)]
    wide = [dtype for dtype in known if dtype not in _FP8] or [torch.float32]
    dtype = torch.promote_types(wide[0], wide[-1])
    return x.to(dtype), y.to(dtype)
