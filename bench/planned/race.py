"""One case of `bench.gpu` raced: its candidates among each other, and the best of them against PyTorch.

Candidates are made, raced and checked in floats by the same stages as in `superopt tune`. What it
finds best then meets every rival, in turns, on inputs that no cache holds, and loses where it is slower.
"""

import time
from collections.abc import Callable, Mapping, Sequence
from functools import cache, partial
from typing import Any

from superopt.bench.harness.records import Record, launch_record
from superopt.bench.harness.rivals import compiled, copies_like, ready
from superopt.bench.kernels.by_hand import hand_written
from superopt.bench.kernels.roofs import roofs_of
from superopt.bench.planned.loaded import Loaded, Settings
from superopt.candidates import Candidate
from superopt.candidates.proof import prove_by_graph
from superopt.clock import Clock
from superopt.errors import InputError, SuperoptError
from superopt.funnel.assembly import assemble, in_parts
from superopt.live.optimized import Optimized
from superopt.optimizer import race
from superopt.options import OptimizeOptions
from superopt.targets import Target, config_json
from superopt.tune.errors import DeviceLostError
from superopt.tune.gpu import copy_gbs, rotating_bytes, times_on_cuda
from superopt.tune.measure import Times, times_together

__all__ = ["OUT_OF_TIME", "contenders", "copy_share", "race_again", "run_case"]

OUT_OF_TIME = "not run: out of time"
_SURELY = 0.95  # the share of a floor below which a time cannot be right
_RACE_S = 2.0
_CONTEST_S = 6.0
_CALLED_S = 0.15  # seconds of timing calls together with their launches
_MORE_THAN_SDPA = (
    "qknorm-attention",
    "llama-layer",
)  # where torch.compile makes rivals written by hand faster


def run_case(
    loaded: Loaded,
    settings: Settings,
    *,
    seconds: float,
    peers: Sequence[str],
    failures: Mapping[str, str],
    tell: Callable[[str], None],
) -> Record:
    """Return the record of one case, raced for about so many seconds."""
    start = time.monotonic()
    clock = Clock()
    record: Record = {**loaded.case.known(), "dtype": settings.dtype, "seed": settings.seed, "error": None}
    record["candidates"] = {
        name.removeprefix(f"{loaded.case.name} "): {"median_us": None, "rejected": reason}
        for name, reason in failures.items()
        if name.startswith(f"{loaded.case.name} ")
    }
    if not all(work.candidates for work in loaded.work):
        return record | {"error": f"no candidate ran: {_first_reason(record)}"}
    # The most seconds of the race, which ends as soon as every candidate has its rounds.
    longest = max(2 * seconds, _CONTEST_S) * len(loaded.work)
    best = _best(loaded, settings, longest, clock, tell)
    for plan in best.regions:
        record["candidates"] |= {
            f"{plan.goal.name} {one.name}": {
                "median_us": None if one.measurement is None else one.measurement.median_us,
                "rejected": None if one.fate.is_sound else str(one.fate),
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
        if prove_by_graph(work.goal, one.graph, one.mugraph) is None:
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
) -> Record:
    """Return the record of a case with the kernels that it chose raced once more, against every peer."""
    everything = {one.schedule: one for work in loaded.work for one in work.candidates}
    kernels = {}
    chosen = []
    for work, saved in zip(loaded.work, record["chosen"], strict=True):
        configs = tuple(
            None if one is None else loaded.target.config_from_json(one) for one in saved["configs"]
        )
        base = everything.get(saved["schedule"])
        if base is None:
            raise InputError(f"{loaded.case.name}: the plan has no {saved['schedule']!r} any more")
        chosen.append(base)
        kernels[work.goal.name] = loaded.target.make(base.mugraph, configs)
    fused = assemble(in_parts(loaded.traced, [work.goal for work in loaded.work]), kernels)
    return {**record, **_raced(loaded, settings, fused, chosen, settings.peers, seconds, tell)}


def _first_reason(record: Mapping[str, Any]) -> str:
    reasons = (one["rejected"] for one in record["candidates"].values())
    return next((reason for reason in reasons if reason), "none was measured")


def _chosen_json(one: Candidate) -> Record:
    configs = [None if config is None else config_json(config) for config in one.configs]
    return {"name": one.name, "schedule": one.schedule, "configs": configs}


def _best(
    loaded: Loaded, settings: Settings, seconds: float, clock: Clock, tell: Callable[[str], None]
) -> Optimized:
    """Return the outcome of the race of all candidates, whose guarded first runs are over."""
    options = OptimizeOptions(
        target=loaded.target.name,
        seconds=seconds,
        torch_compile=False,
        guarded=False,
        cache=False,
        seed=settings.seed,
    )
    return race(
        loaded.case.function,
        loaded.traced,
        loaded.work,
        loaded.result.inputs,
        loaded.target,
        options,
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
    wanted = {name: (function, None if name == "eager" else name) for name in settings.peers}
    for name, other in hand_written(loaded.case.workload).items():
        wanted[name] = (other, None)
        if loaded.case.workload in _MORE_THAN_SDPA and "torch.compile" in peers:
            wanted[f"torch.compile {name}"] = (other, "torch.compile")
    late = {name: OUT_OF_TIME for name in settings.peers if name not in peers}
    makers = {name: partial(_made, *one) for name, one in wanted.items() if name not in late}
    found, absent = ready(makers, lambda: inputs, synchronize=loaded.target.synchronize)
    return {"superopt": fused, **found}, late | absent


def _made(function: Callable[..., Any], mode: str | None) -> Callable[..., Any]:
    return function if mode is None else compiled(function, mode)


def _raced(
    loaded: Loaded,
    settings: Settings,
    fused: Callable[..., Any],
    chosen: Sequence[Candidate],
    peers: Sequence[str],
    seconds: float,
    tell: Callable[[str], None],
) -> Record:
    """Return the part of a record that comes from the race against the rivals."""
    import torch

    target = loaded.target
    torch._dynamo.reset()  # else torch.compile would make one program for all sizes of a function
    on_cuda = target.torch_device == "cuda"
    least = rotating_bytes() if on_cuda else 0
    copies = copies_like(loaded.result.inputs, target.torch_device, seed=settings.seed, least_bytes=least)
    with torch.no_grad():
        tell(f"{loaded.case.name}: compiling peers")
        runs, absent = contenders(loaded, fused, peers, settings, copies[0])
        tell(f"{loaded.case.name}: racing {', '.join(runs)}")
        timed = _times(runs, copies, target, min(seconds, _RACE_S))
        called = _called(runs, copies, target)
    raced = launch_record(timed, "superopt", "eager")
    ours = raced["measured"]["superopt"]["median_us"]
    floor, lowest = _floor(loaded, chosen), _floor(loaded, chosen, kept=True)
    impossible = lowest is not None and target.clears_caches and ours < _SURELY * lowest
    why = f"{ours:.2f} µs is less than its floor of {lowest:.2f} µs: not counted" if impossible else None
    roofs = roofs_of([work.goal for work in loaded.work], target.cost_device())
    copied = _copy_gbs() if on_cuda else None
    return {
        **raced,
        "ratio": None if impossible else raced["ratio"],
        "called_us": called,
        "not_run": absent,
        "floor_us": floor,
        "roofs": roofs,
        "floor_share": None if floor is None else floor / ours,
        "copy_gbs": copied,
        "copy_share": copy_share(roofs["memory_us"], ours, target.cost_device().memory_gbs, copied),
        "error": why,
    }


@cache
def _copy_gbs() -> float:
    """Return the bandwidth that a copy reaches on this device, measured once."""
    return copy_gbs()


def copy_share(memory_us: float, ours_us: float, memory_gbs: float, copied: float | None) -> float | None:
    """Return the share of a copy's bandwidth at which bytes move, whose least time is by the datasheet's."""
    return None if copied is None else memory_us / ours_us * memory_gbs / copied


def _times(
    runs: Mapping[str, Callable[..., Any]], copies: Sequence[tuple[Any, ...]], target: Target, seconds: float
) -> dict[str, Times]:
    """Return the times of all contenders; on CUDA they run as graphs, so that launches cost none of them."""
    if target.torch_device != "cuda":
        return times_together(runs, copies, seconds=seconds)
    return times_on_cuda(runs, copies, seconds=seconds, graph="always")


def _called(
    runs: Mapping[str, Callable[..., Any]], copies: Sequence[tuple[Any, ...]], target: Target
) -> dict[str, float]:
    """Return the times of calls from Python until the device is idle, which include the launches."""
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
