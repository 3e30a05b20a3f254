"""Limits: from which sizes on a training step is changed, and how long races of it take.

Small steps gain nothing, so they are left alone. Tests and `bench.models --modules` lower the limits, so that
small ones are changed as large ones are.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from math import inf
from typing import Any

__all__ = ["Limits", "changed", "limits", "small"]


@dataclass(frozen=True, slots=True)
class Limits:
    """What is too small to be changed, and how long races take."""

    value_bytes: int = 8 << 20  # of a value that is worth turns
    fewer_bytes: int = 2 << 20  # of a value of one pass that is worth turns where less memory is asked for
    kept_bytes: int = 1 << 20  # that PyTorch keeps between the passes, below which nothing is changed
    scaled_bytes: int = 1 << 20  # of a gradient that is worth an operator that scales it where it lies
    turn_bytes: int = 12 << 20  # that turns share, where larger turns are hardly faster
    product_flops: int = 1 << 20  # of a product in a turn that a library makes
    race_s: float = 1.0
    most_race_s: float = 6.0
    step_budget_s: float = 20.0  # seconds of a budget, below which no step is compiled to be raced
    any_speed: bool = False  # whether turns are taken whatever a race says
    fused: bool = True  # whether Inductor compiles what lies between the products of turns


_NOW = [Limits()]


def limits() -> Limits:
    """Return the limits of this process."""
    return _NOW[-1]


@contextmanager
def changed(**values: Any) -> Iterator[None]:
    """Change some limits for a while, in all threads."""
    _NOW.append(replace(_NOW[-1], **values))
    try:
        yield
    finally:
        _NOW.pop()


def small(least_bytes: int = 1 << 10, **values: Any) -> Any:
    """Let small steps be changed wherever that is possible, whatever a race says, for a while."""
    names = ("value_bytes", "fewer_bytes", "kept_bytes", "turn_bytes", "scaled_bytes")
    sizes = dict.fromkeys(names, least_bytes)
    told = {"product_flops": 1, "race_s": 0.01, "most_race_s": 0.01, "step_budget_s": inf, "any_speed": True}
    return changed(**{**sizes, **told, **values})
