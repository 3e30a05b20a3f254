"""Guard: the first run of each kernel, in processes that may hang, crash or be killed without harm."""

import queue
from types import TracebackType
from typing import Any, Literal, Self, cast

from superopt.codegen.children import Children
from superopt.ir import MuGraph
from superopt.tune.pool import Worker
from superopt.tune.probe import ProbeJob

__all__ = ["Guard"]


class Guard:
    """Processes for first runs, kept from kernel to kernel; leaving the `with` block ends them."""

    def __init__(self, workers: int, device: str, limit_seconds: float) -> None:
        self._device = cast(Literal["cpu", "cuda"], device)
        self._limit_seconds = limit_seconds
        self._children = Children()
        self._workers = [Worker(self._children) for _ in range(workers)]
        self._idle: queue.SimpleQueue[Worker] = queue.SimpleQueue()
        for worker in self._workers:
            self._idle.put(worker)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()
        for worker in self._workers:
            worker.close()

    def check(self, mugraph: MuGraph, configs: tuple[Any, ...]) -> None:
        """Compile a muGraph and run it once on random inputs; raise KernelFaultError where that fails."""
        worker = self._idle.get()
        try:
            ProbeJob(mugraph.graph.name, mugraph, configs, self._device).run(worker, self._limit_seconds)
        finally:
            self._idle.put(worker)

    def stop(self) -> None:
        """End every process now; what waits for one fails."""
        self._children.close()
