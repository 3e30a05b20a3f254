"""Lock: one process at a time works the queue of a cache off; it ends with its owner, however that dies."""

import contextlib
import os
import re
import shutil
import sys
import time
from collections.abc import Iterator
from pathlib import Path

from superopt.cache import cache_folder, locked_file

__all__ = ["owner_of_lock", "scratch_folder", "tuning"]

_FILE = "tuner.lock"
_SCRATCH = "tuning-"
# Folders of tuners, and those of compilers, which live in the cache until their kernel is made. Others may
# begin alike: the user may have named any folder as the cache.
_TUNING, _COMPILING = re.compile(r"tuning-\d+"), re.compile(r"tmp[a-z0-9_]{8}")
_STALE_S = 3600.0


@contextlib.contextmanager
def tuning() -> Iterator[bool]:
    """Hold the lock of the user's cache; yield whether it was free.

    The operating system lets go of it as the process ends, so nobody waits for a dead one. Where there is no
    folder to write in, there is nothing to work off, and no lock. No child inherits it.
    """
    if sys.platform == "win32":
        yield True
        return
    import fcntl

    with contextlib.ExitStack() as stack:
        try:
            folder = cache_folder()
            folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            descriptor = stack.enter_context(locked_file(folder / _FILE))
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            yield False
            return
        owner = os.getpid()
        with contextlib.suppress(OSError):  # a full disk, for example; only people read the number
            os.ftruncate(descriptor, 0)
            os.write(descriptor, str(owner).encode())
        _sweep(folder)
        try:
            yield True
        finally:
            if os.getpid() == owner:  # a child has no such descriptor
                with contextlib.suppress(OSError):
                    os.ftruncate(descriptor, 0)


def owner_of_lock() -> str:
    """Return the number of the process that tunes, as it noted it, or "unknown"."""
    try:
        text = (cache_folder() / _FILE).read_text()[:20]
    except (OSError, ValueError):
        text = ""
    return text if text.isdigit() else "unknown"


@contextlib.contextmanager
def scratch_folder() -> Iterator[Path]:
    """Yield a folder for temporary files that ends with the block; the lock is held.

    What a killed owner leaves, the next one sweeps.
    """
    folder = cache_folder() / f"{_SCRATCH}{os.getpid()}"
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _sweep(folder: Path) -> None:
    """Remove what tuners left that were killed: the lock is ours, so no other one is at work."""
    for left in folder.glob(f"{_SCRATCH}*"):
        if _TUNING.fullmatch(left.name):
            shutil.rmtree(left, ignore_errors=True)
    for left in (folder / "cpp").glob("tmp*"):
        with contextlib.suppress(OSError):
            ours = _COMPILING.fullmatch(left.name) and left.is_dir()
            if ours and time.time() - left.stat().st_mtime > _STALE_S:
                shutil.rmtree(left, ignore_errors=True)
