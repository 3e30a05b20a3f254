"""Shared memory of forked processes: a store of levels, and a board of counters and notes.

It is anonymous memory made before the fork, so it has no name that could leak.
"""

from __future__ import annotations

import mmap
import os
import sys

import numpy as np
from numpy.typing import NDArray

from superopt.errors import SuperoptError
from superopt.frontier.engine.records import Records

__all__ = ["Board", "Store", "shared_array", "store_share"]

NOTE_BYTES = 1 << 20


class Board:
    """Counters that a worker writes and the parent reads at any time, and a note of text per worker."""

    FIELDS = (
        "expanded",
        "candidates",
        "settled",
        "bytes",
        "closing_ns",
        "busy_ns",
        "new",
        "arcs",
        "committed",  # records of finished levels in the store
        "committed_arcs",
    )

    def __init__(self, workers: int) -> None:
        self.workers = workers
        self._numbers = shared_array((workers + 1, len(self.FIELDS)))
        self._lengths = shared_array((workers,))
        self._notes = mmap.mmap(-1, workers * NOTE_BYTES)
        self.by_field = {name: self._numbers[:workers, at] for at, name in enumerate(self.FIELDS)}
        self._orders = self._numbers[workers]

    def begin_level(self, compact_rows: int) -> None:
        """Reset the counters of the level; say after how many candidates workers deduplicate."""
        for name in self.FIELDS[:-2]:
            self.by_field[name][:] = 0
        self._orders[:2] = 0, compact_rows

    def commit_level(self) -> None:
        """Keep what the workers have stored of the level."""
        self.by_field["committed"][:] += self.by_field["new"]
        self.by_field["committed_arcs"][:] += self.by_field["arcs"]

    @property
    def stop(self) -> bool:
        """Whether workers shall end the level now."""
        return bool(self._orders[0])

    @stop.setter
    def stop(self, value: bool) -> None:
        self._orders[0] = value

    @property
    def compact_rows(self) -> int:
        """The number of candidates after which a worker deduplicates."""
        return int(self._orders[1])

    def write_note(self, worker: int, text: bytes) -> None:
        """Leave a note for the parent, cut off if it is very long."""
        text = text[:NOTE_BYTES]
        self._notes[worker * NOTE_BYTES : worker * NOTE_BYTES + len(text)] = text
        self._lengths[worker] = len(text)

    def read_note(self, worker: int) -> bytes:
        """Return the note of a worker."""
        return self._notes[worker * NOTE_BYTES : worker * NOTE_BYTES + int(self._lengths[worker])]


class Store:
    """Finished levels in memory that outlives the worker who wrote them.

    The mappings are as large as the machine's memory, but only pages that are written to cost any.
    """

    def __init__(self, workers: int, words: int, *, keep_arcs: bool) -> None:
        self.new = [_reserved(words) for _ in range(workers)]
        self.arcs = [_reserved(words) if keep_arcs else self.new[0][:0] for _ in range(workers)]


def shared_array(shape: tuple[int, ...]) -> NDArray[np.int64]:
    """Return zeros that forked processes share."""
    size = 8 * int(np.prod(shape))
    return np.frombuffer(mmap.mmap(-1, max(size, 8)), dtype=np.int64, count=size // 8).reshape(shape)


def _reserved(words: int) -> Records:
    size = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    flags = (
        mmap.MAP_SHARED
        | mmap.MAP_ANONYMOUS
        | getattr(mmap, "MAP_NORESERVE", 0x4000 if sys.platform == "linux" else 0)
    )
    while True:
        try:
            memory = mmap.mmap(-1, size, flags=flags)
        except OSError as error:
            size //= 2
            if size < 1 << 24:
                raise SuperoptError(f"no room for shared memory ({error}); use fewer workers") from error
        else:
            count = size // (8 * words)
            return np.frombuffer(memory, dtype=np.int64, count=count * words).reshape(count, words)


def store_share(target: Records, start: int, records: Records) -> Records:
    """Append a share to a store's array, and return it as it lies there."""
    stop = start + len(records)
    if stop > len(target):
        raise SuperoptError(f"a worker's shared memory is full ({target.nbytes:,} bytes); set Limits.bytes")
    if len(records):
        target[start:stop] = records
    return target[start:stop]
