"""Own operators: those of superopt's that PyTorch knows, so that compiled graphs can call them."""

from collections.abc import Callable
from typing import Any

import torch

__all__ = ["define_operator"]

_LIBRARY: Any = torch.library.Library("superopt", "FRAGMENT")  # type: ignore[no-untyped-call]


def define_operator(schema: str, run: Callable[..., Any], fake: Callable[..., Any]) -> Any:
    """Define an operator of superopt's, by what it computes and by what shapes that has; return it."""
    name = schema.partition("(")[0]
    _LIBRARY.define(schema, tags=(torch.Tag.pt2_compliant_tag, torch.Tag.needs_exact_strides))
    _LIBRARY.impl(name, run, "CompositeExplicitAutograd")
    torch.library.register_fake(f"superopt::{name}", fake, lib=_LIBRARY)
    return getattr(torch.ops.superopt, name).default
