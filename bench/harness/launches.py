"""Launches: a suite measured in several processes, since memory is laid out anew in each."""

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from superopt.bench.harness.records import Record, merged
from superopt.bench.harness.results import read_results, write_results

__all__ = ["Launches", "launched"]


@dataclass(frozen=True, slots=True)
class Launches:
    """How often a suite is launched, until when, and where its result goes."""

    count: int
    deadline: float  # of time.monotonic, after which nothing new begins
    out: Path | None
    resume: bool

    @property
    def over(self) -> bool:
        """Whether nothing new may begin."""
        return time.monotonic() > self.deadline

    @property
    def minutes_left(self) -> float:
        """Minutes until the deadline."""
        return max((self.deadline - time.monotonic()) / 60, 0.0)


def launched(
    plan: Launches, launch: Callable[[int], Record], finish: Callable[[Record], Record] = dict
) -> Iterator[Record]:
    """Yield the document of all launches so far after each of them, and write it.

    `launch` is given the number of the launch, measures in a process of its own, and returns its document;
    `finish` adds what follows to the merged one. Until all launches are in, the file keeps the cases of each
    as `by_launch`.
    """
    head: Record = {}
    done: list[Record] = []
    if plan.resume and plan.out is not None and plan.out.exists():
        head = read_results(plan.out)
        done = head.pop("by_launch", [])
    while True:
        if done:
            document = finish({**head, "cases": _together(done), "launches": len(done)})
            more = {"by_launch": done} if len(done) < plan.count else {}
            if plan.out is not None:
                write_results(document | more, plan.out)
            yield document
        if len(done) >= plan.count or (done and plan.over):
            return
        head = launch(len(done) + 1)
        done.append(head["cases"])


def _together(launches: Sequence[Record]) -> Record:
    names = dict.fromkeys(name for cases in launches for name in cases)
    return {name: merged([cases[name] for cases in launches if name in cases]) for name in names}
