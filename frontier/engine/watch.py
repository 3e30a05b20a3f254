"""The clock and the limits of one search, and whether the user wants it to end."""

from __future__ import annotations

import time

from superopt.frontier.engine.duplicates import COMPACT_ROWS
from superopt.frontier.engine.history import History
from superopt.frontier.engine.interface import Limits
from superopt.frontier.engine.records import KEY_WORDS

__all__ = ["Watch"]

# First guesses of the time it takes to put a state into the result.
RESULT_SECONDS_PER_ROW = 1.5e-7
ARCS_RESULT_SECONDS_PER_ROW = 1e-6


class Watch:
    """The clock and the limits of one search, and whether the user wants it to end."""

    __slots__ = ("interrupted", "interruptible", "limits", "started")

    def __init__(self, limits: Limits) -> None:
        self.limits = limits
        self.started = time.perf_counter()
        self.interrupted = False
        self.interruptible = False  # Ctrl-C may raise here and now: no state would be lost

    def elapsed(self) -> float:
        """Return the seconds since the search began."""
        return time.perf_counter() - self.started

    def why(self, history: History, rows: int = 0, size: int = 0, closing: float = 0.0) -> str | None:
        """Return why the search has to stop, None where it may go on.

        The level under way has found so many rows and bytes, and takes so many seconds to close.
        """
        limits = self.limits
        rows, size = history.rows + rows, history.bytes + size
        closing += rows * (ARCS_RESULT_SECONDS_PER_ROW if history.keep_arcs else RESULT_SECONDS_PER_ROW)
        if self.interrupted:
            return "interrupted"
        if limits.seconds is not None and self.elapsed() + closing >= limits.seconds:
            return f"seconds limit ({limits.seconds:g} s)"
        if limits.rows is not None and rows >= limits.rows:
            return f"rows limit ({limits.rows:,} rows)"
        if limits.bytes is not None and size >= limits.bytes:
            return f"bytes limit ({limits.bytes:,} bytes)"
        return None

    def why_no_level(self, history: History) -> str | None:
        """Return why the search may not begin another level, None where it may."""
        limits = self.limits
        if limits.levels is not None and len(history.levels) > limits.levels:
            return f"levels limit ({limits.levels})"
        return self.why(history)

    def compact_rows(self, history: History, workers: int) -> int:
        """Return after how many candidates a worker deduplicates: often where a limit wants exact numbers."""
        limits = self.limits
        rooms = []
        if limits.rows is not None:
            rooms.append(limits.rows - history.rows)
        if limits.bytes is not None:
            rooms.append((limits.bytes - history.bytes) // (8 * (history.width + KEY_WORDS)))
        if not rooms:
            return COMPACT_ROWS
        return min(1 << 19, 1024 + max(0, min(rooms)) // (4 * workers))
