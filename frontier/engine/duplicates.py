"""Which candidates are new states: the keys seen so far, and the candidates of the level under way."""

from __future__ import annotations

import time

import numpy as np
from numpy.typing import NDArray

from superopt.frontier.engine.records import KEY_WORDS, Index, Records, distinct, distinct_rows, new_key

__all__ = ["COMPACT_ROWS", "Pending", "Seen"]

# A level with fewer candidates is sorted once, at its end.
COMPACT_ROWS = 1 << 22
# First guesses of the time it takes to deduplicate a candidate.
SECONDS_PER_ROW = 5e-7
ARCS_SECONDS_PER_ROW = 1.2e-6


class Seen:
    """The keys found so far, as a few sorted runs of growing size."""

    __slots__ = ("_runs",)

    def __init__(self) -> None:
        self._runs: list[tuple[NDArray[np.uint64], NDArray[np.uint64]]] = []

    def add(self, records: Records) -> None:
        """Add records, which come in key order and are not in the set."""
        if not len(records):
            return
        unsigned = records.view(np.uint64)
        high, low = np.ascontiguousarray(unsigned[:, 0]), np.ascontiguousarray(unsigned[:, 1])
        while self._runs and len(self._runs[-1][0]) <= 2 * len(high):
            before = self._runs.pop()
            high, low = np.concatenate((before[0], high)), np.concatenate((before[1], low))
            order = np.argsort(high, kind="stable")
            if (np.diff(high.take(order)) == 0).any():
                order = np.lexsort((low, high))
            high, low = high.take(order), low.take(order)
        self._runs.append((high, low))

    def without(self, records: Records) -> Records:
        """Return the records that are not in the set; all come in key order."""
        for run_high, run_low in self._runs:
            if not len(records):
                break
            unsigned = records.view(np.uint64)
            high = np.ascontiguousarray(unsigned[:, 0])
            at = np.searchsorted(run_high, high)
            near = at.clip(max=len(run_high) - 1)
            candidates = np.flatnonzero(run_high.take(near) == high)
            if not len(candidates):
                continue
            low = unsigned[:, 1].take(candidates)
            found = run_low.take(near.take(candidates)) == low
            if not found.all():
                found = _bisect(
                    run_low, at[candidates], np.searchsorted(run_high, high[candidates], "right"), low
                )
            keep = np.ones(len(records), dtype=bool)
            keep[candidates[found]] = False
            records = records[keep]
        return records


def _bisect(
    run: NDArray[np.uint64], left: Index, right: Index, wanted: NDArray[np.uint64]
) -> NDArray[np.bool_]:
    """Return whether each wanted value is in its own sorted slice of the run."""
    end = right.copy()
    while (left < right).any():
        middle = (left + right) // 2
        below = (run.take(middle, mode="clip") < wanted) & (left < right)
        left, right = np.where(below, middle + 1, left), np.where(below, right, np.minimum(middle, right))
    found: NDArray[np.bool_] = (left < end) & (run.take(left, mode="clip") == wanted)
    return found


class Pending:
    """The candidates of the level under way, deduplicated now and then to stay small.

    `settled` counts the new states and `bytes` their storage as of the last deduplication. It comes after
    each `compact_rows` candidates, and as these grow more seldom, unless a limit wants exact numbers.
    """

    def __init__(self, seen: Seen, width: int, *, keep_arcs: bool, compact_rows: int = COMPACT_ROWS) -> None:
        self._seen = seen
        self._none = np.empty((0, width + KEY_WORDS), dtype=np.int64)
        self._keep_arcs = keep_arcs
        self._compact_rows = compact_rows
        self._growth = 1.0 if compact_rows >= COMPACT_ROWS else 0.25
        self._blocks: list[Records] = []
        self._new: Records | None = None
        self._rows = self._fresh = self.settled = self.bytes = 0
        self._row_seconds = ARCS_SECONDS_PER_ROW if keep_arcs else SECONDS_PER_ROW

    def add(self, records: Records) -> None:
        """Take in candidates."""
        if not len(records):
            return
        self._blocks.append(records)
        self._fresh += len(records)
        self._rows += len(records)
        if self._fresh > max(self._compact_rows, self._growth * (self._rows - self._fresh)):
            self._compact()

    @property
    def closing_seconds(self) -> float:
        """The time that it would take to finish the level now."""
        return self._rows * self._row_seconds

    def finish(self) -> tuple[Records, Records]:
        """Return the level's new records and its arcs (empty unless kept), both in key order; forget them."""
        self._compact()
        records = self._blocks.pop() if self._blocks else self._none
        new = records if self._new is None else self._new
        return new, records if self._keep_arcs else records[:0]

    def _compact(self) -> None:
        if not self._fresh:
            return
        began, rows = time.perf_counter(), self._rows
        records = self._blocks[0] if len(self._blocks) == 1 else np.concatenate(self._blocks)
        self._blocks.clear()
        if self._keep_arcs:
            records = distinct_rows(records)
            self._new = self._seen.without(records[new_key(records)])
            self.settled = len(self._new)
            self.bytes = self._new.nbytes + records.nbytes
        else:
            records = self._seen.without(distinct(records))
            self.settled, self.bytes = len(records), records.nbytes
        self._blocks.append(records)
        self._fresh, self._rows = 0, len(records)
        if rows > self._compact_rows:  # fewer rows would only measure the overhead
            self._row_seconds = max(self._row_seconds, (time.perf_counter() - began) / rows)
