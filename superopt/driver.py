"""The driver: one call from a function to all its equivalent graphs, region by region."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from superopt.frontier.bound import Bound
from superopt.frontier.space import LevelStats
from superopt.ir import Graph, Program

__all__ = [
    "Found",
    "Progress",
    "RegionSearch",
    "Search",
    "SearchOptions",
    "SearchStatistics",
]

Phase = Literal["trace", "saturate", "explore", "derive", "verify", "done"]


@dataclass(frozen=True, slots=True)
class SearchOptions:
    """How to search: every setting of `superopt.search` and `superopt search`."""

    workers: int = 1
    seconds: float = 60.0
    prune: Literal["egraph", "z3", "none"] = "egraph"
    max_graphs: int = 16
    split: bool = True
    rows: int = 200_000
    seed: int = 0
    checkpoint: Path | None = None  # a folder: one file per region
    resume: bool = False


@dataclass(frozen=True, slots=True)
class Progress:
    """What a search is doing now, for whoever shows it."""

    phase: Phase
    region: int  # from 1
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
    split_axes: tuple[str, ...] = ()
    is_original: bool = False


@dataclass(frozen=True, slots=True)
class RegionSearch:
    """All that was found for one region, best first."""

    goal: Graph
    found: tuple[Found, ...]
    statistics: SearchStatistics
    truncated: tuple[str, ...] = ()  # the limits that stopped something; empty where complete


@dataclass(frozen=True, slots=True)
class Search:
    """The result of a search over a whole program."""

    name: str
    program: Program
    regions: tuple[RegionSearch, ...]
    seconds: float
    interrupted: bool = False
    notes: tuple[str, ...] = field(default=())

    @property
    def complete(self) -> bool:
        """Whether no limit stopped anything."""
        return not self.truncated

    @property
    def truncated(self) -> tuple[str, ...]:
        """Every limit that stopped something, with its region."""
        return tuple(f"{region.goal.name}: {why}" for region in self.regions for why in region.truncated)
