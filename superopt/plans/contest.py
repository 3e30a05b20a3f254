"""Contest: kernels made, raced against one another, checked in floats, and raced against PyTorch."""

import logging
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from superopt.errors import InputError, SuperoptError
from superopt.ir import Graph, MuGraph
from superopt.plans.assembly import assemble, known_tensors
from superopt.plans.building import Builder, Built
from superopt.plans.course import Course
from superopt.plans.final import Final
from superopt.plans.outcome import Outcome
from superopt.plans.plan import PRESETS, Candidate, RegionPlan, Work, total_us
from superopt.plans.racing import Racer, Ready, by_time, copies_for
from superopt.plans.ranking import Ranking, as_predicted, likely
from superopt.targets import Kernel

if TYPE_CHECKING:
    from torch import Tensor

    from superopt.trace.traced import Traced

__all__ = ["Contest"]

log = logging.getLogger("superopt")

_MOST_CHECKS = 8  # muGraphs of a region that are checked in floats, the fastest first
_PREDICTED = 4  # muGraphs that also race in the configurations predicted to be best
_PROMISING = 0.9  # of the default's predicted time, where that makes them worth compiling
_HOPELESS = 1.5  # times what there is to beat, above which a candidate is not tuned


class Contest:
    """The candidates for the regions of a program, each region's raced, and the winners with PyTorch.

    `known` says whether the function is the original, not the program as it was traced.
    """

    def __init__(
        self,
        course: Course,
        function: Callable[..., Any],
        traced: "Traced",
        inputs: tuple[Any, ...],
        *,
        known: bool = True,
    ) -> None:
        from superopt.cache import Cache

        self.course = course
        self.target = course.target
        self.options = course.options
        self.within = course.within
        self.function = function
        self.traced = traced
        self.inputs = inputs
        self.builder = Builder(course)
        self.racer = Racer(course)
        self.final = Final(course, function, traced, known=known)
        cache = Cache.open() if course.options.cache else None
        self.ranking = Ranking(course.target, cache, seed=course.options.seed)

    def run(self, work: Sequence[Work]) -> Outcome:
        """Return the outcome: a plan for each region, and the measured times of whole programs."""
        import torch

        outcome = Outcome()
        with torch.no_grad():
            with self.course.clock.phase("inputs"):
                copies = self._copies()
                self._try_original(copies[0])
                known = known_tensors(self.traced, copies[0])
            size = sum(one.numel() * one.element_size() for one in known.values())
            with self.builder.guarded(size):
                share = self.options.seconds / (2 if self.within is None else 1)  # half is the last race's
                for at, one in enumerate(work):
                    if self.within is not None:  # what one part leaves, the others have
                        now = time.monotonic()
                        self.course.deadline = now + (self.within.deadline - now) / (len(work) - at)
                    self._region(one, known, outcome, share / len(work))
            if self.within is None:
                self.final.race(copies, outcome)
        outcome.ranked_by = self.ranking.used
        outcome.interrupted = self.course.interrupted
        return outcome

    def _try_original(self, inputs: tuple[Any, ...]) -> None:
        """Refuse a function that fails where it computes, though it could be traced without data."""
        try:
            self.function(*inputs)
        except Exception as error:  # a function of the user's may raise anything
            said = next(iter(str(error).splitlines()), "")
            raise InputError(
                f"{self.traced.program.name}: the function fails on inputs like these:"
                f" {type(error).__name__}: {said}"
            ) from error

    def tuned(self, goal: Graph, base: Candidate, seconds: float) -> Kernel | None:
        """Return the kernel of one candidate with the best configurations for its sizes."""
        import torch

        with torch.no_grad():
            known = known_tensors(self.traced, self._copies()[0])
            tensors = {port.name: known[port.name] for port in goal.inputs}
            ranked, ready = self.racer.raced(goal, self.builder.built([base], tensors), tensors, seconds / 3)
            ranked, more = self._tuned(goal, ranked, ready, tensors, seconds)
        return {**ready, **more}.get(ranked[0].name)

    def _region(self, work: Work, known: "Mapping[str, Tensor]", outcome: Outcome, seconds: float) -> None:
        goal = work.goal
        tensors = {port.name: known[port.name] for port in goal.inputs}
        ranked = list(work.candidates) if work.recalled else self._entered(work.candidates)
        ready: Ready = {}
        with self.course.stoppable():
            self.course.tell(f"compiling {goal.name}")
            with self.course.clock.phase("compile"):
                built = self.builder.built(ranked, tensors)
            ranked, ready = self.racer.raced(goal, built, tensors, seconds / 2)
            self.ranking.keep(goal, [one for one in ranked if len(one.configs) == 1], 0)
            if not work.recalled:
                ranked, more = self._tuned(goal, ranked, ready, tensors, seconds / 2)
                ready |= more
        with self.course.clock.phase("check"):
            plan = self._judged(work, ranked, ready, outcome)
        outcome.regions.append(plan)

    def _entered(self, candidates: Sequence[Candidate]) -> list[Candidate]:
        """Return candidates in their default configurations, the likeliest also as predicted to be best."""
        entered = list(candidates)
        guesses: list[tuple[float, int, Candidate]] = []
        for at, one in enumerate(candidates):
            try:
                plain = one.configs or self.target.default_configs(one.mugraph)
                guess = as_predicted(one, self.target, self.ranking)
                total = total_us(self.target.reports(guess.mugraph, guess.configs))
                known = total_us(self.target.reports(one.mugraph, plain))
            except SuperoptError:  # it says so when it is built
                continue
            if total is not None and known is not None and total < _PROMISING * known:
                guesses.append((total, at, replace(guess, name=f"{one.name}, as predicted")))
        guesses.sort(key=lambda item: item[:2])
        entered += [guess for _, _, guess in guesses[:_PREDICTED]]
        if self.within is None:
            return entered
        few = self.within.few
        if not self.within.tune:  # as they come, and as the likeliest of them is predicted to be best
            return [*entered[: max(few - 1, 1)], *(guess for _, _, guess in guesses)][:few]
        guessed = {guess.name: us for us, _, guess in guesses}
        return sorted(entered, key=lambda one: guessed.get(one.name, one.us))[:few]

    def _tuned(
        self,
        goal: Graph,
        ranked: list[Candidate],
        ready: Ready,
        tensors: "Mapping[str, Tensor]",
        seconds: float,
    ) -> tuple[list[Candidate], Ready]:
        """Try other configurations of the best muGraphs, one kernel at a time."""
        preset = PRESETS[self.options.preset]
        deadline = time.monotonic() + min(seconds, self.course.seconds_left)
        more: Ready = {}
        within = self.within
        if within and (not within.tune or (ranked and ranked[0].us > _HOPELESS * within.beat_us)):
            return ranked, more
        for first in [one for one in ranked if one.name in ready][: preset.tuned]:
            base = first
            for number, config in enumerate(first.configs):
                left = deadline - time.monotonic()
                if config is None or left <= 0 or self.course.interrupted:
                    continue
                self.course.tell(f"tuning kernel {number} of {goal.name}, {first.name}")
                with self.course.clock.phase("tune"):
                    built = list(self._variants(base, number, preset.configs, tensors, deadline))
                    held = {**ready, **more}
                    raced, kernels = self.racer.raced(
                        goal, [(base, held[base.name]), *built], tensors, max(left / 4, 0.05)
                    )
                self.ranking.keep(goal, raced, number)
                ranked = _merged(ranked, raced)
                more |= kernels
                base = next(one for one in raced if one.name in kernels)
        return ranked, more

    def _variants(
        self,
        base: Candidate,
        number: int,
        count: int,
        tensors: "Mapping[str, Tensor]",
        deadline: float,
    ) -> Iterator[Built]:
        """Yield a candidate with other configurations of one kernel, the likeliest first, in time."""
        stem = base.name.partition(", ")[0]
        chosen = likely(base, number, self.ranking, count)
        variants = [
            replace(
                base,
                name=f"{stem}, kernel {number} tuned {at}",
                configs=(*base.configs[:number], config, *base.configs[number + 1 :]),
                kernels=(),
                measurement=None,
            )
            for at, config in enumerate(chosen, 1)
        ]
        for start in range(0, len(variants), self.builder.builders):
            if time.monotonic() >= deadline or self.course.interrupted:
                return
            yield from self.builder.built(variants[start : start + self.builder.builders], tensors)

    def _judged(self, work: Work, ranked: Sequence[Candidate], ready: Ready, outcome: Outcome) -> RegionPlan:
        """Check the fastest in floats, inside the whole program; the first that passes is chosen."""
        from superopt.verify.floats import compare_floats

        self.course.tell(f"checking {work.goal.name} in floats")
        judged: list[Candidate] = []
        chosen = None
        failed: dict[MuGraph, str] = {}  # in another configuration it fails alike
        for one in ranked:
            if self._is_beaten(one):
                one = replace(one, rejected="slower than what there is to beat")
            measured = one.rejected is None and one.measurement is not None
            may = chosen is None and one.name in ready and measured and not self.course.lost
            if may and one.mugraph in failed:
                one = replace(one, rejected=failed[one.mugraph])
            elif may and len(failed) < _MOST_CHECKS:
                trial = {**outcome.kernels, work.goal.name: ready[one.name]}
                try:
                    report = compare_floats(
                        self.function,
                        assemble(self.traced, trial),
                        self.inputs,
                        seed=self.options.seed,
                    )
                except Exception as error:  # what cannot be checked is not chosen
                    why = f"it could not be checked in floats: {self.course.fault(error)}"
                    log.warning("%s: skip %s: %s", work.goal.name, one.name, why)
                    failed[one.mugraph] = why
                    one = replace(one, rejected=why)
                    self.course.interrupted |= self.course.lost
                else:
                    if report.ok:
                        chosen, outcome.kernels, outcome.floats = one, trial, report
                    else:
                        failed[one.mugraph] = str(report)
                        one = replace(one, rejected=str(report))
            judged.append(one)
        return RegionPlan(work.goal, tuple(judged), chosen, work.dropped)

    def _is_beaten(self, one: Candidate) -> bool:
        """Whether a candidate was measured, and is slower than what a larger piece of work has already."""
        beaten = self.within is not None and one.us > self.within.beat_us
        return beaten and one.measurement is not None and one.rejected is None

    def _copies(self) -> list[tuple[Any, ...]]:
        from superopt.verify.floats import tensors_of, typical

        first = typical(self.inputs, seed=self.options.seed)
        count = 1 if self.within is not None else copies_for(tensors_of(first))  # for the race with PyTorch
        return [first] + [typical(self.inputs, seed=self.options.seed + i) for i in range(1, count)]


def _merged(ranked: Sequence[Candidate], raced: Sequence[Candidate]) -> list[Candidate]:
    """Return all candidates, those raced last at their new times."""
    return by_time(({one.name: one for one in ranked} | {one.name: one for one in raced}).values())
