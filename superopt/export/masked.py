"""Masked: the sum of products with a mask, as a function whose text modules contain that need only torch."""

import inspect
import math

import torch

__all__ = ["SOURCE", "masked_sum"]


def masked_sum(equation: str, mask: torch.Tensor, other: torch.Tensor) -> torch.Tensor:
    """Return an einsum with a mask, which selects: what it hides counts as 0, even an infinity or a NaN."""
    chosen, finite = mask.to(other.dtype), other.isfinite()
    made = torch.einsum(equation, chosen, other.where(finite, 0.0))
    if finite.all():
        return made
    kinds = (math.inf, other == math.inf), (-math.inf, other == -math.inf), (math.nan, other.isnan())
    for value, found in kinds:
        seen = torch.einsum(equation, chosen, found.to(other.dtype)) > 0
        made = made + torch.zeros_like(made).masked_fill(seen, value)
    return made


SOURCE = inspect.getsource(masked_sum)
"""The text of `masked_sum`."""
