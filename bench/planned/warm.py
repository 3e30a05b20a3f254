"""The kernels and the rivals of several cases, compiled beside one another before anything is timed."""

import os
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import Any

from superopt.bench.planned.compiler import LATE, CompileJob
from superopt.bench.planned.loaded import Loaded, Settings
from superopt.candidates import Candidate, RegionCandidates
from superopt.tune.pool import JobResult, compile_all
from superopt.tune.probe import ProbeJob

__all__ = ["warm", "warm_slow"]

_JOB_S = 60.0
_SLOW_JOB_S = 180.0  # where torch.compile picks among many kernels in some jobs


class _TimeUpError(Exception):
    """The deadline for compiling is over."""


def warm(
    loaded: Sequence[Loaded],
    settings: Settings,
    *,
    deadline: float,
    tell: Callable[[str], None],
    slow: bool = False,
) -> tuple[list[Loaded], dict[str, str]]:
    """Run every kernel once in processes of their own, and compile the rivals of torch.compile there as well.

    Returns the cases without the candidates that failed or were not reached, and why each is missing.
    The kernels stay in the caches of Triton and of the C++ compiler, where this process finds them. With
    `slow`, rivals that are picked among many kernels come last, each on a share of the cores.
    """
    jobs: list[Any] = []
    for one in loaded:
        if "torch.compile" in settings.peers:
            jobs.append(_peer_job(one, settings, "torch.compile"))
        jobs += [
            ProbeJob(_job(one, work, candidate), candidate.mugraph, candidate.configs, one.device)
            for work in one.work
            for candidate in work.candidates
        ]
    slow_jobs = _slow_jobs(loaded, settings) if slow else []
    why = _outcomes([*jobs, *slow_jobs], loaded, deadline, tell)
    late = {job.name: why.pop(job.name) for job in slow_jobs}
    kept = []
    for one in _with_ready(loaded, settings, late):
        work = tuple(
            replace(
                work,
                candidates=tuple(other for other in work.candidates if why[_job(one, work, other)] is None),
            )
            for work in one.work
        )
        kept.append(replace(one, work=work))
    return kept, {name: reason for name, reason in why.items() if reason is not None}


def warm_slow(
    loaded: Sequence[Loaded], settings: Settings, *, deadline: float, tell: Callable[[str], None]
) -> tuple[list[Loaded], dict[str, str]]:
    """Compile the slow rivals; return the cases, and the reasons why some rivals are not ready."""
    jobs = _slow_jobs(loaded, settings)
    why = _outcomes(jobs, loaded, deadline, tell)
    failures = {name: reason for name, reason in why.items() if reason not in (None, LATE)}
    return _with_ready(loaded, settings, why), {name: str(reason) for name, reason in failures.items()}


def _outcomes(
    jobs: Sequence[Any], loaded: Sequence[Loaded], deadline: float, tell: Callable[[str], None]
) -> dict[str, str | None]:
    """Return why each job failed, None where it did not, by the deadline."""
    done: dict[str, str | None] = {}

    def on_done(result: JobResult) -> None:
        done[result.name] = result.failure
        if time.monotonic() > deadline:
            raise _TimeUpError

    tell(f"compiling {len(jobs)} kernels and peers of {len(loaded)} cases")
    longest = _SLOW_JOB_S if any("autotune" in job.name for job in jobs) else _JOB_S
    limit = min(max(deadline - time.monotonic(), 5.0), longest)
    with suppress(_TimeUpError):
        compile_all(jobs, workers=_workers(), limit_seconds=limit, on_done=on_done)
    return {job.name: done.get(job.name, LATE) for job in jobs}


def _peer_job(one: Loaded, settings: Settings, peer: str, threads: int = 1) -> CompileJob:
    return CompileJob(
        _peer_name(one, peer), one.case.workload, one.case.case, settings.dtype, peer, one.device, threads
    )


def _slow_jobs(loaded: Sequence[Loaded], settings: Settings) -> list[CompileJob]:
    threads = max(_workers() // max(len(loaded) * len(settings.slow_peers), 1), 1)
    return [_peer_job(one, settings, peer, threads) for one in loaded for peer in settings.slow_peers]


def _with_ready(loaded: Sequence[Loaded], settings: Settings, why: Mapping[str, str | None]) -> list[Loaded]:
    """Return the cases with the slow rivals that were compiled for them."""
    return [
        replace(
            one,
            ready=tuple(peer for peer in settings.slow_peers if why.get(_peer_name(one, peer), LATE) is None),
        )
        for one in loaded
    ]


def _peer_name(one: Loaded, peer: str) -> str:
    return f"{one.case.name} {peer}"


def _job(one: Loaded, work: RegionCandidates, candidate: Candidate) -> str:
    return f"{one.case.name} {work.goal.name} {candidate.name}"


def _workers() -> int:
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
