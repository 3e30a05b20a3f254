"""Helper: the process of low priority that works the queue off beside a program, and ends with it.

It is started by `live`; its arguments are the program's number and the keys of the program's regions. It
works for a share of the time only, and rests in between, as it shares caches and memory with the program. It
reads a pipe that nobody writes to, and ends when the regions are done, when another process holds the lock,
or as the program ends, however that dies: then the pipe ends, and the helper has another parent.
"""

import contextlib
import ctypes
import gc
import os
import select
import shutil
import sys
import tempfile
import threading
import time
from pathlib import Path

from superopt.backend.deferred.lock import scratch_folder, tuning
from superopt.backend.deferred.priority import kill_descendants, lower_priority
from superopt.backend.deferred.work import give_up, work_through
from superopt.cache import close_all

__all__ = ["COMMAND", "Rests", "main"]

COMMAND = (
    sys.executable,
    "-P",
    "-c",
    "import os; os.nice(19); from superopt.backend.deferred.helper import main; main()",
)
"""How the helper is started: nice at once, since to import PyTorch takes seconds."""

_LOOK_S = 0.25
_SAVED_S = 10.0  # the most rest that is saved up, as while a compiler is at work
_SHARE = 0.5  # the share of one processor's time that the helper takes


def main() -> None:
    """Work the queue off, as long as the program lives."""
    parent, regions = int(sys.argv[1]), frozenset(sys.argv[2:])
    lower_priority()
    with tuning() as free:
        if free:
            with scratch_folder() as folder:
                _keep_temporary_files_in(folder)
                threading.Thread(target=_watch, args=(parent, folder), daemon=True).start()
                work_through(regions)
    close_all()
    os._exit(0)  # an orderly end of PyTorch takes long, and others want the processor


def _keep_temporary_files_in(folder: Path) -> None:
    """Keep temporary files in a folder that ends with the helper; Inductor's code of rivals is among them."""
    tempfile.tempdir = str(folder)
    os.environ.update(
        TMPDIR=str(folder),
        TORCHINDUCTOR_CACHE_DIR=str(folder / "inductor"),
        TORCHINDUCTOR_COMPILE_THREADS="1",
    )


def _watch(parent: int, folder: Path) -> None:
    """Wait for the end of the program; then put the region under way back, and leave nothing behind."""
    rests = Rests()
    while True:
        rested = rests.taken()
        readable, _, _ = select.select([0], [], [], 0.0 if rested else _LOOK_S)
        if (readable and not os.read(0, 1)) or os.getppid() != parent:
            break
    with contextlib.suppress(OSError, AttributeError):
        os.sched_setscheduler(0, os.SCHED_OTHER, os.sched_param(0))  # to end soon, where that is allowed
    give_up()
    for _ in range(2):  # an ending process may have started another one meanwhile
        kill_descendants()
        _remove_temporary_folders()
        shutil.rmtree(folder, ignore_errors=True)
    close_all()
    os._exit(0)


class Rests:
    """How long this process must rest, so that it takes no more than its share of a processor's time."""

    def __init__(self) -> None:
        self._owed_s = 0.0
        self._used_s, self._at = _processor_s(), time.monotonic()

    def taken(self) -> bool:
        """Rest for a moment if that is due, and return whether it was; to be called every now and then.

        A compiler under way goes on meanwhile; its time is known, and owed, once it has ended.
        """
        used_s, now = _processor_s(), time.monotonic()
        passed_s = min(now - self._at, 2 * _LOOK_S)  # no rest is saved up while the process is stopped
        self._owed_s = max(self._owed_s + (used_s - self._used_s) / _SHARE - passed_s, -_SAVED_S)
        self._used_s, self._at = used_s, now
        if self._owed_s <= 0:
            return False
        _hold_still(_LOOK_S)
        return True


def _hold_still(seconds: float) -> None:
    """Sleep in a call that keeps Python's lock, so that no other thread of this process goes on."""
    ctypes.PyDLL(None).usleep(int(1e6 * seconds))


def _processor_s() -> float:
    """Return the processor time of this process and of the children that have ended."""
    return sum(os.times()[:4])


def _remove_temporary_folders() -> None:
    """Remove the folders in which compilers work, in the cache beside the kernels they make."""
    for one in gc.get_objects():
        if isinstance(one, tempfile.TemporaryDirectory):
            with contextlib.suppress(OSError):
                one.cleanup()
