"""Queues of records between forked processes, and the messages and tickets that go with them.

Everything here is anonymous memory and pipes made before the fork, so nothing has a name that could
leak, and there is no lock that a killed process could keep. Data lies in shared slots; a small message
through the receiver's pipe says that a slot is full, one back that it is free. Messages and tickets are
shorter than PIPE_BUF, so writes and reads of them are whole; the system calls order the memory.
"""

from __future__ import annotations

import os
import select
import struct
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from enum import IntEnum
from typing import NamedTuple

import numpy as np

from superopt.frontier.engine.records import Index, Records
from superopt.frontier.engine.transport import Progress, Take
from superopt.frontier.engine.transports.memory import Board, shared_array

__all__ = ["Kind", "Message", "Pipe", "QueuePort", "Queues", "Ticket"]

QUEUE_BYTES_PER_WORKER = 8 << 20
SLOT_BYTES = 64 << 10, 1 << 20
WAIT_SECONDS = 0.25


class Kind(IntEnum):
    """What a message says."""

    DATA = 1  # slot `slot` of the sender's queue to the receiver has `size` records
    FREE = 2  # slot `slot` of the receiver's queue to the sender is free again
    END = 3  # the sender has nothing more on this level
    LEVEL = 4  # the parent says: the last level is committed, begin the next
    LEAVE = 5  # the parent says: the search is over
    DONE = 6  # a worker says: its share of the level is in the store
    FAILED = 7  # a worker says: it met an exception, which its note describes


class Message(NamedTuple):
    """What goes through a mailbox: a few bytes."""

    kind: int
    source: int
    slot: int = 0
    size: int = 0


class Ticket(NamedTuple):
    """A slice of the frontier to expand; share -1 says that no slice is left."""

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
        """Return up to so many items, or none."""
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


class QueuePort:
    """The port of a forked worker; while it waits it calls `alive`, which ends it with its parent."""

    def __init__(
        self,
        queues: Queues,
        board: Board,
        worker: int,
        frontier: Sequence[Records],
        alive: Callable[[], None],
    ) -> None:
        self.worker = worker
        self.workers = queues.workers
        self.frontier = frontier  # the shares of the last level, of which tickets name slices
        self._queues = queues
        self._board = board
        self._alive = alive
        self._early: list[Records] = []  # records of workers that have begun the level already
        self._free = [deque(range(queues.slots)) for _ in range(queues.workers)]
        self._mailbox = queues.mailboxes[worker]
        self._ready = select.poll()
        self._ready.register(self._mailbox.reader, select.POLLIN)
        self._work = select.poll()
        self._work.register(self._mailbox.reader, select.POLLIN)
        self._work.register(queues.tickets.reader, select.POLLIN)
        self._ended = 0
        self._orders: deque[Message] = deque()

    def tell_parent(self, kind: Kind) -> None:
        """Send the parent a message."""
        self._queues.mailboxes[self._queues.parent].write(kind, self.worker, 0, 0)

    def next_order(self) -> int:
        """Wait for the next order of the parent."""
        while not self._orders:
            self._receive(self._early.append, wait=True)
        return self._orders.popleft().kind

    def slices(self, take: Take) -> Iterator[Records]:
        """Yield slices of the frontier until none is left or the level is to be ended."""
        for records in self._early:
            take(records)
        self._early.clear()
        while (ticket := self._ticket(take)) is not None:
            if not self._board.stop:
                yield self.frontier[ticket.share][ticket.start : ticket.stop]

    def report(self, progress: Progress) -> bool:
        """Write the progress on the board; return whether the parent wants the level to end."""
        fields, me = self._board.by_field, self.worker
        fields["settled"][me], fields["bytes"][me] = progress.settled, progress.bytes
        fields["closing_ns"][me] = int(1e9 * progress.closing_seconds)
        return self._board.stop

    def end_level(self, take: Take) -> None:
        """Tell the other workers that nothing more comes on this level, and wait until they say the same."""
        for worker, mailbox in enumerate(self._queues.mailboxes[:-1]):
            if worker != self.worker:
                mailbox.write(Kind.END, self.worker, 0, 0)
        while self._ended < self._queues.workers - 1:
            self._receive(take, wait=True)
        self._ended = 0

    def send(self, owner: int, records: Records, lines: Index, take: Take) -> None:
        """Send the given lines of records to a worker; give to `take` what arrives meanwhile."""
        queues = self._queues
        free = self._free[owner]
        for start in range(0, len(lines), queues.capacity):
            while not free:
                self._receive(take, wait=True)
            slot = free.popleft()
            part = lines[start : start + queues.capacity]
            np.take(
                records, part, axis=0, out=queues.data[self.worker, owner, slot, : len(part)], mode="clip"
            )
            queues.mailboxes[owner].write(Kind.DATA, self.worker, slot, len(part))

    def _receive(self, take: Take, *, wait: bool = False) -> None:
        """Read the mailbox: give records to `take`, and keep the orders of the parent."""
        if wait and not self._ready.poll(1000 * WAIT_SECONDS):
            self._alive()
            return
        queues = self._queues
        for values in self._mailbox.read(256):
            message = Message(*values)
            if message.kind == Kind.DATA:
                take(queues.data[message.source, self.worker, message.slot, : message.size].copy())
                queues.mailboxes[message.source].write(Kind.FREE, self.worker, message.slot, 0)
            elif message.kind == Kind.FREE:
                self._free[message.source].append(message.slot)
            elif message.kind == Kind.END:
                self._ended += 1
            else:
                self._orders.append(message)

    def _ticket(self, take: Take) -> Ticket | None:
        """Return the next slice of the frontier to expand, None when no slice is left."""
        while True:
            self._receive(take)
            items = self._queues.tickets.read(1)
            if items:
                ticket = Ticket(*items[0])
                return None if ticket.share < 0 else ticket
            if not self._work.poll(1000 * WAIT_SECONDS):
                self._alive()
