"""Result: what came of optimizing a function."""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, TypeAlias

from superopt.candidates.candidate import RegionCandidates, all_summed
from superopt.candidates.floors import program_floor_us
from superopt.candidates.order import RankedBy
from superopt.ir import Eager, Graph, Program, Region
from superopt.rivals.rivals import PEERS
from superopt.targets import Target
from superopt.tune import Measurement
from superopt.verify.floats.report import FloatReport

if TYPE_CHECKING:
    from superopt.verify.verdict import Verdict

__all__ = ["OpenAxes", "Result"]

OpenAxes: TypeAlias = Mapping[str, tuple[int, int]]
"""The axes that may change, each with its smallest and its largest size."""


@dataclass(frozen=True, slots=True)
class Result:
    """What was found for a function, how it was measured, and how sure it is."""

    program: Program  # the program, its regions in the parts that were searched
    target: Target
    inputs: tuple[Any, ...]  # the inputs that it was made for, without data
    regions: tuple[RegionCandidates, ...]
    seed: int
    winner: str | None  # None: a plan, nothing was measured
    measurements: Mapping[str, Measurement] = field(default_factory=dict)
    floats: FloatReport | None = None
    device: str | None = None  # the device on which it was measured
    source: Mapping[str, Any] | None = None  # the file or workload that the function comes from
    returns: Any = None  # the structure of what the function returns, as plain data; None: no plain structure
    holds: tuple[str, ...] = ()  # tensors of the function's own that the program reads
    open_axes: OpenAxes | None = None  # None: not tried yet
    verdicts: tuple[str, ...] = ()  # how sure it is that the chosen kernels compute what their regions do
    phases_ms: Mapping[str, float] = field(default_factory=dict)
    ranked_by: RankedBy | None = None  # the model that ordered configurations, where any were raced
    versions: Mapping[str, str] = field(default_factory=dict)
    interrupted: bool = False
    stood_in: bool = False  # PyTorch raced with a stand-in: the original was not known
    ratio: float | None = None  # the best of PyTorch's times over ours, where the two raced alone
    interval: tuple[float, float] | None = None  # the interval in which that ratio surely lies
    unsettled: str = ""  # why ours is not taken though it may be faster
    doubt: str = ""  # what is wrong with a time that is below its floor
    eager: Eager | None = None  # what PyTorch does for the program; None where that is not known

    @property
    def name(self) -> str:
        """The name of the program."""
        return self.program.name

    @property
    def speedup(self) -> float | None:
        """How much faster it is than the best of PyTorch; 1 where it is PyTorch's, None for a plan.

        Where `stood_in`, PyTorch computed a stand-in for the original.
        """
        if self.winner is None:
            return None
        times = [one.median_us for name, one in self.measurements.items() if name in PEERS]
        ours = self.measurements.get("superopt")
        if self.winner != "superopt" or not times or not ours:
            return 1.0
        return self.ratio or min(times) / ours.median_us

    @property
    def predicted_us(self) -> float | None:
        """The predicted time of all chosen kernels, where there is one for each region."""
        return all_summed(one.chosen.predicted_us if one.chosen else None for one in self.regions)

    @property
    def floor_us(self) -> float | None:
        """The least time the bytes and the arithmetic can take, of the cheapest graphs that were found."""
        return program_floor_us(self.program, {one.goal.name: one.floor_us for one in self.regions})

    @property
    def graph(self) -> Graph | Program:
        """The graph that now runs, where the function is one, else the program with one in each region."""
        graphs = dict(zip((one.goal.name for one in self.regions), self.graphs, strict=True))
        nodes = tuple(
            Region(graphs[node.graph.name]) if isinstance(node, Region) else node
            for node in self.program.nodes
        )
        only = nodes[0] if len(nodes) == 1 else None
        return only.graph if isinstance(only, Region) else replace(self.program, nodes=nodes)

    @property
    def graphs(self) -> tuple[Graph, ...]:
        """The graph of every region, as it now runs."""
        return tuple(one.chosen.graph if one.chosen else one.goal for one in self.regions)

    @property
    def verdict(self) -> "Verdict | None":
        """How sure it is that the chosen kernels compute what their regions do; None where none is chosen.

        The chances of error of all regions add up. The floats are those of the whole, where it was run.
        """
        from superopt.verify.verdict import combined

        found = [one.chosen.verdict for one in self.regions if one.chosen is not None]
        return combined(found, self.floats) if found and None not in found else None

    @property
    def sources(self) -> tuple[str, ...]:
        """The source of every kernel that is chosen."""
        return tuple(source for one in self.regions if one.chosen for source in one.chosen.sources)
