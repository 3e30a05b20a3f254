"""Peak: the most bytes that a call holds at once, beside what was there before."""

from collections.abc import Callable
from itertools import accumulate
from typing import Any

__all__ = ["peak_bytes"]


def peak_bytes(call: Callable[[], Any]) -> int | None:
    """Return the most bytes that a call allocates and holds at once; None where a profiler runs already.

    The profiler that counts is PyTorch's older one, which needs no library that prints as it starts.
    """
    from torch._C._autograd import _disable_profiler_legacy, _enable_profiler_legacy, _profiler_enabled
    from torch._C._profiler import ProfilerConfig, ProfilerState, _ExperimentalConfig

    if _profiler_enabled():
        return None
    shapes, memory, stack, flops, modules = False, True, False, False, False
    settings = ProfilerConfig(ProfilerState.CPU, shapes, memory, stack, flops, modules, _ExperimentalConfig())
    _enable_profiler_legacy(settings)
    try:
        call()
    finally:
        threads: Any = _disable_profiler_legacy()
    changes = (one.cpu_memory_usage() for events in threads for one in events if one.kind() == "memory_alloc")
    return int(max(accumulate(changes, initial=0)))
