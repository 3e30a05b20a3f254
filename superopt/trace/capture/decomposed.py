"""Decomposed: operators that the algebra lacks, and PyTorch's definitions of them in operators it has."""

from collections.abc import Callable, Sequence
from functools import cache
from typing import Any

from superopt.trace.capture.encoders import ENCODERS

__all__ = ["decomposition_of", "is_decomposed"]

_DECOMPOSED = frozenset(
    {
        "_fused_rms_norm_backward",
        "_log_softmax_backward_data",
        "_softmax_backward_data",
        "elu_backward",
        "gelu_backward",
        "hardswish_backward",
        "native_layer_norm_backward",
        "sigmoid_backward",
        "silu_backward",
        "tanh_backward",
        "threshold_backward",
        "_native_multi_head_attention",
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
        "_transformer_encoder_layer_fwd",
    }
)
"""Operators whose decomposition is algebra, at least for the most part."""

_OF_FLOATS = frozenset({"threshold"})
"""Those whose decomposition means something else for integers: PyTorch drops fractions of the threshold."""


def is_decomposed(operator: Any, args: Sequence[Any]) -> bool:
    """Whether an operator is traced as others that compute it."""
    if operator._opname in _OF_FLOATS and not args[0].is_floating_point():
        return False
    return operator._opname in _DECOMPOSED


@cache
def decomposition_of(operator: Any) -> Callable[..., Any]:
    """Return the function that computes an operator by others; to import PyTorch's takes a second."""
    if operator in ENCODERS:
        return ENCODERS[operator]
    from torch._decomp import decomposition_table

    found: Callable[..., Any] = decomposition_table.get(operator, operator)
    return found
