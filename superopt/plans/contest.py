"""Contest: kernels made, raced against one another, checked in floats, and raced against PyTorch."""

import logging
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from superopt.clock import Clock
from superopt.errors import InputError, SuperoptError
from superopt.ir import Graph, MuGraph, Region
from superopt.plans.assembly import assemble, known_tensors
from superopt.plans.guard import Guard
from superopt.plans.peers import PEERS, peers
from superopt.plans.plan import (
    PRESETS,
    Candidate,
    OptimizeOptions,
    RegionPlan,
    Within,
    Work,
    as_compiled,
    spills,
    total_us,
)
from superopt.plans.ranking import RankedBy, Ranking
from superopt.plans.standin import stand_in
from superopt.targets import Kernel, OrderedKernel, Target
from superopt.tune import Measurement
from superopt.tune.errors import DeviceLostError, MeasurementError
from superopt.tune.halving import halve
from superopt.tune.measure import HeadToHead
from superopt.verify.report import FloatReport

if TYPE_CHECKING:
    from torch import Tensor

    from superopt.trace.traced import Traced

__all__ = ["Contest", "Outcome"]

log = logging.getLogger("superopt")

_WIN = 1.02  # how much faster than PyTorch a program must be to be preferred
_MOST_CHECKS = 8  # muGraphs of a region that are checked in floats, the fastest first
_COPY_BYTES = 96 << 20  # inputs are copied until they are more than caches hold
_MOST_COPIES = 16
_BUILDERS = 2  # where kernels are made in this process
_PREDICTED = 4  # muGraphs that also race in the configurations predicted to be best
_PROMISING = 0.9  # of the default's predicted time, where that makes them worth compiling
_TOGETHER = 6  # candidates measured in turns
_HALVED = 0.6  # share of the time before the last few are compared
_LEFT = 3
_LEAST_ROUNDS = 3
_MOST_ROUNDS = 400
_SURELY = 0.95  # of its floor, below which a time cannot be right
_RACE_S = 1.0  # of a race, kept when time runs out
_HOPELESS = 1.5  # times what there is to beat, above which a candidate is not tuned
_HASTE_S = 1.0  # of the last race, once Ctrl-C asked to stop
_LOST = "the device is lost to this process: nothing more is measured"


@dataclass(slots=True)
class Outcome:
    """What came of a contest."""

    regions: list[RegionPlan] = field(default_factory=list)
    kernels: dict[str, Kernel] = field(default_factory=dict)
    contenders: dict[str, Callable[..., Any]] = field(default_factory=dict)
    measurements: dict[str, Measurement] = field(default_factory=dict)
    confirmed: HeadToHead | None = None  # ours against the best of PyTorch, once more
    floats: FloatReport | None = None
    ranked_by: RankedBy | None = None
    interrupted: bool = False

    @property
    def winner(self) -> str:
        """The fastest, ours only if it is faster by more than noise."""
        times = {name: one.median_us for name, one in self.measurements.items() if name in PEERS}
        if not times:
            return "eager"
        best = min(times, key=lambda name: times[name])
        ours = self.measurements.get("superopt")
        faster = ours is not None and ours.median_us * _WIN < times[best]
        if faster and self.confirmed is not None:
            faster = self.confirmed.winner == "superopt" and self.confirmed.speedup > _WIN
        return "superopt" if faster else best


_Ready = dict[str, Kernel]


@dataclass(slots=True)
class Contest:
    """All that a contest needs besides the candidates; Ctrl-C ends it with the best so far."""

    function: Callable[..., Any]
    traced: "Traced"
    target: Target
    options: OptimizeOptions
    inputs: tuple[Any, ...]
    clock: Clock
    tell: Callable[[str], None]
    within: Within | None = None
    known: bool = True  # whether the function is the original, not the program as it was traced
    deadline: float = float("inf")  # of the part under way, by time.monotonic
    interrupted: bool = False
    lost: bool = False  # the device, to this process
    guard: Guard | None = None
    builders: int = _BUILDERS
    lock: Any = field(default_factory=threading.Lock)
    ranking: Ranking = field(init=False)

    def __post_init__(self) -> None:
        from superopt.cache import Cache

        cache = Cache.open() if self.options.cache else None
        self.ranking = Ranking(self.target, cache, seed=self.options.seed)

    def run(self, work: Sequence[Work]) -> Outcome:
        """Return the outcome: a plan for each region, and the measured times of whole programs."""
        import torch

        outcome = Outcome()
        with torch.no_grad():
            with self.clock.phase("inputs"):
                copies = self._copies()
                self._try_original(copies[0])
                known = known_tensors(self.traced, copies[0])
            size = sum(one.numel() * one.element_size() for one in known.values())
            with self._guarded(size):
                share = self.options.seconds / (2 if self.within is None else 1)  # half is the last race's
                for at, one in enumerate(work):
                    if self.within is not None:  # what one part leaves, the others have
                        now = time.monotonic()
                        self.deadline = now + (self.within.deadline - now) / (len(work) - at)
                    self._region(one, known, outcome, share / len(work))
            if self.within is None:
                self._race_whole(copies, outcome)
        outcome.ranked_by = self.ranking.used
        outcome.interrupted = self.interrupted
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
            ranked, ready = self._raced(goal, self._built([base], tensors), tensors, seconds / 3)
            ranked, more = self._tuned(goal, ranked, ready, tensors, seconds)
        return {**ready, **more}.get(ranked[0].name)

    @contextmanager
    def _guarded(self, size: int) -> Iterator[None]:
        if not self.options.guarded:
            yield
            return
        self.builders = self.target.builders(size)
        if self.within is not None and self.within.guard is not None:
            self.guard = self.within.guard
            self.builders = min(self.builders, self.within.guard.workers)
            yield
            return
        with Guard(self.builders, self.target.torch_device, self.options.limit_seconds) as self.guard:
            yield
        self.guard = None

    # -- one region

    def _region(self, work: Work, known: "Mapping[str, Tensor]", outcome: Outcome, seconds: float) -> None:
        goal = work.goal
        tensors = {port.name: known[port.name] for port in goal.inputs}
        ranked = list(work.candidates) if work.recalled else self._entered(work.candidates)
        ready: _Ready = {}
        with self._stoppable():
            self.tell(f"compiling {goal.name}")
            with self.clock.phase("compile"):
                built = self._built(ranked, tensors)
            ranked, ready = self._raced(goal, built, tensors, seconds / 2)
            self.ranking.keep(goal, [one for one in ranked if len(one.configs) == 1], 0)
            if not work.recalled:
                ranked, more = self._tuned(goal, ranked, ready, tensors, seconds / 2)
                ready |= more
        with self.clock.phase("check"):
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
        if not self.within.tune:  # as they come, and as the likeliest of them is predicted to be best
            return [*entered[: self.within.few - 1], *(guess for _, _, guess in guesses)][: self.within.few]
        likely = {guess.name: us for us, _, guess in guesses}
        entered.sort(key=lambda one: likely.get(one.name, one.us))
        return entered[: self.within.few]

    def _built(
        self, candidates: Sequence[Candidate], tensors: "Mapping[str, Tensor]"
    ) -> list[tuple[Candidate, Kernel | None]]:
        """Compile candidates and run each once."""
        with ThreadPoolExecutor(self.builders) as pool:
            try:
                return list(pool.map(lambda one: self._build(one, tensors), candidates))
            except BaseException:  # Ctrl-C: nobody waits for what is under way
                pool.shutdown(wait=False, cancel_futures=True)
                if self.guard is not None:
                    self.guard.stop()
                raise

    def _build(
        self, candidate: Candidate, tensors: "Mapping[str, Tensor]"
    ) -> tuple[Candidate, Kernel | None]:
        if self.interrupted:
            return replace(candidate, rejected="interrupted before it was compiled"), None
        left = self._seconds_left
        if left <= 0:
            return replace(candidate, rejected="no time was left to compile it"), None
        mugraph = candidate.mugraph
        try:
            configs = candidate.configs or self.target.default_configs(mugraph)
            candidate = replace(
                candidate,
                configs=configs,
                sources=self.target.sources(mugraph, configs),
                kernels=candidate.kernels or self.target.reports(mugraph, configs),
            )
            candidate = replace(candidate, predicted_us=total_us(candidate.kernels))
            if self.guard is not None:
                limit, children = min(left, self.options.limit_seconds), self.guard.children
                self.target.prepare(mugraph, configs, limit_seconds=limit, children=children)
                self.guard.check(mugraph, configs, limit_seconds=max(self._seconds_left, 0.0))
            with nullcontext() if self.target.threadsafe else self.lock:
                kernel = self.target.make(mugraph, configs)
                made = kernel(**tensors)
                self.target.synchronize()
                bad = _not_finite(made, tensors)
        except self.target.errors as error:
            said = str(error) if isinstance(error, SuperoptError) else f"{type(error).__name__}: {error}"
            return self._refused(candidate, said), None
        if bad:
            return self._refused(candidate, bad), None
        made_of = self.target.compiled(kernel)
        kernels = tuple(
            as_compiled(one, made_of[number]) if number in made_of else one
            for number, one in enumerate(candidate.kernels)
        )
        return replace(candidate, kernels=kernels), kernel

    @property
    def _seconds_left(self) -> float:
        """The seconds until the deadline, less those that a race needs."""
        return self.deadline - time.monotonic() - min(self.options.seconds / 2, _RACE_S)

    def _fault(self, error: Exception) -> str:
        """Return what an error says, and note where no later call on the device can get past it."""
        try:
            self.target.synchronize()
        except Exception:
            self.lost = True
        self.lost |= isinstance(error, DeviceLostError)
        said = next(iter(str(error).splitlines()), "no message")
        return said if isinstance(error, SuperoptError) else f"{type(error).__name__}: {said}"

    def _refused(self, candidate: Candidate, why: str) -> Candidate:
        reason = next(iter(why.splitlines()), "no message")
        log.info("%s: skip %s: %s", candidate.graph.name, candidate.name, reason)
        return replace(candidate, rejected=reason)

    def _raced(
        self,
        goal: Graph,
        built: Sequence[tuple[Candidate, Kernel | None]],
        tensors: "Mapping[str, Tensor]",
        seconds: float,
    ) -> tuple[list[Candidate], _Ready]:
        """Race what was built; return all candidates ranked, and the kernels of those that run."""
        ready = {one.name: kernel for one, kernel in built if kernel is not None}
        self.tell(f"racing {len(ready)} kernels of {goal.name}")
        copies = _cloned(tuple(tensors.values()))
        seconds = min(seconds, max(self.deadline - time.monotonic(), 0.0))
        with self.clock.phase("race"):
            found, why = self._times(
                {one.name: one for one, kernel in built if kernel is not None},
                {name: _called(kernel, tuple(tensors)) for name, kernel in ready.items()},
                copies,
                seconds,
            )
        ranked = []
        for one, _ in built:
            timing = found.get(one.name)
            floor = self._floor_us(goal, one.graph) if timing is not None else None
            if timing is not None and floor is not None and timing.median_us < _SURELY * floor:
                one = self._refused(one, f"{timing.median_us:.2f} µs, but its data takes {floor:.2f} µs")
                ready.pop(one.name, None)
            elif timing is not None:
                one = replace(one, measurement=timing)
            elif one.rejected is None and one.measurement is None:
                one = replace(one, rejected=why.get(one.name, "not measured"))
            ranked.append(one)
        return _by_time(ranked), ready

    def _floor_us(self, goal: Graph, graph: Graph) -> float | None:
        """Return the least time that a candidate can take: its graph may do less than the goal as written."""
        if not self.target.clears_caches:
            return None
        known = [self.target.floor_us(one, kept=True) for one in (goal, graph)]
        return min((us for us in known if us is not None), default=None)

    def _whole_floor_us(self, outcome: Outcome) -> float:
        """Return the least time of the whole program, 0 where nothing is known.

        A region that reads what came before it may find it in the cache: only the others count.
        """
        plans = {plan.goal.name: plan for plan in outcome.regions}
        seen: set[str] = set()
        total = 0.0
        for node in self.traced.program.nodes:
            plan = plans.get(node.graph.name) if isinstance(node, Region) else None
            if plan is not None and seen.isdisjoint(node.inputs):
                found = plan.chosen.graph if plan.chosen else plan.goal
                total += self._floor_us(plan.goal, found) or 0.0
            seen.update(node.inputs, node.outputs)
        return total

    def _times(
        self,
        candidates: Mapping[str, Candidate],
        runs: Mapping[str, Callable[..., Any]],
        copies: Sequence[tuple[Any, ...]],
        seconds: float,
    ) -> tuple[dict[str, Measurement], dict[str, str]]:
        """Return the times of candidates, the best once more in turns, and why others have none."""
        deadline = time.monotonic() + seconds

        def measure(names: tuple[str, ...], repeats: int) -> dict[str, Measurement]:
            left = max(deadline - time.monotonic(), 0.0)
            chosen = {name: runs[name] for name in names}
            return self.target.measure(
                chosen, copies, seconds=left, least_rounds=min(repeats, _LEAST_ROUNDS), most_rounds=repeats
            )

        def on_best(name: str, timing: Measurement) -> None:
            self.tell(f"best so far {timing.median_us:.1f} µs: {name}")

        guesses = {
            name: one.us if one.us < float("inf") else float(at)
            for at, (name, one) in enumerate(candidates.items())
        }
        if not all(spills(one) for one in candidates.values()):  # those that do come after all others
            guesses |= {name: float("inf") for name, one in candidates.items() if spills(one)}
        halved = halve(
            guesses,
            measure,
            seconds=seconds * _HALVED,
            seed=self.options.seed,
            batch=_TOGETHER,
            on_best=on_best,
        )
        found = {one.trial: one.measurement for one in halved.standings}
        if halved.ended == "device lost":
            self.lost = True
            self._stop(_LOST)
        elif halved.interrupted:
            self._stop()
        elif len(found) > 1:
            last = tuple(one.trial for one in halved.standings[:_LEFT])
            try:
                found |= measure(last, _MOST_ROUNDS)
            except Exception as error:  # what was measured before stays valid
                log.warning("the last of %s are not compared again: %s", ", ".join(last), self._fault(error))
                if self.lost:
                    self._stop(_LOST)
        return found, halved.reasons

    def _tuned(
        self,
        goal: Graph,
        ranked: list[Candidate],
        ready: _Ready,
        tensors: "Mapping[str, Tensor]",
        seconds: float,
    ) -> tuple[list[Candidate], _Ready]:
        """Try other configurations of the best muGraphs, one kernel at a time."""
        preset = PRESETS[self.options.preset]
        deadline = time.monotonic() + min(seconds, self._seconds_left)
        more: _Ready = {}
        within = self.within
        if within and (not within.tune or (ranked and ranked[0].us > _HOPELESS * within.beat_us)):
            return ranked, more
        for first in [one for one in ranked if one.name in ready][: preset.tuned]:
            base = first
            for number, config in enumerate(first.configs):
                left = deadline - time.monotonic()
                if config is None or left <= 0 or self.interrupted:
                    continue
                self.tell(f"tuning kernel {number} of {goal.name}, {first.name}")
                with self.clock.phase("tune"):
                    built = list(self._variants(base, number, preset.configs, tensors, deadline))
                    held = {**ready, **more}
                    raced, kernels = self._raced(
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
    ) -> Iterator[tuple[Candidate, Kernel | None]]:
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
        for start in range(0, len(variants), self.builders):
            if time.monotonic() >= deadline or self.interrupted:
                return
            yield from self._built(variants[start : start + self.builders], tensors)

    def _judged(self, work: Work, ranked: Sequence[Candidate], ready: _Ready, outcome: Outcome) -> RegionPlan:
        """Check the fastest in floats, inside the whole program; the first that passes is chosen."""
        from superopt.verify.floats import compare_floats

        self.tell(f"checking {work.goal.name} in floats")
        judged: list[Candidate] = []
        chosen = None
        failed: dict[MuGraph, str] = {}  # in another configuration it fails alike
        for one in ranked:
            may = chosen is None and one.name in ready and one.measurement is not None and not self.lost
            if may and one.mugraph in failed:
                one = replace(one, rejected=failed[one.mugraph])
            elif may and len(failed) < _MOST_CHECKS:
                trial = {**outcome.kernels, work.goal.name: ready[one.name]}
                try:
                    report = compare_floats(
                        self.function, assemble(self.traced, trial), self.inputs, seed=self.options.seed
                    )
                except Exception as error:  # what cannot be checked is not chosen
                    why = f"it could not be checked in floats: {self._fault(error)}"
                    log.warning("%s: skip %s: %s", work.goal.name, one.name, why)
                    failed[one.mugraph] = why
                    one = replace(one, rejected=why)
                    self.interrupted |= self.lost
                else:
                    if report.ok:
                        chosen, outcome.kernels, outcome.floats = one, trial, report
                    else:
                        failed[one.mugraph] = str(report)
                        one = replace(one, rejected=str(report))
            judged.append(one)
        return RegionPlan(work.goal, tuple(judged), chosen, work.dropped)

    # -- the whole program

    def _race_whole(self, copies: Sequence[tuple[Any, ...]], outcome: Outcome) -> None:
        if self.lost:
            self._withdraw(outcome, _LOST)
            return
        wanted = self.options.torch_compile and not self.interrupted
        with self.clock.phase("torch.compile"), self._stoppable():
            raced = self.function if self.known else self._stand_in(copies[0])
            found = peers(raced, copies[0], self.target, compiled=wanted, tell=self.tell)
            outcome.contenders |= found
        outcome.contenders.setdefault("eager", self.function)
        if outcome.kernels:
            outcome.contenders["superopt"] = assemble(self.traced, outcome.kernels)
        elif self.interrupted:
            return
        self.tell("racing against PyTorch")
        seconds = min(_HASTE_S, self.options.seconds / 2) if self.interrupted else self.options.seconds / 2
        with self.clock.phase("race"), self._stoppable():
            try:
                self._race_with(copies, outcome, seconds)
            except Exception as error:  # whatever a program or the device raises, the original computes
                why = f"the race against PyTorch failed: {self._fault(error)}"
                log.warning("%s: the original is what comes back: %s", self.traced.program.name, why)
                self._withdraw(outcome, why)
                self.interrupted |= self.lost

    def _stand_in(self, inputs: tuple[Any, ...]) -> Callable[..., Any]:
        try:
            return stand_in(self.traced, inputs)
        except RuntimeError as error:  # torch lacks an operator in some dtype
            log.warning("%s: PyTorch races in fp32: %s", self.traced.program.name, self._fault(error))
            return self.function

    def _race_with(self, copies: Sequence[tuple[Any, ...]], outcome: Outcome, seconds: float) -> None:
        """Measure all contenders, and ours once more against the best of PyTorch, where it is faster."""
        floor = self._whole_floor_us(outcome)
        outcome.measurements = self.target.measure(outcome.contenders, copies, seconds=seconds * 0.7)
        _check_floor(outcome.measurements, floor)
        if outcome.winner == "superopt":
            rivals = [name for name in outcome.measurements if name in PEERS]
            best = min(rivals, key=lambda name: outcome.measurements[name].median_us)
            confirmed = self.target.confirm(
                outcome.contenders, "superopt", best, copies, seconds=seconds * 0.3
            )
            _check_floor(confirmed.measurements, floor)
            outcome.confirmed = confirmed

    def _withdraw(self, outcome: Outcome, why: str) -> None:
        """Refuse all kernels of ours; what was measured of PyTorch stays."""
        outcome.kernels.clear()
        outcome.contenders.pop("superopt", None)
        outcome.measurements.pop("superopt", None)
        outcome.floats = None
        for at, plan in enumerate(outcome.regions):
            candidates = (
                replace(one, rejected=why) if one is plan.chosen else one for one in plan.candidates
            )
            outcome.regions[at] = replace(plan, candidates=tuple(candidates), chosen=None)

    @contextmanager
    def _stoppable(self) -> Iterator[None]:
        """Let a first Ctrl-C end what is inside, and what would follow it; a second one ends all."""
        if self.interrupted:
            yield
            return
        try:
            yield
        except KeyboardInterrupt:
            self._stop()

    def _stop(self, why: str = "interrupted: the best so far is what comes back") -> None:
        self.interrupted = True
        log.warning(why)

    def _copies(self) -> list[tuple[Any, ...]]:
        from superopt.verify.floats import sample, tensors_of

        first = sample("normal", self.inputs, seed=self.options.seed)
        count = 1 if self.within is not None else _count(tensors_of(first))  # for the race with PyTorch
        return [first] + [sample("normal", self.inputs, seed=self.options.seed + i) for i in range(1, count)]


def _check_floor(measurements: Mapping[str, Measurement], floor: float) -> None:
    """Refuse a time of ours that cannot be right."""
    ours = measurements.get("superopt")
    if ours is not None and ours.median_us < _SURELY * floor:
        raise MeasurementError(f"{ours.median_us:.2f} µs, but the program's data takes {floor:.2f} µs")


def _called(kernel: Kernel, names: tuple[str, ...]) -> Callable[..., Any]:
    """Return a kernel as a function of tensors, `names` being those of its inputs in order."""
    if isinstance(kernel, OrderedKernel) and kernel.inputs == names:
        return lambda *tensors: kernel.in_order(tensors)
    return lambda *tensors: kernel(**dict(zip(names, tensors, strict=True)))


def likely(base: Candidate, number: int, ranking: Ranking, count: int) -> list[Any]:
    """Return the configurations of one kernel worth compiling, the likeliest first."""
    current = base.configs[number]
    ranked = ranking.ranked(base.mugraph, base.configs, number)
    return [config for config, _ in ranked if config != current][:count]


def as_predicted(candidate: Candidate, target: Target, ranking: Ranking) -> Candidate:
    """Return a candidate, each kernel in the likeliest configuration."""
    configs = candidate.configs or target.default_configs(candidate.mugraph)
    best = list(configs)
    for number, default in enumerate(configs):
        if default is not None:
            config, us = ranking.ranked(candidate.mugraph, configs, number)[0]
            best[number] = default if us is None else config
    return replace(candidate, configs=tuple(best))


def _not_finite(made: "Mapping[str, Tensor]", given: "Mapping[str, Tensor]") -> str | None:
    """Return what is wrong with results that are all NaN where no input is."""
    import torch

    for name, tensor in made.items():
        floating = tensor.dtype.is_floating_point and tensor.numel()
        if floating and bool(torch.isnan(tensor).all()):
            whole = all(
                bool(torch.isfinite(one).all()) for one in given.values() if one.dtype.is_floating_point
            )
            if whole:
                return f"{name} is NaN everywhere"
    return None


def _merged(ranked: Sequence[Candidate], raced: Sequence[Candidate]) -> list[Candidate]:
    """Return all candidates, those raced last at their new times."""
    return _by_time(({one.name: one for one in ranked} | {one.name: one for one in raced}).values())


def _by_time(candidates: Iterable[Candidate]) -> list[Candidate]:
    """Return the measured candidates, the fastest first, and then the others."""
    return sorted(candidates, key=lambda one: one.measurement.median_us if one.measurement else float("inf"))


def _count(tensors: "Sequence[Tensor]") -> int:
    size = sum(tensor.numel() * tensor.element_size() for tensor in tensors)
    return max(2, min(_MOST_COPIES, _COPY_BYTES // max(size, 1)))


def _cloned(tensors: "tuple[Tensor, ...]") -> "list[tuple[Tensor, ...]]":
    """Return copies of tensors with their strides, enough that no cache holds all."""
    import torch

    def clone(tensor: "Tensor") -> "Tensor":
        if 0 in tensor.stride():
            return tensor
        fresh = torch.empty_strided(tensor.shape, tensor.stride(), dtype=tensor.dtype, device=tensor.device)
        return fresh.copy_(tensor)

    return [tensors] + [tuple(map(clone, tensors)) for _ in range(_count(tensors) - 1)]
