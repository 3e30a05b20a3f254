"""Found: what a search is told, what it tells meanwhile, and what it finds."""

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, Literal

from superopt.frontier.engine.interface import LevelStats
from superopt.frontier.tensors.bound import Bound
from superopt.ir import Graph, MuGraph, Program, Split, fuse
from superopt.weights.division import Weights

__all__ = [
    "Found",
    "Phase",
    "Progress",
    "RegionSearch",
    "Search",
    "SearchOptions",
    "SearchStatistics",
    "by_bound",
    "prove_found",
    "select_best",
]

Phase = Literal["trace", "saturate", "explore", "derive", "verify", "done"]


@dataclass(frozen=True, slots=True)
class SearchOptions:
    """How to search: every setting of `superopt.search` and `superopt search`."""

    workers: int = 1
    seconds: float = 60.0
    prune: Literal["egraph", "z3", "none"] = "egraph"
    max_graphs: int = 16
    weights: Weights = "default"  # what a module's weights are made into once costs a call nothing
    split: bool = True
    rows: int = 200_000
    seed: int | None = None  # the seed of the tests of equality; None draws a fresh one
    checkpoint: Path | None = None  # a folder: one file per region
    resume: bool = False
    engine: str = "processes"  # what runs the workers: processes, mpi or ray
    rules: Path | None = None  # a file of discovered rules, which are further axioms

    def key_parts(self) -> dict[str, str]:
        """Return the settings by name, as keys of the cache have them; the seed changes nothing.

        A file of rules stands for what is in it: another one may come to lie under its name.
        """
        found = {name: str(value) for name, value in asdict(self).items() if name != "seed"}
        if self.rules is not None and Path(self.rules).is_file():
            found["rules"] = hashlib.sha256(Path(self.rules).read_bytes()).hexdigest()
        return found


@dataclass(frozen=True, slots=True)
class Progress:
    """What a search is doing now, for whoever shows it."""

    phase: Phase
    region: int  # the number of the region, from 1
    regions: int
    name: str
    level: LevelStats | None = None


@dataclass(frozen=True, slots=True)
class SearchStatistics:
    """Where the time of one region went, and what was met on the way."""

    e_nodes: int
    e_classes: int
    rounds: int
    tensors: int
    derivations: int
    graphs: int  # different graphs derived, before the limit on how many are kept
    levels: tuple[LevelStats, ...]
    pruned: Mapping[str, int]
    phase_ms: Mapping[str, float]


@dataclass(frozen=True, slots=True)
class Found:
    """One graph equal to the region, its cost bound, and how sure the equality is."""

    graph: Graph
    bound: Bound
    verdict: Any
    splits: tuple[Split, ...] = ()  # axes that the search split in parts of equal length
    is_original: bool = False
    correction: str = ""  # of a program that is right in part: in what way it is computed, and what again

    @property
    def split_axes(self) -> tuple[str, ...]:
        """The axes that the search split."""
        return tuple(split.axis for split in self.splits)

    @property
    def mugraph(self) -> MuGraph:
        """The graph as kernels, by the default schedule."""
        return fuse(self.graph)


@dataclass(frozen=True, slots=True)
class RegionSearch:
    """All that was found for one region, best first."""

    goal: Graph
    found: tuple[Found, ...]
    statistics: SearchStatistics
    truncated: tuple[str, ...] = ()  # the limits that stopped something; empty where complete
    notes: tuple[str, ...] = ()  # parts of the search that were not tried, and why
    reached: bool = False  # the exploration itself found a way to the goal


@dataclass(frozen=True, slots=True)
class Search:
    """The result of a search over a whole program."""

    name: str
    program: Program
    regions: tuple[RegionSearch, ...]
    seconds: float
    interrupted: bool = False

    @property
    def complete(self) -> bool:
        """Whether no limit stopped anything."""
        return not self.truncated

    @property
    def truncated(self) -> tuple[str, ...]:
        """Every limit that stopped something, with its region."""
        return tuple(f"{region.goal.name}: {why}" for region in self.regions for why in region.truncated)


def by_bound(one: Found) -> tuple[float, int, str]:
    """Order graphs by their cost, those of the same cost in an order that no draw changes."""
    return round(one.bound.us, 6), len(one.graph.steps), str(one.graph)


def select_best(found: Sequence[Found], count: int) -> tuple[Found, ...]:
    """Return the best graphs, and always the goal; a quarter of the places is for others than whole graphs.

    Those are graphs with split reductions, and corrected ones.
    """
    whole = [one for one in found if not one.split_axes and not one.correction]
    split = [one for one in found if one.split_axes or one.correction]
    places = min(len(split), max(count // 4, count - len(whole)))
    chosen = {id(one) for one in (*whole[: count - places], *split[:places])}
    return tuple(one for one in found if id(one) in chosen or one.is_original)


_ORIGINAL_S = 0.2  # seconds in which the goal in its usual form is proven when time is over; most take less


def prove_found(
    goal: Graph, found: Sequence[Found], seed: int | None, seconds: float | None = None
) -> tuple[tuple[Found, ...], bool]:
    """Return the graphs that are proven equal to the goal, with their verdicts, and whether time was short.

    What is not equal was merged by an unlucky draw. The proofs take at most so many seconds. The original
    always stays: as the goal is written, where there was no time to prove it in another form.
    """
    from superopt.verify.graphs.all_equal import equal_to_all
    from superopt.verify.graphs.equality import LATE

    verdicts = equal_to_all(goal, [one.graph for one in found], seed=seed, seconds=seconds)
    proven = []
    late = False
    for one, verdict in zip(found, verdicts, strict=True):
        if one.is_original and not verdict.equal and seconds is not None:
            [verdict] = equal_to_all(goal, [one.graph], seed=seed, seconds=_ORIGINAL_S)
        if one.is_original and not verdict.equal:
            [verdict] = equal_to_all(goal, [goal], seed=seed)
            one = replace(one, graph=goal)
        if verdict.equal:
            proven.append(replace(one, verdict=verdict))
        late |= verdict.unknown and LATE in verdict.notes
    return tuple(proven), late
