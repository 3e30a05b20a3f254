"""The transport of one worker, which runs in this process."""

from __future__ import annotations

import time
from collections.abc import Iterator

from superopt.frontier.engine.history import History, Level
from superopt.frontier.engine.interface import Space
from superopt.frontier.engine.records import Index, Records
from superopt.frontier.engine.transport import Progress, Take
from superopt.frontier.engine.watch import Watch
from superopt.frontier.engine.worker import Worker

__all__ = ["Serial"]


class Serial:
    """A transport with one worker, and the port of that worker."""

    worker = 0
    workers = 1

    def __init__(self, space: Space, history: History, watch: Watch, workers: int = 1) -> None:
        assert workers == 1
        self._history = history
        self._watch = watch
        self._why: str | None = None
        self._levels = len(history.levels)
        self._worker = Worker(space, history, watch, self)

    def explore_level(self) -> tuple[Level | None, str | None]:
        """Explore the level after the last one of the history."""
        began = time.perf_counter()
        if len(self._history.levels) > self._levels:
            self._worker.commit(self._history.levels[-1].shares)
        self._levels = len(self._history.levels)
        share = self._worker.explore_level(self._watch.compact_rows(self._history, 1))
        level = self._history.ended_level([share], time.perf_counter() - began)
        why = "interrupted" if self._watch.interrupted else self._why
        return level, None if level.stats.complete else why

    def close(self, *, at_once: bool) -> None:
        """Let go of the worker: it refers to this transport, so its memory would wait for the collector."""
        del self._worker

    def slices(self, take: Take) -> Iterator[Records]:
        """Yield the frontier."""
        [frontier] = self._history.levels[-1].shares
        yield frontier

    def send(self, owner: int, records: Records, lines: Index, take: Take) -> None:
        """Refuse: the only worker owns every key."""
        raise AssertionError("there is no other worker")

    def end_level(self, take: Take) -> None:
        """Do nothing: nobody else sends."""

    def report(self, progress: Progress) -> bool:
        """Return whether a limit wants the level to end."""
        found = progress.settled, progress.bytes, progress.closing_seconds
        self._why = self._watch.why(self._history, *found)
        return self._why is not None
