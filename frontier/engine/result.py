"""The result of a search: its levels put together, the same for any number of workers."""

from __future__ import annotations

import numpy as np

from superopt.frontier.engine.history import History, Level
from superopt.frontier.engine.interface import Exploration, Limits, Rows
from superopt.frontier.engine.records import KEY_WORDS, Index, Records, keys_of, merge, packed, rows_of

__all__ = ["exploration_of"]


def exploration_of(history: History, limits: Limits, stopped: str | None) -> Exploration:
    """Return the result of a search that a limit stopped, or nothing."""
    levels = history.all_levels
    merged = [merge(level.shares, history.width) for level in levels]
    level_of = np.repeat(np.arange(len(merged), dtype=np.int32), [len(records) for records in merged])
    records = merged[0] if len(merged) == 1 else np.concatenate(merged)
    if limits.rows is not None and len(records) > limits.rows:
        records, level_of = records[: limits.rows], level_of[: limits.rows]
        stopped = stopped or f"rows limit ({limits.rows:,} rows)"
    arcs = np.empty((0, history.width), dtype=np.int64)
    targets = np.empty(0, dtype=np.int64)
    if history.keep_arcs:
        arcs, targets = _arcs(levels, records, history.width)
    return Exploration(
        rows=rows_of(records),
        keys=keys_of(records),
        level_of=level_of,
        arcs=arcs,
        arc_targets=targets,
        levels=tuple(level.stats for level in levels),
        counts=history.counts(),
        stopped=stopped,
    )


def _arcs(levels: list[Level], records: Records, width: int) -> tuple[Rows, Index]:
    """Return all arcs that lead to one of the records, by its index and then by row, and these indices."""
    blocks = [arcs for level in levels for arcs in level.arcs if len(arcs)]
    if not blocks or not len(records):
        return np.empty((0, width), dtype=np.int64), np.empty(0, dtype=np.int64)
    arcs = np.concatenate(blocks)
    targets = _places(records, arcs)
    order = np.argsort(targets, kind="stable")[np.count_nonzero(targets < 0) :]  # a limit may cut states off
    targets = targets.take(order)
    # Each block is in order of key and row already: only states that several blocks reach need care.
    block = np.repeat(np.arange(len(blocks)), [len(arcs) for arcs in blocks]).take(order)
    mixed = (targets[1:] == targets[:-1]) & (block[1:] != block[:-1])
    if not mixed.any():
        return rows_of(arcs.take(order, axis=0)), targets
    reached_again = np.zeros(len(records), dtype=bool)
    reached_again[targets[1:][mixed]] = True
    lines = reached_again.take(targets)
    part = arcs.take(order[lines], axis=0)
    order[lines] = order[lines][np.lexsort((*[*packed(part)][::-1], targets[lines]))]
    rows = rows_of(arcs.take(order, axis=0))
    keep = np.ones(len(rows), dtype=bool)
    keep[1:] = (targets[1:] != targets[:-1]) | (rows[1:] != rows[:-1]).any(axis=1)
    return rows[keep], targets[keep]


def _places(records: Records, arcs: Records) -> Index:
    """Return the index of the record with the key of each arc, -1 where no record has it."""
    high = np.ascontiguousarray(records.view(np.uint64)[:, 0])
    order = np.argsort(high)
    high = high.take(order)
    if (high[1:] != high[:-1]).all():
        at = np.searchsorted(high, np.ascontiguousarray(arcs.view(np.uint64)[:, 0]))
        places = order.take(at, mode="clip")
    else:  # the first 64 bits alone don't tell these keys apart
        keys = np.concatenate((records[:, :KEY_WORDS], arcs[:, :KEY_WORDS])).view(np.uint64)
        order = np.lexsort((keys[:, 1], keys[:, 0]))  # stable: a record comes before the arcs to it
        last = np.maximum.accumulate(np.where(order < len(records), np.arange(len(order)), 0))
        places = np.empty(len(order), dtype=np.int64)
        places[order] = order[last]
        places = places[len(records) :]
        places[places >= len(records)] = 0
    known = (records.take(places, axis=0)[:, :KEY_WORDS] == arcs[:, :KEY_WORDS]).all(axis=1)
    return np.where(known, places, -1)
