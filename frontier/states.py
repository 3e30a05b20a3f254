"""Sets of states as arrays: records, sorting by key, the smallest row of equal keys, membership.

A record is one state as int64 words: two words of key (read as unsigned), then the row.
"""

from __future__ import annotations

import time
from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

Rows = NDArray[np.int64]
Keys = NDArray[np.uint64]
Records = NDArray[np.int64]
Index = NDArray[np.int64]

KEY_WORDS = 2
# Below this many candidates a level is sorted once, at its end.
COMPACT_ROWS = 1 << 22
# First guesses of what it takes to deduplicate a candidate.
SECONDS_PER_ROW = 5e-7
ARCS_SECONDS_PER_ROW = 1.2e-6


def join(rows: Rows, keys: Keys) -> Records:
    """Records made of rows and their keys."""
    records = np.empty((len(rows), rows.shape[1] + KEY_WORDS), dtype=np.int64)
    records[:, :KEY_WORDS] = keys.view(np.int64)
    records[:, KEY_WORDS:] = rows
    return records


def rows_of(records: Records) -> Rows:
    """The rows of records, as an array of their own."""
    return np.ascontiguousarray(records[:, KEY_WORDS:])


def keys_of(records: Records) -> Keys:
    """The keys of records, as an array of their own."""
    return np.ascontiguousarray(records[:, :KEY_WORDS]).view(np.uint64)


def owners(keys: Keys, workers: int) -> NDArray[np.uint64]:
    """The worker that owns each key; mixed, so that poor keys spread as well as good ones."""
    mixed = keys[:, 0] ^ (keys[:, 1] * np.uint64(0x9E3779B97F4A7C15))
    mixed ^= mixed >> np.uint64(32)
    mixed *= np.uint64(0xD6E8FEB86659FD93)
    mixed >>= np.uint64(32)
    mixed *= np.uint64(workers)
    mixed >>= np.uint64(32)
    return mixed


def merge(shares: list[Records]) -> Records:
    """Shares that are each in key order and have no key in common, as one in key order."""
    shares = [share for share in shares if len(share)]
    if len(shares) == 1:
        return shares[0]
    if not shares:
        return np.empty((0, 0), dtype=np.int64)
    records = np.concatenate(shares)
    unsigned = records.view(np.uint64)
    high = np.ascontiguousarray(unsigned[:, 0])
    order = np.argsort(high, kind="stable")  # merges sorted runs in linear time
    high = high[order]
    if (high[1:] == high[:-1]).any():
        order = np.lexsort((unsigned[:, 1], unsigned[:, 0]))
    return records.take(order, axis=0)


def distinct(records: Records) -> Records:
    """One record per key, in key order: of equal keys the one with the smallest row."""
    if len(records) < 2:
        return records
    unsigned = records.view(np.uint64)
    high = np.ascontiguousarray(unsigned[:, 0])
    order = np.argsort(high)
    high = high.take(order)
    same = high[1:] == high[:-1]
    if not same.any():
        return records.take(order, axis=0)
    low = unsigned[:, 1].take(order)
    agree = low[1:] == low[:-1]
    if not agree[same].all():  # the first 64 bits alone don't tell these keys apart
        order = np.lexsort((unsigned[:, 1], unsigned[:, 0]))
        high, low = unsigned[:, 0].take(order), unsigned[:, 1].take(order)
        same = high[1:] == high[:-1]
        agree = low[1:] == low[:-1]
    same &= agree
    first = np.empty(len(records), dtype=bool)
    first[0] = True
    np.logical_not(same, out=first[1:])
    starts = np.flatnonzero(first)
    return records.take(_smallest(records, order, starts), axis=0)


def _smallest(records: Records, members: Index, starts: Index) -> Index:
    """The member of each group with the smallest row; groups begin at `starts`."""
    sizes = np.diff(starts, append=len(members))
    chosen = members.take(starts)
    group = np.repeat(np.arange(len(starts)), sizes)
    undecided = sizes.take(group) > 1
    members, group = members[undecided], group[undecided]
    for word in packed(records):
        values = word.take(members)
        begins = np.flatnonzero(_changes(group))
        least = np.minimum.reduceat(values, begins)
        keep = values == np.repeat(least, np.diff(begins, append=len(members)))
        members, group = members[keep], group[keep]
        first = _changes(group)
        chosen[group[first]] = members[first]
        alone = first & np.append(first[1:], True)
        if alone.all():
            break  # otherwise what is left at the end are copies of one row
        members, group = members[~alone], group[~alone]
    return chosen


def _changes(group: Index) -> NDArray[np.bool_]:
    first = np.ones(len(group), dtype=bool)
    np.not_equal(group[1:], group[:-1], out=first[1:])
    return first


def packed(records: Records) -> Iterator[NDArray[np.uint64]]:
    """Words that compare as the rows do, most significant first; rows of small numbers need only one."""
    word: NDArray[np.uint64] | None = None
    used = 0
    for column in range(KEY_WORDS, records.shape[1]):
        values = records[:, column]
        least, most = int(values.min()), int(values.max())
        bits = (most - least).bit_length()
        if not bits:
            continue
        shifted = (values - least).view(np.uint64)  # wraps around to the right difference
        if word is None or used + bits > 64:
            if word is not None:
                yield word
            word, used = shifted, bits
        else:
            word <<= np.uint64(bits)
            word |= shifted
            used += bits
    if word is not None:
        yield word


def distinct_rows(records: Records) -> Records:
    """Every different record once, by key and then by row."""
    if len(records) < 2:
        return records
    unsigned = records.view(np.uint64)
    high = np.ascontiguousarray(unsigned[:, 0])
    words = [*packed(records)][::-1]
    order = np.lexsort((*words, unsigned[:, 1], high))
    records = records.take(order, axis=0)
    keep = np.ones(len(records), dtype=bool)
    np.any(records[1:] != records[:-1], axis=1, out=keep[1:])
    return records if keep.all() else records[keep]


def new_key(records: Records) -> NDArray[np.bool_]:
    """Which records in key order have another key than the one before."""
    first = np.ones(len(records), dtype=bool)
    np.any(records[1:, :KEY_WORDS] != records[:-1, :KEY_WORDS], axis=1, out=first[1:])
    return first


def thinned(records: Records, *, copies_only: bool = False) -> Records:
    """Records less most of those that another one here makes useless (same key, smaller or equal row)."""
    count = len(records)
    if count < 2:
        return records
    bits = max(8, (2 * count).bit_length())
    slots = np.right_shift(records.view(np.uint64)[:, 0], np.uint64(64 - bits)).view(np.int64)
    table = np.empty(1 << bits, dtype=np.int32)
    here = np.arange(count, dtype=np.int32)
    table[slots] = here
    rival = table.take(slots)
    suspects = np.flatnonzero(rival != here)
    if not len(suspects):
        return records
    rivals = rival.take(suspects)
    high = records[:, 0]
    suspects, rivals = _where_equal(high, suspects, rivals)
    if not len(suspects):
        return records
    mine, other = records.take(suspects, axis=0), records.take(rivals, axis=0)
    equal = mine[:, 1] == other[:, 1]
    differs = mine[:, KEY_WORDS:] != other[:, KEY_WORDS:]
    column = differs.argmax(axis=1) + KEY_WORDS
    lines = np.arange(len(mine))
    here_value, other_value = mine[lines, column], other[lines, column]
    useless = equal & (here_value == other_value if copies_only else here_value >= other_value)
    keep = np.ones(count, dtype=bool)
    keep[suspects[useless]] = False
    return records[keep]


def _where_equal(values: Rows, one: Index, other: NDArray[np.int32]) -> tuple[Index, NDArray[np.int32]]:
    equal = values.take(one) == values.take(other)
    return one[equal], other[equal]


class Seen:
    """The keys found so far, as a few sorted runs of growing size."""

    __slots__ = ("_runs",)

    def __init__(self) -> None:
        self._runs: list[tuple[NDArray[np.uint64], NDArray[np.uint64]]] = []

    def add(self, records: Records) -> None:
        """Add records in key order, none of which is in the set."""
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
        """Those of records in key order that are not in the set."""
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
    """Whether each wanted value is in its own sorted slice of the run."""
    end = right.copy()
    while (left < right).any():
        middle = (left + right) // 2
        below = (run.take(middle, mode="clip") < wanted) & (left < right)
        left, right = np.where(below, middle + 1, left), np.where(below, right, np.minimum(middle, right))
    found: NDArray[np.bool_] = (left < end) & (run.take(left, mode="clip") == wanted)
    return found


class Pending:
    """The candidates of a level under way, deduplicated now and then to stay small.

    `settled` counts the new states and `bytes` their storage as of the last deduplication.
    """

    __slots__ = (
        "_blocks",
        "_compact_rows",
        "_fresh",
        "_growth",
        "_keep_arcs",
        "_new",
        "_row_seconds",
        "_rows",
        "_seen",
        "bytes",
        "settled",
    )

    def __init__(
        self, seen: Seen, *, keep_arcs: bool, compact_rows: int = COMPACT_ROWS, growth: float = 1.0
    ) -> None:
        self._seen = seen
        self._keep_arcs = keep_arcs
        self._compact_rows = compact_rows
        self._growth = growth
        self._blocks: list[Records] = []
        self._new: Records | None = None
        self._rows = self._fresh = self.settled = self.bytes = 0
        self._row_seconds = ARCS_SECONDS_PER_ROW if keep_arcs else SECONDS_PER_ROW

    def add(self, records: Records) -> None:
        """Take in candidates."""
        self._blocks.append(records)
        self._fresh += len(records)
        self._rows += len(records)
        if self._fresh > max(self._compact_rows, self._growth * (self._rows - self._fresh)):
            self._compact()

    @property
    def closing_seconds(self) -> float:
        """How long it would take to finish the level now."""
        return self._rows * self._row_seconds

    def finish(self) -> tuple[Records, Records]:
        """The level's new records and its arcs (empty unless kept), both in key order; empties the set."""
        self._compact()
        records = self._blocks.pop() if self._blocks else np.empty((0, 0), dtype=np.int64)
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
        if rows > self._compact_rows:  # few rows would tell about the overhead
            self._row_seconds = max(self._row_seconds, (time.perf_counter() - began) / rows)
