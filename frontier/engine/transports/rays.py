"""The transport of Ray: one actor for each worker, and rows as objects of Ray's store.

An actor that is lost ends the level; the engine begins it again with new actors, made from the levels that
are finished, as it does with processes.
"""

from __future__ import annotations

import logging
import pickle
import time
from typing import Any

from superopt.errors import InputError
from superopt.frontier.engine.history import History, Level
from superopt.frontier.engine.interface import Space
from superopt.frontier.engine.records import Records
from superopt.frontier.engine.transport import WorkerLostError
from superopt.frontier.engine.transports.bulk import Member, Order, Start
from superopt.frontier.engine.watch import Watch

__all__ = ["RayActors"]

_LOOK_S = 0.05


class _Actor:
    """A member as an actor; `stop` arrives while a level is under way."""

    def __init__(self, start: bytes, worker: int, workers: int) -> None:
        self._stopped = -1
        self._level = 0
        self._member = Member(pickle.loads(start), worker, workers, lambda: self._stopped == self._level)

    def expand(self, order: Order) -> Any:
        """Return what goes to each worker."""
        self._level = order.level
        made = self._member.expand(order)
        return made if len(made) > 1 else made[0]

    def finish(self, *incoming: Records) -> Any:
        """Return this worker's share of the level, and the limit that it met."""
        return self._member.finish(incoming), self._member.port.why

    def stop(self, level: int) -> None:
        """End the expansion of a level."""
        self._stopped = level


class RayActors:
    """The transport; it starts Ray on this machine unless the program is connected to a cluster already."""

    def __init__(self, space: Space, history: History, watch: Watch, workers: int) -> None:
        try:
            import ray
        except ImportError as error:
            raise InputError("the engine ray needs Ray; install it with `superopt[ray]`") from error
        self._ray: Any = ray
        self._space = space
        self._history = history
        self._watch = watch
        self._workers = workers
        self._actors: list[Any] = []
        self._started = not ray.is_initialized()
        if self._started:
            ray.init(
                num_cpus=workers, include_dashboard=False, logging_level=logging.ERROR, log_to_driver=False
            )

    def explore_level(self) -> tuple[Level | None, str | None]:
        """Let the actors explore the level after the last one of the history."""
        began = time.perf_counter()
        if not self._actors:
            self._begin()
        history = self._history
        last = history.levels[-1].shares
        shared = self._space.shared and len(last) == self._workers
        order = Order(
            len(history.levels),
            self._watch.compact_rows(history, self._workers),
            history.rows,
            history.bytes,
            last if shared else None,
        )
        returns = {"num_returns": self._workers}
        made = [actor.expand.options(**returns).remote(order) for actor in self._actors]
        if self._workers == 1:
            made = [made]
        waiting = [actor.finish.remote(*(one[at] for one in made)) for at, actor in enumerate(self._actors)]
        try:
            shares = self._awaited(waiting, order.level)
        except self._ray.exceptions.RayActorError as error:
            self._end()
            raise WorkerLostError("a worker of Ray was lost") from error
        except self._ray.exceptions.RayTaskError as error:
            raise error.cause if isinstance(error.cause, Exception) else error from None
        level = history.ended_level([share for share, _ in shares], time.perf_counter() - began)
        if level.stats.complete:
            return level, None
        whys = [why for _, why in shares if why is not None]
        return level, "interrupted" if self._watch.interrupted or not whys else whys[0]

    def _begin(self) -> None:
        # As bytes: arrays that Ray itself unpacks cannot be written to.
        begun = Start(self._space, self._history, self._watch.limits, self._watch.elapsed())
        start = self._ray.put(pickle.dumps(begun))
        actor = self._ray.remote(num_cpus=1, max_concurrency=2)(_Actor)
        self._actors = [actor.remote(start, worker, self._workers) for worker in range(self._workers)]

    def _awaited(self, waiting: list[Any], level: int) -> list[Any]:
        """Return all shares; pass on a wish of the user to stop."""
        told = False
        left = waiting
        while left:
            _, left = self._ray.wait(left, num_returns=len(left), timeout=_LOOK_S)
            if self._watch.interrupted and not told:
                told = True
                for actor in self._actors:
                    actor.stop.remote(level)
        found: list[Any] = self._ray.get(waiting)
        return found

    def _end(self) -> None:
        for actor in self._actors:
            self._ray.kill(actor)
        self._actors = []

    def close(self, *, at_once: bool) -> None:
        """End the actors, and Ray itself if it was started here."""
        self._end()
        if self._started:
            self._ray.shutdown()
