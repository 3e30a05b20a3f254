"""States as arrays of records: how they are joined, sorted by key, and thinned out.

A record is one state as int64 words: two words of key (read as unsigned), then the row.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import numpy as np
from numpy.typing import NDArray

from superopt.frontier.engine.interface import Keys, Rows

Records = NDArray[np.int64]
Index = NDArray[np.int64]

KEY_WORDS = 2


def join(rows: Rows, keys: Keys) -> Records:
    """Return records made of rows and their keys."""
    records = np.empty((len(rows), rows.shape[1] + KEY_WORDS), dtype=np.int64)
    records[:, :KEY_WORDS] = keys.view(np.int64)
    records[:, KEY_WORDS:] = rows
    return records


def rows_of(records: Records) -> Rows:
    """Return the rows of records as an array of their own."""
    return np.ascontiguousarray(records[:, KEY_WORDS:])


def keys_of(records: Records) -> Keys:
    """Return the keys of records as an array of their own."""
    return np.ascontiguousarray(records[:, :KEY_WORDS]).view(np.uint64)


def owners(keys: Keys, workers: int) -> NDArray[np.uint64]:
    """Return the worker that owns each key; bits are mixed, so that poor keys spread as well as good ones."""
    mixed = keys[:, 0] ^ (keys[:, 1] * np.uint64(0x9E3779B97F4A7C15))
    mixed ^= mixed >> np.uint64(32)
    mixed *= np.uint64(0xD6E8FEB86659FD93)
    mixed >>= np.uint64(32)
    mixed *= np.uint64(workers)
    mixed >>= np.uint64(32)
    return mixed


def merge(shares: Iterable[Records], width: int) -> Records:
    """Return shares that are each in key order and have no key in common as one array in key order."""
    filled = [share for share in shares if len(share)]
    if len(filled) == 1:
        return filled[0]
    if not filled:
        return np.empty((0, width + KEY_WORDS), dtype=np.int64)
    records = np.concatenate(filled)
    unsigned = records.view(np.uint64)
    high = np.ascontiguousarray(unsigned[:, 0])
    order = np.argsort(high, kind="stable")  # merges sorted runs in linear time
    high = high[order]
    if (high[1:] == high[:-1]).any():
        order = np.lexsort((unsigned[:, 1], unsigned[:, 0]))
    return records.take(order, axis=0)


def distinct(records: Records) -> Records:
    """Return one record per key, in key order: among equal keys the one with the smallest row."""
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
    """Return the member of each group that has the smallest row; groups begin at `starts`."""
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
            break  # otherwise the members left at the end are copies of one row
        members, group = members[~alone], group[~alone]
    return chosen


def _changes(group: Index) -> NDArray[np.bool_]:
    first = np.ones(len(group), dtype=bool)
    np.not_equal(group[1:], group[:-1], out=first[1:])
    return first


def packed(records: Records) -> Iterator[NDArray[np.uint64]]:
    """Yield words that compare as the rows do, most significant first; small numbers need only one word."""
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
    """Return every different record once, by key and then by row."""
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
    """Return which records, in key order, have another key than the record before."""
    first = np.ones(len(records), dtype=bool)
    np.any(records[1:, :KEY_WORDS] != records[:-1, :KEY_WORDS], axis=1, out=first[1:])
    return first


def thinned(records: Records, *, copies_only: bool = False) -> Records:
    """Return records without most that another record makes useless (same key, no larger row)."""
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
    same = records[:, 0].take(suspects) == records[:, 0].take(rivals)
    if not same.any():
        return records
    suspects, rivals = suspects[same], rivals[same]
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
