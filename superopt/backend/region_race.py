"""Region race: a region's kernels, checked, and raced with what Inductor makes of the region."""

import logging
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from math import inf

from torch import fx

from superopt.backend.cache import keep
from superopt.backend.checks.better import choose_faster, decide_before_race, decide_by_race, keep_nearer
from superopt.backend.checks.elsewhere import COMPILING_S, HOPELESS, slower_elsewhere
from superopt.backend.checks.guarded import decide_or_leave, has_failed
from superopt.backend.checks.inputs import RegionInputs
from superopt.backend.decision import Decision, Ledger
from superopt.backend.operators import eager_module, operators_of, slides
from superopt.backend.pieces import SOON, mostly_attention
from superopt.backend.region import Region, cheapest_us, draft_of, floor_anew
from superopt.backend.region_plan import RegionPlan, calling, kept_plan
from superopt.candidates import RegionCandidates
from superopt.clock import Clock
from superopt.errors import first_line
from superopt.funnel import Limits, State, run_regions, write_regions
from superopt.funnel.assembly import in_parts
from superopt.funnel.warm_up import Ahead, WarmUp
from superopt.optimizer import candidates_of
from superopt.options import OptimizeOptions
from superopt.rivals.inductor import alone
from superopt.rivals.opponents import Opponents
from superopt.rivals.rivals import EAGER, INDUCTOR, LIBRARY_CALLS, Function, Rival
from superopt.targets import Target
from superopt.tune.first_runs import FirstRuns
from superopt.tune.measure import HeadToHead

__all__ = ["WIN", "RegionRace", "even"]

log = logging.getLogger("superopt")

WIN = 1.05
"""How much faster than Inductor's code a region must be to be taken."""

_OPERATORS_WIN = 1.02  # the same where PyTorch's own operators compute it: no new kernel could be wrong

# Pairs are for a region as it is written, and after a search.
_LEAST_S = (1.5, 3.0)  # with fewer seconds no kernels of a region are tried
_LEAST_COMPILED_S = 0.8  # the same for a region as it is written whose kernels are compiled ahead
_UNSEEN = 0.3  # the share of the gain down to the floor that is hoped for before kernels are scheduled
_DOUBT = 0.1  # the share of that gain which is hoped for even if predictions promise less
_COMPILED = (2, 6)  # candidates that are compiled
_MOST_S = 40.0  # the most seconds that one region gets
_SEARCHING = 0.25  # the share of a region's time that a search takes
_RACING = (0.1, 0.3)  # the share of that time in which candidates race one another
_MAKING = 0.5  # ranking schedules leaves this share of a region's time for making and racing kernels
_SCHEDULING = 0.1  # the share of the time left that scheduling one region ahead may take
_CONFIRMING = 0.06  # the share of a region's time for the race with Inductor's code
_RACE_S, _LONGER = 1.5, 3.0  # the most seconds of that race, and how many times as long if in doubt
_NEAR_S = 1.0  # a result that comes so shortly before the deadline was cut short by it
_TOO_SHORT_US = 12.0  # if Inductor's code is faster than this, a call costs as much as could be gained
_NO_ROOM = 1.1  # within this many times the floor, Inductor's code leaves nothing to gain
_LOOKING_S = 2.0  # seconds of search for cheaper graphs before a region counts as at the floor
_CALL_US = 3.0  # what a call of Inductor's code of a region costs outside of a graph
_APART = 1.4  # Inductor's code takes about this many times as long where eager PyTorch has one kernel
_NEAR = 1.5  # kernels also race eager PyTorch if it took at most this many times their time


def even() -> float:
    """Return the least speed beside a rival that is no loss, for kernels that have won before."""
    return min(WIN, 1.0)


class RegionRace:
    """One region against Inductor's code of it; all work runs in threads outside PyTorch's compilation.

    In order: `measure_rivals`, `schedule_ahead`, `compile_ahead`, `try_kernels` (of the region as written,
    and after a search), `confirm`, `conclude`. New plans must beat the one that is `known`, if any.
    """

    def __init__(
        self, region: Region, target: Target, ledger: Ledger, *, known: Decision | None = None
    ) -> None:
        self.region, self.target, self.ledger, self.options = region, target, ledger, ledger.options
        self.module, self.draft = region.subgraph.module, draft_of(region)
        self.inputs = RegionInputs(region, target, self.draft.flops)
        self.call_us = _CALL_US if target.torch_device == "cpu" else 0.0  # a GPU runs behind its calls
        self.seconds, self.deadline = 0.0, 0.0
        self.rival: Opponents | None = None
        self.floor_us = region.floor_us
        self.eager: fx.GraphModule = self.module  # the region as eager PyTorch computes it
        self.fused = False  # whether eager PyTorch has kernels of its own for parts of it
        self.operators_raced = False  # whether PyTorch's own operators have raced
        self.before_us = 0.0  # the time of Inductor's code, measured or guessed
        self.first_runs: FirstRuns | None = None
        self.found = known  # the best decision so far
        self.settled = False  # whether more time would not help
        self.said_no_time = False  # whether the decision says that time was short
        self.patient = False  # whether the race with Inductor's code is left for later, as other regions wait
        self.waiting: Callable[[], Decision] | None = None  # that race, where it was left
        self.searched = False  # whether a search ended in good time
        self.ahead = Ahead()  # kernels of the region as it is written, scheduled and compiled ahead

    @property
    def gain_us(self) -> float:
        """About what may still be gained: the time above the floor, or the floor before any measurement."""
        if self.rival is None:
            return self.floor_us
        return max(self.now_us - self.floor_us, 0.0)

    @property
    def now_us(self) -> float:
        """The time that the region takes as it stands: that of the plan that is taken, or of its rivals."""
        return self._taken_us or self._least_before_us

    @property
    def _opponents(self) -> Opponents:
        assert self.rival is not None
        return self.rival

    @property
    def _taken_us(self) -> float | None:
        """The time of the best plan so far, None as long as none is taken."""
        return self.found.after_us if self.found and self.found.taken else None

    @property
    def hope_us(self) -> float:
        """What may still be gained by the region as it is written, where its kernels' times are predicted."""
        if (expected_us := self.ahead.expected_us) is None:
            return _UNSEEN * self.gain_us
        return max(self.now_us - expected_us, _DOUBT * self.gain_us)

    @property
    def _least_before_us(self) -> float:
        """The least that Inductor's code may take."""
        return min(self.before_us, (self.rival.least_us if self.rival else 0.0) or inf)

    @property
    def doubt_us(self) -> float:
        """What kernels, or operators, that wait for a race with Inductor's code may gain on it, at most."""
        eager_us = self._opponents.most_us if self.waiting else 0.0
        after_us = min((self.found and self.found.after_us) or inf, eager_us if self.fused else inf)
        return max((_APART if self.fused else 1.0) * eager_us - after_us, 0.0)

    @property
    def may_find_more(self) -> bool:
        """Whether more time may find more."""
        return not self.settled and (not self.searched or self.found is None or self.found.open)

    def look(self) -> None:
        """Measure the rivals where a call of plain PyTorch is so slow that it may pay for a search."""
        with self.ledger.spending():
            slow = alone(lambda: self.inputs.are_slow_for(self.module))
        if slow:
            self.measure_rivals()

    def measure_rivals(self) -> None:
        """Measure the rivals before any kernel is made; settle the region where nothing can be gained."""
        if self.rival is not None or self.settled:
            return
        with self.ledger.spending():
            found = self._guarded(lambda: self._measure_once() or self.draft)
        if found.why:
            self.settled = True
            self.found = self.found or replace(found, open=has_failed(found))

    def schedule_ahead(self) -> None:
        """Schedule the region as it is written in a way or two, so that its kernels' times are predicted.

        Attention is left out: it is searched even as it is written, which takes the time of `try_kernels`.
        """
        if self.settled or self.rival is None or mostly_attention(self.region.subgraph.piece):
            return
        if self.ahead.expected_us is not None:
            return
        self.seconds = min(_SCHEDULING * self.ledger.left_s, _MOST_S)
        self.deadline = time.monotonic() + self.seconds
        with self.ledger.spending():
            try:
                self.ahead = Ahead(alone(lambda: write_regions(*self._schedule(search=False))))
            except Exception as error:  # `try_kernels` says it again
                log.info("%s: not scheduled ahead: %s", self.draft.operators, first_line(error))

    def compile_ahead(self, warm_up: WarmUp) -> bool:
        """Begin to compile the region's kernels as it is written, if they promise a gain; return whether."""
        if (expected_us := self.ahead.expected_us) is None or expected_us >= self._least_before_us:
            return False
        self.ahead.compile(warm_up, self.target, max(self.ledger.left_s, 0.1))
        return True

    def try_kernels(
        self, seconds: float, first_runs: FirstRuns | None, *, search: bool, patient: bool = False
    ) -> Decision:
        """Make and race kernels for about so many seconds, of the region as written or after a search.

        Return the best decision so far. While other regions wait, a `patient` one does not have Inductor
        compile its code: kernels that only a race with that code can judge wait for `confirm`.
        """
        before = self.found or self.draft
        if self.settled:
            return before
        if seconds < (_LEAST_S[search] if search or not self.ahead.compiling else _LEAST_COMPILED_S):
            self.found = before if before.taken else self._without_time(before)
            return self.found
        self.first_runs, self.patient, self.waiting = first_runs, patient, None
        return self._work_for(seconds, partial(self._make_and_race, search), search)

    def confirm(self, seconds: float) -> Decision:
        """Let kernels that wait for Inductor's code race it, in about so many seconds."""
        waiting, self.waiting, self.patient = self.waiting, None, False
        if waiting is None or seconds < COMPILING_S:
            return self.found or self.draft
        return self._work_for(seconds, lambda: self._choose(waiting(), search=False), search=False)

    def _work_for(self, seconds: float, work: Callable[[], Decision], search: bool) -> Decision:
        """Do some work that has so many seconds and makes a decision; return the best decision so far."""
        before = self.found or self.draft
        self.seconds = min(seconds, _MOST_S)
        self.deadline = time.monotonic() + self.seconds
        with self.ledger.spending():
            made = self._guarded(work)
        late = not (made.taken or self.settled) and (not search or time.monotonic() > self.deadline - _NEAR_S)
        self.searched |= search and time.monotonic() <= self.deadline - _NEAR_S
        if has_failed(made):  # nothing more is tried here; a later process may have better luck
            self.settled, late = True, True
        spent = before.seconds + time.monotonic() - (self.deadline - self.seconds)
        self.found = keep_nearer(replace(made, open=made.open or late, seconds=spent), before)
        return self.found

    def conclude(self) -> Decision:
        """Write the best decision to the ledger and the cache, and return it."""
        found = replace(self.found or self._without_time(self.draft), budget_s=self.ledger.budget_s)
        keep(found, self.region, self.ledger)
        return found

    def _without_time(self, known: Decision) -> Decision:
        if self.said_no_time:
            return known
        self.said_no_time = True
        left = f"{self.ledger.left_s:.0f} of {self.ledger.budget_s:.0f} s of the budget are left"
        why = f"{known.why}; not searched: {left}" if known.why else f"no time: {left}"
        return replace(known, why=why, open=True)

    def _guarded(self, work: Callable[[], Decision]) -> Decision:
        """Do some work, and let go of its memory; any error leaves the region to Inductor."""
        try:
            return decide_or_leave(work, self.draft)
        finally:
            if self.rival is not None:
                self.rival.give_up_copies()

    def _measure_once(self) -> Decision | None:
        """Measure the rivals at the first call; return a decision where nothing can be gained."""
        if self.rival is not None:
            return None
        if (room := self.region.room) and (why := room.too_small_for(self.region.goal)):
            self.settled = True
            return replace(self.draft, why=why)
        self.ledger.searched += 1
        self.eager, self.fused = eager_module(self.region)
        copies, inductor = self.inputs.copies, self.options.inductor
        self.rival = Opponents(self.module, copies, self.target, inductor, eager=self.eager)
        self.before_us = self.rival.most_us
        if self.fused:  # Inductor's code may take longer
            self.before_us *= _APART
            return None
        return self._no_gain(self.before_us)

    def _no_gain(self, before: float) -> Decision | None:
        """Return the decision that nothing can be gained on a time, if so."""
        if before < self.floor_us:
            self._lower_floor(floor_anew(self.region, self.target, before))
        if before < _TOO_SHORT_US:
            why = f"too short: in {before:.0f} µs less can be gained than a call costs"
        elif before < _NO_ROOM * self.floor_us and before < _NO_ROOM * self._cheapest_us():
            why = "Inductor is at the floor, the least time that its bytes and arithmetic take"
        else:
            return None
        self.settled = True
        return replace(self.draft, before_us=before, why=why)

    def _cheapest_us(self) -> float:
        """Return the floor of the cheapest equal graph that a short search finds, as the region's own."""
        return self._lower_floor(min(self.floor_us, cheapest_us(self.region, self.target, _LOOKING_S)))

    def _lower_floor(self, floor_us: float) -> float:
        self.floor_us = floor_us
        self.draft = replace(self.draft, floor_us=floor_us or None)
        return floor_us

    def _choose(self, made: Decision, search: bool) -> Decision:
        """Return the better of our kernels and PyTorch's own operators, if it beats Inductor's code.

        To race operators takes as long as our kernels: where these win as written, operators wait.
        """
        made = self._surely_better(made)
        if self.patient and self.fused and not made.taken and self.waiting is None:
            self.waiting = lambda: made  # then PyTorch's own operators race
        if (made.taken and not search) or self.waiting is not None:
            return made
        if made.taken:
            self.found = made
        elif self.found is not None and self.found.taken:  # open if a quieter moment may tell otherwise
            self.found = replace(self.found, open=made.open)
        ours = self.found if self.found is not None and self.found.taken else None
        other = self._race_operators(search)
        if ours is not None:
            faster = other.taken and (other.after_us or inf) * WIN < (ours.after_us or 0.0)
            return other if faster else ours
        if other.why:
            return other if other.taken or not made.why else replace(made, open=made.open or other.open)
        return made

    def _surely_better(self, made: Decision) -> Decision:
        """Return a decision, or the one before it, where it takes a plan that is not surely faster."""
        before, rival = self.found, self.rival
        if rival is None or before is None or not (made.taken and before.taken and WIN):
            return made
        return choose_faster(made, before, self.region, self.target, rival.copies, seconds=self._race_s)

    def _race_operators(self, search: bool) -> Decision:
        """Race PyTorch's own operators with Inductor's code, once, where they may be faster."""
        rival, known, win = self._opponents, self.draft, min(WIN, _OPERATORS_WIN)
        timed, hoped = rival.has_made(INDUCTOR), search and slides(self.region)
        promising = self.fused or (rival.most_us * win < self.before_us if timed else hoped)
        late = not timed and self.deadline - time.monotonic() < COMPILING_S
        if self.operators_raced or not promising or late:
            return known
        self.operators_raced = True
        if (operators := operators_of(self.region, self.eager)) is None:
            return known
        made = RegionPlan.of_operators(self.region.goal, self.target.name, operators)
        plan, ours = kept_plan(made), calling(self.region, made.text)
        if self.inputs.fault_of(made, ours, rival.copies[0], floats=self.options.verify, covered=True):
            return known
        found = self._decide(known, self._race(ours, INDUCTOR, win), plan, self.call_us, win)
        if found.taken and (why := slower_elsewhere(self.inputs, ours, self.options.inductor, self.deadline)):
            return replace(found, taken=False, plan=None, why=why)
        self.operators_raced = not found.open  # a quieter moment may tell
        return replace(found, why=f"{found.why}, by PyTorch's own operators")

    def _make_and_race(self, search: bool) -> Decision:
        return self._measure_once() or self._choose(self._run_funnel(search), search)

    def _run_funnel(self, search: bool) -> Decision:
        """Return the decision on kernels that are made now, or why none of them may race the rivals."""
        scheduled, state = self._schedule(search)
        regions = run_regions(scheduled, state)
        known = decide_before_race(self.draft, regions, self._opponents, self._taken_us, WIN)
        return known if known.why else self._check_plan(known, regions, state)

    def _check_plan(self, known: Decision, regions: Sequence[RegionCandidates], state: State) -> Decision:
        """Check the plan of the chosen kernels as the model calls it, and race it with the rivals."""
        verdicts = dict.fromkeys(str(part.chosen.verdict) for part in regions if part.chosen is not None)
        known = replace(known, verdict="; ".join([*verdicts, str(state.floats)]))
        made = RegionPlan.of(self.region.goal, regions, self.target, state.kernels)
        plan = kept_plan(made)
        ours, given = calling(self.region, plan), self._opponents.copies[0]
        made.by_kernels(self.inputs.known(made, given))
        # All comparisons were seen both ways where the kernels were checked.
        if why := self.inputs.fault_of(made, ours, given, floats=self.options.verify, covered=False):
            return replace(known, why=why)
        return self._race_rivals(known, ours, plan, state.unclear)

    def _race_rivals(self, known: Decision, ours: fx.GraphModule, plan: str, unclear: bool) -> Decision:
        """Return the decision on kernels that passed all checks, after their races."""
        rival = self._opponents
        raced = self._race_inductor(known, ours, plan, unclear)
        if self.waiting is not None:
            return raced
        raced = replace(raced, open=raced.open or unclear)
        if raced.taken and rival.most_us < _NEAR * (raced.after_us or inf):
            eager = self._race(ours, EAGER)
            if (speed := eager.speed_of("superopt")) < even():
                told, unclear = f"{speed:.2f} times the speed of eager", not eager.is_steady
                return replace(raced, taken=False, plan=None, why=told, open=unclear)
        if raced.taken and (why := slower_elsewhere(self.inputs, ours, self.options.inductor, self.deadline)):
            return replace(raced, taken=False, plan=None, why=why)
        return raced

    def _schedule(self, search: bool) -> tuple[list[RegionCandidates], State]:
        """Return the parts of the region with their candidates, and the state of the funnel before them."""
        options, clock = self._settings(search), Clock()
        program, end = self.region.traced.program, self.deadline - _MAKING * self.seconds
        if search or not (regions := self.ahead.handed_on(self.deadline - time.monotonic())):
            regions, _ = candidates_of(
                program,
                self.target,
                options,
                clock,
                late=lambda: time.monotonic() > end,
                room=self.region.room,
            )
        is_large = self.region.subgraph.piece.heavy > SOON
        most = 1 if is_large and not search else _COMPILED[search]
        limits = Limits(options.seconds, self.deadline, self._to_beat_us, most=most, tune=search)
        traced = in_parts(self.region.traced, [one.goal for one in regions])
        example = self.region.subgraph.example()
        state = State(self.module, traced, example, self.target, options, limits, clock)
        state.first_runs, state.eager = self.first_runs, self._opponents.module
        state.turned = self.region.subgraph.in_own_order
        return regions, state

    @property
    def _to_beat_us(self) -> float:
        """What kernels must take at most to be checked, and come near to be worth any tuning."""
        hopeless = HOPELESS * self.rival.least_us if self.rival else 0.0
        eager = self.rival.most_us if self.rival else inf
        most = self._taken_us or min(self.before_us, hopeless or self.before_us, eager)
        return most / WIN if WIN else inf

    def _race_inductor(self, known: Decision, ours: fx.GraphModule, plan: str, unclear: bool) -> Decision:
        """Race with the library calls alone, and where that does not settle it with Inductor's code."""
        rival = self._opponents
        if rival.has_library and not rival.has_made(INDUCTOR) and not known.before_is_least:
            least = self._decide(replace(known, before_is_least=True), self._race(ours, LIBRARY_CALLS), plan)
            if least.taken or (least.before_us or 0.0) * HOPELESS < (least.after_us or 0.0):
                return least
            known = replace(known, before_us=least.before_us, after_us=least.after_us, before_is_least=True)
        late = self.patient or self.deadline - time.monotonic() < COMPILING_S
        if late and not rival.has_made(INDUCTOR):
            self.waiting = partial(self._race_rivals, known, ours, plan, unclear)
            return replace(known, why="no time to compile Inductor's code of it", open=True)
        raced = self._race(ours, INDUCTOR)
        self.ledger.note_compiled(self.module.graph, rival.making_s[INDUCTOR.name])
        self.before_us = raced.measurements["inductor"].median_us
        known = replace(known, why="", before_is_least=False)
        return self._no_gain(self.before_us) or self._decide(known, raced, plan, self.call_us)

    def _race(self, ours: Function, other: Rival, win: float = 0.0) -> HeadToHead:
        """Race ours against a rival, and for longer where chance may have decided."""
        rival = self._opponents
        if other is EAGER:
            return rival.against(ours, other, seconds=self._race_s, level=even())
        most = min(_LONGER * _RACE_S, self.deadline - time.monotonic())
        return rival.against(ours, other, seconds=self._race_s, most_seconds=most, level=win or WIN)

    @property
    def _race_s(self) -> float:
        return min(_RACE_S, _CONFIRMING * self.seconds)

    def _decide(
        self, known: Decision, raced: HeadToHead, plan: str, call_us: float = 0.0, win: float = 0.0
    ) -> Decision:
        """Return the decision after a race, of whose rival a call takes so long beside its work."""
        self.before_us = raced.measurements["inductor"].median_us
        return decide_by_race(known, raced, plan, call_us, win or WIN)

    def _settings(self, search: bool) -> OptimizeOptions:
        share = _SEARCHING if search or mostly_attention(self.region.subgraph.piece) else 0.0
        return self.options.optimizing(self.target.name, share * self.seconds, _RACING[search] * self.seconds)
