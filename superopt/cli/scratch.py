"""Scratch: a folder for the temporary files of what a command starts, and the end of all that it started.

A compiler that is killed leaves temporary files behind, and a process that is killed its children, such as
those that PyTorch starts. Both end with the command.
"""

import contextlib
import ctypes
import os
import shutil
import signal
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

from superopt.codegen.children import start_no_more
from superopt.frontier.interrupts import at_last

__all__ = ["own_scratch"]

_PR_SET_CHILD_SUBREAPER = 36
_ROUNDS, _ROUND_S = 10, 0.01
_EMPTY_ROUNDS = 2  # so many rounds in a row that find no process end the search
_FOLDERS: list[str] = []


@contextlib.contextmanager
def own_scratch() -> Iterator[None]:
    """Give children a folder for temporary files that ends with them; end children that are left."""
    tempfile.gettempdir()  # that of this process stays: PyTorch keeps what it compiled there
    usual = os.environ.get("TMPDIR")
    _adopt_orphans()
    made = tempfile.TemporaryDirectory(prefix="superopt-", ignore_cleanup_errors=True)
    with at_last(_leave_nothing), made as folder:
        os.environ["TMPDIR"] = folder
        _FOLDERS.append(folder)
        try:
            yield
        finally:
            if usual is None:
                os.environ.pop("TMPDIR", None)
            else:
                os.environ["TMPDIR"] = usual
            _end_descendants()
            _FOLDERS.remove(folder)


def _leave_nothing() -> None:
    """End what this process started, and remove its scratch: it ends here and now."""
    start_no_more()
    _end_descendants()
    for folder in _FOLDERS:
        shutil.rmtree(folder, ignore_errors=True)


def _adopt_orphans() -> None:
    """Become the parent of grandchildren whose parent ends, so that they are found."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)


def _end_descendants() -> None:
    """Kill all processes that this one started, directly or not."""
    empty = 0
    for _ in range(_ROUNDS):  # one that is killed may have started another before
        found = _descendants()
        for process in found:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.kill(process, signal.SIGKILL)
        for process in found:
            with contextlib.suppress(ChildProcessError):
                os.waitpid(process, 0)
        empty = 0 if found else empty + 1
        if empty == _EMPTY_ROUNDS:
            return
        time.sleep(_ROUND_S)  # a thread may be starting one


def _descendants() -> list[int]:
    """Return the living processes below this one; none where the system does not tell."""
    parents: dict[int, int] = {}
    for entry in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError, ValueError, IndexError):
            state, parent = entry.read_text().rpartition(")")[2].split()[:2]
            if state != "Z":
                parents[int(entry.parent.name)] = int(parent)
    found, below = [], {os.getpid()}
    while below:
        below = {process for process, parent in parents.items() if parent in below}
        found += sorted(below)
    return found
