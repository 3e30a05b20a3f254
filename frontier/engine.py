"""explore(): run a search with any number of workers, and put its levels together into one result."""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType

import numpy as np

from superopt.errors import InputError
from superopt.frontier import serial
from superopt.frontier.checkpoint import Checkpoint
from superopt.frontier.space import Exploration, History, Level, LevelStats, Limits, Space, Watch, shaped
from superopt.frontier.states import (
    KEY_WORDS,
    Index,
    Records,
    Rows,
    distinct_rows,
    keys_of,
    merge,
    new_key,
    rows_of,
)

__all__ = ["explore"]

NO_LIMITS = Limits()


def explore(
    space: Space,
    *,
    workers: int = 1,
    limits: Limits = NO_LIMITS,
    keep_arcs: bool = False,
    checkpoint: Path | None = None,
    resume: bool = False,
    on_level: Callable[[LevelStats], None] | None = None,
) -> Exploration:
    """All states of a space, or those found before a limit, Ctrl-C or lost workers ended the search."""
    if workers < 1:
        raise InputError(f"workers is {workers}; give at least 1")
    if resume and checkpoint is None:
        raise InputError("resume=True needs the checkpoint to resume from: give its path as checkpoint=")
    watch = Watch(limits)
    saved = Checkpoint(checkpoint, space, keep_arcs=keep_arcs) if checkpoint is not None else None
    if saved is not None:
        saved.check_usable()
    history = History(space.width, keep_arcs)
    if saved is not None and resume:
        for level in saved.load():
            history.commit(level)
    else:
        history.commit(serial.first_level(space, watch))
        if on_level is not None:
            on_level(history.levels[0].stats)

    def on_barrier(level: Level) -> None:
        if saved is not None and level.stats.complete:
            saved.save(history)
        if on_level is not None:
            on_level(level.stats)

    with _interrupts_noted(watch):
        if workers == 1:
            stopped = serial.run(space, history, watch, on_barrier)
        else:
            from superopt.frontier import processes

            stopped = processes.run(space, history, watch, on_barrier, workers=workers)
        if saved is not None:
            saved.save(history, now=True)
        return _put_together(history, limits, stopped)


@contextmanager
def _interrupts_noted(watch: Watch) -> Iterator[None]:
    """Make the first Ctrl-C a wish to stop; a second one raises as ever."""
    usual = signal.getsignal(signal.SIGINT)
    if threading.current_thread() is not threading.main_thread() or usual is not signal.default_int_handler:
        yield  # another owner of the signal, or no right to change it
        return

    def note(number: int, frame: FrameType | None) -> None:
        if watch.interrupted:
            raise KeyboardInterrupt
        watch.interrupted = True
        if watch.interruptible:
            raise KeyboardInterrupt

    signal.signal(signal.SIGINT, note)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, usual)


def _put_together(history: History, limits: Limits, stopped: str | None) -> Exploration:
    levels = [*history.levels, *([history.partial] if history.partial else [])]
    merged = [shaped(merge(list(level.shares)), history.width) for level in levels]
    level_of = np.repeat(np.arange(len(merged), dtype=np.int32), [len(records) for records in merged])
    records = merged[0] if len(merged) == 1 else np.concatenate(merged)
    if limits.rows is not None and len(records) > limits.rows:
        records, level_of = records[: limits.rows], level_of[: limits.rows]
        stopped = stopped or f"rows limit ({limits.rows:,} rows)"
    keys = keys_of(records)
    arcs = np.empty((0, history.width), dtype=np.int64)
    targets = np.empty(0, dtype=np.int64)
    if history.keep_arcs:
        arcs, targets = _arcs(levels, records, history.width)
    return Exploration(
        rows=rows_of(records),
        keys=keys,
        level_of=level_of,
        arcs=arcs,
        arc_targets=targets,
        levels=tuple(level.stats for level in levels),
        counts=history.counts(),
        stopped=stopped,
    )


def _arcs(levels: list[Level], records: Records, width: int) -> tuple[Rows, Index]:
    """All arcs that lead to one of the records, ordered by its index and then by row; and these indices."""
    blocks = [arcs for level in levels for arcs in level.arcs if len(arcs)]
    if not blocks or not len(records):
        return np.empty((0, width), dtype=np.int64), np.empty(0, dtype=np.int64)
    arcs = distinct_rows(np.concatenate(blocks))
    begins = np.flatnonzero(new_key(arcs))
    both = np.concatenate((records[:, :KEY_WORDS], arcs[begins, :KEY_WORDS])).view(np.uint64)
    order = np.lexsort((both[:, 1], both[:, 0]))  # stable: a state comes just before the arcs that reach it
    pair = np.flatnonzero((both[order[1:]] == both[order[:-1]]).all(axis=1))
    target_of = np.full(len(begins), -1, dtype=np.int64)
    target_of[order[pair + 1] - len(records)] = order[pair]
    targets = np.repeat(target_of, np.diff(begins, append=len(arcs)))
    by_target = np.argsort(targets, kind="stable")
    by_target = by_target[np.count_nonzero(targets < 0) :]  # a limit may have cut the state off
    return rows_of(arcs[by_target]), targets[by_target]
