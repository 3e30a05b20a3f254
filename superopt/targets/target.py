"""Target: what both code generators are used through, and what the cost model says of their kernels."""

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol, runtime_checkable

from superopt.codegen.children import Children
from superopt.cost import Device, estimate, floor_us
from superopt.ir import Block, Graph, MuGraph, live_graph
from superopt.tune.measure import Times

if TYPE_CHECKING:
    from torch import Tensor

__all__ = ["Configs", "Job", "Kernel", "KernelReport", "OrderedKernel", "Target"]

Configs = tuple[Any, ...]
"""One configuration for each kernel of a muGraph; None for a call of a library."""

Job = tuple[MuGraph, int, Any]
"""A kernel to compile: its muGraph, its number, and its configuration."""


_LIBRARY_SHARE = 0.8  # a library reaches this share of the rates that bound it


class Kernel(Protocol):
    """A compiled muGraph: a function of tensors by name, which returns the outputs by name."""

    def __call__(self, **tensors: "Tensor") -> "dict[str, Tensor]":
        """Run the kernels in order."""


@runtime_checkable
class OrderedKernel(Protocol):
    """A compiled muGraph that also takes its inputs in the graph's order, which saves microseconds."""

    inputs: tuple[str, ...]
    outputs: tuple[str, ...]

    def in_order(self, given: "Sequence[Tensor]") -> "Sequence[Tensor]":
        """Run the kernels; return the outputs in the graph's order."""

    def prepared(self, given: "Sequence[Tensor]") -> "Callable[[Sequence[Tensor]], Sequence[Tensor]]":
        """Return what does so for tensors of these shapes, strides and dtypes, and these threads."""


@dataclass(frozen=True, slots=True)
class KernelReport:
    """Predictions and the compiler's report for one kernel; None where unknown."""

    name: str
    predicted_us: float | None = None
    bytes: int | None = None
    flops: int | None = None
    shared_bytes: int | None = None
    registers: int | None = None
    spill_bytes: int | None = None


class Target(Protocol):
    """What kernels are made for: how they are configured, written, compiled, run and timed there."""

    __slots__ = ()

    @property
    def name(self) -> str:
        """The name that chooses it, as "cpu" or "cuda:90"."""

    @property
    def torch_device(self) -> str:
        """Where its tensors live, as torch names it."""

    @property
    def available(self) -> bool:
        """Whether such a device is here, so that kernels can run."""

    @property
    def device_name(self) -> str:
        """The device here by name, or the one that predictions are for."""

    def key_parts(self) -> dict[str, str]:
        """Return what results depend on: the parts `device` and `compiler` of a cache key."""

    def default_configs(self, mugraph: MuGraph) -> Configs:
        """Return a sound configuration of every kernel, for the sizes in the graph."""

    def configs(self, mugraph: MuGraph, number: int) -> Iterator[Any]:
        """Yield the configurations of one kernel that are worth a try, the default first."""

    def config_from_json(self, data: Any) -> Any:
        """Return a configuration from plain data, or raise InputError."""

    def misfit(self, mugraph: MuGraph) -> str | None:
        """Return why a kernel holds too much for the device, as far as an estimate can say; None if none."""
        return None

    def sources(self, mugraph: MuGraph, configs: Configs) -> tuple[str, ...]:
        """Return the source of every kernel but library calls, or raise SuperoptError."""

    def prepare_shared(self, dtypes: Collection[str], children: Children) -> None:
        """Compile in good time what many kernels share that read tensors of some dtypes; they wait for it."""
        return

    def prepare(
        self, mugraph: MuGraph, configs: Configs, *, limit_seconds: float, children: Children
    ) -> None:
        """Compile what a compiler in a process of its own compiles, so that `make` finds it."""
        return

    def make(self, mugraph: MuGraph, configs: Configs) -> Kernel:
        """Return the muGraph as compiled kernels; raises SuperoptError where that fails."""

    def compiled(self, kernel: Kernel) -> Mapping[int, KernelReport]:
        """Return what the compiler made of kernels that have run, by their numbers, where it says so."""
        return {}

    def cost_device(self) -> Device:
        """Return the device that the cost model reckons with."""

    def reports(self, mugraph: MuGraph, configs: Configs) -> tuple[KernelReport, ...]:
        """Return the predictions for each kernel in its configuration."""
        name, device = mugraph.graph.name.replace(".", "_"), self.cost_device()
        found = []
        for one in estimate(mugraph, device).kernels:
            is_block = isinstance(mugraph.kernels[one.number], Block)
            us: float | None = one.us / (1.0 if is_block or device.timed else _LIBRARY_SHARE)
            if configs[one.number] is not None:
                [us] = self.predictions(mugraph, one.number, [configs[one.number]])
            moved, flops = one.bytes_read + one.bytes_written, one.flops_matrix + one.flops_vector
            found.append(KernelReport(f"{name}_{one.number}", us, bytes=moved, flops=flops))
        return tuple(found)

    def predictions(self, mugraph: MuGraph, number: int, configs: Sequence[Any]) -> list[float | None]:
        """Return the predicted time of one kernel in each configuration; None where it does not fit."""

    @property
    def threadsafe(self) -> bool:
        """Whether several threads may make kernels at a time."""

    def builders(self, size: int) -> int:
        """Return how many muGraphs may be made and first run at a time, whose inputs take so many bytes."""

    @property
    def errors(self) -> tuple[type[Exception], ...]:
        """What making and running a kernel may raise that is the kernel's own fault."""

    @property
    def clears_caches(self) -> bool:
        """Whether nothing measured here can be faster than the memory of the device."""

    def floor_us(self, graph: Graph, *, cold: bool = True, kept: bool = False) -> float | None:
        """Return the least time that a graph can take there, where that is known.

        Without `cold`, what it reads may be in the cache from the call before; with `kept`, what it
        writes may stay there, as it does in one call that is measured.
        """
        return floor_us(live_graph(graph), self.cost_device(), cold=cold, kept=kept)

    def compile_ahead(
        self, jobs: Sequence[Job], *, seconds: float, on_done: Callable[[int, KernelReport | str], None]
    ) -> None:
        """Compile kernels without running them, and hand over each one's report, or why it has none."""
        return

    def renew(self) -> None:
        """Find out again what the device can do, once something was faster than it is said to allow."""
        return

    def synchronize(self) -> None:
        """Wait until all that was launched has ended."""
        return

    def times(
        self,
        contenders: Mapping[str, Callable[..., Any]],
        inputs: Sequence[tuple[Any, ...]],
        *,
        seconds: float,
        **rounds: Any,
    ) -> dict[str, Times]:
        """Return the times of functions call by call, taken in turns for about so many seconds in all.

        `rounds` are `least_rounds` and `most_rounds`, where they are limited.
        """
