"""Plan: what is tried for each region of a program, what became of it, and the settings of it all."""

from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Any, Literal

from superopt.driver import SearchOptions
from superopt.ir import Graph, MuGraph
from superopt.targets import Configs, KernelReport
from superopt.tune import Measurement

__all__ = [
    "PRESETS",
    "Candidate",
    "Dropped",
    "OptimizeOptions",
    "Preset",
    "RegionPlan",
    "Within",
    "Work",
    "all_summed",
    "as_compiled",
    "spills",
    "total_us",
]

_SEARCH = SearchOptions()


@dataclass(frozen=True, slots=True)
class Preset:
    """How wide to look for configurations."""

    tuned: int  # muGraphs of a region whose kernels get other configurations than the default
    configs: int  # configurations tried for each of their kernels
    compile_seconds: float  # of compiling for a device that is not here


PRESETS = {"quick": Preset(1, 6, 15.0), "full": Preset(3, 32, 240.0)}
"""The presets by name."""


@dataclass(frozen=True, slots=True)
class OptimizeOptions:
    """How to optimize: every setting of `superopt.optimize` and `superopt optimize`."""

    target: str = "auto"  # "cpu", "cuda" (the device here), "cuda:90", or auto: where the inputs are
    preset: Literal["quick", "full"] = "quick"
    seconds: float = 20.0  # of tuning and racing, in all
    graphs: int = 6  # of each region, made into kernels
    torch_compile: bool = True
    measure: bool = True  # without it, a plan with predicted times is made, as for a device not here
    retune: bool = False  # race configurations anew where sizes come that none were raced for
    guarded: bool = True  # each kernel runs first in a process of its own, which may crash or hang
    limit_seconds: float = 60.0  # of compiling a muGraph and running it that first time
    cache: bool = True  # use and keep what earlier runs found best
    seed: int = 0
    search: SearchOptions = _SEARCH


@dataclass(frozen=True, slots=True)
class Within:
    """The frame of a larger piece of work, which races what comes back against PyTorch by itself."""

    deadline: float  # of time.monotonic: nothing is compiled or raced any more
    beat_us: float  # what there is to beat: slower kernels are not chosen, those far from it not tuned
    guard: Any = None  # processes for first runs that are kept from one call to the next
    tune: bool = True  # try other configurations of the best
    few: int = 6  # candidates that are compiled


@dataclass(frozen=True, slots=True)
class Candidate:
    """One way to compute a region: a graph equal to it, as kernels, and what became of it."""

    name: str
    graph: Graph  # as it was found
    mugraph: MuGraph  # as it runs
    configs: Configs = ()  # one for each kernel; none: the defaults
    verdict: Any = None
    library: bool = False  # matmuls are calls of a library
    sources: tuple[str, ...] = ()
    kernels: tuple[KernelReport, ...] = ()
    predicted_us: float | None = None
    measurement: Measurement | None = None
    rejected: str | None = None

    @property
    def us(self) -> float:
        """Its time: measured, or predicted, or unknown (infinite)."""
        if self.measurement is not None:
            return self.measurement.median_us
        return float("inf") if self.predicted_us is None else self.predicted_us


@dataclass(frozen=True, slots=True)
class Dropped:
    """A schedule that never became a kernel, and the reason."""

    name: str
    reason: str


@dataclass(frozen=True, slots=True)
class Work:
    """A region, or a part of one, and the candidates for it."""

    goal: Graph
    candidates: tuple[Candidate, ...]
    dropped: tuple[Dropped, ...] = ()
    recalled: bool = False  # from the cache, with the configurations that were best


@dataclass(frozen=True, slots=True)
class RegionPlan:
    """What was tried for one region, the fastest first, and which one is used (None: PyTorch)."""

    goal: Graph
    candidates: tuple[Candidate, ...]
    chosen: Candidate | None
    dropped: tuple[Dropped, ...] = ()
    floor_us: float | None = None


def as_compiled(guess: KernelReport, made: KernelReport) -> KernelReport:
    """Return what is predicted of a kernel with what the compiler says of it."""
    return replace(
        guess, shared_bytes=made.shared_bytes, registers=made.registers, spill_bytes=made.spill_bytes
    )


def spills(candidate: Candidate) -> bool:
    """Return whether a kernel is known to need more registers than there are."""
    return any(kernel.spill_bytes for kernel in candidate.kernels)


def total_us(kernels: Iterable[KernelReport]) -> float | None:
    """Return the predicted time of kernels in a row, where each has one."""
    return all_summed(one.predicted_us for one in kernels)


def all_summed(times: Iterable[float | None]) -> float | None:
    """Return the sum of times, where there are some and each is known."""
    several = list(times)
    known = [us for us in several if us is not None]
    return sum(known) if known and len(known) == len(several) else None
