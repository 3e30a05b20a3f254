"""Work: what waits, decided with a large budget, by the same checks and races as every region and graph."""

import threading
import time
from collections.abc import Callable, Collection, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

import torch

from superopt.backend.cache import keep, known_decision, narrower_decision
from superopt.backend.checks.better import choose_faster, keep_nearer
from superopt.backend.checks.verdict import Verdict, keep_verdict, known_verdict
from superopt.backend.checks.whole import WholeRace, offered_of
from superopt.backend.cut import Cut
from superopt.backend.decision import Decision, Ledger
from superopt.backend.deferred.graph_data import graph_from
from superopt.backend.deferred.portable import region_from
from superopt.backend.deferred.queue import (
    LARGE_S,
    Pending,
    decided_key,
    pending_items,
    pending_key,
    products_as_in,
    put_back,
    remove,
)
from superopt.backend.graphpass import replace_all
from superopt.backend.region import Region
from superopt.backend.region_race import RegionRace
from superopt.cache import Cache, Record
from superopt.errors import CheckpointError, first_line, kind_and_line
from superopt.funnel.warm_up import WarmUp
from superopt.rivals.inductor import alone
from superopt.targets import Target, pick_target
from superopt.tune.allocator import keep_freed_memory
from superopt.tune.background import Background

__all__ = ["Attempt", "give_up", "work_off", "work_through"]

_MOST_BEGUN = 3  # an item is given up after work on it failed, or ended its process, so many times
_AS_WRITTEN_S, _SEARCHED_S = 30.0, 40.0
_LEAST_S = 8.0  # no region is begun when fewer seconds are left
_GRACE_S = 15.0  # compilers, races and checks may go on for so long when no seconds are left
_MORE = 2  # times the seconds that were too few, which an item needs to be begun again
_HEAD_TO_HEAD_S = 1.5


_UNDER_WAY: list[Pending] = []
"""What this process works on."""


_SETTLING, _GIVEN_UP = threading.Lock(), threading.Event()


@dataclass(frozen=True, slots=True)
class Attempt:
    """One attempt to decide a pending region, or to race a pending graph, and what came of it."""

    operators: str
    inputs: str
    faster: bool  # whether there are better kernels than before, or a graph is faster with fewer
    done: bool  # whether it is out of the queue
    why: str
    before_us: float | None = None
    after_us: float | None = None
    seconds: float = 0.0

    def to_json(self) -> dict[str, Any]:
        """Return the attempt as plain data."""
        return asdict(self)


def work_through(
    only: Collection[str] | None = None,
    *,
    seconds: float | None = None,
    tell: Callable[[int, int, Pending], None] = lambda at, count, item: None,
) -> list[Attempt]:
    """Work the queue off, or some keys of it, the largest gain first; return what became of each.

    A graph races once the regions that it waits for had their time. Nothing is begun with fewer than
    `_LEAST_S` of the `seconds` left, and no graph with too few for its race. What is not done `_GRACE_S`
    after they are over is ended, and waits as before.
    """
    end = None if seconds is None else time.monotonic() + seconds
    seen: set[str] = set()
    found: list[Attempt] = []
    while True:
        left = None if end is None else end - time.monotonic()
        wanted = [one for one in pending_items() if only is None or one.key.digest in only]
        items = [one for one in wanted if one.key.digest not in seen]
        ready = _ready(items, left)
        if not ready:
            return found
        item = ready[0]
        seen.add(item.key.digest)
        tell(len(seen), len(seen) + len(items) - 1, item)
        found.append(work_off(item, LARGE_S) if left is None else _worked_off_within(item, left))


def _worked_off_within(item: Pending, left: float) -> Attempt:
    """Work an item off, and end the work where it takes much longer than the seconds that are left."""
    start = time.monotonic()
    try:
        return Background(lambda: work_off(item, min(left, LARGE_S))).result(left + _GRACE_S)
    except TimeoutError:
        put_back(replace(item, least_s=_MORE * left))  # it is not begun again with as little time
        why = "it takes longer than the time that was left"
        return Attempt(item.operators, item.inputs, False, False, why, seconds=time.monotonic() - start)


def _ready(items: Sequence[Pending], left_s: float | None) -> list[Pending]:
    """Return the items that may be begun when so many seconds are left."""
    waiting = {one.key.digest for one in items}
    return [
        one
        for one in items
        if waiting.isdisjoint(one.after) and (left_s is None or left_s >= max(_LEAST_S, one.least_s))
    ]


def work_off(item: Pending, seconds: float) -> Attempt:
    """Decide a pending region or graph within about so many seconds, and take it out of the queue.

    What is interrupted, or has too little time, waits as before. What fails waits for a few attempts more.
    """
    if item.begun >= _MOST_BEGUN:
        give = _graph_given_up if item.whole else _given_up
        return give(item, f"work on it failed or ended its process {item.begun} times")
    keep_freed_memory()
    put_back(replace(item, begun=item.begun + 1))
    _UNDER_WAY[:] = [item]
    try:
        with products_as_in(item):
            attempt = (_graph_raced if item.whole else _worked_off)(item, seconds)
    except Exception as error:
        if isinstance(error, MemoryError) or _GIVEN_UP.is_set():  # these say nothing of the item
            _restore()
            raise
        _UNDER_WAY.clear()  # the attempt counts, and the other items do not depend on it
        return Attempt(item.operators, item.inputs, False, False, f"failed: {kind_and_line(error)}")
    except BaseException:
        _restore()  # the interrupted attempt does not count as one that failed
        raise
    if not attempt.done:
        _restore()
    _UNDER_WAY.clear()
    return attempt


def give_up() -> None:
    """Put what is under way back as it was: the process ends, and what it finds from now on is void."""
    with _SETTLING:
        _GIVEN_UP.set()
        _restore()


def _restore() -> None:
    for item in _UNDER_WAY:
        put_back(item)


def _worked_off(item: Pending, seconds: float) -> Attempt:
    start = time.monotonic()
    torch._dynamo.reset()  # drops the compiled rivals of earlier regions
    torch.set_num_threads(item.threads)
    target = pick_target(item.device)
    ledger = Ledger(item.options)
    try:
        region = region_from(dict(item.data), target, ledger)
    except CheckpointError as error:
        return _given_up(item, first_line(error))
    if pending_key(region.key) != item.key:
        return _given_up(item, "it is another region here")
    known = Ledger(replace(item.options, budget_s=0.0))
    stood = known_decision(region, known)
    before = stood if stood is not None and stood.taken else narrower_decision(region, known)
    found, ended = _decided(region, target, ledger, before, seconds)
    now = known_decision(region, Ledger(known.options))  # a program may have decided it meanwhile
    found = found if now is None else keep_nearer(found, now)
    faster = found.taken and (before is None or found.plan != before.plan)
    with _SETTLING:
        if _GIVEN_UP.is_set():  # its compilers may have been killed, so failures say nothing of its kernels
            raise KeyboardInterrupt
        if faster or ended:
            keep(replace(found, open=False, final=ended, budget_s=LARGE_S), region, ledger)
        if ended:
            remove(item)
    spent = time.monotonic() - start
    return Attempt(
        item.operators, item.inputs, faster, ended, found.why, found.before_us, found.after_us, spent
    )


def _graph_raced(item: Pending, seconds: float) -> Attempt:
    """Race a whole graph with the regions that have kernels by now, and keep its verdict."""
    start = time.monotonic()
    torch._dynamo.reset()
    torch.set_num_threads(item.threads)
    target = pick_target(item.device)
    ledger = Ledger(item.options)
    key = decided_key(item)
    try:
        graph, weights = graph_from(dict(item.data), target.torch_device)
    except CheckpointError as error:
        return _graph_given_up(item, first_line(error))
    race = WholeRace(graph, target, ledger, replace_all, weights)
    if race.key != key:
        return _graph_given_up(item, "it is another graph here")
    known = Ledger(replace(item.options, budget_s=0.0))  # no region is searched here
    decided = [(one, known_decision(one, known)) for one in Cut(graph, target, ledger, weights).regions()]
    try:
        found = race.last_word(offered_of(decided), seconds)
    except Exception as error:  # an operator that Inductor does not compile twice, or no memory
        if _GIVEN_UP.is_set():
            raise KeyboardInterrupt from error
        return _graph_given_up(item, kind_and_line(error))
    with _SETTLING:
        if _GIVEN_UP.is_set():
            raise KeyboardInterrupt
        keep_verdict(key, found, late=True)
        remove(item)
    went = [found.lost[digest] for digest in found.without]
    why = f"{len(went)} of its regions go: {went[0]}" if went else "it is no faster without any of them"
    if found.joined:
        why += f"; {len(found.joined)} that did not win alone make it faster"
    faster = bool(went or found.joined)
    return Attempt(item.operators, item.inputs, faster, True, why, seconds=time.monotonic() - start)


def _graph_given_up(item: Pending, why: str) -> Attempt:
    """Note that a graph is not queued again; which of its regions stay is guessed."""
    key = decided_key(item)
    with Cache.open() as cache:
        known = known_verdict(cache, key) or Verdict({}, {})
    keep_verdict(key, replace(known, failed=why))
    remove(item)
    return Attempt(item.operators, item.inputs, False, True, f"given up: {why}")


def _decided(
    region: Region,
    target: Target,
    ledger: Ledger,
    before: Decision | None,
    seconds: float,
) -> tuple[Decision, bool]:
    """Return the decision on a region, and whether it had all the time it should."""
    race = RegionRace(region, target, ledger)
    end = time.monotonic() + seconds
    with WarmUp() as warm_up:
        first_runs = warm_up.first_runs(target)
        race.measure_rivals()
        for search, most in ((False, _AS_WRITTEN_S), (True, _SEARCHED_S)):
            race.try_kernels(min(most, end - time.monotonic()), first_runs, search=search)
        found = race.found or race.draft
        if before is not None and found.taken:
            found = alone(lambda: _better(race, found, before))
    ended = not race.may_find_more or seconds >= _AS_WRITTEN_S + _SEARCHED_S
    return (before if before is not None and not found.taken else found), ended


def _better(race: RegionRace, found: Decision, before: Decision) -> Decision:
    """Return the new decision where its plan is surely faster than the one that the region has."""
    assert race.rival is not None
    copies, seconds = race.rival.copies, _HEAD_TO_HEAD_S
    faster = choose_faster(found, before, race.region, race.target, copies, seconds=seconds)
    race.rival.give_up_copies()
    return faster


def _given_up(item: Pending, why: str) -> Attempt:
    """Note that a region is not tried again, by the key of its decision; a plan that it has stays."""
    key = decided_key(item)
    draft = Decision(item.operators, item.inputs, False, why, final=True, budget_s=LARGE_S)
    with Cache.open() as cache:
        known = cache.get(key)
        data = dict(known.data) if known is not None else asdict(draft)
        cache.put(key, Record({**data, "final": True, "open": False}, item.operators))
    remove(item)
    return Attempt(item.operators, item.inputs, False, True, f"given up: {why}")
