"""Memory: the most bytes that a step holds at once, counted by PyTorch's profiler.

What PyTorch allocates and frees during the step counts, gradients included: neither weights nor inputs, and
nothing that libraries allocate by themselves.
"""

import gc
from collections.abc import Callable
from typing import Any

__all__ = ["peak_bytes"]


def peak_bytes(step: Callable[[], Any], drop: Callable[[], Any]) -> int:
    """Return the most bytes that a step holds at once, beside what is left after a drop."""
    from torch.profiler import ProfilerActivity, profile

    step()
    drop()
    gc.collect()
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as profiled:
        step()
    held = most = 0
    told = getattr(profiled.profiler, "kineto_results", None)
    assert told is not None
    for event in told.events():
        if event.name() == "[memory]":
            held += event.nbytes()
            most = max(most, held)
    return most
