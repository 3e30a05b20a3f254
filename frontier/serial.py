"""The search in one process: expand, key, deduplicate, level by level."""

from __future__ import annotations

import time
from collections.abc import Callable

import numpy as np

from superopt.errors import InputError
from superopt.frontier.space import (
    History,
    Level,
    LevelStats,
    Space,
    Watch,
    absorb,
    less_counts,
    level_bytes,
)
from superopt.frontier.states import KEY_WORDS, Keys, Pending, Records, Rows, Seen, join

__all__ = ["Pace", "candidates_of", "checked_keys", "checked_rows", "pending_for", "run"]

# A batch should take about this long: long enough for numpy, short enough to see a limit in time.
BATCH_SECONDS = 0.02
FIRST_BATCH_ROWS = 256
BATCH_CANDIDATES = 1 << 17


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


def pending_for(watch: Watch, history: History, seen: Seen, workers: int) -> Pending:
    """An empty level, deduplicated more often where a limit wants exact numbers."""
    limits = watch.limits
    if limits.rows is None and limits.bytes is None:
        return Pending(seen, keep_arcs=history.keep_arcs)
    room = 1 << 40
    if limits.rows is not None:
        room = min(room, max(0, limits.rows - history.rows))
    if limits.bytes is not None:
        room = min(room, max(0, limits.bytes - history.bytes) // (8 * (history.width + KEY_WORDS)))
    often = min(1 << 19, 1024 + room // (4 * workers))
    return Pending(seen, keep_arcs=history.keep_arcs, compact_rows=often, growth=0.25)


def checked_rows(space: Space, rows: Rows, method: str) -> Rows:
    """Rows as the engine wants them, or one clear sentence about the space."""
    if rows.ndim != 2 or rows.shape[1] != space.width or rows.dtype != np.int64:
        raise InputError(
            f"{space.name}.{method} gave {rows.dtype}{list(rows.shape)}; expected int64[n, {space.width}]"
        )
    return rows


def checked_keys(space: Space, keys: Keys, count: int) -> Keys:
    """Keys as the engine wants them, or one clear sentence about the space."""
    if keys.shape != (count, KEY_WORDS) or keys.dtype != np.uint64:
        raise InputError(
            f"{space.name}.keys gave {keys.dtype}{list(keys.shape)}; expected uint64[{count}, 2]"
        )
    return keys if keys.flags.c_contiguous else np.ascontiguousarray(keys)


def candidates_of(space: Space, rows: Rows) -> Records | None:
    """The candidates reached from a batch of rows, with their keys; None when there are none."""
    made = checked_rows(space, space.expand(rows), "expand")
    if not len(made):
        return None
    return join(made, checked_keys(space, space.keys(made), len(made)))


def run(space: Space, history: History, watch: Watch, on_barrier: Callable[[Level], None]) -> str | None:
    """Explore until the space or a limit ends; says which limit, and leaves the levels in `history`."""
    seen = history.restore(space)
    frontier = history.frontier()
    pace = Pace()
    before = space.counts()
    while len(frontier):
        why = watch.why_no_level(history)
        if why is not None:
            return why
        began = time.perf_counter()
        pending = pending_for(watch, history, seen, 1)
        candidates = at = 0
        while at < len(frontier) and why is None:
            batch_began = time.perf_counter()
            batch = np.ascontiguousarray(frontier[at : at + pace.rows, KEY_WORDS:])
            try:
                watch.interruptible = True
                made = candidates_of(space, batch)
                watch.interruptible = False
            except KeyboardInterrupt:
                watch.interruptible = False
                watch.interrupted = True
                made = None
            count = 0 if made is None else len(made)
            if made is not None:
                pending.add(made)
            at += len(batch)
            candidates += count
            pace.learn(len(batch), count, time.perf_counter() - batch_began)
            ahead = pending.closing_seconds
            why = watch.why(history, pending.settled, pending.bytes, ahead)
        new, arcs = pending.finish()
        after = space.counts()
        seconds = time.perf_counter() - began
        complete = at >= len(frontier) and not watch.interrupted
        stats = LevelStats(
            level=len(history.levels),
            frontier=len(frontier),
            candidates=candidates,
            new=len(new),
            seconds=seconds,
            bytes=history.bytes + new.nbytes + arcs.nbytes,
            complete=complete,
            worker_seconds=(seconds,),
            worker_candidates=(candidates,),
            worker_new=(len(new),),
        )
        level = Level((new,), (arcs,), stats, less_counts(after, before))
        before = after
        if not complete:
            history.partial = level
            on_barrier(level)
            return why
        history.commit(level)
        if len(new):
            absorb(space, new)
            seen.add(new)
        on_barrier(level)
        frontier = new
    return None


def first_level(space: Space, watch: Watch) -> Level:
    """The roots as level 0."""
    before = space.counts()
    began = time.perf_counter()
    roots = checked_rows(space, space.roots(), "roots")
    pending = Pending(Seen(), keep_arcs=False)
    if len(roots):
        pending.add(join(roots, checked_keys(space, space.keys(roots), len(roots))))
    new, _ = pending.finish()
    if not len(new):
        new = np.empty((0, space.width + KEY_WORDS), dtype=np.int64)
    seconds = time.perf_counter() - began
    stats = LevelStats(
        0, 0, len(roots), len(new), seconds, new.nbytes, True, (seconds,), (len(roots),), (len(new),)
    )
    level = Level((new,), (new[:0],), stats, less_counts(space.counts(), before))
    assert level_bytes(level) == new.nbytes
    return level
