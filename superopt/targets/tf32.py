"""Tf32: whether products of fp32 may be rounded to tf32, and which kernels do that."""

from collections.abc import Iterable, Iterator
from contextlib import contextmanager

import torch

__all__ = ["in_tf32", "is_tf32", "tf32_products"]


def is_tf32() -> bool:
    """Return whether torch's own products of fp32 may be in tf32."""
    matmul = torch.backends.cuda.matmul
    try:  # torch tells the setting only by the name that it was set by
        return bool(matmul.fp32_precision == "tf32")
    except AttributeError:
        return bool(matmul.allow_tf32)


@contextmanager
def tf32_products(allowed: bool) -> Iterator[None]:
    """Let torch's own products of fp32 be in tf32 for a while, or let none of them be."""
    before, matmul = is_tf32(), torch.backends.cuda.matmul
    if before != allowed:
        matmul.allow_tf32 = allowed  # the older name: the newer one tells of it too
    try:
        yield
    finally:
        if before != allowed:
            matmul.allow_tf32 = before


def in_tf32(configs: Iterable[object]) -> bool:
    """Return whether a kernel in one of these configurations multiplies in tf32."""
    return any(getattr(config, "precision", None) == "tf32" for config in configs)
