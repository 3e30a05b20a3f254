"""Elimination: the races of one graph by which each of its regions stays, goes or joins."""

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from superopt.backend.checks.verdict import Taken
from superopt.backend.region_race import even
from superopt.targets import Target
from superopt.tune import confirm
from superopt.tune.measure import HeadToHead

__all__ = ["RACE_S", "Changes", "Elimination"]

RACE_S = 0.6
"""Seconds of a race of two forms of a graph."""

_MOST_RACE_S = 2.4  # seconds of a race that is not decided earlier
_LEAST_SPEED = 0.98  # in an undecided race, regions go if the graph is slower than this with them
_SINGLE = 8  # at most so many regions, those that gain least, are left out one at a time

Program = Callable[[], Any]


@dataclass(frozen=True, slots=True)
class Changes:
    """What the races of a graph change: why regions go, and which join though they did not win alone."""

    lost: Mapping[str, str]  # why regions went, by the digests of their keys
    joined: frozenset[str] = frozenset()


class Elimination:
    """Races of a graph with all regions that are offered, with fewer of them, and without any.

    Regions that are not taken came near Inductor's code alone: they join where the graph is surely faster
    with them. When `left_s` tells that time is short, no more join, and the others stay or go together.
    """

    def __init__(
        self,
        offered: Taken,
        compiled: Callable[[Taken], Program],
        target: Target,
        left_s: Callable[[], float],
        patience: float,
    ) -> None:
        self._compile, self._target = compiled, target
        self._left_s, self._patience = left_s, patience
        self._slowest_s = 0.0  # the longest that compiling the graph has taken
        self._offered = offered
        self._near = {region.key.digest for region, decision in offered if not decision.taken}
        self._lost: dict[str, str] = {}
        self._joined: set[str] = set()
        self._joined_in_doubt = False  # whether regions went after others had joined
        self._without = self._program(())
        self._left, self._ours = offered, self._program(offered)

    def changes(self) -> Changes:
        """Race until the graph is no slower than without its regions, and than without each of them."""
        all_of_them, found = self._ours, self._race(self._ours, self._without)
        for digest in _least_first(self._offered)[:_SINGLE]:
            if self._is_last_winner(digest) or self._left_s() < self._slowest_s + self._patience * RACE_S:
                break
            self._try_without(digest)
        if not_raced := self._near - self._joined - set(self._lost):
            self._go_on_with(*self._fewer(not_raced))
        if self._joined_in_doubt:
            self._race_joined_again()
        if self._left and self._ours is not all_of_them:
            found = self._race(self._ours, self._without)
        if _is_lost(found):
            self._lost |= {region.key.digest: _told(found) for region, _ in self._left}
        return Changes(self._lost, frozenset(self._joined - set(self._lost)))

    def _is_last_winner(self, digest: str) -> bool:
        """Whether a region that won alone is the last one, so that its race was that of all."""
        left = {region.key.digest for region, _ in self._left}
        return len(left) == 1 and digest not in self._near

    def _try_without(self, digest: str) -> None:
        """Race the graph with a region and without it, and let it go, join or stay."""
        fewer, smaller = self._fewer({digest})
        found = self._race(self._ours, smaller)
        if digest in self._near and _is_gained(found):
            self._joined.add(digest)
        elif digest in self._near or (found.speed_of("with") < even() and found.sure):
            self._lost[digest] = _told(found)
            self._go_on_with(fewer, smaller)

    def _race_joined_again(self) -> None:
        """Race the regions that joined once more, since others have gone."""
        fewer, smaller = self._fewer(self._joined)
        found = self._race(self._ours, smaller)
        if not _is_gained(found):
            self._lost |= dict.fromkeys(self._joined, _told(found))
            self._go_on_with(fewer, smaller)

    def _go_on_with(self, fewer: Taken, smaller: Program) -> None:
        """Let the other regions go; what joined before may have gained only beside these."""
        self._left, self._ours = fewer, smaller
        self._joined_in_doubt = bool(self._joined)

    def _fewer(self, goes: set[str]) -> tuple[Taken, Program]:
        """Return the regions that are left without some, and the graph with these."""
        fewer = [one for one in self._left if one[0].key.digest not in goes]
        return fewer, self._program(fewer) if fewer else self._without

    def _program(self, some: Taken) -> Program:
        start = time.monotonic()
        made = self._compile(some)
        self._slowest_s = max(self._slowest_s, time.monotonic() - start)
        return made

    def _race(self, ours: Program, other: Program) -> HeadToHead:
        return confirm(
            {"with": ours, "without": other},
            "with",
            "without",
            [()],
            seconds=self._patience * RACE_S,
            most_seconds=self._patience * _MOST_RACE_S,
            times=self._target.times,
        )


def _least_first(taken: Taken) -> list[str]:
    """Return the digests of the keys of regions; those that gain least in the graph come first."""
    gains: dict[str, float] = {}
    for region, decision in taken:
        gain = (decision.before_us or 0.0) - (decision.after_us or 0.0)
        gains[region.key.digest] = gains.get(region.key.digest, 0.0) + gain
    return sorted(gains, key=gains.__getitem__)


def _told(raced: HeadToHead) -> str:
    return f"with it, the whole graph runs at {raced.speed_of('with'):.2f} times its speed"


def _is_gained(raced: HeadToHead) -> bool:
    """Whether a graph is surely faster with some regions."""
    return raced.speed_of("with") > 1 and raced.sure


def _is_lost(raced: HeadToHead) -> bool:
    """Whether a graph is slower with its regions, or may be by more than noise."""
    speed = raced.speed_of("with")
    return speed < even() and (raced.sure or speed < _LEAST_SPEED)
