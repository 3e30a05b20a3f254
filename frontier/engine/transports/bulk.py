"""A worker that shares no memory with others: it expands what it owns, and exchanges rows once a level.

The transports that send messages differ only in how they carry these rows. A worker's part of the frontier is
the states that it owns, so no frontier is sent; keys are mixed, so that all parts are of about one size.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from superopt.frontier.engine.history import History, Share
from superopt.frontier.engine.interface import Limits, Space
from superopt.frontier.engine.records import KEY_WORDS, Index, Records, keys_of, merge, owners
from superopt.frontier.engine.transport import Progress, Take
from superopt.frontier.engine.watch import Watch
from superopt.frontier.engine.worker import Worker

__all__ = ["Member", "Order", "Start"]


@dataclass(frozen=True, slots=True)
class Start:
    """All that a worker needs to begin: the space, the finished levels, and what is left of the limits."""

    space: Space
    history: History
    limits: Limits
    elapsed_s: float


@dataclass(frozen=True, slots=True)
class Order:
    """What a worker is told at the beginning of a level."""

    level: int
    compact_rows: int
    rows: int  # states found so far by all
    bytes: int  # and their bytes
    shares: tuple[Records, ...] | None  # the new states of all workers, where the space is shared


class BulkPort:
    """The port of such a worker: it keeps what it sends until the level's expansion is over."""

    def __init__(
        self, worker: int, workers: int, history: History, watch: Watch, told: Callable[[], bool]
    ) -> None:
        self.worker = worker
        self.workers = workers
        self.part = np.empty((0, history.width + KEY_WORDS), dtype=np.int64)
        self.why: str | None = None
        self._history = history
        self._watch = watch
        self._told = told
        self._outgoing: list[list[Records]] = [[] for _ in range(workers)]

    def slices(self, take: Take) -> Iterator[Records]:
        """Yield this worker's part of the frontier."""
        yield self.part

    def send(self, owner: int, records: Records, lines: Index, take: Take) -> None:
        """Keep the given lines of some records for the worker that owns them."""
        self._outgoing[owner].append(records.take(lines, axis=0))

    def end_level(self, take: Take) -> None:
        """Refuse: the transport exchanges rows between the two halves of a level."""
        raise AssertionError("rows are exchanged by the transport")

    def report(self, progress: Progress) -> bool:
        """Return whether a limit or whoever leads wants the level to end; all workers find about as much."""
        found, size = progress.settled * self.workers, progress.bytes * self.workers
        self.why = self._watch.why(self._history, found, size, progress.closing_seconds)
        return self.why is not None or self._told()

    def outgoing(self) -> list[Records]:
        """Return what goes to each worker, and forget it."""
        words = self.part.shape[1]
        none = np.empty((0, words), dtype=np.int64)
        made = [np.concatenate(some) if some else none for some in self._outgoing]
        self._outgoing = [[] for _ in range(self.workers)]
        return made


class Member:
    """One worker with its port; `told` says whether whoever leads wants the level to end."""

    def __init__(self, start: Start, worker: int, workers: int, told: Callable[[], bool]) -> None:
        width = start.history.width
        self.watch = Watch(start.limits)
        self.watch.started -= start.elapsed_s
        known = start.history
        self._history = History(width, known.keep_arcs, rows=known.rows, bytes=known.bytes)
        self._history.levels = list(start.history.levels)
        self.port = BulkPort(worker, workers, self._history, self.watch, told)
        self._shared = start.space.shared
        self._worker = Worker(start.space, self._history, self.watch, self.port)
        last = merge(self._history.levels[-1].shares, width)
        self._own: Records = last[owners(keys_of(last), workers) == worker] if workers > 1 else last
        self._level = len(self._history.levels)
        self._history.levels = []  # whoever leads keeps them

    def expand(self, order: Order) -> list[Records]:
        """Begin a level; return what goes to each worker."""
        port = self.port
        if order.level > self._level:
            shares = order.shares or tuple(
                self._own if worker == port.worker else self._own[:0] for worker in range(port.workers)
            )
            self._worker.commit(shares)
            self._level = order.level
        self._history.rows, self._history.bytes = order.rows, order.bytes
        port.part, port.why = self._own, None
        self._worker.expand_level(order.compact_rows)
        return port.outgoing()

    def finish(self, incoming: Sequence[Records]) -> Share:
        """Take in what others have sent, and end the level."""
        for records in incoming:
            if len(records):
                self._worker.take(records)
        share = self._worker.finish_level()
        self._own = share.new
        return share
