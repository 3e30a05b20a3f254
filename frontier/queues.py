"""Shared memory between forked processes: queues of records, a store of levels, counters, tickets.

Everything here is anonymous memory and pipes made before the fork, so nothing has a name that could
leak, and there is no lock that a killed process could keep. Data lies in shared slots; a small message
through the receiver's pipe says that a slot is full, one back that it is free. Messages and tickets are
shorter than PIPE_BUF, so writes and reads of them are whole; the system calls order the memory.
"""

from __future__ import annotations

import mmap
import os
import select
import struct
import sys
from collections import deque
from collections.abc import Callable
from enum import IntEnum
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from superopt.errors import SuperoptError
from superopt.frontier.states import Records

__all__ = ["Board", "Kind", "Message", "Pipe", "Port", "Queues", "Store", "Ticket"]

QUEUE_BYTES_PER_WORKER = 8 << 20
SLOT_BYTES = 64 << 10, 1 << 20
NOTE_BYTES = 1 << 20
WAIT_SECONDS = 0.25


class Kind(IntEnum):
    """What a message says."""

    DATA = 1  # slot `slot` of the sender's queue to you has `size` records
    FREE = 2  # slot `slot` of your queue to me is free again
    END = 3  # nothing more comes from me on this level
    LEVEL = 4  # parent: the last level is committed, begin the next
    LEAVE = 5  # parent: the search is over
    DONE = 6  # worker: my share of the level is in the store
    FAILED = 7  # worker: an exception, described in my note


class Message(NamedTuple):
    """A few bytes through a pipe."""

    kind: int
    source: int
    slot: int = 0
    size: int = 0


class Ticket(NamedTuple):
    """A slice of the frontier to expand; share -1 says that there are no more."""

    share: int
    start: int
    stop: int


class Pipe:
    """A pipe of fixed-size items that is written by many and read by one or many."""

    __slots__ = ("_item", "reader", "writer")

    def __init__(self, item: struct.Struct) -> None:
        self._item = item
        self.reader, self.writer = os.pipe()
        os.set_blocking(self.reader, False)

    def read(self, most: int) -> list[tuple[int, ...]]:
        """Up to so many items, none if none is there."""
        try:
            return list(self._item.iter_unpack(os.read(self.reader, most * self._item.size)))
        except BlockingIOError:
            return []

    def write(self, *values: int) -> None:
        """Append an item."""
        os.write(self.writer, self._item.pack(*values))

    def close(self) -> None:
        """Close both ends in this process."""
        os.close(self.reader)
        os.close(self.writer)


class Queues:
    """Queues between every two workers, a mailbox for each of them and the parent, and the tickets."""

    def __init__(self, workers: int, words: int) -> None:
        self.workers = workers
        self.parent = workers
        self.slots = 4 if workers <= 32 else 2
        least, most = SLOT_BYTES
        size = min(most, max(least, QUEUE_BYTES_PER_WORKER // (workers * self.slots)))
        self.capacity = max(1, size // (8 * words))
        shape = (workers, workers, self.slots, self.capacity, words)
        self.data = shared_array(shape)
        self.mailboxes = [Pipe(struct.Struct("<BBHI")) for _ in range(workers + 1)]
        self.tickets = Pipe(struct.Struct("<3q"))
        os.set_blocking(self.tickets.writer, False)

    def close(self) -> None:
        """Close all pipes in this process."""
        for pipe in [*self.mailboxes, self.tickets]:
            pipe.close()


class Port:
    """One worker's end of the queues."""

    def __init__(self, queues: Queues, worker: int, alive: Callable[[], None]) -> None:
        self._queues = queues
        self._me = worker
        self._alive = alive
        self._free = [deque(range(queues.slots)) for _ in range(queues.workers)]
        self._mailbox = queues.mailboxes[worker]
        self._ready = select.poll()
        self._ready.register(self._mailbox.reader, select.POLLIN)
        self._work = select.poll()
        self._work.register(self._mailbox.reader, select.POLLIN)
        self._work.register(queues.tickets.reader, select.POLLIN)
        self.ended = 0
        self.orders: deque[Message] = deque()

    def tell_parent(self, kind: Kind) -> None:
        """Send the parent a message."""
        self._queues.mailboxes[self._queues.parent].write(kind, self._me, 0, 0)

    def end(self) -> None:
        """Tell the other workers that nothing more comes from this one on this level."""
        for worker, mailbox in enumerate(self._queues.mailboxes[:-1]):
            if worker != self._me:
                mailbox.write(Kind.END, self._me, 0, 0)

    def send(
        self, worker: int, records: Records, lines: NDArray[np.int64], take: Callable[[Records], None]
    ) -> None:
        """Send the given lines of records to a worker; what arrives meanwhile is taken."""
        queues = self._queues
        free = self._free[worker]
        for start in range(0, len(lines), queues.capacity):
            while not free:
                self.receive(take, wait=True)
            slot = free.popleft()
            part = lines[start : start + queues.capacity]
            np.take(records, part, axis=0, out=queues.data[self._me, worker, slot, : len(part)], mode="clip")
            queues.mailboxes[worker].write(Kind.DATA, self._me, slot, len(part))

    def receive(self, take: Callable[[Records], None], *, wait: bool = False) -> None:
        """Read the mailbox; records that came are given to `take`, orders of the parent are kept."""
        if wait and not self._ready.poll(1000 * WAIT_SECONDS):
            self._alive()
            return
        queues = self._queues
        for values in self._mailbox.read(256):
            message = Message(*values)
            if message.kind == Kind.DATA:
                take(queues.data[message.source, self._me, message.slot, : message.size].copy())
                queues.mailboxes[message.source].write(Kind.FREE, self._me, message.slot, 0)
            elif message.kind == Kind.FREE:
                self._free[message.source].append(message.slot)
            elif message.kind == Kind.END:
                self.ended += 1
            else:
                self.orders.append(message)

    def ticket(self, take: Callable[[Records], None]) -> Ticket | None:
        """The next slice of the frontier to expand; None when there are no more."""
        while True:
            self.receive(take)
            items = self._queues.tickets.read(1)
            if items:
                ticket = Ticket(*items[0])
                return None if ticket.share < 0 else ticket
            if not self._work.poll(1000 * WAIT_SECONDS):
                self._alive()


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
        "committed",
        "committed_arcs",
    )

    def __init__(self, workers: int) -> None:
        self._numbers = shared_array((workers + 1, len(self.FIELDS)))
        self._lengths = shared_array((workers,))
        self._notes = mmap.mmap(-1, workers * NOTE_BYTES)
        self.by_field = {name: self._numbers[:workers, at] for at, name in enumerate(self.FIELDS)}
        self._flags = self._numbers[workers]

    @property
    def stop(self) -> bool:
        """Whether workers shall close the level now."""
        return bool(self._flags[0])

    @stop.setter
    def stop(self, value: bool) -> None:
        self._flags[0] = value

    def begin_level(self) -> None:
        """Reset the counters of the level."""
        for name in self.FIELDS[:-2]:
            self.by_field[name][:] = 0

    def write_note(self, worker: int, text: bytes) -> None:
        """Leave a note for the parent, cut off if it is very long."""
        text = text[:NOTE_BYTES]
        self._notes[worker * NOTE_BYTES : worker * NOTE_BYTES + len(text)] = text
        self._lengths[worker] = len(text)

    def read_note(self, worker: int) -> bytes:
        """The note of a worker."""
        return self._notes[worker * NOTE_BYTES : worker * NOTE_BYTES + int(self._lengths[worker])]


class Store:
    """Finished levels in memory that outlives the worker who wrote them.

    The mappings are as large as the machine's memory but cost only what is written to them.
    """

    def __init__(self, workers: int, words: int, *, keep_arcs: bool) -> None:
        self.new = [_reserved(words) for _ in range(workers)]
        self.arcs = [_reserved(words) if keep_arcs else self.new[0][:0] for _ in range(workers)]


def shared_array(shape: tuple[int, ...]) -> NDArray[np.int64]:
    """Zeros that forked processes share."""
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
    """Append a share to a store's array, and give it as it lies there."""
    stop = start + len(records)
    if stop > len(target):
        raise SuperoptError(f"a worker's shared memory is full ({target.nbytes:,} bytes); set Limits.bytes")
    if len(records):
        target[start:stop] = records
    return target[start:stop]
