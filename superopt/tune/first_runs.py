"""First runs: each kernel runs first in a process that may hang, crash or be killed without harm."""

import contextlib
import queue
import threading
import time
from typing import Any, Literal, Self, cast

from superopt.codegen.children import LONGEST_S, Children, LateError, LostError
from superopt.ir import MuGraph
from superopt.tune.errors import KernelFaultError
from superopt.tune.pool import Worker
from superopt.tune.probe import PROBE, ProbeJob

__all__ = ["FirstRuns"]

_PATIENCE_S = 2.0  # seconds to wait for a busy process before another one is started


class FirstRuns:
    """Processes for first runs, kept from kernel to kernel; leaving the `with` block ends them."""

    def __init__(self, workers: int, device: str, limit_seconds: float) -> None:
        self._device = cast(Literal["cpu", "cuda"], device)
        self._limit_seconds = limit_seconds
        self._children = Children()
        self._starting: threading.Thread | None = None
        self._workers = [Worker(self._children) for _ in range(workers)]
        self._fresh = list(self._workers)  # not started
        self._idle: queue.SimpleQueue[Worker] = queue.SimpleQueue()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *raised: object) -> None:
        self.stop()
        if self._starting is not None:  # its process is dead by now
            self._starting.join()
        for worker in self._workers:
            worker.close()

    @property
    def workers(self) -> int:
        """The most processes."""
        return len(self._workers)

    @property
    def children(self) -> Children:
        """Where processes are kept that end with the guard."""
        return self._children

    def start(self) -> None:
        """Start a process now, in the background, rather than at the first kernel."""
        if self._fresh:
            worker = self._fresh.pop()
            self._starting = threading.Thread(target=self._start, args=(worker,), daemon=True)
            self._starting.start()

    def _start(self, worker: Worker) -> None:
        try:
            with contextlib.suppress(LateError, LostError, OSError):  # the first kernel says so
                worker.server(PROBE).start()
        finally:
            self._idle.put(worker)

    def _worker(self, limit_seconds: float) -> Worker:
        """Return a free process; wait a moment for a busy one before another is started."""
        patience = min(_PATIENCE_S, limit_seconds) if len(self._fresh) < len(self._workers) else 0.0
        with contextlib.suppress(queue.Empty):
            return self._idle.get(timeout=patience) if patience else self._idle.get_nowait()
        with contextlib.suppress(IndexError):
            return self._fresh.pop()
        return self._idle.get(timeout=min(max(limit_seconds - patience, 0.0), LONGEST_S))

    def check(
        self, mugraph: MuGraph, configs: tuple[Any, ...], *, limit_seconds: float | None = None
    ) -> None:
        """Compile a muGraph and run it once on random inputs; raise KernelFaultError where that fails."""
        limit = self._limit_seconds if limit_seconds is None else min(limit_seconds, self._limit_seconds)
        end = time.monotonic() + limit
        name = mugraph.graph.name
        try:
            worker = self._worker(limit)
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
