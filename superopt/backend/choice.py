"""Choice: whether superopt computes a region, from a search, checks, and a race with Inductor's own code."""

import logging
import operator
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, fx

from superopt.backend.decision import Decision, Ledger
from superopt.backend.generation import next_generation
from superopt.backend.hosting import alone, compiled_by_inductor
from superopt.backend.nodes import bytes_of, flops_of, listed
from superopt.backend.options import BackendOptions
from superopt.backend.plans import plan_text
from superopt.backend.region import REGION, runner_of
from superopt.backend.subgraph import Subgraph
from superopt.cache import Cache, Key, Record, key_of, program_text, versions
from superopt.driver import SearchOptions
from superopt.errors import SuperoptError
from superopt.ir import Graph, Program, print_graph
from superopt.optimizer import optimize
from superopt.plans.guard import Guard
from superopt.plans.plan import OptimizeOptions, RegionPlan, Within
from superopt.plans.sizes import same_program
from superopt.targets import Target
from superopt.trace import trace
from superopt.tune.measure import HeadToHead
from superopt.verify.floats import compare_floats, sample, tensors_of

__all__ = ["LEAST_S", "WIN", "Contest", "Region", "known_decision", "region_of"]

log = logging.getLogger("superopt")

WIN = 1.03
"""How much faster than Inductor's code a region must be to be taken."""

LEAST_S = 3.0
"""Seconds below which no search is begun."""

_GRAPHS = {"quick": 2, "full": 6}  # of a region, made into kernels: compiling takes most of the time
_MOST_S = 40.0  # for one region
_MOST_INDUCTOR_S = 60.0  # of Inductor's compiling regions by themselves, where no budget is told
_SEARCHING, _RACING = 0.25, 0.3  # shares of a region's time; the rest is for compiling and checking
_NEAR_S = 1.5  # of the deadline, where what came back is what there was time for
_RIVAL_S = 0.3
_CALLED = ("normal", "wide range")  # inputs by which a plan is checked as it is called; its kernels met all
_RECORDS = 2
_TOO_SHORT_US = 12.0  # of Inductor's code, where the call of an operator costs what could be gained
_NO_ROOM = 1.1  # times the floor, below which Inductor's code leaves nothing to gain
_FAR = 1.25  # times Inductor's time, above which a race would say the same
_COPIES_BYTES = 96 << 20
_MOST_COPIES = 8


@dataclass(frozen=True, slots=True)
class Region:
    """A subgraph as algebra, with the key by which its decision is kept."""

    subgraph: Subgraph
    goal: Graph
    names: tuple[str, ...]  # the goal's output that each result is
    key: Key
    floor_us: float


def region_of(subgraph: Subgraph, target: Target, ledger: Ledger) -> Region:
    """Return a subgraph as algebra, or raise SuperoptError where it is none."""
    program = _traced(subgraph, subgraph.example())
    goal = program.regions[0].graph
    made = {output.port.name for output in goal.outputs}
    if not set(program.outputs) <= made:
        raise SuperoptError("a result is one of the inputs")
    options = {
        "backend": _RECORDS,
        "preset": ledger.options.preset,
        "verify": ledger.options.verify,
        "inductor": {name: str(value) for name, value in sorted(ledger.options.inductor.items())},
        "results": list(program.outputs),
        "symbols": [str(torch.Size(tensor.shape)) for tensor in subgraph.example(_others(subgraph))],
    }
    parts = {**versions(), **target.key_parts()}
    key = key_of("plan", program=program_text(goal), options=options, **parts)
    return Region(subgraph, goal, program.outputs, key, target.floor_us(goal) or 0.0)


def known_decision(region: Region, target: Target, ledger: Ledger) -> Decision | None:
    """Return the decision on a region that was made before, in this process or an earlier one."""
    found = ledger.known.get(region.key.digest)
    if found is None and ledger.options.cache:
        found = _recalled(Cache.open(), region, _blank(region, target), ledger.options)
        if found is not None:
            ledger.known[region.key.digest] = found
    return found


class Contest:
    """One region against Inductor's code of it; all work is done in threads that know no compilation."""

    def __init__(self, region: Region, target: Target, ledger: Ledger) -> None:
        self.region = region
        self.target = target
        self.ledger = ledger
        self.options = ledger.options
        self.module = region.subgraph.module
        self.blank = _blank(region, target)
        self.seconds = 0.0
        self.deadline = 0.0
        self.rival: Callable[..., Any] | None = None
        self.before_us = 0.0
        self.floor_us = region.floor_us

    @property
    def gain_us(self) -> float:
        """What may be gained at most."""
        return max(self.before_us - self.floor_us, 0.0)

    def opened(self) -> Decision | None:
        """Measure Inductor's code; return a decision where nothing can be gained on it, or it failed."""
        if self.options.budget_s is None:
            late = self.ledger.inductor_s >= _MOST_INDUCTOR_S
        else:
            late = self.ledger.left_s < LEAST_S
        if late:
            return self._kept(self._without_time(self.blank))
        with self.ledger.inductors():
            found = self._guarded(self._measure_rival)
        return None if found is None else self._kept(found)

    def decided(self, seconds: float, guard: Guard | None) -> Decision:
        """Search and race for about so many seconds; return the decision."""
        known = replace(self.blank, before_us=self.before_us)
        if seconds < LEAST_S:
            return self._kept(self._without_time(known))
        self.ledger.searched += 1
        self.seconds = min(seconds, _MOST_S)
        start = time.monotonic()
        self.deadline = start + self.seconds
        with self.ledger.spending():
            found = self._guarded(lambda: self._search(known, guard))
        assert found is not None
        late = not found.taken and time.monotonic() > self.deadline - _NEAR_S
        return self._kept(replace(found, open=found.open or late, seconds=time.monotonic() - start))

    def _without_time(self, known: Decision) -> Decision:
        left = f"{self.ledger.left_s:.0f} of {self.ledger.budget_s:.0f} s of the budget are left"
        return replace(known, why=f"no time: {left}", open=True)

    def _guarded(self, work: Callable[[], Decision | None]) -> Decision | None:
        """Do some work; whatever goes wrong leaves the region to Inductor."""
        try:
            return alone(work)
        except torch.OutOfMemoryError as error:
            found = replace(self.blank, why=f"out of memory: {_line(error)}")
        except Exception as error:  # no fault of ours may stop the compilation of a model
            found = replace(self.blank, why=f"failed: {type(error).__name__}: {_line(error)}")
        log.warning("%s [%s] is left to Inductor: %s", found.operators, found.inputs, found.why)
        return found

    def _kept(self, found: Decision) -> Decision:
        """Note a decision for this model, and for later processes."""
        found = replace(found, budget_s=self.ledger.budget_s)
        self.ledger.known[self.region.key.digest] = found
        if self.options.cache and (self.options.budget_s is None or self.options.budget_s > 0):
            cache = Cache.open()
            before = cache.get(self.region.key)
            if found.taken and before is not None and before.data.get("open"):
                next_generation()  # graphs that Inductor keeps were made without it
            cache.put(self.region.key, _record(found))
        return found

    def _measure_rival(self) -> Decision | None:
        copies = self._copies()
        self.rival = compiled_by_inductor(self.module, copies[0], self.options.inductor)
        timed = self.target.measure({"inductor": self.rival}, copies, seconds=_RIVAL_S)
        self.before_us = before = timed["inductor"].median_us
        if before < self.floor_us:
            self._lower_floor()
        known = replace(self.blank, before_us=before)
        if before < _TOO_SHORT_US:
            return replace(known, why=f"too short: a call costs what could be gained in {before:.0f} µs")
        if before < _NO_ROOM * self.floor_us:
            return replace(known, why="Inductor is at the floor, which its bytes and its arithmetic take")
        return None

    def _lower_floor(self) -> None:
        """Measure the device again: its rates are of a moment when it was busy. Else no floor is believed."""
        self.target.renew()
        floor = self.target.floor_us(self.region.goal) or 0.0
        self.floor_us = floor if floor <= self.before_us else 0.0
        self.blank = replace(self.blank, floor_us=self.floor_us or None)

    def _search(self, known: Decision, guard: Guard | None) -> Decision:
        copies = self._copies()
        rival = self.rival
        assert rival is not None
        within = Within(self.deadline, self.before_us, guard)
        best = optimize(
            self.module,
            *self.region.subgraph.example(),
            name=self.region.goal.name,
            options=self._settings(),
            within=within,
        )
        if best.fused is None or any(plan.chosen is None for plan in best.regions):
            return replace(known, why=f"no kernels: {_reason(best.regions)}")
        after = sum(part.chosen.us for part in best.regions if part.chosen)
        if after > _FAR * self.before_us:
            slower = f"{self.before_us / after:.2f} times Inductor's speed, {WIN} is needed"
            return replace(known, after_us=after, why=slower)
        verdicts = dict.fromkeys(str(part.chosen.verdict) for part in best.regions if part.chosen)
        known = replace(known, verdict="; ".join(verdicts))
        plan = plan_text(self.region.goal, best.regions, self.target.name)
        runner = runner_of(plan)
        runner.by_kernels(dict(zip(runner.inputs, self._read(copies[0], runner.inputs), strict=True)))
        if self.region.subgraph.symbols and (why := self._other_sizes(plan)):
            return replace(known, why=why)
        ours = compiled_by_inductor(self._calling(plan), copies[0], self.options.inductor)
        if self.options.verify:
            report = compare_floats(self.module, ours, copies[0], seed=1, distributions=_CALLED)
            known = replace(known, verdict=f"{known.verdict}; {report}")
            if not report.ok:
                return replace(known, why="not as accurate as PyTorch")
        seconds = min(1.5, 0.1 * self.seconds)
        raced = self._race(ours, rival, copies, seconds)
        if raced.speedup >= WIN and not raced.sure and time.monotonic() + 2 * seconds < self.deadline:
            raced = self._race(ours, rival, copies, 2 * seconds)
        return self._judged(known, raced, plan)

    def _race(self, ours: Any, rival: Any, copies: list[tuple[Tensor, ...]], seconds: float) -> HeadToHead:
        contenders = {"superopt": ours, "inductor": rival}
        return self.target.confirm(contenders, "superopt", "inductor", copies, seconds=seconds)

    def _judged(self, known: Decision, raced: HeadToHead, plan: str) -> Decision:
        times = raced.measurements
        known = replace(known, before_us=times["inductor"].median_us, after_us=times["superopt"].median_us)
        won = raced.winner == "superopt"
        told = f"{raced.speedup if won else 1 / raced.speedup:.2f} times Inductor's speed"
        if not won or raced.speedup < WIN:
            return replace(known, why=f"{told}, {WIN} is needed")
        if not raced.sure:  # a quieter moment may tell
            return replace(known, why=f"{told}, but ahead in {raced.share:.0%} of the rounds only", open=True)
        return replace(known, taken=True, plan=plan, why=told)

    def _settings(self) -> OptimizeOptions:
        return OptimizeOptions(
            target=self.target.name,
            preset=self.options.preset,  # type: ignore[arg-type]
            seconds=_RACING * self.seconds,
            graphs=_GRAPHS[self.options.preset],
            torch_compile=False,
            cache=self.options.cache,
            search=SearchOptions(seconds=_SEARCHING * self.seconds),
        )

    def _calling(self, plan: str) -> fx.GraphModule:
        """Return a module that calls the region's operator, so that both contenders have the same host."""
        goal = self.region.goal
        graph = fx.Graph()
        given = [graph.placeholder(f"x{at}") for at in range(len(self.region.subgraph.inputs))]
        made = graph.call_function(REGION, (plan, self._read(given, [port.name for port in goal.inputs])))
        places = {output.port.name: at for at, output in enumerate(goal.outputs)}
        items = [graph.call_function(operator.getitem, (made, places[name])) for name in self.region.names]
        graph.output(tuple(items))
        return fx.GraphModule(torch.nn.Module(), graph, "Planned")

    @staticmethod
    def _read(given: Any, names: Any) -> list[Any]:
        return [given[int(name.removeprefix("x"))] for name in names]

    def _other_sizes(self, plan: str) -> str | None:
        """Return why a plan does not serve other sizes, or None where it does."""
        subgraph = self.region.subgraph
        found = _resized(subgraph)
        if found is None:
            return "no other sizes fit together"
        example, program = found
        if not same_program(program, _traced(subgraph, subgraph.example())):
            return "another program at other sizes"
        runner = runner_of(plan)

        def ours(*tensors: Tensor) -> Any:
            made = dict(zip(runner.outputs, runner.by_kernels(self._known(runner, tensors)), strict=True))
            return [made[name] for name in self.region.names]

        try:
            report = compare_floats(self.module, ours, self._drawn(example), distributions=_CALLED)
        except SuperoptError as error:
            return f"its kernels do not take other sizes: {_line(error)}"
        return None if report.ok else "wrong at other sizes"

    def _known(self, runner: Any, tensors: Any) -> dict[str, Tensor]:
        return dict(zip(runner.inputs, self._read(tensors, runner.inputs), strict=True))

    def _copies(self) -> list[tuple[Tensor, ...]]:
        """Return random inputs, several times over, so that no cache holds them all."""
        drawn = self._drawn(self.region.subgraph.example())
        size = sum(tensor.numel() * tensor.element_size() for tensor in drawn)
        count = max(2, min(_MOST_COPIES, _COPIES_BYTES // max(size, 1)))
        return [drawn] + [tuple(map(torch.clone, drawn)) for _ in range(count - 1)]

    def _drawn(self, example: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
        drawn = tensors_of(sample("normal", example))
        return tuple(tensor.to(self.target.torch_device) for tensor in drawn)


def _traced(subgraph: Subgraph, example: tuple[Tensor, ...]) -> Program:
    program = alone(lambda: trace(subgraph.module, *example, name="region")).program
    if program.opaque:
        listed = "; ".join(f"{node.target}: {node.reason}" for node in program.opaque)
        raise OpaqueError(listed, tuple(node.target for node in program.opaque))
    if len(program.regions) != 1:
        raise SuperoptError(f"it is {len(program.regions)} regions")
    return program


class OpaqueError(SuperoptError):
    """A piece holds operators that are no algebra in the form they have there."""

    def __init__(self, message: str, targets: tuple[str, ...]) -> None:
        super().__init__(message)
        self.targets = targets


def _others(subgraph: Subgraph, apart: int = 2) -> dict[Any, int]:
    """Return other sizes of all symbols, each by so much more than the one before."""
    return {symbol: size + 3 + apart * at for at, (symbol, size) in enumerate(subgraph.hints().items())}


def _resized(subgraph: Subgraph) -> tuple[tuple[Tensor, ...], Program] | None:
    """Return inputs of other sizes and what is traced of them, or None where they cannot be had.

    Symbols may depend on one another without a word, as the lengths of keys and of their mask do: where
    sizes that grow differently do not fit together, all grow by as much.
    """
    for apart in (2, 0):
        example = subgraph.example(_others(subgraph, apart))
        try:
            return example, _traced(subgraph, example)
        except (SuperoptError, RuntimeError):  # ours, or PyTorch's of shapes that do not match
            continue
    return None


def _blank(region: Region, target: Target) -> Decision:
    inputs = ", ".join(
        f"{port.dtype}{list(region.goal.shape(port))}".replace(" ", "") for port in region.goal.inputs
    )
    nodes = region.subgraph.piece.nodes
    flops, moved = sum(map(flops_of, nodes)), sum(map(bytes_of, nodes))
    floor = region.floor_us or None
    return Decision(listed(nodes), inputs, False, "", flops=flops, bytes=moved, floor_us=floor)


def _reason(plans: tuple[RegionPlan, ...]) -> str:
    for plan in plans:
        for one in plan.candidates:
            if plan.chosen is None and one.rejected:
                return one.rejected
    return "none could be made"


# -- decisions of earlier runs

_KEPT: Mapping[str, type | tuple[type, ...]] = {
    "taken": bool,
    "why": str,
    "before_us": (int, float, type(None)),
    "after_us": (int, float, type(None)),
    "verdict": str,
    "plan": (str, type(None)),
    "open": bool,
    "budget_s": (int, float),
}


def _record(found: Decision) -> Record:
    return Record({name: getattr(found, name) for name in _KEPT}, found.operators)


def _recalled(cache: Cache, region: Region, blank: Decision, options: BackendOptions) -> Decision | None:
    """Return an earlier decision, unless there is more time for it now; a plan is proven equal again."""
    record = cache.get(region.key)
    if record is None:
        return None
    data = record.data
    if any(not isinstance(data.get(name), kind) for name, kind in _KEPT.items()):
        return None
    found = replace(blank, recalled=True, **{name: data[name] for name in _KEPT})
    more = options.retry or (options.budget_s is not None and options.budget_s > found.budget_s)
    if found.open and more:
        return None
    if not found.taken:
        return found
    try:
        runner = runner_of(str(found.plan))
        if print_graph(runner.goal) != print_graph(region.goal):
            raise SuperoptError("it is for another region")
        runner.prove()
    except SuperoptError as error:
        log.warning("cache: a plan of %s is not used: %s", found.operators, _line(error))
        return None
    return found


def _line(error: BaseException) -> str:
    return next(iter(str(error).splitlines()), "") or type(error).__name__
