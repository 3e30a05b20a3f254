"""OpenMP: the threads that wait for a thread's next parallel loop, and how it lets go of them."""

import ctypes
import os
from collections.abc import Callable
from functools import cache

__all__ = ["release_threads"]

_SOFT = 1  # omp_pause_soft: settings stay as they are


def release_threads() -> None:
    """End the threads that wait for this thread's next parallel loop; that loop starts others.

    Each thread that runs parallel loops has threads of its own. As soon as there are more of them in a
    process than cores, GNU's OpenMP puts them all to sleep after each loop, and to wake one takes some 40
    microseconds: many short calls of libraries then take two or three times as long, one fused kernel hardly
    longer. So before a race is run in another thread, in which no program runs, this one's own must be gone.
    """
    pause = _pause()
    if pause is not None:
        pause(_SOFT)


@cache
def _pause() -> Callable[[int], int] | None:
    """Return GNU's function for it, where that library is loaded already."""
    loaded_only = getattr(os, "RTLD_NOLOAD", None)
    if loaded_only is None:
        return None
    try:
        found = ctypes.CDLL("libgomp.so.1", mode=loaded_only | os.RTLD_NOW).omp_pause_resource_all
    except (OSError, AttributeError):  # another OpenMP, or one from before its version 5
        return None
    found.argtypes, found.restype = (ctypes.c_int,), ctypes.c_int
    call: Callable[[int], int] = found
    return call
