"""One case of `bench.gpu`: its plan read, its kernels raced, and the best of them raced against PyTorch.

Candidates are made, raced and checked in floats by the same contest that `superopt tune` holds. What it
finds best then meets every peer, in turns, on inputs that no cache holds, and loses where it is slower.
"""

import json
import os
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Literal

from superopt.bench.gpucases import PEERS, Case, hand_written
from superopt.bench.gpuwarm import LATE, CompileJob, compiled
from superopt.bench.harness import launch_record
from superopt.bench.roofs import roofs_of
from superopt.clock import Clock
from superopt.errors import InputError, SuperoptError
from superopt.plans.assembly import assemble, in_parts
from superopt.plans.optimized import Optimized
from superopt.plans.plan import Candidate, OptimizeOptions, RegionPlan, Work
from superopt.plans.proof import proven_by_graph
from superopt.plans.saved import Result, read_result
from superopt.plans.settle import settle
from superopt.targets import Target, config_json, pick_target
from superopt.tune.errors import DeviceLostError
from superopt.tune.measure import Times, times_together
from superopt.tune.pool import Outcome, compile_all
from superopt.tune.probe import ProbeJob

__all__ = ["Loaded", "Settings", "check_device", "load_case", "race_again", "run_case", "warm", "warm_slow"]

OUT_OF_TIME = "not run: out of time"
_KERNEL = ", kernel "
_COPIES = 3
_SURELY = 0.95  # of a floor, below which a time cannot be right
_RACE_S = 2.0
_CONTEST_S = 6.0
_CALLED_S = 0.15  # of timing calls with their launches
_JOB_S = 60.0
_SLOW_JOB_S = 180.0  # where peers are among them that are picked among many kernels
_MORE_THAN_SDPA = ("qknorm-attention", "llama-layer")  # there torch.compile helps what is written by hand


@dataclass(frozen=True, slots=True)
class Settings:
    """What holds for all cases of a run."""

    folder: Path
    dtype: str = "f16"
    trials: int = 16  # candidates of a region, each in one configuration for every kernel
    peers: tuple[str, ...] = PEERS
    seed: int = 0

    @property
    def slow_peers(self) -> tuple[str, ...]:
        """Those that are picked among many kernels, each of which is compiled."""
        return tuple(name for name in self.peers if "autotune" in name)

    @property
    def quick_peers(self) -> tuple[str, ...]:
        """All others."""
        return tuple(name for name in self.peers if name not in self.slow_peers)


@dataclass(frozen=True, slots=True)
class Loaded:
    """A case with its plan, ready to be raced."""

    case: Case
    result: Result
    traced: Any
    work: tuple[Work, ...]
    ready: tuple[str, ...] = ()  # the slow peers whose kernels are compiled

    @property
    def target(self) -> Target:
        """What its kernels are for."""
        return self.result.target


def check_device(cases: Sequence[Case], settings: Settings) -> None:
    """Raise InputError where the plans are for a device that is not here: before any of them is tried."""
    places = [case.plan(settings.folder, settings.dtype) for case in cases]
    for name in dict.fromkeys(_planned_for(place) for place in places if place.exists()):
        if not pick_target(name).available:
            raise InputError(f"the plans in {str(settings.folder)!r} are for {name}; {_here()}")


def _planned_for(place: Path) -> str:
    try:
        return str(json.loads(place.read_text(encoding="utf-8"))["target"])
    except (OSError, ValueError, TypeError, KeyError) as error:
        raise InputError(f"{place}: it is damaged; `python -m bench.plans` makes it anew") from error


def _here() -> str:
    """Return in words which device is here, and what can be done with it."""
    import torch

    if not torch.cuda.is_available():
        return "no CUDA device is here: --dry-run and --check need none"
    if find_spec("triton") is None:
        return "Triton is not installed"
    major, minor = torch.cuda.get_device_capability()
    name = f"cuda:{major}{minor}"
    return (
        f"{torch.cuda.get_device_name()} is {name}: make plans for it by"
        f" `python -m bench.plans --target {name} --out FOLDER`, and give --plans FOLDER"
    )


def load_case(case: Case, settings: Settings) -> Loaded:
    """Return a case with the candidates that its plan gives; InputError where there is no good plan."""
    place = case.plan(settings.folder, settings.dtype)
    if not place.exists():
        raise InputError(f"{case.name} has no plan in {settings.folder}; `python -m bench.plans` makes it")
    result = read_result(place)
    work = tuple(
        Work(
            plan.goal, tuple(_trials(plan, data["candidates"], result.target, settings.trials)), recalled=True
        )
        for plan, data in zip(result.regions, result.data["regions"], strict=True)
    )
    if empty := [one.goal.name for one in work if not one.candidates]:
        raise InputError(f"{place}: no candidate for {empty[0]}")
    return Loaded(case, result, result.traced(case.function), work)


def _trials(
    plan: RegionPlan, data: Sequence[Mapping[str, Any]], target: Target, count: int
) -> list[Candidate]:
    """Return the candidates of a plan, then the best of them in other configurations, kernel by kernel."""
    found = [one for one in plan.candidates if not one.rejected]
    variants = [
        list(_variants(one, saved.get("others") or [], target))
        for one, saved in zip(plan.candidates, data, strict=True)
        if not one.rejected
    ]
    for turn in range(max(map(len, variants), default=0)):
        found += [several[turn] for several in variants if turn < len(several)]
    return found[:count]


def _variants(candidate: Candidate, others: Sequence[Sequence[Any]], target: Target) -> Iterator[Candidate]:
    """Yield a candidate with other configurations of one kernel: the next best of each, then those after."""
    for turn in range(max(map(len, others), default=0)):
        for number, several in enumerate(others):
            if turn < len(several):
                config = target.config_from_json(several[turn])
                yield replace(
                    candidate,
                    name=f"{candidate.name}{_KERNEL}{number} as guess {turn + 2}",
                    configs=(*candidate.configs[:number], config, *candidate.configs[number + 1 :]),
                    kernels=(),
                    predicted_us=None,
                )


# -- compiled beside one another, before anything is timed


class _TimeUpError(Exception):
    """No time is left to compile more."""


def warm(
    loaded: Sequence[Loaded],
    settings: Settings,
    *,
    deadline: float,
    tell: Callable[[str], None],
    slow: bool = False,
) -> tuple[list[Loaded], dict[str, str]]:
    """Run every kernel once in processes of their own, and compile the peers of torch.compile there, too.

    Returns the cases without the candidates that failed or were not reached, and why each is missing.
    The kernels stay in the caches of Triton and of the C++ compiler, where this process finds them. With
    `slow`, peers that are picked among many kernels come last, each on a share of the cores.
    """
    jobs: list[Any] = []
    for one in loaded:
        if "torch.compile" in settings.peers:
            jobs.append(_peer_job(one, settings, "torch.compile"))
        jobs += [
            ProbeJob(_job(one, work, candidate), candidate.mugraph, candidate.configs, _device(one))
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
    """Compile the peers that are picked among many kernels; return the cases, and why some are not ready."""
    jobs = _slow_jobs(loaded, settings)
    why = _outcomes(jobs, loaded, deadline, tell)
    failures = {name: reason for name, reason in why.items() if reason not in (None, LATE)}
    return _with_ready(loaded, settings, why), {name: str(reason) for name, reason in failures.items()}


def _outcomes(
    jobs: Sequence[Any], loaded: Sequence[Loaded], deadline: float, tell: Callable[[str], None]
) -> dict[str, str | None]:
    """Return why each job failed, None where it did not, by the deadline."""
    done: dict[str, str | None] = {}

    def on_done(outcome: Outcome) -> None:
        done[outcome.name] = outcome.failure
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
        _peer_name(one, peer), one.case.workload, one.case.case, settings.dtype, peer, _device(one), threads
    )


def _slow_jobs(loaded: Sequence[Loaded], settings: Settings) -> list[CompileJob]:
    threads = max(_workers() // max(len(loaded) * len(settings.slow_peers), 1), 1)
    return [_peer_job(one, settings, peer, threads) for one in loaded for peer in settings.slow_peers]


def _with_ready(loaded: Sequence[Loaded], settings: Settings, why: Mapping[str, str | None]) -> list[Loaded]:
    """Return cases with those of their slow peers that were compiled."""
    return [
        replace(
            one,
            ready=tuple(peer for peer in settings.slow_peers if why.get(_peer_name(one, peer), LATE) is None),
        )
        for one in loaded
    ]


def _peer_name(one: Loaded, peer: str) -> str:
    return f"{one.case.name} {peer}"


def _device(one: Loaded) -> Literal["cpu", "cuda"]:
    return "cuda" if one.target.torch_device == "cuda" else "cpu"


def _job(one: Loaded, work: Work, candidate: Candidate) -> str:
    return f"{one.case.name} {work.goal.name} {candidate.name}"


def _workers() -> int:
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


# -- raced


def run_case(
    loaded: Loaded,
    settings: Settings,
    *,
    seconds: float,
    peers: Sequence[str],
    failures: Mapping[str, str],
    tell: Callable[[str], None],
) -> dict[str, Any]:
    """Return the record of one case, raced for about so many seconds."""
    start = time.monotonic()
    clock = Clock()
    record = _started(loaded, settings)
    record["candidates"] = {
        name.removeprefix(f"{loaded.case.name} "): {"median_us": None, "rejected": reason}
        for name, reason in failures.items()
        if name.startswith(f"{loaded.case.name} ")
    }
    if not all(work.candidates for work in loaded.work):
        return record | {"error": f"no candidate ran: {_first_reason(record)}"}
    # What the contest may take at most; it ends as soon as every candidate has its rounds.
    longest = max(2 * seconds, _CONTEST_S) * len(loaded.work)
    best = _best(loaded, settings, longest, clock, tell)
    for plan in best.regions:
        record["candidates"] |= {
            f"{plan.goal.name} {one.name}": {
                "median_us": None if one.measurement is None else one.measurement.median_us,
                "rejected": one.rejected,
            }
            for one in plan.candidates
        }
    record["phases_ms"] = {name: round(ms) for name, ms in clock.ms.items()}
    if best.fused is None or any(plan.chosen is None for plan in best.regions):
        return record | {"error": f"no candidate was right: {_first_reason(record)}"}
    chosen = [plan.chosen for plan in best.regions if plan.chosen is not None]
    record["chosen"] = [_chosen_json(one) for one in chosen]
    record["floats"] = None if best.floats is None else str(best.floats)
    for work, one in zip(loaded.work, chosen, strict=True):
        if proven_by_graph(work.goal, one.graph, one.mugraph, seed=settings.seed) is None:
            return record | {"error": f"{one.name} is not equal to {work.goal.name}"}
    left = max(seconds - (time.monotonic() - start), 1.0)
    record |= _raced(loaded, settings, best.fused, chosen, peers, left, tell)
    record["seconds"] = round(time.monotonic() - start, 1)
    return record


def race_again(
    loaded: Loaded,
    settings: Settings,
    record: Mapping[str, Any],
    *,
    seconds: float,
    tell: Callable[[str], None],
) -> dict[str, Any]:
    """Return the record of a case with the kernels that it chose raced once more, against every peer."""
    everything = {one.name: one for work in loaded.work for one in work.candidates}
    kernels = {}
    chosen = []
    for work, saved in zip(loaded.work, record["chosen"], strict=True):
        configs = tuple(
            None if one is None else loaded.target.config_from_json(one) for one in saved["configs"]
        )
        base = everything.get(saved["name"].partition(_KERNEL)[0])
        if base is None:
            raise InputError(f"{loaded.case.name}: the plan has no {saved['name']!r} any more")
        chosen.append(base)
        kernels[work.goal.name] = loaded.target.make(base.mugraph, configs)
    fused = assemble(in_parts(loaded.traced, [work.goal for work in loaded.work]), kernels)
    return {**record, **_raced(loaded, settings, fused, chosen, settings.peers, seconds, tell)}


def _started(loaded: Loaded, settings: Settings) -> dict[str, Any]:
    case = loaded.case
    return {
        "case": case.name,
        "suite": case.suite,
        "workload": case.workload,
        "sizes": dict(case.sizes),
        "dtype": settings.dtype,
        "seed": settings.seed,
        "error": None,
    }


def _first_reason(record: Mapping[str, Any]) -> str:
    reasons = (one["rejected"] for one in record["candidates"].values())
    return next((reason for reason in reasons if reason), "none was measured")


def _chosen_json(one: Candidate) -> dict[str, Any]:
    configs = [None if config is None else config_json(config) for config in one.configs]
    return {"name": one.name, "configs": configs}


def _best(
    loaded: Loaded, settings: Settings, seconds: float, clock: Clock, tell: Callable[[str], None]
) -> Optimized:
    """Return what the contest of all candidates gives; their first runs were guarded before."""
    options = OptimizeOptions(
        target=loaded.target.name,
        seconds=seconds,
        torch_compile=False,
        guarded=False,
        cache=False,
        seed=settings.seed,
    )
    return settle(
        loaded.case.function,
        loaded.traced,
        loaded.work,
        target=loaded.target,
        options=options,
        inputs=loaded.result.inputs,
        clock=clock,
        tell=tell,
        source=loaded.result.source,
    )


def _floor(loaded: Loaded, chosen: Sequence[Candidate], *, kept: bool = False) -> float | None:
    """Return the least time of the program as it was written, or as it was found where that takes less.

    With `kept`, what is written may stay in the cache, as it does where calls are measured one by one.
    """
    floors = []
    for work, one in zip(loaded.work, chosen, strict=True):
        known = [loaded.target.floor_us(graph, kept=kept) for graph in (work.goal, one.graph)]
        floors.append(min((us for us in known if us is not None), default=None))
    return None if None in floors else sum(us for us in floors if us is not None)


def contenders(
    loaded: Loaded,
    fused: Callable[..., Any],
    peers: Sequence[str],
    settings: Settings,
    inputs: tuple[Any, ...],
) -> tuple[dict[str, Callable[..., Any]], dict[str, str]]:
    """Return all that can be raced, each called once, and why others cannot."""
    function = loaded.case.function
    found: dict[str, Callable[..., Any]] = {"superopt": fused}
    wanted = {name: (function, None if name == "eager" else name) for name in settings.peers}
    for name, other in hand_written(loaded.case.workload).items():
        wanted[name] = (other, None)
        if loaded.case.workload in _MORE_THAN_SDPA and "torch.compile" in peers:
            wanted[f"torch.compile {name}"] = (other, "torch.compile")
    absent: dict[str, str] = {}
    for name, (other, mode) in wanted.items():
        if name in settings.peers and name not in peers:
            absent[name] = OUT_OF_TIME
            continue
        try:
            found[name] = other if mode is None else compiled(other, mode)
            found[name](*inputs)
            loaded.target.synchronize()
        except Exception as error:  # whatever stops a peer must not stop the race
            first = next((line for line in str(error).splitlines() if line.strip()), "no message")
            absent[name] = f"{type(error).__name__}: {first}"
            found.pop(name, None)
    return found, absent


def _raced(
    loaded: Loaded,
    settings: Settings,
    fused: Callable[..., Any],
    chosen: Sequence[Candidate],
    peers: Sequence[str],
    seconds: float,
    tell: Callable[[str], None],
) -> dict[str, Any]:
    """Return the part of a record that a race against peers gives."""
    import torch

    from superopt.verify.floats import typical

    target = loaded.target
    torch._dynamo.reset()  # another case of the same function must not make it one of any sizes
    like = tuple(
        torch.empty_strided(one.shape, one.stride(), dtype=one.dtype, device=target.torch_device)
        for one in loaded.result.inputs
    )
    copies = [typical(like, seed=settings.seed + at) for at in range(_COPIES)]
    with torch.no_grad():
        tell(f"{loaded.case.name}: compiling peers")
        runs, absent = contenders(loaded, fused, peers, settings, copies[0])
        tell(f"{loaded.case.name}: racing {', '.join(runs)}")
        timed = _times(runs, copies, target, min(seconds, _RACE_S))
        called = _called(runs, copies, target)
    raced = launch_record(timed, "superopt", "eager")
    ours = raced["measured"]["superopt"]["median_us"]
    floor, least = _floor(loaded, chosen), _floor(loaded, chosen, kept=True)
    impossible = least is not None and target.clears_caches and ours < _SURELY * least
    why = f"{ours:.2f} µs is less than its floor of {least:.2f} µs: not counted" if impossible else None
    return {
        **raced,
        "ratio": None if impossible else raced["ratio"],
        "called_us": called,
        "not_run": absent,
        "floor_us": floor,
        "roofs": roofs_of([work.goal for work in loaded.work], target.cost_device()),
        "floor_share": None if floor is None else floor / ours,
        "error": why,
    }


def _times(
    runs: Mapping[str, Callable[..., Any]], copies: Sequence[tuple[Any, ...]], target: Target, seconds: float
) -> dict[str, Times]:
    """Return the times of all; on CUDA as graphs, so that nobody's launches count, however many they are."""
    if target.torch_device != "cuda":
        return times_together(runs, copies, seconds=seconds)
    from superopt.tune.gpu import times_on_cuda

    return times_on_cuda(runs, copies, seconds=seconds, graph="always")


def _called(
    runs: Mapping[str, Callable[..., Any]], copies: Sequence[tuple[Any, ...]], target: Target
) -> dict[str, float]:
    """Return the times of calls from Python until the device is idle: launches are in them."""
    from superopt.tune import measure_together

    def waited(run: Callable[..., Any]) -> Callable[..., Any]:
        def call(*inputs: Any) -> None:
            run(*inputs)
            target.synchronize()

        return call

    try:
        timed = measure_together(
            {name: waited(run) for name, run in runs.items()}, copies, seconds=_CALLED_S, most_rounds=50
        )
    except SuperoptError as error:
        if isinstance(error, DeviceLostError):
            raise
        return {}
    return {name: one.median_us for name, one in timed.items()}
