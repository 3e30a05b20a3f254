"""Candidate: one way to compute a region, from its first schedule to the report."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any

from superopt.fate import Fate, Kind
from superopt.ir import Graph, MuGraph
from superopt.schedule import Dropped
from superopt.targets import Configs, KernelReport
from superopt.tune import Measurement
from superopt.weights.division import Divided, divided

__all__ = [
    "SCHEDULED",
    "Candidate",
    "RegionCandidates",
    "all_summed",
    "are_steady",
    "as_compiled",
    "fastest_us",
    "total_us",
    "why_none",
]

SCHEDULED = Fate("schedule", Kind.KEPT)
"""The fate of a candidate that no stage has looked at."""


@dataclass(frozen=True, slots=True)
class Candidate:
    """A graph equal to a region, its kernels and their configurations, and its fate."""

    id: str  # unique in its region, the same from the schedule to the report
    graph: Graph  # the graph as the search found it
    mugraph: MuGraph  # the kernels that compute it
    configs: Configs = ()  # one for each kernel; none: the defaults
    fate: Fate = SCHEDULED
    schedule: str = ""  # the name of its schedule, to be read
    variant: str = ""  # how its configurations differ from the default ones, for people to read
    verdict: Any = None
    library: bool = False  # matmuls are calls of a library
    once: tuple[int, ...] = ()  # values of the graph that are made of weights once; the kernels read them
    wide: tuple[int, ...] = ()  # kernels that may not round operands to fp16 in any configuration
    sources: tuple[str, ...] = ()
    kernels: tuple[KernelReport, ...] = ()
    predicted_us: float | None = None
    measurement: Measurement | None = None

    @property
    def name(self) -> str:
        """What people read in place of the id."""
        return ", ".join(part for part in (self.schedule or self.id, self.variant) if part)

    @property
    def parts(self) -> Divided | None:
        """The graph as what is made once and what runs in each call; None where all of it runs."""
        return divided(self.graph, self.once) if self.once else None

    @property
    def run(self) -> Graph:
        """The graph of which the kernels are made."""
        return self.graph if not self.once else divided(self.graph, self.once).run

    @property
    def us(self) -> float:
        """Its time: measured, or predicted, or unknown (infinite)."""
        if self.measurement is not None:
            return self.measurement.median_us
        return float("inf") if self.predicted_us is None else self.predicted_us

    @property
    def is_kept(self) -> bool:
        """Whether it goes on to the next stage."""
        return self.fate.kind is Kind.KEPT

    @property
    def spills(self) -> bool:
        """Whether a kernel is known to need more registers than there are."""
        return any(kernel.spill_bytes for kernel in self.kernels)

    def ended(self, stage: str, kind: Kind, reason: str = "") -> "Candidate":
        """Return it with another fate; only the first line of the reason is kept."""
        return replace(self, fate=Fate(stage, kind, next(iter(reason.splitlines()), "")))

    def configured(self, number: int, config: Any) -> "Candidate":
        """Return it with another configuration of one kernel, without sources, reports and times."""
        configs = (*self.configs[:number], config, *self.configs[number + 1 :])
        return replace(self, configs=configs, sources=(), kernels=(), measurement=None)


@dataclass(frozen=True, slots=True)
class RegionCandidates:
    """A region of a program, or a part of one, the candidates for it, and the schedules that were cut."""

    goal: Graph
    candidates: tuple[Candidate, ...]
    dropped: tuple[Dropped, ...] = ()
    floor_us: float | None = None  # the least time that its bytes and its arithmetic take
    # Whether the candidates come with their configurations: from the cache, a file, or an earlier prediction.
    recalled: bool = False

    @property
    def chosen(self) -> Candidate | None:
        """The candidate that is used; None: PyTorch computes the region."""
        return next((one for one in self.candidates if one.fate.kind is Kind.CHOSEN), None)


def as_compiled(guess: KernelReport, made: KernelReport) -> KernelReport:
    """Return a kernel's predictions together with the compiler's report on it."""
    return replace(
        guess,
        predicted_us=guess.predicted_us if made.predicted_us is None else made.predicted_us,
        shared_bytes=made.shared_bytes,
        registers=made.registers,
        spill_bytes=made.spill_bytes,
    )


def total_us(kernels: Iterable[KernelReport]) -> float | None:
    """Return the predicted time of kernels in a row, where each has one."""
    return all_summed(one.predicted_us for one in kernels)


def all_summed(times: Iterable[float | None]) -> float | None:
    """Return the sum of times, where there are some and each is known."""
    several = list(times)
    known = [us for us in several if us is not None]
    return sum(known) if known and len(known) == len(several) else None


def fastest_us(regions: Sequence[RegionCandidates]) -> float | None:
    """Return the time of the fastest kernels of all regions, or None where some region has none."""
    return all_summed(
        min((one.us for one in part.candidates if one.measurement), default=None) for part in regions
    )


def why_none(regions: Sequence[RegionCandidates]) -> str:
    """Return why a region has no kernels, rather that they are wrong than that there was no time."""
    for kinds in ((Kind.FAILED, Kind.REFUSED), (Kind.SLOWER, Kind.NO_TIME)):
        for part in regions:
            for one in part.candidates:
                if part.chosen is None and one.fate.kind in kinds:
                    return str(one.fate)
    refused = (one for part in regions if not part.candidates for one in reversed(part.dropped))
    for lost in refused:
        if lost.fate.kind is Kind.REFUSED:
            return str(lost.fate)
    return "none could be made"


def are_steady(regions: Sequence[RegionCandidates]) -> bool:
    """Whether the times of all kernels vary less than on a busy machine."""
    measured = (one.measurement for part in regions for one in part.candidates)
    return all(one.is_steady for one in measured if one is not None)
