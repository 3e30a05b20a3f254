"""Budget: the seconds of a model, shared among its regions: all as they are written, then after a search."""

import logging
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace

from torch import fx

from superopt.backend.cache import keep, known_decision, narrower_decision
from superopt.backend.checks.elsewhere import COMPILING_S
from superopt.backend.checks.recalled import recheck
from superopt.backend.decision import Decision, Ledger
from superopt.backend.deferred.mode import mode_of
from superopt.backend.deferred.queue import bound_queue, defer
from superopt.backend.region import Region
from superopt.backend.region_race import RegionRace
from superopt.errors import kind_and_line
from superopt.funnel.warm_up import WarmUp
from superopt.targets import Target
from superopt.tune.first_runs import FirstRuns

__all__ = ["FIRST_S", "decisions_of"]

log = logging.getLogger("superopt")

FIRST_S = 2.0
"""Seconds that the first region takes at least, as processes start and others share what it compiles."""

# A region gets at least this, as written and after a search: better to decide a few than to begin all.
_ENOUGH_S = (5.0, 10.0)
_KEPT_BACK = 0.5  # a region leaves at most this share of the time to the regions after it
_MEASURING = 0.2  # the share of the time for measuring rivals, which tells where most may be gained
_LATER = 0.8  # later regions take this share of the first one's time, which compiled what all kernels share
_LOOKED_AT = 3  # so many regions are looked at where there is no time for any
_SLOWER = 4.0  # a gain is sure where kernels so many times slower than predicted have it, too
_SEARCHED = 2.2  # a search takes at least this many times as long as trying the region as written


def decisions_of(
    regions: Iterable[Region], target: Target, ledger: Ledger, warm_up: WarmUp
) -> dict[str, Decision]:
    """Return the decision on every region, by the digest of its key: those that are known, and new ones.

    At the first new region, processes for first runs start while the next regions are read.
    """
    alike: dict[str, list[Region]] = {}
    known: dict[str, Decision] = {}
    races: dict[str, RegionRace] = {}
    for region in regions:
        digest = region.key.digest
        alike.setdefault(digest, []).append(region)
        if digest in known or digest in races:
            continue
        if (decision := _recall(region, target, ledger)) is not None:
            known[digest] = decision
            continue
        races[digest] = RegionRace(region, target, ledger, known=_decision_to_beat(region, target, ledger))
        if ledger.left_s >= FIRST_S:
            warm_up.first_runs(target)
    taken = {node for digest, one in known.items() if one.taken for node in _nodes(alike[digest])}
    ledger.note_saved(taken)
    shared = _SharedBudget(races, alike, taken, ledger)
    if ledger.left_s < FIRST_S and ledger.options.budget_s is None:
        shared.look()
    if races and ledger.left_s >= FIRST_S:
        first_runs = warm_up.first_runs(target)
        shared.prepare(warm_up)
        shared.run(first_runs)
    decisions = known | {digest: race.conclude() for digest, race in races.items()}
    if mode_of(ledger.options) != "off":
        try:
            _defer(decisions, races, alike, ledger)
        except Exception as error:  # the decisions stand even if the rest cannot be queued
            log.warning("what the budget leaves is not queued: %s", kind_and_line(error))
    return decisions


def _recall(region: Region, target: Target, ledger: Ledger) -> Decision | None:
    """Return an earlier decision on a region as it holds now, or None where the region must be decided."""
    known = known_decision(region, ledger)
    if known is None:
        return None
    if not known.taken and (narrower := _recall_narrower(region, target, ledger)):
        known = replace(narrower, budget_s=known.budget_s)
        keep(known, region, ledger)
    return recheck(known, region, target, ledger)


def _decision_to_beat(region: Region, target: Target, ledger: Ledger) -> Decision | None:
    """Return the decision that a new one must beat, if its plan still is faster than Inductor's code.

    It is an earlier one, for which there is more time now, or the one under a policy that lets less be made
    of weights.
    """
    as_kept = Ledger(replace(ledger.options, budget_s=0.0, retry=False))  # even if more time may find more
    before = known_decision(region, as_kept)
    if before is None or not before.taken:
        return _recall_narrower(region, target, ledger)
    return _if_still_taken(before, region, target, ledger)


def _recall_narrower(region: Region, target: Target, ledger: Ledger) -> Decision | None:
    """Return the decision under a policy that lets less be made of weights, if its plan still is faster."""
    found = narrower_decision(region, ledger)
    return None if found is None else _if_still_taken(found, region, target, ledger)


def _if_still_taken(found: Decision, region: Region, target: Target, ledger: Ledger) -> Decision | None:
    """Return a decision whose kernels still are as fast, or None."""
    still = recheck(found, region, target, ledger)
    return still if still.taken else None


def _defer(
    decisions: Mapping[str, Decision],
    races: Mapping[str, RegionRace],
    alike: Mapping[str, Sequence[Region]],
    ledger: Ledger,
) -> None:
    """Queue the regions for which more time may find more, now or when they were decided."""
    queued = False
    for digest, decision in decisions.items():
        race, (first, *_) = races.get(digest), alike[digest]
        ledger.pending.pop(digest, None)
        if not (race.may_find_more if race else decision.open):
            continue
        left_us = max((decision.before_us or 2 * first.floor_us) - first.floor_us, 0.0)
        gain_us = (race.gain_us if race else left_us) * len(alike[digest])
        if defer(first, gain_us, ledger):
            ledger.pending[digest] = first.key
            queued = True
    if queued:
        bound_queue()


class _SharedBudget:
    """The budget that the regions of a graph share: for all as they are written, then after a search.

    The regions that may gain most come first.
    """

    def __init__(
        self,
        races: Mapping[str, RegionRace],
        alike: Mapping[str, Sequence[Region]],
        taken: set[fx.Node],
        ledger: Ledger,
    ) -> None:
        self.races, self.alike, self.taken, self.ledger = races, alike, taken, ledger
        self.heavy = {digest: regions[0].subgraph.piece.heavy for digest, regions in alike.items()}
        self.took: list[float] = []  # seconds that regions took as written, for each matmul and reduction
        self.spent_s = dict.fromkeys(races, 0.0)  # seconds that regions have taken

    def look(self) -> None:
        """Find regions that are so slow that a search pays, where there is no time for any by default."""
        for digest in self._by_gain()[0][:_LOOKED_AT]:
            race = self.races[digest]
            with self._noting(digest):
                race.look()
            with self._noting(digest):
                race.schedule_ahead()

    def prepare(self, warm_up: WarmUp) -> None:
        """Measure what there is to beat, and schedule the regions as they are written.

        The first kernels that promise a gain are compiled while the other regions are measured and scheduled,
        and race first: no compiler is at work then, which would disturb them.
        """
        ledger, begun, start = self.ledger, False, self.ledger.spent_s
        for digest in self._by_gain()[0]:
            race = self.races[digest]
            for work, share in ((race.measure_rivals, _MEASURING), (race.schedule_ahead, 2 * _MEASURING)):
                spent = ledger.spent_s - start
                if spent < share * (spent + ledger.left_s):
                    with self._noting(digest):
                        work()
            begun = begun or race.compile_ahead(warm_up)

    def run(self, first_runs: FirstRuns | None) -> None:
        """Try kernels of all regions as written, then after a search; after each, those that wait race."""
        for search in (False, True):
            self._try_all(first_runs, search=search)
            doubts = self._doubts()
            for digest in sorted(filter(doubts.__getitem__, doubts), key=lambda one: -doubts[one]):
                with self._noting(digest):
                    self._note(digest, self.races[digest].confirm(self.ledger.left_s))

    def _try_all(self, first_runs: FirstRuns | None, *, search: bool) -> None:
        """Try kernels of every region, each with its share of the time that is left."""
        order, gains = self._by_gain(hoped=not search)
        waiting = [digest for digest in order if not self.races[digest].settled]
        last_resort = self._last_resort(waiting) if search else None
        for at, digest in enumerate(order):
            race, before_s = self.races[digest], self.ledger.spent_s
            is_last = digest == last_resort
            seconds = self.ledger.left_s if is_last else self._seconds_for(order[at:], gains, search=search)
            patient = not search and len(waiting) > 1
            with self._noting(digest):
                self._note(digest, race.try_kernels(seconds, first_runs, search=search, patient=patient))
            if not search and self.ledger.spent_s > before_s:
                self.took.append((self.ledger.spent_s - before_s) / self.heavy[digest])

    @contextmanager
    def _noting(self, digest: str) -> Iterator[None]:
        """Note what a region spends inside, and grant it the time that a sure gain is worth."""
        before_s, race = self.ledger.spent_s, self.races[digest]
        yield
        self.spent_s[digest] += self.ledger.spent_s - before_s
        if race.rival is not None:
            gain_us = 0.0 if race.settled else _sure_gain_us(race) * len(self.alike[digest])
            self.ledger.grant(digest, self.spent_s[digest], gain_us)

    def _seconds_for(self, left: Sequence[str], gains: Mapping[str, float], *, search: bool) -> float:
        """Return the seconds of the first of the regions that are left; 0 where others need them more."""
        digest, *later = left
        if self._is_late(digest, search=search):
            return 0.0
        if not search and self._delays_a_race(digest, gains[digest]):
            return 0.0
        open_later = 0 if search else sum(not self.races[one].settled for one in later)
        return _turn_s(self.ledger.left_s, [gains[one] for one in left], _ENOUGH_S[search], open_later)

    def _by_gain(self, *, hoped: bool = False) -> tuple[list[str], dict[str, float]]:
        """Return the regions, the largest gain first, and their gains: possible, or `hoped` for."""
        gains = {
            digest: (race.hope_us if hoped else race.gain_us) * len(self.alike[digest])
            for digest, race in self.races.items()
        }
        ready = {digest for digest, race in self.races.items() if hoped and race.ahead.compiling}
        return sorted(gains, key=lambda digest: (digest not in ready, -gains[digest])), gains

    def _doubts(self) -> dict[str, float]:
        """Return what each region may gain by the race with Inductor's code for which it waits."""
        return {digest: race.doubt_us * len(self.alike[digest]) for digest, race in self.races.items()}

    def _is_late(self, digest: str, *, search: bool) -> bool:
        """Whether too little time is left to finish a region."""
        took = self.took
        each = (_SEARCHED * _longest(took) if search else _LATER * min(took)) if took else 0.0
        return self.ledger.left_s < self.heavy[digest] * each

    def _delays_a_race(self, digest: str, gain_us: float) -> bool:
        """Whether a region's turn would take the time of a race that waits, and that may gain more."""
        left_s = self.ledger.left_s
        turn_s = self.heavy[digest] * _LATER * min(self.took, default=0.0)
        fits = left_s - turn_s >= COMPILING_S
        return not fits and left_s >= COMPILING_S and max(self._doubts().values()) > gain_us

    def _last_resort(self, waiting: Sequence[str]) -> str | None:
        """Return a region to search though no search is sure to end in time: nothing else needs the time."""
        all_late = all(self._is_late(one, search=True) for one in waiting)
        return next(iter(waiting), None) if all_late and self.ledger.left_s >= _ENOUGH_S[True] else None

    def _note(self, digest: str, decision: Decision) -> None:
        """Note which nodes of the graph are taken."""
        if decision.taken and not self.taken.issuperset(nodes := _nodes(self.alike[digest])):
            self.ledger.note_saved(self.taken | nodes, before=self.taken)
            self.taken |= nodes


def _sure_gain_us(race: RegionRace) -> float:
    """Return what kernels gain on the time so far even if they are many times slower than predicted.

    Times that are measured while processes start may be twice as long as others.
    """
    predicted_us = race.ahead.expected_us or race.floor_us
    return max(race.now_us - _SLOWER * predicted_us, 0.0)


def _turn_s(left_s: float, gains: Sequence[float], enough_s: float, later: int) -> float:
    """Return the seconds that the first of some regions may take: as its gain is to that of all of them.

    It gets an equal share at least, leaves enough for so many later ones where it can, and has enough itself.
    """
    share = max(gains[0] / (sum(gains) or 1.0), 1 / len(gains))
    kept_s = min(later * enough_s, _KEPT_BACK * left_s)
    return max(min(share * left_s, left_s - kept_s), min(enough_s, left_s))


def _longest(took: Sequence[float]) -> float:
    """Return the longest time of a region, but for the first one: that one waits for what all share."""
    return max(took[1:] or took)


def _nodes(regions: Iterable[Region]) -> set[fx.Node]:
    return {node for region in regions for node in region.subgraph.piece.nodes}
