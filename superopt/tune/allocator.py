"""Allocator: memory that a program frees stays with its process, so that no call waits for fresh pages.

As glibc finds some multiple of the largest freed block at the end of its heap, it gives that back to the
system. The next call asks for it again, and the system clears it page by page: a network whose tensors are of
megabytes, on its own in a process, spends up to 40% of its time on that. From the first block of nearly 32 MB
that is freed, glibc keeps up to twice as much, as it does in any program that has tensors of that size.
"""

from functools import cache

import numpy as np

__all__ = ["keep_freed_memory"]

_BLOCK = 31 << 20  # glibc goes by no block of more than 32 MB


@cache
def keep_freed_memory() -> None:
    """Let the process keep some 60 MB of what it frees, if its C library is glibc; nothing is written to."""
    np.empty(_BLOCK, np.uint8)
