"""Run: a search of a whole program, region by region, within limits of time that Ctrl-C may cut short."""

import hashlib
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from superopt.clock import Clock
from superopt.driver.derived import search_further
from superopt.driver.found import (
    Found,
    Phase,
    Progress,
    RegionSearch,
    Search,
    SearchOptions,
    SearchStatistics,
    by_bound,
    prove_found,
    select_best,
)
from superopt.errors import InputError
from superopt.frontier.engine import explore
from superopt.frontier.engine.engines import transport_named
from superopt.frontier.engine.interface import Exploration, LevelStats, Limits
from superopt.frontier.interrupts import interrupts_noted
from superopt.frontier.tensors.bound import Machine, bound_of
from superopt.frontier.tensors.derive import derive
from superopt.frontier.tensors.graphs import canonical, graph_of
from superopt.frontier.tensors.grid import Grid, fits
from superopt.frontier.tensors.space import TensorSpace
from superopt.frontier.tensors.split import merge_halves, split_reductions
from superopt.frontier.tensors.universe import Universe, universe_of
from superopt.ir import REDUCTIONS, Graph, Program, Region, Split, release_shifts
from superopt.ir.windows.apart import halves_of
from superopt.rules.axioms import Axiom
from superopt.rules.derivations import Refinement
from superopt.rules.discover.axioms import axioms_from
from superopt.rules.saturate import NO_TABLE, SaturationLimits, Table, saturate
from superopt.rules.terms import Goal, goal_of
from superopt.weights.division import check_weights

__all__ = ["search"]

ProgressListener = Callable[[Progress], None]

_TOO_MANY_REDUCTIONS = 12  # a goal with more is cut before it is tried
_SPLIT_BELOW = 2_000  # e-nodes of the whole goal
# Nodes limit first, the same on every machine; seconds only stop what has gone astray.
_FIRST_TRY = SaturationLimits(nodes=30_000, seconds=8.0)
_LAST_TRY = SaturationLimits(nodes=60_000, seconds=15.0)
_ORACLE_S = 20.0
# The share of a search's time that is kept for proofs; graphs with windows get no more than that. And the
# share of the time left that exploring may take: deriving graphs from what was explored takes the rest.
_PROOFS, _EXPLORING = 0.1, 0.75
_LATE_GRAPHS = 4  # the cheapest graphs, which are made even when time is over
_QUESTION_MS = 50
_VALUE_BYTES = 400 << 20  # memory for field values, each tensor on the whole grid
_DEFAULTS = SearchOptions()
_NOTHING = SearchStatistics(0, 0, 0, 0, 0, 0, (), {}, {})


def search(
    function: Any,
    *inputs: Any,
    name: str | None = None,
    options: SearchOptions = _DEFAULTS,
    on_progress: ProgressListener | None = None,
) -> Search:
    """Return all equivalent graphs that a search finds for a function, a module, a Graph or a Program.

    Shifts of exponentials that would do with any other value, such as the maximum that a softmax written
    by hand takes away, are left out of the goals: a schedule chooses them again.
    """
    start = time.perf_counter()
    _check_options(options)
    run = _Run(options, start + options.seconds, on_progress or (lambda progress: None))
    run.more_axioms = axioms_from(options.rules) if options.rules is not None else ()
    program = _program_of(function, inputs, name, run)
    regions: list[RegionSearch] = []
    for number, region in enumerate(program.regions, 1):
        run.region, run.regions = number, len(program.regions)
        regions += run.search_or_stop(release_shifts(region.graph))
    run.report("done", program.name)
    return Search(program.name, program, tuple(regions), time.perf_counter() - start, run.interrupted)


def _check_options(options: SearchOptions) -> None:
    for name in ("workers", "max_graphs", "rows"):
        value = getattr(options, name)
        if not isinstance(value, int) or value < 1:
            raise InputError(f"{name} is {value!r}; give a whole number of at least 1")
    if not options.seconds > 0:
        raise InputError(f"seconds is {options.seconds!r}; give a time above 0")
    if options.prune not in ("egraph", "z3", "none"):
        raise InputError(f"prune is {options.prune!r}; choose egraph, z3 or none")
    check_weights(options.weights)
    if options.resume and options.checkpoint is None:
        raise InputError("resume needs the folder of the checkpoints to resume from: give checkpoint")


def _program_of(function: Any, inputs: tuple[Any, ...], name: str | None, run: "_Run") -> Program:
    if isinstance(function, (Graph, Program)):
        if inputs:
            raise InputError(f"a {type(function).__name__} brings its own inputs; {len(inputs)} were given")
        if isinstance(function, Program):
            return function
        outputs = tuple(output.port.name for output in function.outputs)
        return Program(name or function.name, function.inputs, (Region(function),), outputs)
    from superopt.trace import trace

    run.report("trace", name or str(getattr(function, "__name__", type(function).__name__)))
    return trace(function, *inputs, name=name).program


@dataclass(slots=True)
class _Run:
    """One search: its options, its deadline, and whether Ctrl-C asked it to stop."""

    options: SearchOptions
    deadline: float
    listener: ProgressListener
    region: int = 1
    regions: int = 1
    interrupted: bool = False
    more_axioms: tuple[Axiom, ...] = ()

    def report(self, phase: Phase, name: str, level: LevelStats | None = None) -> None:
        """Tell the listener what is going on."""
        self.listener(Progress(phase, self.region, self.regions, name, level))

    @property
    def seconds_left(self) -> float:
        """The time until nothing more is looked for, so that what was found can be proven."""
        return max(self.proving_seconds_left - _PROOFS * self.options.seconds, 0.0)

    @property
    def proving_seconds_left(self) -> float:
        """The time until the deadline."""
        return max(self.deadline - time.perf_counter(), 0.0)

    @property
    def limit(self) -> str:
        """What ends the search when `out_of_time` says so."""
        return "interrupted" if self.interrupted else f"seconds limit ({self.options.seconds:g} s)"

    def out_of_time(self) -> bool:
        """Whether to stop and give the best so far."""
        return self.interrupted or self.seconds_left <= 0

    def search_or_stop(self, graph: Graph) -> list[RegionSearch]:
        """Search a graph; Ctrl-C stops the search with the best so far, also between phases that note it."""
        try:
            return list(self.search_graph(graph))
        except KeyboardInterrupt:
            if self.interrupted:
                raise
            self.interrupted = True
            return list(self.search_graph(graph))

    def search_graph(self, graph: Graph) -> Iterator[RegionSearch]:
        """Search a graph whole, or in parts where it is too large to be one goal."""
        clock = Clock()
        if self.out_of_time():
            yield self._leave_as_it_came(graph)
            return
        large = sum(step.op in REDUCTIONS for step in graph.steps) > _TOO_MANY_REDUCTIONS
        halves = halves_of(graph) if large else None
        attempt = None
        late: tuple[str, ...] = ()
        if halves is None:
            attempt = self._prepare(graph, clock)
            large = not fits(attempt.goal)
            if (attempt.table.truncated or large) and not self.out_of_time():
                halves = halves_of(graph)  # a goal too large for its e-graph, or its grid, is two goals
                late = attempt.late
                if halves is None and large:
                    yield self._leave_as_it_came(graph, f"{len(attempt.goal.groups)} axes are too many")
                    return
                if halves is None:
                    attempt = self._prepare(graph, clock, last=True)
        if halves is not None:
            for half in halves:
                for region in self.search_or_stop(half):
                    yield replace(region, truncated=(*late, *region.truncated))
        elif attempt is None or self.out_of_time():
            yield self._leave_as_it_came(graph)
        elif self.options.prune == "egraph" and not attempt.table.roots:
            yield self._leave_as_it_came(graph, f"saturation: {attempt.table.truncated}")
        else:
            region = self._search_goal(attempt, clock)
            further = attempt.goal.windows and self.options.split
            yield search_further(region, partial(self._search_along, clock), self) if further else region

    def _search_along(self, clock: Clock, graph: Graph, refinement: Refinement) -> RegionSearch | None:
        """Search a graph with new axes; None where it would be too large."""
        limits = replace(_FIRST_TRY, seconds_left=self.seconds_left)
        with clock.phase("saturate"), interrupts_noted(self):
            self.report("saturate", graph.name)
            names = [axis.name for axis in refinement.axes]
            goal = goal_of(refinement.of(graph), names, refinement.rules)
            if not fits(goal) or self.options.prune != "egraph":
                return None
            attempt = replace(self._attempt(goal.graph, goal, {}, limits), is_refined=True)
        if attempt.late:
            return RegionSearch(graph, (), replace(_NOTHING, phase_ms=clock.ms), attempt.late)
        return None if attempt.table.truncated else self._search_goal(attempt, clock)

    def _prepare(self, graph: Graph, clock: Clock, *, last: bool = False) -> "_Attempt":
        """Saturate a goal, and where it is small enough once more with its reductions split."""
        limits = replace(_LAST_TRY if last else _FIRST_TRY, seconds_left=self.seconds_left)
        with clock.phase("saturate"), interrupts_noted(self):
            self.report("saturate", graph.name)
            whole = self._saturate(graph, graph, {}, limits)
            if not self.options.split or whole.goal.windows or whole.table.truncated or self.out_of_time():
                return whole
            split, halves = split_reductions(graph)
            if not halves:
                return whole
            if whole.table.nodes > _SPLIT_BELOW:
                note = f"reductions stay whole: over {_SPLIT_BELOW:,} e-nodes they are not split"
                return replace(whole, notes=(note,))
            limits = replace(limits, seconds_left=self.seconds_left)
            attempt = self._saturate(graph, split, halves, limits)
        if not fits(attempt.goal):
            return replace(whole, notes=("reductions stay whole: with them split there are too many axes",))
        if attempt.table.truncated:
            why = f"reductions stay whole: {attempt.table.truncated}"
            return replace(whole, cut=(why,)) if attempt.late else replace(whole, notes=(why,))
        return attempt

    def _saturate(
        self,
        graph: Graph,
        refined: Graph,
        halves: Mapping[str, tuple[str, str]],
        limits: SaturationLimits,
    ) -> "_Attempt":
        goal = goal_of(refined, (half for pair in halves.values() for half in pair))
        return self._attempt(graph, goal, halves, limits)

    def _attempt(
        self, graph: Graph, goal: Goal, halves: Mapping[str, tuple[str, str]], limits: SaturationLimits
    ) -> "_Attempt":
        if self.options.prune != "egraph":  # the ablations do without an e-graph
            return _Attempt(graph, goal, halves, NO_TABLE)
        weights = self.options.weights != "live" and any(port.constant for port in graph.inputs)
        table = saturate(goal, limits, self.out_of_time, self.more_axioms, weights=weights)
        return _Attempt(graph, goal.with_constants(table.constants), halves, table)

    def _leave_as_it_came(self, graph: Graph, why: str = "") -> RegionSearch:
        """Return a region as it came: there is no time left for it, unless another reason is given."""
        why = why or self.limit
        original = canonical(graph)
        found = Found(original, bound_of(original, (), self.options.weights), None, is_original=True)
        proven, _ = prove_found(graph, (found,), self.options.seed, self.proving_seconds_left)
        return RegionSearch(graph, proven, replace(_NOTHING, graphs=1), (why,))

    def _search_goal(self, attempt: "_Attempt", clock: Clock) -> RegionSearch:
        graph, goal, table = attempt.graph, attempt.goal, attempt.table
        machine = Machine()
        truncated = [f"saturation: {table.truncated}"] if table.truncated else list(attempt.late)
        with clock.phase("explore"):
            space = TensorSpace(
                goal,
                table,
                Grid(goal, seed=self.options.seed or 0),
                prune=self.options.prune,
                oracle=self._oracle(attempt),
                stop=self.out_of_time,
                nested={goal.bit(outer): goal.bit(inner) for outer, inner in attempt.halves.values()},
            )
            exploration = self._explore(space, attempt)
            if exploration.stopped:
                truncated.append(f"exploration: {exploration.stopped}")
                self.interrupted |= exploration.stopped == "interrupted"
        with clock.phase("derive"), interrupts_noted(self):
            self.report("derive", graph.name)
            universe = universe_of(space, exploration, machine, self.options.weights)
            found, graphs, cut = self._derive(attempt, universe, machine)
            reached = None not in universe.roots
        with clock.phase("verify"), interrupts_noted(self):
            self.report("verify", graph.name)
            proven, late = prove_found(graph, found, self.options.seed, self._proving_s(attempt.goal))
        if not truncated:  # a phase that was cut cuts those after it
            short = {"derivation": cut, "proofs": late}
            truncated += [f"{phase}: {self.limit}" for phase, ended in short.items() if ended]
        notes = attempt.notes
        if len(proven) < len(found):
            notes += (
                f"{len(found) - len(proven)} of {len(found)} graphs are left out: not shown to be equal",
            )
        statistics = SearchStatistics(
            e_nodes=table.nodes,
            e_classes=table.classes,
            rounds=table.rounds,
            tensors=universe.tensors,
            derivations=len(exploration.arcs),
            graphs=graphs,
            levels=exploration.levels,
            pruned=exploration.counts,
            phase_ms=clock.ms,
        )
        return RegionSearch(graph, proven, statistics, tuple(truncated), notes, reached)

    def _proving_s(self, goal: Goal) -> float:
        """Return the seconds for proofs of what was found for a goal, a few even where time is over."""
        kept_s = _PROOFS * self.options.seconds
        return kept_s if goal.windows else max(kept_s, self.proving_seconds_left)

    def _explore(self, space: TensorSpace, attempt: "_Attempt") -> Exploration:
        checkpoint, name = None, attempt.graph.name
        if self.options.checkpoint is not None:
            self.options.checkpoint.mkdir(parents=True, exist_ok=True)
            # Which goals with new axes are searched depends on what was found before.
            end = f".{_digest(space.fingerprint())}" if attempt.is_refined else ""
            checkpoint = self.options.checkpoint / f"{name}{end}.ckpt"
        return explore(
            space,
            workers=self.options.workers,
            transport=transport_named(self.options.engine),
            limits=Limits(
                seconds=_EXPLORING * self.seconds_left,
                rows=min(self.options.rows, _VALUE_BYTES // space.grid.value_bytes),
            ),
            keep_arcs=True,
            checkpoint=checkpoint,
            resume=self.options.resume and checkpoint is not None and checkpoint.exists(),
            on_level=lambda level: self.report("explore", name, level),
        )

    def _oracle(self, attempt: "_Attempt") -> Any:
        """Return z3 where it is to be asked: when told to, or when saturation was cut short."""
        if self.options.prune == "none" or (self.options.prune == "egraph" and not attempt.table.truncated):
            return None
        if attempt.goal.windows:
            return None  # z3 is told nothing of windows
        from superopt.rules.smt import SubexpressionOracle

        return SubexpressionOracle(
            attempt.goal, timeout_ms=_QUESTION_MS, budget_s=min(_ORACLE_S, self.seconds_left / 2)
        )

    def _derive(
        self, attempt: "_Attempt", universe: Universe, machine: Machine
    ) -> tuple[tuple[Found, ...], int, bool]:
        """Return the best graphs with the goal, how many there were, and whether time ended it."""
        original = canonical(attempt.graph)
        graphs: dict[str, tuple[Graph, tuple[Split, ...]]] = {str(original): (original, ())}
        roots = [root for root in universe.roots if root is not None]
        cut = False
        if len(roots) == len(universe.roots):
            most = 4 * self.options.max_graphs

            def stop() -> bool:
                nonlocal cut
                cut = self.out_of_time()
                return cut

            derivations, _ = derive(universe.arcs, roots, count=most, pass_us=machine.pass_us, stop=stop)
            for derivation in derivations:
                if len(graphs) > _LATE_GRAPHS and stop():
                    break
                made = graph_of(attempt.goal, tuple(roots), derivation)
                merged, left = merge_halves(made, attempt.halves)
                merged = canonical(merged, attempt.graph)
                graphs.setdefault(str(merged), (merged, left))
        found = [
            Found(graph, bound_of(graph, left, self.options.weights), None, left, text == str(original))
            for text, (graph, left) in graphs.items()
        ]
        found.sort(key=by_bound)
        return select_best(found, self.options.max_graphs), len(found), cut


@dataclass(frozen=True, slots=True)
class _Attempt:
    """A goal on its way: as it was, as terms, its split axes, and its saturated table."""

    graph: Graph
    goal: Goal
    halves: Mapping[str, tuple[str, str]]
    table: Table
    notes: tuple[str, ...] = ()
    cut: tuple[str, ...] = ()  # what was given up because it took too long
    is_refined: bool = False  # whether the goal has axes that only rules of its windows name

    @property
    def late(self) -> tuple[str, ...]:
        """What more time might have changed."""
        if not self.table.late:
            return self.cut
        return (f"saturation: {self.table.truncated or 'it took too long with its constants'}", *self.cut)


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()[:12]
