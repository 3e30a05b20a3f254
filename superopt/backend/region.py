"""Region: the operator `superopt::region`, by which a compiled graph calls a plan.

It is opaque to Inductor, its results are fresh and contiguous, and all it needs is its plan's text, so
a graph that Inductor kept in its cache runs in another process.
"""

from typing import Any

import torch
from torch import Tensor

from superopt.backend.plans import Runner

__all__ = ["REGION", "runner_of"]

_RUNNERS: dict[str, Runner] = {}


def runner_of(plan: str) -> Runner:
    """Return the one runner of a plan in this process."""
    found = _RUNNERS.get(plan)
    if found is None:
        found = _RUNNERS[plan] = Runner(plan)
    return found


def _run(plan: str, inputs: list[Tensor]) -> list[Tensor]:
    return runner_of(plan)(inputs)


def _fake(plan: str, inputs: list[Tensor]) -> list[Tensor]:
    return [inputs[0].new_empty(shape, dtype=dtype) for shape, dtype in runner_of(plan).shapes(inputs)]


_LIBRARY: Any = torch.library.Library("superopt", "FRAGMENT")  # type: ignore[no-untyped-call]
_LIBRARY.define(
    "region(str plan, Tensor[] inputs) -> Tensor[]",
    tags=(torch.Tag.pt2_compliant_tag, torch.Tag.needs_exact_strides),
)
_LIBRARY.impl("region", _run, "CompositeExplicitAutograd")
torch.library.register_fake("superopt::region", _fake, lib=_LIBRARY)

REGION = torch.ops.superopt.region.default
