"""Elsewhere: kernels that won at the sizes seen, raced at much larger and much smaller ones, too."""

import time
from collections.abc import Mapping
from functools import partial
from typing import Any

from torch import Tensor

from superopt.backend.checks.inputs import RegionInputs, scaled
from superopt.rivals.opponents import Opponents
from superopt.rivals.rivals import INDUCTOR, LIBRARY_CALLS, Function, Rival

__all__ = ["COMPILING_S", "HOPELESS", "slower_elsewhere", "speed_at"]

COMPILING_S = 2.5
"""About what Inductor takes to compile a region, with the race against its code."""

HOPELESS = 1.5
"""Kernels this many times as slow as the library calls are surely slower than Inductor's code."""

_FACTORS = (8.0, 1 / 8)  # dynamic sizes are also tried at these multiples of what was seen
_NO_LOSS = 0.98  # the least speed beside Inductor's code that is no loss there
_RACE_S = 0.3  # seconds of a race there


def slower_elsewhere(
    inputs: RegionInputs, ours: Function, options: Mapping[str, Any], end: float
) -> str | None:
    """Return why kernels that won at the sizes seen are not taken for all; None where they may be.

    Where sizes are symbols, the same kernels serve all of them: much larger ones and much smaller ones.
    """
    subgraph = inputs.region.subgraph
    if not subgraph.symbols:
        return None
    for factor in _FACTORS:
        example = scaled(subgraph, factor)
        speed = _NO_LOSS if example is None else speed_at(example, inputs, ours, options, end)
        if speed < _NO_LOSS:
            there = ", ".join(str(list(one.shape)) for one in example or ())
            return f"{f'{speed:.2f} times' if speed else 'not known to have'} Inductor's speed at {there}"
    return None


def speed_at(
    example: tuple[Tensor, ...], inputs: RegionInputs, ours: Function, options: Mapping[str, Any], end: float
) -> float:
    """Return the speed against Inductor's code, or its library calls; 0 if time is short."""
    rival = Opponents(inputs.region.subgraph.module, partial(inputs.copies, example), inputs.target, options)

    def speed(other: Rival) -> float:
        return rival.against(ours, other, seconds=_RACE_S).speed_of("superopt")

    found = speed(LIBRARY_CALLS) if rival.has_library else 0.0
    undecided = found < _NO_LOSS and (not found or found * HOPELESS > 1.0)
    if not undecided or end - time.monotonic() < COMPILING_S:
        return found
    return speed(INDUCTOR)
