"""Search: the schedules of a graph that are worth a look, the best first, and why others are dropped.

In the default recipe and in recipes of other shape, reduced axes are split; then the best few recipes are
changed in one decision after another. A decision is judged by the estimate of the muGraph that it leads to; a
schedule that takes several times as long as the best is dropped. Estimates are lower bounds and many are
equal, so the kept schedules are varied: a schedule weighs more, the more of its kind are kept already.
"""

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from math import inf
from typing import Protocol

from superopt.cost import Device, Estimate, estimate
from superopt.errors import GraphError, InputError
from superopt.fate import Fate, Kind
from superopt.ir import Graph, MuGraph, Split
from superopt.precision import wide_values
from superopt.schedule.moves import Refused, matmuls_of, moves_from, shapes_of, splits_from
from superopt.schedule.recipe import Prepared, Recipe, followed, prepared, recipe_name

__all__ = ["Dropped", "FoundGraph", "Scheduled", "Schedules", "explored", "rank", "schedules"]

_FAR = 3.0  # a schedule estimated to take this many times the best one's time is dropped,
# or this many where estimates are times. On two machines, the fastest way to run each program of bench.costs
# was estimated at 1.44 times the least estimate at most, and nearly always below 1.1.
_FAR_TIMED = 1.6
_TIMED = 0.2  # the share of what is added for likeness that is left where estimates are times
# Added to the weight of a schedule, as a share of its estimate, for each decision unlike the default's.
_DECISION = 0.02
_SPARE = 2  # programs for each core: while one waits for memory another one runs
_IDEA = 0.1  # added for each idea that it shares with a schedule that is kept
_KIND = 0.05  # added for each kept schedule of its kind
_GRAPH = 0.02  # added for each kept schedule of its graph
_WORK = 1500  # recipes tried for one graph, times its steps
_CHANGED = 2  # recipes that are changed further, the best first
_SMALLER = (512, 64, 1)  # positions of whole axes, tried in turn where a program would hold too much
_LOOKED_AT = 12  # schedules of several kernels, for some with fp32 between them
_WIDENED = 2  # schedules that are kept with fp32 between their kernels as well
_GRAPHS = 3  # graphs whose recipes are changed further, the best first


@dataclass(frozen=True, slots=True)
class Scheduled:
    """One way to run a graph."""

    id: str  # the number of its graph, and its own among the schedules tried for that graph
    name: str  # the name that people read
    mugraph: MuGraph
    estimate: Estimate
    library: bool  # whether some kernel is a call of a library
    number: int  # the number of its graph among the given ones, from 1
    recipe: Recipe


@dataclass(frozen=True, slots=True)
class Dropped:
    """A schedule that is not kept, and its fate."""

    id: str
    name: str  # the name that people read
    fate: Fate


@dataclass(frozen=True, slots=True)
class Schedules:
    """The kept schedules, the best first, and the dropped ones."""

    kept: tuple[Scheduled, ...]
    dropped: tuple[Dropped, ...]


Misfit = Callable[[MuGraph], str | None]
"""Returns why a kernel of a muGraph cannot run on its device, or None where all kernels can."""


def _fits(mugraph: MuGraph) -> None:
    """Every kernel fits."""


@dataclass(frozen=True, slots=True)
class _Rules:
    """What limits the schedules that are tried: calls of a library, the device, and the time."""

    library: bool
    misfit: Misfit
    late: Callable[[], bool] = lambda: False


class FoundGraph(Protocol):
    """A graph that a search found."""

    @property
    def graph(self) -> Graph:
        """The graph, its shifts still free."""

    @property
    def splits(self) -> Sequence[Split]:
        """The axes that the search split, in parts of equal length."""

    @property
    def is_original(self) -> bool:
        """Whether it is the one that the search began with."""


def schedules(
    graph: Graph,
    device: Device,
    *,
    library: bool = True,
    keep: int = 8,
    name: str = "graph",
    splits: Sequence[Split] = (),
    misfit: Misfit = _fits,
) -> Schedules:
    """Return the best ways to run a graph on a device, the default one among them; see `rank`.

    `splits` are axes that the graph has in parts of equal length; raises GraphError where it needs them so.
    """
    _check_keep(keep)
    explorer = _Explorer(graph, device, 1, splits, _Rules(library, misfit), name)
    if explorer.refused is not None:
        raise explorer.refused
    explorer.begin()
    explorer.change()
    required = [explorer.default, *_widened([explorer])]
    return _selected([explorer], keep, required[:keep])


def rank(
    found: Sequence[FoundGraph],
    device: Device,
    *,
    library: bool = True,
    keep: int = 8,
    misfit: Misfit = _fits,
    late: Callable[[], bool] = lambda: False,
) -> Schedules:
    """Return the best ways to run any of several equal graphs, of those tried until it is too `late`.

    A graph that needs an axis in equal parts is left out: it runs at few sizes only. A schedule that `misfit`
    refuses is dropped, and a schedule of smaller kernels is tried instead; the default schedule stays if no
    other is left.

    Where estimates are bounds, the default schedule of the original graph always stays and, if there is room,
    the best default schedule. On a CPU, whose libraries are hard to beat, the best schedule that calls a
    library stays, unless its estimate is far off.
    """
    _check_keep(keep)
    explorers, refused = _begun(found, device, _Rules(library, misfit, late))
    if not explorers:
        return Schedules((), refused)
    originals = _changed(explorers, found)
    defaults = [] if device.timed else [explorer.default for explorer in originals]
    required = list(defaults)
    called = [one for explorer in explorers for one in explorer.made.values() if one.library]
    if device.kind == "cpu" and called:
        required.append(min(called, key=_order))
    if not device.timed:
        required.append(min((explorer.default for explorer in explorers), key=_order))
    required += _widened(explorers)
    best = _selected(explorers, keep, required[: max(keep, len(defaults))])
    return replace(best, dropped=(*refused, *best.dropped))


def explored(
    found: Sequence[FoundGraph], device: Device, *, library: bool = True, misfit: Misfit = _fits
) -> tuple[Scheduled, ...]:
    """Return every way to run equal graphs that `rank` chooses from, in no order."""
    explorers, _ = _begun(found, device, _Rules(library, misfit))
    _changed(explorers, found)
    return tuple(one for explorer in explorers for one in explorer.made.values())


_Begun = tuple[list["_Explorer"], tuple[Dropped, ...]]


def _begun(found: Sequence[FoundGraph], device: Device, rules: _Rules) -> _Begun:
    """Return the graphs with the schedules that all begin with, and those that have none."""
    every = [_Explorer(one.graph, device, at, one.splits, rules) for at, one in enumerate(found, 1)]
    refused = [
        _dropped(f"{one.number}", one.name, Kind.REFUSED, str(one.refused))
        for one in every
        if one.refused is not None
    ]
    explorers = [one for one in every if one.refused is None]
    for explorer in explorers:
        explorer.begin()
    return explorers, tuple(refused)


def _changed(explorers: "Sequence[_Explorer]", found: Sequence[FoundGraph]) -> "list[_Explorer]":
    """Change the schedules of the best graphs further, and of the original ones, which are returned."""
    by_time = sorted(explorers, key=lambda explorer: explorer.best_us)
    originals = [explorer for explorer in explorers if found[explorer.number - 1].is_original]
    for explorer in dict.fromkeys((*by_time[:_GRAPHS], *originals)):
        explorer.change()
    return originals


def _check_keep(keep: int) -> None:
    if keep < 1:
        raise InputError(f"keep is {keep}; give a number of schedules from 1 up")


def _score(one: Scheduled) -> float:
    """Return the estimate of a schedule, with a little added for its decisions and for idle cores."""
    if not one.estimate.kernels:  # the graph has nothing but views
        return one.estimate.us
    slowest = max(one.estimate.kernels, key=lambda kernel: kernel.us)
    idle = max(1 - slowest.programs / (_SPARE * one.estimate.device.cores), 0.0)
    return one.estimate.us * (1 + _DECISION * (one.recipe.changes + idle))


def _order(one: Scheduled) -> tuple[float, int, int, str]:
    return round(_score(one), 3), one.recipe.changes, one.number, one.name


class _Explorer:
    """The schedules of one graph that were tried so far."""

    def __init__(
        self,
        graph: Graph,
        device: Device,
        number: int,
        halves: Sequence[Split],
        rules: _Rules,
        name: str = "",
    ) -> None:
        self.graph = graph
        self.halves = tuple(halves)
        self.device = device
        self.name = name or f"graph {number}"
        self.number = number
        self.rules = rules
        self.unfit: dict[Recipe, Scheduled] = {}  # the default and other shapes that do not fit the device
        self.shapes: tuple[Recipe, ...] = ()  # the recipes that all others are changes of
        self.ready: dict[tuple[tuple[str, int], ...], Prepared | GraphError] = {}
        self.tried: set[Recipe] = set()
        self.seen: dict[object, str | None] = {}  # why a muGraph does not fit, by the choices that make it
        self.made: dict[Recipe, Scheduled] = {}
        self.untried = 0
        self.ids = 0
        self.dropped: dict[str, Dropped] = {}

    @property
    def refused(self) -> GraphError | None:
        """Why a graph has no schedule at all: its axes must be cut into parts of equal length."""
        ready = self._prepared(())
        return ready if isinstance(ready, GraphError) else None

    @property
    def default(self) -> Scheduled:
        """The default schedule, or the nearest to it that fits."""
        return min(self.made.values(), key=lambda one: one.recipe.changes)

    @property
    def best_us(self) -> float:
        """The least estimate."""
        return min((one.estimate.us for one in self.made.values()), default=inf)

    def begin(self) -> None:
        """Try the default and other shapes, with their reduced axes whole and in parts."""
        ready = self._prepared(())
        assert isinstance(ready, Prepared)
        self.shapes = tuple(shapes_of(ready))
        for shape in self.shapes:
            one = self._try(shape)
            if one is not None and one.recipe.online:
                self._split(one)
        self.made = self.made or {**self.unfit}  # what fits may be a change of any of them

    def change(self) -> None:
        """Change the best recipes, and then the best results once more."""
        for round_number in range(2):
            best = sorted(self.made.values(), key=_order)
            families: dict[Recipe, Scheduled] = {}
            for one in best:
                families.setdefault(one.recipe.family, one)
            chosen = list(families.values())[: _CHANGED - round_number]
            if round_number == 0 and self.default not in chosen:
                chosen.append(self.default)
            for one in chosen:
                ready = self._prepared(one.recipe.splits)
                assert isinstance(ready, Prepared)
                moves = moves_from(
                    ready, one.recipe, one.mugraph, one.estimate, self.device, library=self.rules.library
                )
                for recipe in list(moves):
                    self._try(recipe)
                if round_number or len(one.recipe.splits) == 1:
                    self._split(one)
        fitting = {recipe: one for recipe, one in self.made.items() if recipe not in self.unfit}
        self.made = fitting or {self.default.recipe: self.default}
        if self.untried:
            name = f"{self.name}, changed further"
            why = f"{self.untried} more schedules were not tried"
            self.dropped[name] = _dropped(f"{self.number}.more", name, Kind.NO_TIME, why)

    def widened(self, one: Scheduled) -> Scheduled | None:
        """Return a schedule with fp32 between its kernels.

        There is such a schedule where fp16 may lack the range, and on a CPU, which computes in fp32.
        """
        wanted = wide_values(one.mugraph) or (self.device.kind == "cpu" and one.mugraph.rounded)
        if not wanted or one.recipe.wide:
            return None
        return self._try(replace(one.recipe, wide=True), surely=True)

    def _split(self, one: Scheduled) -> None:
        ready = self._prepared(one.recipe.splits)
        assert isinstance(ready, Prepared)
        for move in splits_from(ready, one.recipe, one.mugraph, one.estimate, self.device):
            if isinstance(move, Refused):
                self._drop(move.recipe, ready, move.reason)
            else:
                self._try(move)
                self._try(replace(move, repeated=True))

    def _prepared(self, splits: tuple[tuple[str, int], ...]) -> Prepared | GraphError:
        if splits not in self.ready:
            try:
                self.ready[splits] = prepared(self.graph, splits, self.halves)
            except GraphError as error:
                self.ready[splits] = error
        return self.ready[splits]

    def _try(self, recipe: Recipe, *, surely: bool = False) -> Scheduled | None:
        """Return the schedule of a recipe, unless it is impossible or equal to an earlier schedule.

        After many recipes only simple ones are tried, and once it is late none but the first, unless this
        recipe is to be tried `surely`.
        """
        if recipe in self.tried:
            return self.made.get(recipe)
        many = len(self.tried) * len(self.graph.steps) > _WORK and recipe.changes > 1
        if not surely and (many or (self.made and self.rules.late())):
            self.untried += 1
            return None
        self.tried.add(recipe)
        ready = self._prepared(recipe.splits)
        if isinstance(ready, GraphError):
            self._drop(recipe.family, None, str(ready))
            return None
        try:
            mugraph = followed(ready, recipe)
        except GraphError as error:
            self._drop(recipe, ready, str(error))
            return None
        same = recipe.splits, mugraph.kernels, mugraph.rounded
        known = same in self.seen
        reason = self.seen[same] = self.seen[same] if known else self.rules.misfit(mugraph)
        if reason is None:
            if known:
                return None
            self.made[recipe] = self._scheduled(recipe, ready, mugraph)
            return self.made[recipe]
        if not known:
            self._drop(recipe, ready, reason)
        if replace(recipe, held=Recipe().held) in self.shapes:
            self.unfit[recipe] = self._scheduled(recipe, ready, mugraph)
        smaller = next((held for held in _SMALLER if held < recipe.held), None)
        return None if smaller is None else self._try(replace(recipe, held=smaller))

    def _scheduled(self, recipe: Recipe, ready: Prepared, mugraph: MuGraph) -> Scheduled:
        return Scheduled(
            self._id(),
            self._named(recipe, ready),
            mugraph,
            estimate(mugraph, self.device),
            bool(recipe.called),
            self.number,
            recipe,
        )

    def _named(self, recipe: Recipe, ready: Prepared) -> str:
        return recipe_name(self.name, recipe, ready.graph, matmuls_of(ready.graph))

    def _drop(self, recipe: Recipe, ready: Prepared | None, reason: str) -> None:
        known = ready or self._prepared(())
        assert isinstance(known, Prepared)
        name = self._named(recipe, known)
        self.dropped.setdefault(name, _dropped(self._id(), name, Kind.REFUSED, reason))

    def _id(self) -> str:
        """Return an id that no schedule has yet."""
        self.ids += 1
        return f"{self.number}.{self.ids}"


def _widened(explorers: Sequence[_Explorer]) -> list[Scheduled]:
    """Return the best schedules with fp32 between their kernels, where rounding there may be refused."""
    made = [(one, explorer) for explorer in explorers for one in explorer.made.values()]
    made.sort(key=lambda pair: _order(pair[0]))
    found: list[Scheduled] = []
    several = [pair for pair in made if pair[0].mugraph.rounded]
    for one, explorer in several[:_LOOKED_AT]:
        wide = explorer.widened(one)
        found += [wide] if wide is not None else []
        if len(found) == _WIDENED:
            break
    return found


def _dropped(id: str, name: str, kind: Kind, reason: str) -> Dropped:
    return Dropped(id, name, Fate("schedule", kind, reason))


def _weigher(kept: Sequence[Scheduled]) -> Callable[[Scheduled], float]:
    """Return the weight of a schedule, given the schedules that are kept."""
    ideas = Counter(idea for one in kept for idea in one.recipe.ideas)
    kinds = Counter(one.recipe.kind for one in kept)
    numbers = Counter(one.number for one in kept)

    def weight(one: Scheduled) -> float:
        alike = _IDEA * sum(ideas[idea] for idea in one.recipe.ideas)
        alike += _KIND * kinds[one.recipe.kind] + _GRAPH * numbers[one.number]
        alike *= _TIMED if one.estimate.device.timed else 1.0
        return _score(one) * (1 + alike)

    return weight


def _selected(explorers: Iterable[_Explorer], keep: int, required: Sequence[Scheduled]) -> Schedules:
    """Return the best of all schedules that were tried, varied; required schedules always stay."""
    made = [one for explorer in explorers for one in explorer.made.values()]
    dropped = [one for explorer in explorers for one in explorer.dropped.values()]
    best_us = min(one.estimate.us for one in made)
    timed = made[0].estimate.device.timed
    most_us = best_us * (_FAR_TIMED if timed else _FAR)
    # What must stay is what a bound may be wrong about; a time that is far off needs no kernel.
    wanted = [one for one in required if not timed or one.estimate.us <= most_us]

    kept = list({id(one): one for one in wanted}.values())
    left = sorted((one for one in made if all(one is not other for other in kept)), key=_order)
    far = [one for one in left if one.estimate.us > most_us]
    left = [one for one in left if one.estimate.us <= most_us]
    while left and len(kept) < keep:
        best = min(left, key=_weigher(kept))
        kept.append(best)
        left.remove(best)
    for one in far:
        reason = f"estimated at {one.estimate.us:.1f} us; the best takes {best_us:.1f} us"
        dropped.append(_dropped(one.id, one.name, Kind.SLOWER, reason))
    for one in left:
        reason = f"estimated at {one.estimate.us:.1f} us; {len(kept)} others are kept"
        dropped.append(_dropped(one.id, one.name, Kind.SLOWER, reason))
    return Schedules(tuple(sorted(kept, key=_order)), tuple(dropped))
