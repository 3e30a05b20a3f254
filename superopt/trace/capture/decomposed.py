"""Operators that the algebra lacks, and PyTorch's own words for them in operators that it has."""

from collections.abc import Callable
from functools import cache
from typing import Any

__all__ = ["DECOMPOSED", "decomposition_of"]

DECOMPOSED = frozenset(
    {
        "_native_batch_norm_legit",
        "_native_batch_norm_legit_no_training",
        "_prelu_kernel",
        "binary_cross_entropy",
        "binary_cross_entropy_with_logits",
        "celu",
        "channel_shuffle",
        "elu",
        "hardshrink",
        "hardsigmoid",
        "hardswish",
        "huber_loss",
        "mish",
        "native_group_norm",
        "pixel_shuffle",
        "pixel_unshuffle",
        "smooth_l1_loss",
        "soft_margin_loss",
        "threshold",
    }
)
"""Operators whose decomposition is algebra, at least for the most part."""


@cache
def decomposition_of(operator: Any) -> Callable[..., Any]:
    """Return the function of other operators that computes the same; importing them takes a second."""
    from torch._decomp import decomposition_table

    found: Callable[..., Any] = decomposition_table.get(operator, operator)
    return found
