"""What a space offers to the engine, when a search stops, and what a search returns."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from superopt.errors import InputError

__all__ = ["Exploration", "Keys", "LevelStats", "Limits", "Rows", "Space"]

Rows = NDArray[np.int64]
"""States, one in each row: int64[n, width]."""

Keys = NDArray[np.uint64]
"""The identities of states, 128 bits each: uint64[n, 2]."""


class Space(Protocol):
    """A set of states reached from roots by expansion; each state is a row, named by its 128-bit key.

    A row is expanded once, in any batch and by any worker, so `expand` and `keys` must not depend on
    how rows are batched. A shared space sees every new state (`absorb`) in every worker before the
    next level; other spaces are never asked to absorb.
    """

    @property
    def width(self) -> int:
        """The number of integers in a row."""

    @property
    def shared(self) -> bool:
        """Whether every worker must absorb every new state before the next level is expanded."""

    @property
    def name(self) -> str:
        """The space in a word or two, for messages."""

    def fingerprint(self) -> str:
        """Return the space and all its parameters as text: checkpoints of other spaces are refused."""

    def roots(self) -> Rows:
        """Return the states that the search starts from."""

    def expand(self, rows: Rows) -> Rows:
        """Return the candidates reached from a batch of states; duplicates are allowed."""

    def keys(self, rows: Rows) -> Keys:
        """Return the canonical identity of each row, two unsigned 64-bit words."""

    def absorb(self, rows: Rows, keys: Keys) -> None:
        """Take note of a level's new states, which come in the same order in every worker."""

    def counts(self) -> dict[str, int]:
        """Return how many candidates were never made since this object exists, by reason."""


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
    """What one level did: `new` states were among its `candidates`, the rest were duplicates."""

    level: int
    frontier: int
    candidates: int
    new: int
    seconds: float
    bytes: int
    complete: bool
    worker_seconds: tuple[float, ...]

    @property
    def duplicates(self) -> int:
        """The number of candidates that were known already, or came twice."""
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
