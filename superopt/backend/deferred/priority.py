"""Priority: how the helper gets out of everybody's way, and how it ends with all that it started."""

import contextlib
import ctypes
import os
import platform
import signal
import sys
from pathlib import Path

__all__ = ["descendants", "kill_descendants", "lower_priority"]

_NICEST = 19
_IDLE_CLASS, _CLASS_SHIFT, _OF_A_PROCESS = 3, 13, 1  # arguments of the system call ioprio_set
_IOPRIO_SET = {"x86_64": 251, "aarch64": 30}  # the number of the system call
_SUBREAPER = 36  # an option of prctl: orphans among our descendants become our children
_FIRST_TO_GO = "800"  # out of 1000: where memory runs out, the helper is killed before the program


def lower_priority() -> None:
    """Run only when nobody else wants to: the processor, its sessions, the disk and the memory.

    What the system does not offer is left out. Children inherit it, but for the session: see `Children`.
    """
    with contextlib.suppress(OSError):
        os.nice(_NICEST)
    if hasattr(os, "SCHED_IDLE"):
        with contextlib.suppress(OSError):
            os.sched_setscheduler(0, os.SCHED_IDLE, os.sched_param(0))
    _write("/proc/self/autogroup", str(_NICEST))
    _write("/proc/self/oom_score_adj", _FIRST_TO_GO)
    if not sys.platform.startswith("linux"):
        return
    with contextlib.suppress(OSError, AttributeError):
        system = ctypes.CDLL(None, use_errno=True)
        system.prctl(_SUBREAPER, 1, 0, 0, 0)
        number = _IOPRIO_SET.get(platform.machine())
        if number is not None:
            system.syscall(number, _OF_A_PROCESS, 0, _IDLE_CLASS << _CLASS_SHIFT)


def descendants(of: int) -> list[int]:
    """Return the processes that a process started, directly or not, where the system tells."""
    children: dict[int, list[int]] = {}
    for entry in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError, ValueError, IndexError):
            number, _, rest = entry.read_text().partition(" (")
            parent = int(rest.rpartition(")")[2].split()[1])
            children.setdefault(parent, []).append(int(number))
    found: list[int] = []
    left = [of]
    while left:
        more = children.get(left.pop(), [])
        found += more
        left += more
    return found


def kill_descendants() -> int:
    """Kill all that this process started; return how many there were."""
    found = descendants(os.getpid())
    for one in found:
        with contextlib.suppress(OSError):
            os.kill(one, signal.SIGKILL)
    return len(found)


def _write(path: str, text: str) -> None:
    with contextlib.suppress(OSError):
        Path(path).write_text(text)
