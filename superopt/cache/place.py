"""The folder of the cache: where it is, a lock for what must not happen twice, and files set aside."""

import contextlib
import os
import sys
import time
from collections.abc import Iterator
from pathlib import Path

__all__ = [
    "FILE_NAME",
    "FOLDER_VARIABLE",
    "LOCK_SECONDS",
    "SCHEMA",
    "cache_folder",
    "folder_lock",
    "identity",
    "locked_file",
    "set_aside",
]

SCHEMA = 1
"""The version of the database's tables."""

FILE_NAME = f"cache-{SCHEMA}.db"
"""The database: one for each version of its tables, so that two installed versions leave each other alone."""

FOLDER_VARIABLE = "SUPEROPT_CACHE_DIR"
LOCK_SECONDS = 5.0


def cache_folder() -> Path:
    """Return the folder that SUPEROPT_CACHE_DIR names, or else superopt's own in the user's cache folder.

    Raises OSError where the user has none.
    """
    named = os.environ.get(FOLDER_VARIABLE)
    if named:
        try:
            return Path(named).expanduser().absolute()
        except RuntimeError as error:
            raise OSError(f"{FOLDER_VARIABLE} is {named!r}: {error}") from error
    try:
        from platformdirs import user_cache_path
    except ImportError:  # where plans are only tuned, it may be missing: the folder it would give on Linux
        return Path(os.environ.get("XDG_CACHE_HOME") or "~/.cache").expanduser().absolute() / "superopt"
    try:
        folder = user_cache_path("superopt", appauthor=False)
    except RuntimeError:  # newer versions of platformdirs
        folder = Path("~")
    if not folder.is_absolute():  # "~" stays as it is where neither HOME nor the user's entry is there
        raise OSError(f"this user has no home folder; name a folder in {FOLDER_VARIABLE}")
    return folder


@contextlib.contextmanager
def folder_lock(folder: Path) -> Iterator[None]:
    """Keep other processes from opening, making or replacing the file meanwhile."""
    if sys.platform == "win32":  # there an open file cannot be replaced at all
        yield
        return
    import fcntl

    with locked_file(folder / "lock") as descriptor:
        deadline = time.monotonic() + LOCK_SECONDS
        while True:
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                if time.monotonic() > deadline:
                    raise
                time.sleep(0.002)
        yield


@contextlib.contextmanager
def locked_file(path: Path) -> Iterator[int]:
    """Yield the descriptor of a file that is there to be locked; the lock ends with the block.

    A child that is forked meanwhile closes it at once: else the lock would last as long as the child.
    """
    import fcntl

    descriptor, owner = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600), os.getpid()
    _LOCKED.add(descriptor)
    try:
        yield descriptor
    finally:
        if os.getpid() == owner:
            _LOCKED.discard(descriptor)
            fcntl.flock(descriptor, fcntl.LOCK_UN)  # a child that was just forked may still have it
            os.close(descriptor)


_LOCKED: set[int] = set()
"""The descriptors of the files that this process may have locked."""


def _close_in_child() -> None:
    while _LOCKED:
        with contextlib.suppress(OSError):
            os.close(_LOCKED.pop())


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_close_in_child)


def identity(path: Path) -> tuple[int, int] | None:
    """Return which file a path leads to now; None where there is none."""
    try:
        found = path.stat()
    except OSError:
        return None
    return found.st_dev, found.st_ino


def set_aside(path: Path, why: str) -> Path:
    """Rename a database, and what belongs to it, to a name not used so far; nothing is deleted."""
    stamp = time.strftime("%Y%m%d-%H%M%S")
    target, number = path.with_name(f"{path.name}.{why}-{stamp}"), 1
    while os.path.lexists(target):
        number += 1
        target = path.with_name(f"{path.name}.{why}-{stamp}-{number}")
    path.rename(target)
    for suffix in ("-wal", "-shm"):  # left behind, they would be taken for the next file's
        with contextlib.suppress(FileNotFoundError):
            path.with_name(path.name + suffix).rename(target.with_name(target.name + suffix))
    return target
