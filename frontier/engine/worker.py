"""Worker: a worker of a search expands slices of the frontier, and owns a share of the keys.

Every candidate goes to the owner of its key, and only the owner decides whether its state is new. So workers
need no common lock, and the states found do not depend on the number of workers.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence

import numpy as np

from superopt.errors import InputError
from superopt.frontier.engine.duplicates import Pending, Seen
from superopt.frontier.engine.history import History, Level, Share, absorb
from superopt.frontier.engine.interface import Keys, Rows, Space
from superopt.frontier.engine.records import (
    KEY_WORDS,
    Records,
    join,
    keys_of,
    merge,
    owners,
    rows_of,
    thinned,
)
from superopt.frontier.engine.transport import Port, Progress
from superopt.frontier.engine.watch import Watch

__all__ = ["Pace", "Worker", "candidates_of", "first_level"]

# A batch should take about this long: long enough for numpy, short enough to see a limit in time.
BATCH_SECONDS = 0.02
FIRST_BATCH_ROWS = 256
BATCH_CANDIDATES = 1 << 17


class Worker:
    """One worker of any transport; its port connects it to the others."""

    def __init__(self, space: Space, history: History, watch: Watch, port: Port) -> None:
        self._space = space
        self._width = history.width
        self._keep_arcs = history.keep_arcs
        self._watch = watch
        self._port = port
        self._pace = Pace()
        self._seen = history.restore(space, self._owned)
        self._counts = space.counts()
        self._pending = Pending(self._seen, self._width, keep_arcs=self._keep_arcs)
        self._expanded = self._made = 0
        self._busy = 0.0

    def commit(self, shares: Sequence[Records]) -> None:
        """Take note of a finished level: the new records of every worker."""
        self._seen.add(shares[self._port.worker])
        if self._space.shared:
            absorb(self._space, merge(shares, self._width))

    def explore_level(self, compact_rows: int) -> Share:
        """Do this worker's part of the next level, deduplicating after each so many candidates."""
        self.expand_level(compact_rows)
        self._port.end_level(self._pending.add)
        return self.finish_level()

    def expand_level(self, compact_rows: int) -> None:
        """Expand this worker's part of the frontier, and deal the candidates to their owners."""
        pending = Pending(self._seen, self._width, keep_arcs=self._keep_arcs, compact_rows=compact_rows)
        self._pending = pending
        expanded = candidates = 0
        busy = 0.0
        for frontier in self._port.slices(pending.add):
            began = time.perf_counter()
            at, stop = 0, False
            while at < len(frontier) and not stop:
                batch_began = time.perf_counter()
                batch = frontier[at : at + self._pace.rows]
                made = self._candidates(batch)
                if made is None:
                    break
                self._deal(made, pending)
                self._pace.learn(len(batch), len(made), time.perf_counter() - batch_began)
                at += len(batch)
                candidates += len(made)
                settled = pending.settled, pending.bytes, pending.closing_seconds
                stop = self._port.report(Progress(expanded + at, candidates, *settled))
            expanded += at
            busy += time.perf_counter() - began
        self._expanded, self._made, self._busy = expanded, candidates, busy

    def take(self, records: Records) -> None:
        """Take in candidates that another worker has made and this one owns."""
        self._pending.add(records)

    def finish_level(self) -> Share:
        """Deduplicate what this worker owns; return its share of the level."""
        began = time.perf_counter()
        new, arcs = self._pending.finish()
        before, self._counts = self._counts, self._space.counts()
        counts = _difference(self._counts, before)
        busy = self._busy + time.perf_counter() - began
        return Share(new, arcs, counts, self._expanded, self._made, busy)

    def _candidates(self, batch: Records) -> Records | None:
        """Return what a batch expands to, None where Ctrl-C met the expansion."""
        try:
            self._watch.interruptible = True
            made = candidates_of(self._space, rows_of(batch))
            self._watch.interruptible = False
        except KeyboardInterrupt:
            self._watch.interruptible = False
            self._watch.interrupted = True
            return None
        return made

    def _deal(self, made: Records, pending: Pending) -> None:
        """Give every candidate to the owner of its key."""
        port = self._port
        if port.workers == 1:
            pending.add(made)
            return
        made = thinned(made, copies_only=self._keep_arcs)
        owner = owners(keys_of(made), port.workers)
        for step in range(port.workers):
            worker = (port.worker + step) % port.workers
            lines = np.flatnonzero(owner == worker)
            if worker == port.worker:
                pending.add(made.take(lines, axis=0))
            elif len(lines):
                port.send(worker, made, lines, pending.add)

    def _owned(self, records: Records) -> Records:
        workers = self._port.workers
        if workers == 1:
            return records
        owned: Records = records[owners(keys_of(records), workers) == self._port.worker]
        return owned


class Pace:
    """How many rows to expand at once, learned from the batches so far."""

    __slots__ = ("rows",)

    def __init__(self) -> None:
        self.rows = FIRST_BATCH_ROWS

    def learn(self, rows: int, candidates: int, seconds: float) -> None:
        """Adjust to a batch of so many rows that gave so many candidates in so many seconds."""
        by_time = rows * BATCH_SECONDS / max(seconds, 1e-6)
        by_size = rows * BATCH_CANDIDATES / max(candidates, 1)
        self.rows = max(1, int(min(by_time, by_size, 4 * self.rows)))


def first_level(space: Space, history: History) -> Level:
    """Return the roots of a space as level 0."""
    began, before = time.perf_counter(), space.counts()
    roots = _keyed(space, space.roots(), "roots")
    pending = Pending(Seen(), history.width, keep_arcs=False)
    pending.add(roots)
    new, arcs = pending.finish()
    counts, seconds = _difference(space.counts(), before), time.perf_counter() - began
    return history.ended_level([Share(new, arcs, counts, 0, len(roots), seconds)], seconds)


def candidates_of(space: Space, rows: Rows) -> Records:
    """Return the candidates reached from a batch of rows, with their keys."""
    return _keyed(space, space.expand(rows), "expand")


def _difference(after: Mapping[str, int], before: Mapping[str, int]) -> dict[str, int]:
    return {reason: int(count) - int(before.get(reason, 0)) for reason, count in after.items()}


def _keyed(space: Space, rows: Rows, method: str) -> Records:
    """Return rows that a method of a space gave, with their keys."""
    if rows.ndim != 2 or rows.shape[1] != space.width or rows.dtype != np.int64:
        raise InputError(
            f"{space.name}.{method} gave {rows.dtype}{list(rows.shape)}; expected int64[n, {space.width}]"
        )
    if not len(rows):
        return np.empty((0, space.width + KEY_WORDS), dtype=np.int64)
    return join(rows, _checked_keys(space, space.keys(rows), len(rows)))


def _checked_keys(space: Space, keys: Keys, count: int) -> Keys:
    if keys.shape != (count, KEY_WORDS) or keys.dtype != np.uint64:
        raise InputError(
            f"{space.name}.keys gave {keys.dtype}{list(keys.shape)}; expected uint64[{count}, 2]"
        )
    return keys if keys.flags.c_contiguous else np.ascontiguousarray(keys)
