"""What a search is about: the space it explores, its limits, what it records and what it returns."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from superopt.errors import InputError
from superopt.frontier.states import KEY_WORDS, Keys, Records, Rows, Seen, merge

__all__ = ["Exploration", "History", "Keys", "Level", "LevelStats", "Limits", "Rows", "Space", "Watch"]


class Space(Protocol):
    """A set of states reached from roots by expansion; each state is a row, named by its 128-bit key.

    A row is expanded once, in any batch and by any worker, so `expand` and `keys` must not depend on
    how rows are batched. A shared space sees every new state (`absorb`) in every worker before the
    next level; other spaces are never asked to absorb.
    """

    @property
    def width(self) -> int:
        """Integers in a row."""

    @property
    def shared(self) -> bool:
        """Whether every worker must absorb every new state before the next level is expanded."""

    @property
    def name(self) -> str:
        """The space in a word or two, for messages."""

    def fingerprint(self) -> str:
        """The space and all its parameters as text: checkpoints of other spaces are refused."""

    def roots(self) -> Rows:
        """The states the search starts from."""

    def expand(self, rows: Rows) -> Rows:
        """Candidates reached from a batch of states; duplicates are allowed."""

    def keys(self, rows: Rows) -> Keys:
        """The canonical identity of each row, two unsigned 64-bit words."""

    def absorb(self, rows: Rows, keys: Keys) -> None:
        """Take note of a level's new states, which come in the same order in every worker."""

    def counts(self) -> dict[str, int]:
        """How many candidates were never made, by reason, since this object was made."""


@dataclass(frozen=True, slots=True)
class Limits:
    """When to stop a search that is not complete: wall seconds, states, stored bytes, levels."""

    seconds: float | None = None
    rows: int | None = None
    bytes: int | None = None
    levels: int | None = None

    def __post_init__(self) -> None:
        for name in ("seconds", "rows", "bytes", "levels"):
            value = getattr(self, name)
            if value is not None and not value >= 0:
                raise InputError(
                    f"Limits.{name} is {value!r}; give a number of at least 0, or None for no limit"
                )


@dataclass(frozen=True, slots=True)
class LevelStats:
    """What one level did; `new` states came of `candidates`, the rest were duplicates."""

    level: int
    frontier: int
    candidates: int
    new: int
    seconds: float
    bytes: int
    complete: bool
    worker_seconds: tuple[float, ...]
    worker_candidates: tuple[int, ...]
    worker_new: tuple[int, ...]

    @property
    def duplicates(self) -> int:
        """Candidates that were known already, or came twice."""
        return self.candidates - self.new


@dataclass(frozen=True, slots=True)
class Exploration:
    """The states found, by level and then by key, and the same for any number of workers.

    `arcs` (when kept) are the different rows that `expand` made, duplicates of known states included,
    ordered by the state they lead to and then by row; `arc_targets` has the index of that state.
    `stopped` is None when the whole space was explored, otherwise the limit that ended the search.
    """

    rows: Rows
    keys: Keys
    level_of: NDArray[np.int32]
    arcs: Rows
    arc_targets: NDArray[np.int64]
    levels: tuple[LevelStats, ...]
    counts: dict[str, int]
    stopped: str | None


@dataclass(frozen=True, slots=True)
class Level:
    """A finished level: its new records in one or more shares, each in key order, and its arcs."""

    shares: tuple[Records, ...]
    arcs: tuple[Records, ...]
    stats: LevelStats
    counts: dict[str, int]

    @property
    def new(self) -> int:
        """How many new states the level has."""
        return sum(map(len, self.shares))


@dataclass(slots=True)
class History:
    """The levels that are finished, and what an interrupted one found."""

    width: int
    keep_arcs: bool
    levels: list[Level] = field(default_factory=list)
    partial: Level | None = None
    rows: int = 0
    bytes: int = 0

    def commit(self, level: Level) -> None:
        """Add a finished level."""
        self.levels.append(level)
        self.rows += level.new
        self.bytes += level_bytes(level)

    def counts(self) -> dict[str, int]:
        """Pruning counts of all levels."""
        total: dict[str, int] = {}
        for level in [*self.levels, *([self.partial] if self.partial else [])]:
            add_counts(total, level.counts)
        return total

    def frontier(self) -> Records:
        """The last level's new states, in key order."""
        return shaped(merge(list(self.levels[-1].shares)), self.width)

    def restore(self, space: Space, owned: Callable[[Records], Records] | None = None) -> Seen:
        """Bring a fresh space up to the last finished level, and say what was seen (of what is owned)."""
        seen = Seen()
        for level in self.levels:
            records = shaped(merge(list(level.shares)), self.width)
            seen.add(owned(records) if owned else records)
            absorb(space, records)
        return seen


def absorb(space: Space, records: Records) -> None:
    """Show a level's new records to a shared space."""
    if space.shared and len(records):
        rows = np.ascontiguousarray(records[:, KEY_WORDS:])
        space.absorb(rows, np.ascontiguousarray(records[:, :KEY_WORDS]).view(np.uint64))


def shaped(records: Records, width: int) -> Records:
    """Records with the right number of columns even when there are none."""
    return records if len(records) else np.empty((0, width + KEY_WORDS), dtype=np.int64)


def level_bytes(level: Level) -> int:
    """Bytes that a level's records and arcs take."""
    return sum(share.nbytes for share in level.shares) + sum(arcs.nbytes for arcs in level.arcs)


def add_counts(total: dict[str, int], more: dict[str, int]) -> None:
    """Add pruning counts to a total, in place."""
    for reason, count in more.items():
        total[reason] = total.get(reason, 0) + int(count)


def less_counts(after: dict[str, int], before: dict[str, int]) -> dict[str, int]:
    """Pruning counts that came between two looks at a space."""
    return {reason: int(count) - int(before.get(reason, 0)) for reason, count in after.items()}


# First guesses of what it takes to put a state into the result.
RESULT_SECONDS_PER_ROW = 1.5e-7
ARCS_RESULT_SECONDS_PER_ROW = 1e-6


class Watch:
    """The clock and the limits of one search, and whether the user wants it to end."""

    __slots__ = ("interrupted", "interruptible", "limits", "started")

    def __init__(self, limits: Limits) -> None:
        self.limits = limits
        self.started = time.perf_counter()
        self.interrupted = False
        self.interruptible = False  # Ctrl-C may raise here and now, no state would be lost

    def elapsed(self) -> float:
        """Seconds since the search began."""
        return time.perf_counter() - self.started

    def why(self, history: History, rows: int = 0, size: int = 0, closing: float = 0.0) -> str | None:
        """Why the search has to stop, with so much found on this level and so many seconds to close it."""
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
        """Why the search may not begin another level."""
        limits = self.limits
        if limits.levels is not None and len(history.levels) > limits.levels:
            return f"levels limit ({limits.levels})"
        return self.why(history)
