"""explore(): run a search with any number of workers, level by level, over any transport."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from superopt.errors import InputError
from superopt.frontier.engine.checkpoint import Checkpoint
from superopt.frontier.engine.history import History, Level
from superopt.frontier.engine.interface import Exploration, LevelStats, Limits, Space
from superopt.frontier.engine.result import exploration_of
from superopt.frontier.engine.transport import OpenTransport, Transport, WorkerLostError
from superopt.frontier.engine.watch import Watch
from superopt.frontier.engine.worker import first_level
from superopt.frontier.interrupts import interrupts_noted

__all__ = ["explore"]

log = logging.getLogger(__name__)

NO_LIMITS = Limits()
LOSSES = 3  # workers lost on one level before the search ends with the best so far


def explore(
    space: Space,
    *,
    workers: int = 1,
    limits: Limits = NO_LIMITS,
    keep_arcs: bool = False,
    checkpoint: Path | None = None,
    resume: bool = False,
    on_level: Callable[[LevelStats], None] | None = None,
    transport: OpenTransport | None = None,
) -> Exploration:
    """Return all states of a space, or those found before a limit, Ctrl-C or lost workers ended the search.

    One worker runs in this process and several in forked ones, unless another transport is given.
    """
    if workers < 1:
        raise InputError(f"workers is {workers}; give at least 1")
    if resume and checkpoint is None:
        raise InputError("resume=True needs the checkpoint to resume from: give its path as checkpoint=")
    watch = Watch(limits)
    saved = Checkpoint(checkpoint, space, keep_arcs=keep_arcs) if checkpoint is not None else None
    if saved is not None:
        saved.check_usable()
    history = History(space.width, keep_arcs)
    if saved is not None and resume:
        for level in saved.load():
            history.commit(level)
    else:
        history.commit(first_level(space, history))
        if on_level is not None:
            on_level(history.levels[0].stats)

    def on_barrier(level: Level) -> None:
        if saved is not None and level.stats.complete:
            saved.save(history)
        if on_level is not None:
            on_level(level.stats)

    with interrupts_noted(watch):
        with _opened(transport or _usual_transport(workers), space, history, watch, workers) as crew:
            stopped = _run(crew, history, watch, on_barrier)
        if saved is not None:
            saved.save(history, now=True)
        return exploration_of(history, limits, stopped)


@contextmanager
def _opened(
    transport: OpenTransport, space: Space, history: History, watch: Watch, workers: int
) -> Iterator[Transport]:
    """Give a transport that is closed in any case, and at once where the search has not ended by itself."""
    crew = transport(space, history, watch, workers)
    try:
        yield crew
    except BaseException:
        crew.close(at_once=True)
        raise
    crew.close(at_once=watch.interrupted)


def _usual_transport(workers: int) -> OpenTransport:
    """Return the transport for a number of workers; each is imported only where it is used."""
    if workers == 1:
        from superopt.frontier.engine.transports.serial import Serial

        return Serial
    from superopt.frontier.engine.transports.processes import Processes

    return Processes


def _run(
    transport: Transport, history: History, watch: Watch, on_barrier: Callable[[Level], None]
) -> str | None:
    """Explore level by level until none brings a new state; return the limit that ended the search early."""
    losses = 0
    while history.levels[-1].new:
        why = watch.why_no_level(history)
        if why is not None:
            return why
        try:
            level, why = transport.explore_level()
        except WorkerLostError as lost:
            losses += 1
            if losses == LOSSES:
                return f"{lost} {losses} times on level {len(history.levels)}"
            log.warning("%s on level %d; the level is done again", lost, len(history.levels))
            continue
        losses = 0
        if level is None:
            return why
        if not level.stats.complete:
            history.partial = level
            on_barrier(level)
            return why
        history.commit(level)
        on_barrier(level)
    return "interrupted" if watch.interrupted else None
