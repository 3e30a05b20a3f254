"""Cache: what callers hold. It reads and writes the file, and keeps in memory what the file cannot take.

Every fault of the environment is one warning in the log, and the work goes on: a damaged file is set
aside with what it held, what cannot be written stays in memory for this run, and is written when that
works again.
"""

import contextlib
import json
import os
import sqlite3
import threading
import time
import weakref
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import timedelta
from logging import getLogger
from pathlib import Path
from typing import Any, TypeVar

from superopt.cache.exchange import read_rows, write_rows
from superopt.cache.keys import KINDS, Key, Kind
from superopt.cache.memory import MemoryStore
from superopt.cache.place import cache_folder
from superopt.cache.records import Entry, Record, Row, row_of
from superopt.cache.store import FileStore, is_damage
from superopt.errors import InputError, reason_of

__all__ = ["DEFAULT_LIMIT_BYTES", "Cache", "Info", "close_all"]

log = getLogger(__name__)
T = TypeVar("T")

DEFAULT_LIMIT_BYTES = 256 << 20
_ATTEMPTS = 3
_SLOW_S = 0.5  # an attempt that failed so slowly is not repeated for ten times as long
_BATCH = 256
_FAULTS = (sqlite3.Error, OSError, ValueError, MemoryError)  # sqlite3 raises all of them for damaged files


@dataclass(frozen=True, slots=True)
class Info:
    """The state of a cache."""

    path: Path | None  # None: no folder at all
    entries: Mapping[Kind, int]
    size_bytes: int
    limit_bytes: int
    unsaved: int  # records that are in memory only
    read_only: bool
    fault: str  # the last one; empty if all is well


class Cache:
    """Results of earlier runs by key. Safe in threads, in forked children, and beside other processes."""

    def __init__(self, folder: Path | None, limit_bytes: int) -> None:
        self._lock = threading.RLock()
        self._memory = MemoryStore(limit_bytes)
        self._limit_bytes = limit_bytes
        self._store = FileStore(folder, limit_bytes) if folder is not None else None
        self._told: set[str] = set()
        self._fault = ""
        self._resume_at = 0.0
        if self._store is not None:
            weakref.finalize(self, FileStore.disconnect, self._store)
        _LIVE.add(self)

    @staticmethod
    def open(folder: Path | str | None = None, *, limit_bytes: int = DEFAULT_LIMIT_BYTES) -> "Cache":
        """Return the cache in a folder, by default the user's; where that fails, one in memory only."""
        if limit_bytes < 1:
            raise InputError(f"limit_bytes is {limit_bytes!r}; give at least 1")
        try:
            place = cache_folder() if folder is None else Path(folder).absolute()
        except (OSError, ValueError) as error:
            cache = Cache(None, limit_bytes)
            cache._report("folder", f"there is no cache folder: {reason_of(error)}")
            return cache
        cache = Cache(place, limit_bytes)
        with cache._lock:  # a fork in another thread waits: it closes the connection of every cache
            cache._try(FileStore.connect)
        if cache._store is not None and cache._store.read_only:
            cache._report("read-only", f"cannot write in {place}")
        return cache

    def __enter__(self) -> "Cache":
        return self

    def __exit__(self, *raised: object) -> None:
        self.close()

    def close(self) -> None:
        """Write what could not be written before, if it can be now; a later use opens the file again."""
        with self._lock:
            self._resume_at = 0.0  # the last chance is worth a wait
            self._save_rest()
            if self._store is not None:
                self._store.disconnect()

    # -- records

    def get(self, key: Key) -> Record | None:
        """Return the record of a key, or None."""
        with self._lock:
            row = self._memory.get(key.digest) or self._try(lambda store: store.get(key.digest))
            if row is None:
                return None
            if row.is_whole and row.digest == key.digest and row.parts == key.text:
                return row.record()
            self._report("row", "it held a damaged record, which is dropped", note="")
            self._try(lambda store: store.drop(key.digest))
            return None

    def put(self, key: Key, record: Record) -> None:
        """Keep a record under its key, in place of an older one."""
        row = row_of(key, record)
        with self._lock:
            self._memory.put([row])
            if self._save([row]):
                self._save_rest()

    @property
    def read_only(self) -> bool:
        """Whether what is put stays in memory, as there is no folder to write in."""
        with self._lock:
            return self._store is None or self._store.read_only

    def remove(self, key: Key) -> None:
        """Remove the record of a key, where there is one."""
        with self._lock:
            self._memory.drop(key.digest)
            self._try(lambda store: store.drop(key.digest))

    def records(
        self, kind: Kind, *, device: str | None = None, newest: int | None = None
    ) -> tuple[tuple[Mapping[str, Any], Record], ...]:
        """Return the parts of the key of each record of a kind, and the record; oldest first.

        They are all of them, or those of one device, or the newest.
        """
        rows = self._rows(kind, device, newest)
        return tuple((json.loads(row.parts), row.record()) for row in rows)

    def entries(self, kind: Kind | None = None) -> tuple[Entry, ...]:
        """Return what there is, for a listing, the last made first."""
        return tuple(row.entry() for row in reversed(self._rows(kind)))

    def info(self) -> Info:
        """Return where the cache is, how full it is and what is wrong with it."""
        with self._lock:
            rows = self._rows()
            size = self._try(lambda store: store.size_bytes()) or 0
            return Info(
                path=None if self._store is None else self._store.path,
                entries={kind: sum(row.kind == kind for row in rows) for kind in KINDS},
                size_bytes=size,
                limit_bytes=self._limit_bytes,
                unsaved=len(self._memory),
                read_only=self.read_only,
                fault=self._fault,
            )

    def clear(self, kind: Kind | None = None, older_than: timedelta | None = None) -> int:
        """Remove all records, or the records of one kind or not used for some time; return how many."""
        if kind is not None and kind not in KINDS:
            raise InputError(f"no kind of record is named {kind!r}; there are {', '.join(KINDS)}")
        before = None if older_than is None else time.time() - older_than.total_seconds()
        with self._lock:
            removed = self._memory.clear(kind, before)
            return removed + (self._try(lambda store: store.clear(kind, before)) or 0)

    def export(self, path: Path | str) -> int:
        """Write all records to a file as lines of JSON; return how many."""
        with self._lock:
            if self._store is not None and self._store.is_at(Path(path)):
                raise InputError(f"{str(path)!r} is the cache itself; name another file to write to")
            if self._store is not None and self._try(lambda store: store.rows()) is None:
                raise InputError(f"cannot read the cache: {self._fault}")
            rows = self._rows()
        return write_rows(Path(path), rows)

    def import_(self, path: Path | str) -> int:
        """Take over the records of an export that are new or newer; return how many.

        A file that is damaged anywhere, or not an export, raises CheckpointError, and nothing is taken.
        """
        rows = {row.digest: row for row in sorted(read_rows(Path(path)), key=lambda row: row.made)}
        with self._lock:
            written = self._try(lambda store: store.put(rows.values(), newer_only=True))
            if written is not None:
                return written
            present = {row.digest: row.made for row in self._rows()}
            newer = [row for row in rows.values() if row.made > present.get(row.digest, -1.0)]
            self._memory.put(newer)
            return len(newer)

    # -- the file, and what to do when it fails

    def _rows(
        self,
        kind: str | None = None,
        device: str | None = None,
        newest: int | None = None,
    ) -> list[Row]:
        """Return the whole rows of the file and of the memory, oldest first."""
        with self._lock:
            stored = self._try(lambda store: store.rows(kind, device, newest)) or []
            rows = {row.digest: row for row in (*stored, *self._memory.rows(kind, device))}
        whole = [row for row in rows.values() if row.is_whole]
        if len(whole) < len(rows):
            self._report("row", f"{len(rows) - len(whole)} damaged records are left out", note="")
        whole.sort(key=lambda row: row.made)
        return whole if newest is None else whole[-newest:]

    def _save(self, rows: list[Row]) -> bool:
        """Move rows from memory to the file; False where the file does not take them."""
        fit = [row for row in rows if row.size_bytes <= self._limit_bytes // 2]
        if len(fit) < len(rows):
            self._report("size", f"a record is larger than half the limit of {self._limit_bytes} bytes")
        if not fit:
            return True
        if self._store is None or self._store.read_only or self._try(lambda store: store.put(fit)) is None:
            return False
        for row in fit:
            self._memory.drop(row.digest)
        return True

    def _save_rest(self) -> None:
        """Write what earlier faults left in memory."""
        rest = [row for row in self._memory.rows() if row.size_bytes <= self._limit_bytes // 2]
        for start in range(0, len(rest), _BATCH):
            if not self._save(rest[start : start + _BATCH]):
                return

    def _try(self, work: Callable[[FileStore], T]) -> T | None:
        """Return what some work on the file gives; None, and one warning, where it cannot be done."""
        if self._store is None or time.monotonic() < self._resume_at:
            return None
        began = time.monotonic()
        failure: Exception | None = None
        for _ in range(_ATTEMPTS):
            try:
                result = work(self._store)
                self._tell()
                return result
            except _FAULTS as error:
                failure = error
                if _is_final(error):
                    break
                if is_damage(error) and not self._replace_damaged(error):
                    break
                self._store.disconnect()
        assert failure is not None
        self._tell()
        took = time.monotonic() - began
        if took > _SLOW_S:
            self._resume_at = time.monotonic() + 10 * took
        self._report(_topic(failure), f"{self._store.path}: {reason_of(failure)}")
        return None

    def _replace_damaged(self, error: Exception) -> bool:
        """Set a damaged file aside, so that the next attempt makes a new one."""
        assert self._store is not None
        try:
            aside = self._store.set_aside("damaged")
        except OSError as failure:
            log.debug("cannot set %s aside: %s", self._store.path, failure)
            return False
        if aside is not None:
            self._store.notes.append(
                ("damaged", f"the file is damaged ({error}); it is now {aside.name}, and a new one is made")
            )
        return True

    def _tell(self) -> None:
        """Warn of what became of the file; nothing of this run is lost by it."""
        assert self._store is not None
        while self._store.notes:
            topic, message = self._store.notes.pop(0)
            self._report(topic, f"{self._store.path}: {message}", note="")

    def _report(
        self, topic: str, message: str, *, note: str = "; results of this run stay in memory"
    ) -> None:
        """Warn once of each kind of fault, and once in a process of a folder that takes nothing."""
        self._fault = message
        if topic in self._told:
            return
        self._told.add(topic)
        told = f"cache: {message}{note}"
        if note:
            if told in _TOLD:  # by another cache of the same folder: one run opens it many times
                return
            _TOLD.add(told)
        log.warning("%s", told)


_TOLD: set[str] = set()


def _is_final(error: Exception) -> bool:
    """Whether another attempt with a new connection is of no use."""
    if not isinstance(error, sqlite3.Error):
        return not is_damage(error)
    code = getattr(error, "sqlite_errorcode", 0) & 0xFF
    return code in (sqlite3.SQLITE_FULL, sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED)


def _topic(error: Exception) -> str:
    if isinstance(error, OSError):
        return f"errno {error.errno}"
    if not isinstance(error, sqlite3.Error):
        return type(error).__name__
    return f"sqlite {getattr(error, 'sqlite_errorcode', 0) & 0xFF}"


def close_all() -> None:
    """Close the file in every cache of this process, which is about to end without ceremony."""
    for cache in list(_LIVE):
        cache.close()


# -- fork: a child must not inherit a connection, since the locks on its file stay with the parent

_LIVE: "weakref.WeakSet[Cache]" = weakref.WeakSet()
_HELD: list[Cache] = []
_FORKING = threading.Lock()  # two threads that fork must not wait for each other's caches


def _before_fork() -> None:
    _FORKING.acquire()
    for cache in list(_LIVE):
        cache._lock.acquire()
        _HELD.append(cache)
        if cache._store is not None:
            with contextlib.suppress(sqlite3.Error):
                cache._store.disconnect()


def _after_fork_in_parent() -> None:
    while _HELD:
        _HELD.pop()._lock.release()
    _FORKING.release()


def _after_fork_in_child() -> None:
    global _FORKING
    _HELD.clear()
    _FORKING = threading.Lock()
    for cache in list(_LIVE):
        cache._lock = threading.RLock()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(
        before=_before_fork,
        after_in_parent=_after_fork_in_parent,
        after_in_child=_after_fork_in_child,
    )
