"""Limits: how large a training step must be to be changed, and how long races of it take.

Small steps gain nothing, so they are left as they are. Tests and `bench.models --modules` lower the limits,
so that small steps are changed as large ones are.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from math import inf
from typing import Any

__all__ = ["Limits", "changed", "limits", "small"]


@dataclass(frozen=True, slots=True)
class Limits:
    """Sizes below which nothing is changed, and the seconds of races."""

    value_bytes: int = 2 << 20  # the least size of a value that is computed in chunks
    pass_bytes: int = 8 << 20  # the same for a value of one pass
    fewer_bytes: int = 2 << 20  # and where less memory is asked for
    kept_bytes: int = 1 << 20  # a step that keeps less between its passes is left as it is
    scaled_bytes: int = 1 << 20  # the least size of a gradient that is scaled in place
    chunk_bytes: int = 12 << 20  # the memory of one chunk; larger chunks are hardly faster
    product_flops: int = 1 << 20  # the least work of a product in a chunk that a library computes
    race_s: float = 1.0  # seconds of a race
    most_race_s: float = 6.0  # seconds of a race that is not decided earlier
    step_budget_s: float = 20.0  # no step is compiled to be raced with a smaller budget
    any_speed: bool = False  # whether chunks are taken even where a race says that they are slower
    fused: bool = True  # whether Inductor compiles what lies between the products of a chunk


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
    names = ("value_bytes", "fewer_bytes", "kept_bytes", "chunk_bytes", "scaled_bytes")
    sizes = dict.fromkeys(names, least_bytes)
    told = {"product_flops": 1, "race_s": 0.01, "most_race_s": 0.01, "step_budget_s": inf, "any_speed": True}
    return changed(**{**sizes, **told, **values})
