"""Plans: how the graphs of a region may run, and what earlier runs found best, kept in the cache."""

import logging
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Literal

from superopt.driver import Found, SearchOptions
from superopt.errors import SuperoptError
from superopt.frontier.bound import graph_bound
from superopt.ir import Call, Graph, MuGraph, fuse, is_matmul, parse_graph, stabilize
from superopt.tune import Standing
from superopt.verify.equality import equal_graphs

if TYPE_CHECKING:
    from superopt.cache import Key

__all__ = ["Candidate", "OptimizeOptions", "RegionPlan", "Shelf", "schedules"]

log = logging.getLogger("superopt")

_SEARCH = SearchOptions()
_KEPT = 3  # graphs of a region in the cache


@dataclass(frozen=True, slots=True)
class OptimizeOptions:
    """How to optimize: every setting of `superopt.optimize` and `superopt optimize`."""

    target: Literal["auto", "cpu"] = "auto"
    seconds: float = 20.0  # of racing, in all
    graphs: int = 6  # compiled for each region
    torch_compile: bool = True
    cache: bool = True  # use and keep what earlier runs found best
    seed: int = 0
    search: SearchOptions = _SEARCH


@dataclass(frozen=True, slots=True)
class Candidate:
    """One way to compute a region: a found graph, how it runs, and what became of it."""

    name: str
    found: Found
    mugraph: MuGraph
    sources: tuple[str, ...] = ()
    standing: Standing | None = None
    rejected: str | None = None
    library: bool = False  # matmuls are calls of a library


@dataclass(frozen=True, slots=True)
class RegionPlan:
    """What was tried for one region, the fastest first, and which one is used (None: PyTorch)."""

    goal: Graph
    candidates: tuple[Candidate, ...]
    chosen: Candidate | None


def schedules(found: Sequence[Found]) -> list[Candidate]:
    """Return how the graphs of a region may run: fused, and with their matmuls as calls of a library."""
    candidates: list[Candidate] = []
    for number, one in enumerate(found, 1):
        candidates.append(_schedule(f"graph {number}", one, library=False))
        called = _schedule(f"graph {number} + library", one, library=True)
        if any(isinstance(kernel, Call) for kernel in called.mugraph.kernels):
            candidates.append(called)
    return candidates


def _schedule(name: str, found: Found, *, library: bool) -> Candidate:
    graph = stabilize(found.graph)
    mugraph = fuse(graph, library=is_matmul) if library else fuse(graph)
    return Candidate(name, found, mugraph, library=library)


class Shelf:
    """What earlier runs found best for a region, in the cache: graphs only, checked again when recalled."""

    def __init__(self, options: OptimizeOptions) -> None:
        from superopt.cache import Cache

        self.cache = Cache.open() if options.cache else None
        self.options = options

    def recall(self, goal: Graph) -> list[Candidate]:
        """Return the candidates that were best before, or none."""
        record = self.cache.get(self._key(goal)) if self.cache else None
        candidates = []
        for number, saved in enumerate(record.data.get("graphs", ()) if record else (), 1):
            try:
                graph = parse_graph(saved["graph"])
                verdict = equal_graphs(goal, graph, seed=self.options.seed)
            except (SuperoptError, KeyError, TypeError) as error:
                log.warning("cache: a plan of %s is not used: %s", goal.name, error)
                continue
            if verdict.equal:
                found = Found(graph, graph_bound(graph), verdict)
                candidates.append(_schedule(f"earlier {number}", found, library=bool(saved.get("library"))))
        return candidates

    def keep(self, plan: RegionPlan) -> None:
        """Save the best candidates of a region, the one that is used first."""
        from superopt.cache import Record

        best = [one for one in plan.candidates if one.standing and not one.rejected][:_KEPT]
        if self.cache is not None and plan.chosen is not None and best:
            graphs = [{"graph": str(one.found.graph), "library": one.library} for one in best]
            self.cache.put(self._key(plan.goal), Record({"graphs": graphs}, plan.goal.name))

    def _key(self, goal: Graph) -> "Key":
        import torch

        from superopt.cache import key_of, program_text, versions

        return key_of(
            "plan",
            program=program_text(goal),
            device=f"cpu, {torch.get_num_threads()} threads, {torch.backends.cpu.get_cpu_capability()}",
            options={
                "graphs": self.options.graphs,
                "search": {name: str(value) for name, value in asdict(self.options.search).items()},
            },
            **versions(),
        )
