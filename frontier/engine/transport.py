"""Transport: the interfaces of a transport, which runs the workers, and of a worker's port.

Nothing here assumes that workers are forked, or that they share memory, a parent or a machine. A transport
runs a `Worker` (see `worker`) wherever it likes and gives it a port; the engine knows neither.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import NamedTuple, Protocol

from superopt.frontier.engine.history import History, Level
from superopt.frontier.engine.interface import Space
from superopt.frontier.engine.records import Index, Records
from superopt.frontier.engine.watch import Watch

__all__ = ["OpenTransport", "Port", "Progress", "Take", "Transport", "WorkerLostError"]

Take = Callable[[Records], None]
"""What a worker does with the candidates that another one sends to it."""


class WorkerLostError(Exception):
    """A worker ended without being told to; the message says how."""


class Transport(Protocol):
    """The workers of one search, wherever they run."""

    def explore_level(self) -> tuple[Level | None, str | None]:
        """Let the workers explore the level after the last one of the history.

        Return the level, and the limit that ended it early if there was one; None stands for a level whose
        finds had to be given up. After a WorkerLostError the next call begins with new workers.
        """

    def close(self, *, at_once: bool) -> None:
        """End all workers, at once or in good order."""


OpenTransport = Callable[[Space, History, Watch, int], Transport]
"""Begins a transport with a number of workers; it reads levels from the history and limits from the watch."""


class Progress(NamedTuple):
    """How far a worker is on the level under way."""

    expanded: int  # rows of the frontier
    candidates: int
    settled: int  # new states, as of the last deduplication
    bytes: int  # bytes that the records take
    closing_seconds: float  # the time it would take to end the level now


class Port(Protocol):
    """What connects one worker to the other workers and to whoever supervises them."""

    @property
    def worker(self) -> int:
        """The number of this worker, from 0."""

    @property
    def workers(self) -> int:
        """The number of workers."""

    def slices(self, take: Take) -> Iterator[Records]:
        """Yield slices of the frontier until none is left or the level is to be ended."""

    def send(self, owner: int, records: Records, lines: Index, take: Take) -> None:
        """Send the given lines of some records to another worker, which owns their keys."""

    def end_level(self, take: Take) -> None:
        """Tell the other workers that nothing more comes, and take what they send until they say the same."""

    def report(self, progress: Progress) -> bool:
        """Note the progress of this worker; return whether it shall expand no more."""
