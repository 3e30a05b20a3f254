"""Signature: what must agree between two calls for what was prepared for one to serve the other."""

from collections.abc import Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from torch import Tensor

__all__ = ["form_of"]


def form_of(given: "Sequence[Tensor]") -> tuple[object, ...]:
    """Return the shapes, strides, dtypes, devices, signs and classes of tensors.

    Every call of a kernel passes here, so that up to three tensors are written out: a comprehension
    takes half as long again.
    """
    count = len(given)
    if count == 1:
        (a,) = given
        return a.shape, a.stride(), a.dtype, a.is_cpu or a.device, a.is_neg(), type(a)
    if count == 2:
        a, b = given
        return (
            a.shape, a.stride(), a.dtype, a.is_cpu or a.device, a.is_neg(), type(a),
            b.shape, b.stride(), b.dtype, b.is_cpu or b.device, b.is_neg(), type(b),
        )  # fmt: skip
    if count == 3:
        a, b, c = given
        return (
            a.shape, a.stride(), a.dtype, a.is_cpu or a.device, a.is_neg(), type(a),
            b.shape, b.stride(), b.dtype, b.is_cpu or b.device, b.is_neg(), type(b),
            c.shape, c.stride(), c.dtype, c.is_cpu or c.device, c.is_neg(), type(c),
        )  # fmt: skip
    return tuple(
        [
            (one.shape, one.stride(), one.dtype, one.is_cpu or one.device, one.is_neg(), type(one))
            for one in given
        ]
    )
