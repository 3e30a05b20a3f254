"""Warm-up: what the kernels of any region need, made in the background while the regions are still read."""

import threading
from collections.abc import Iterable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from contextlib import ExitStack
from typing import Any, Self

from torch import Tensor

from superopt.candidates import Candidate, RegionCandidates
from superopt.candidates.candidate import all_summed
from superopt.codegen.children import LONGEST_S, Children
from superopt.ir import MuGraph
from superopt.targets import Target, pick_target
from superopt.trace.run import TORCH_DTYPES
from superopt.tune.first_runs import FirstRuns

__all__ = ["Ahead", "WarmUp", "prepare_machine"]

_CLEANING_S = 5.0  # seconds in which files of compilers that were ended go
_FIRST_RUN_S = 60.0  # the most seconds that compiling a kernel and its first run may take
# The speed of this thread while compilers, or a process, share the processors.
_BESIDE_COMPILERS, _BESIDE_A_PROCESS = 0.6, 0.8


class WarmUp:
    """Compilers and processes that begin before they are asked for; leaving the `with` block ends them."""

    def __init__(self) -> None:
        self._begun = ExitStack()
        self._children = self._begun.enter_context(Children())
        self._first_runs: FirstRuns | None = None
        self._work: threading.Thread | None = None
        self._pool: ThreadPoolExecutor | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *raised: object) -> None:
        self._begun.close()
        if self._work is not None:
            self._work.join(_CLEANING_S)

    def share(self, target: Target, tensors: Iterable[Any]) -> None:
        """Begin to compile what kernels share that read tensors like some."""
        read = {one.dtype for one in tensors if isinstance(one, Tensor)}
        names = {name for name, dtype in TORCH_DTYPES.items() if dtype in read}
        target.cost_device()  # measures the CPU's rates the first time, before anything else runs
        self._work = threading.Thread(target=target.prepare_shared, args=(names, self._children), daemon=True)
        self._work.start()

    @property
    def busy(self) -> bool:
        """Whether compilers that `share` began are at work."""
        return self._work is not None and self._work.is_alive()

    @property
    def alone(self) -> float:
        """The share of the elapsed time that this thread would need without the background work."""
        return _BESIDE_COMPILERS if self.busy else _BESIDE_A_PROCESS if self._first_runs is not None else 1.0

    def first_runs(self, target: Target, limit_seconds: float = _FIRST_RUN_S) -> FirstRuns:
        """Return the processes for first runs, one of which starts at the first call."""
        if self._first_runs is None:
            runs = FirstRuns(target.builders(0), target.torch_device, limit_seconds)
            self._first_runs = self._begun.enter_context(runs)
            self._first_runs.start()
        return self._first_runs

    def prepare(
        self, target: Target, mugraph: MuGraph, configs: Sequence[Any], limit_seconds: float
    ) -> Future[None]:
        """Compile the kernels of a muGraph in the background, as many at a time as the target says."""
        children = self.first_runs(target).children
        if self._pool is None:
            self._pool = ThreadPoolExecutor(target.builders(0))
            # Its compilers are killed afterwards, with the other children of the first runs.
            self._begun.callback(self._pool.shutdown, wait=False, cancel_futures=True)
        return self._pool.submit(
            target.prepare, mugraph, tuple(configs), limit_seconds=limit_seconds, children=children
        )


class Ahead:
    """The kernels of one region that are scheduled, and perhaps compiled, before it has its turn."""

    def __init__(self, parts: Sequence[RegionCandidates] = ()) -> None:
        self.parts = list(parts)
        self.compiling: list[Future[None]] = []

    @property
    def expected_us(self) -> float | None:
        """The predicted time of the region, None where nothing was scheduled."""
        return all_summed(min((one.us for one in part), default=None) for part in self._first)

    @property
    def _first(self) -> list[list[Candidate]]:
        """The candidates of each part that are compiled first."""
        return [[one for one in part.candidates if one.is_kept] for part in self.parts]

    def compile(self, warm_up: WarmUp, target: Target, limit_seconds: float) -> None:
        """Begin to compile the first candidates in the background."""
        for one in (one for part in self._first for one in part):
            self.compiling.append(warm_up.prepare(target, one.mugraph, one.configs, limit_seconds))

    def handed_on(self, seconds: float) -> list[RegionCandidates]:
        """Give away what was scheduled, compiled if that ends within so many seconds."""
        if self.parts:
            wait(self.compiling, min(max(seconds, 0.0), LONGEST_S))
        parts, self.parts = self.parts, []
        return parts


def prepare_machine() -> None:
    """Prepare a machine for all models: measure its rates, and compile the code that kernels share."""
    target = pick_target("auto")
    target.cost_device()
    with Children() as children:
        target.prepare_shared(set(TORCH_DTYPES), children)
