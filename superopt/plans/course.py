"""Course: what all parts of a contest share: its settings, its time, and whether it goes on."""

import logging
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace

from superopt.clock import Clock
from superopt.errors import SuperoptError
from superopt.plans.plan import Candidate, OptimizeOptions, Within
from superopt.targets import Target
from superopt.tune.errors import DeviceLostError

__all__ = ["LOST", "Course", "refused"]

log = logging.getLogger("superopt")

LOST = "the device is lost to this process: nothing more is measured"

_RACE_S = 1.0  # of a race, kept when time runs out


@dataclass(slots=True)
class Course:
    """The settings of a contest, its time, and what ended it: Ctrl-C does, with the best so far."""

    target: Target
    options: OptimizeOptions
    clock: Clock
    tell: Callable[[str], None]
    within: Within | None = None
    deadline: float = float("inf")  # of the part under way, by time.monotonic
    interrupted: bool = False
    lost: bool = False  # the device, to this process

    @property
    def seconds_left(self) -> float:
        """The seconds until the deadline, less those that a race needs."""
        return self.deadline - time.monotonic() - min(self.options.seconds / 2, _RACE_S)

    def fault(self, error: Exception) -> str:
        """Return what an error says, and note where no later call on the device can get past it."""
        try:
            self.target.synchronize()
        except Exception:
            self.lost = True
        self.lost |= isinstance(error, DeviceLostError)
        said = next(iter(str(error).splitlines()), "no message")
        return said if isinstance(error, SuperoptError) else f"{type(error).__name__}: {said}"

    @contextmanager
    def stoppable(self) -> Iterator[None]:
        """Let a first Ctrl-C end what is inside, and what would follow it; a second one ends all."""
        if self.interrupted:
            yield
            return
        try:
            yield
        except KeyboardInterrupt:
            self.stop()

    def stop(self, why: str = "interrupted: the best so far is what comes back") -> None:
        """End the contest with what there is, and say why."""
        self.interrupted = True
        log.warning(why)


def refused(candidate: Candidate, why: str) -> Candidate:
    """Return a candidate that is out of the race, and say why."""
    reason = next(iter(why.splitlines()), "no message")
    log.info("%s: skip %s: %s", candidate.graph.name, candidate.name, reason)
    return replace(candidate, rejected=reason)
