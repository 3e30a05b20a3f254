"""Memory: the most bytes that a step holds at once, counted by PyTorch's profiler.

What PyTorch allocates and frees during the step counts, gradients included: neither weights nor inputs, and
nothing that libraries allocate by themselves.
"""

import gc
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import Any

__all__ = ["Peaks", "peaks_of"]


@dataclass(frozen=True, slots=True)
class Peaks:
    """The most bytes that a step held at once: in all, and without what it left, as gradients are."""

    whole: int
    passing: int

    @classmethod
    def of(cls, changes: Sequence[tuple[int, int]]) -> "Peaks":
        """Return the peaks of allocations and frees in order: an address, and bytes, below 0 of a free."""
        held, passing = dict[int, int](), [0] * len(changes)
        for at, (address, size) in enumerate(changes):
            if size > 0:
                held[address] = at
            elif (begun := held.pop(address, None)) is not None:
                passing[begun], passing[at] = changes[begun][1], size
        whole = accumulate((size for _, size in changes), initial=0)
        return cls(max(whole), max(accumulate(passing, initial=0)))


def peaks_of(step: Callable[[], Any], drop: Callable[[], Any], *, warm: bool = False) -> Peaks:
    """Return the most bytes that a step holds at once, beside what is left after a drop.

    The step runs once before, unless it is warm.
    """
    from torch.profiler import ProfilerActivity, profile

    if not warm:
        step()
    drop()
    gc.collect()
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as profiled:
        step()
    told = getattr(profiled.profiler, "kineto_results", None)
    assert told is not None
    return Peaks.of(_changes(told.experimental_event_tree()))


def _changes(events: Sequence[Any]) -> list[tuple[int, int]]:
    """Return what was allocated and freed, in order."""
    from torch._C._profiler import _EventType

    found, left = list[tuple[int, int, int]](), list(events)
    while left:
        event = left.pop()
        left += event.children
        if event.tag == _EventType.Allocation:
            fields = event.extra_fields
            found.append((event.start_time_ns, fields.ptr, fields.alloc_size))
    found.sort(key=lambda one: one[0])
    return [(address, size) for _, address, size in found]
