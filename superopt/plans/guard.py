"""Guard: the first run of each kernel, in processes that may hang, crash or be killed without harm."""

import contextlib
import queue
import threading
import time
from types import TracebackType
from typing import Any, Literal, Self, cast

from superopt.codegen.children import Children, LateError, LostError
from superopt.ir import MuGraph
from superopt.tune.errors import KernelFaultError
from superopt.tune.pool import Worker
from superopt.tune.probe import PROBE, ProbeJob

__all__ = ["Guard"]


class Guard:
    """Processes for first runs, kept from kernel to kernel; leaving the `with` block ends them."""

    def __init__(self, workers: int, device: str, limit_seconds: float) -> None:
        self._device = cast(Literal["cpu", "cuda"], device)
        self._limit_seconds = limit_seconds
        self._children = Children()
        self._starting: list[threading.Thread] = []
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
        for thread in self._starting:  # its process is dead by now
            thread.join()
        for worker in self._workers:
            worker.close()

    def start(self) -> None:
        """Start the processes now, in the background, rather than at the first kernels."""
        self._starting = [threading.Thread(target=self._start_one, daemon=True) for _ in self._workers]
        for thread in self._starting:
            thread.start()

    def _start_one(self) -> None:
        worker = self._idle.get()
        try:
            with contextlib.suppress(LateError, LostError, OSError):  # the first kernel says so
                worker.server(PROBE).start()
        finally:
            self._idle.put(worker)

    def check(
        self, mugraph: MuGraph, configs: tuple[Any, ...], *, limit_seconds: float | None = None
    ) -> None:
        """Compile a muGraph and run it once on random inputs; raise KernelFaultError where that fails."""
        limit = self._limit_seconds if limit_seconds is None else min(limit_seconds, self._limit_seconds)
        end = time.monotonic() + limit
        name = mugraph.graph.name
        try:
            worker = self._idle.get(timeout=limit)
        except queue.Empty:
            raise KernelFaultError(
                f"{name}: no process was free for its first run in {limit:.1f} s"
            ) from None
        try:
            ProbeJob(name, mugraph, configs, self._device).run(worker, max(end - time.monotonic(), 0.0))
        finally:
            self._idle.put(worker)

    def stop(self) -> None:
        """End every process now; what waits for one fails."""
        self._children.close()
