"""Pool: many kernels compiled at a time, in processes that may crash or hang without harm.

A worker keeps its servers for the next job, so that many kernels share the seconds in which a compiler
is loaded. What fails is recorded in one line; the rest goes on.
"""

import contextlib
import queue
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from superopt.codegen.children import Children, LateError, LostError, Server
from superopt.codegen.triton import AheadCompiler, CompileReport, TritonSource
from superopt.errors import InputError, SuperoptError, first_line

__all__ = ["Job", "JobResult", "TritonJob", "Worker", "compile_all"]


class Worker:
    """What one job at a time runs on: its children, and servers that outlive the job."""

    def __init__(self, children: Children) -> None:
        self.children = children
        self._compiler: AheadCompiler | None = None
        self._servers: dict[tuple[str, ...], Server] = {}

    @property
    def compiler(self) -> AheadCompiler:
        """A process that compiles Triton kernels."""
        if self._compiler is None:
            self._compiler = AheadCompiler(self.children)
        return self._compiler

    def server(self, command: tuple[str, ...]) -> Server:
        """Return the server that a command starts."""
        if command not in self._servers:
            self._servers[command] = Server(command, self.children)
        return self._servers[command]

    def close(self) -> None:
        """End all servers."""
        if self._compiler is not None:
            self._compiler.close()
        for server in self._servers.values():
            server.close()


class Job(Protocol):
    """One piece of work of the pool."""

    @property
    def name(self) -> str:
        """What the result is reported under."""

    def run(self, worker: Worker, limit_seconds: float) -> Any:
        """Return what the work makes; SuperoptError, LateError or LostError where it fails."""


@dataclass(frozen=True, slots=True)
class TritonJob:
    """Compile a Triton kernel ahead of time; makes a CompileReport."""

    name: str
    source: TritonSource
    target: str = "cuda:90"
    numbers: Mapping[str, int] | None = None  # the numbers of the call that it is compiled for
    texts: bool = False  # whether the report has the assembly

    def run(self, worker: Worker, limit_seconds: float) -> CompileReport:
        """Compile by the worker's server."""
        return worker.compiler.compile(
            self.source,
            target=self.target,
            numbers=self.numbers,
            texts=self.texts,
            limit_seconds=limit_seconds,
        )


@dataclass(frozen=True, slots=True)
class JobResult:
    """The result of a job: what it made, or why it failed, in one line."""

    name: str
    made: Any
    failure: str | None
    seconds: float


def compile_all(
    jobs: Sequence[Job],
    *,
    workers: int,
    limit_seconds: float,
    on_done: Callable[[JobResult], None] | None = None,
) -> tuple[JobResult, ...]:
    """Return the result of each job, in their order; each may take so many seconds.

    `on_done` is told of each as it ends, in the caller's thread. KeyboardInterrupt, or an error of
    `on_done`, ends all children and passes on.
    """
    if workers < 1:
        raise InputError(f"workers is {workers!r}; give at least 1")
    if not limit_seconds > 0:
        raise InputError(f"limit_seconds is {limit_seconds!r}; give a time above 0")
    waiting: queue.SimpleQueue[tuple[int, Job]] = queue.SimpleQueue()
    for numbered in enumerate(jobs):
        waiting.put(numbered)
    ended: queue.SimpleQueue[tuple[int, JobResult | BaseException]] = queue.SimpleQueue()
    results: dict[int, JobResult] = {}
    with Children() as children:
        threads = [
            threading.Thread(target=_work, args=(children, waiting, ended, limit_seconds), daemon=True)
            for _ in range(min(workers, len(jobs)))
        ]
        for thread in threads:
            thread.start()
        try:
            while len(results) < len(jobs):
                number, result = ended.get()
                if isinstance(result, BaseException):
                    raise result
                results[number] = result
                if on_done is not None:
                    on_done(result)
        finally:
            with contextlib.suppress(queue.Empty):
                while True:
                    waiting.get_nowait()
            children.close()
            for thread in threads:
                thread.join()
    return tuple(results[number] for number in range(len(jobs)))


def _work(
    children: Children,
    waiting: "queue.SimpleQueue[tuple[int, Job]]",
    ended: "queue.SimpleQueue[tuple[int, JobResult | BaseException]]",
    limit_seconds: float,
) -> None:
    """Carry out jobs until there are none."""
    worker = Worker(children)
    try:
        while True:
            try:
                number, job = waiting.get_nowait()
            except queue.Empty:
                return
            try:
                ended.put((number, _run_job(job, worker, limit_seconds)))
            except BaseException as error:  # a fault of ours, for the caller's thread to raise
                ended.put((number, error))
                return
    finally:
        worker.close()


def _run_job(job: Job, worker: Worker, limit_seconds: float) -> JobResult:
    start = time.perf_counter()
    made, failure = None, None
    try:
        made = job.run(worker, limit_seconds)
    except (SuperoptError, LateError, LostError, OSError) as error:
        failure = first_line(error)
    return JobResult(job.name, made, failure, time.perf_counter() - start)
