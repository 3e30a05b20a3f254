"""The history of a search: the levels that are finished, and what an interrupted level found."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from superopt.frontier.engine.duplicates import Seen
from superopt.frontier.engine.interface import LevelStats, Space
from superopt.frontier.engine.records import Records, keys_of, merge, rows_of

__all__ = ["History", "Level", "Share", "absorb"]


@dataclass(frozen=True, slots=True)
class Share:
    """What one worker did on a level: the new records that it owns, and the work of its expansions."""

    new: Records  # new records, ordered by key
    arcs: Records
    counts: Mapping[str, int]  # candidates that were not made, by reason
    expanded: int  # rows of the frontier
    candidates: int
    seconds: float


@dataclass(frozen=True, slots=True)
class Level:
    """A level that ended: its new records in one or more shares, each in key order, and its arcs."""

    shares: tuple[Records, ...]
    arcs: tuple[Records, ...]
    stats: LevelStats
    counts: Mapping[str, int]

    @property
    def new(self) -> int:
        """The number of new states on the level."""
        return sum(map(len, self.shares))

    @property
    def bytes(self) -> int:
        """The bytes of the level's records and arcs."""
        return sum(records.nbytes for records in (*self.shares, *self.arcs))


@dataclass(slots=True)
class History:
    """The levels that are finished, and what an interrupted level found."""

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
        self.bytes += level.bytes

    def ended_level(self, shares: Sequence[Share], seconds: float) -> Level:
        """Return the next level from the shares of all workers; it is not committed yet."""
        frontier = self.levels[-1].new if self.levels else 0
        counts: Counter[str] = Counter()
        for share in shares:
            counts.update(share.counts)
        stats = LevelStats(
            level=len(self.levels),
            frontier=frontier,
            candidates=sum(share.candidates for share in shares),
            new=sum(len(share.new) for share in shares),
            seconds=seconds,
            bytes=self.bytes + sum(share.new.nbytes + share.arcs.nbytes for share in shares),
            complete=sum(share.expanded for share in shares) == frontier,
            worker_seconds=tuple(share.seconds for share in shares),
        )
        new, arcs = tuple(share.new for share in shares), tuple(share.arcs for share in shares)
        return Level(new, arcs, stats, dict(counts))

    @property
    def all_levels(self) -> list[Level]:
        """The finished levels, and after them the interrupted one if there is one."""
        return [*self.levels, *([self.partial] if self.partial else [])]

    def counts(self) -> dict[str, int]:
        """Return how many candidates were not made on all levels, by reason."""
        total: Counter[str] = Counter()
        for level in self.all_levels:
            total.update(level.counts)
        return dict(total)

    def restore(self, space: Space, owned: Callable[[Records], Records]) -> Seen:
        """Show a fresh space all finished levels; return the keys seen so far that a worker owns."""
        seen = Seen()
        for level in self.levels:
            records = merge(level.shares, self.width)
            seen.add(owned(records))
            absorb(space, records)
        return seen


def absorb(space: Space, records: Records) -> None:
    """Show a level's new records to a shared space."""
    if space.shared and len(records):
        space.absorb(rows_of(records), keys_of(records))
