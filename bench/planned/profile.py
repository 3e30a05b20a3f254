"""Every candidate of one case by itself: its time, its share of the device's rates, registers and spills."""

import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from superopt.bench.harness.rivals import copies_like
from superopt.bench.kernels.cases import Case
from superopt.bench.planned.loaded import Loaded, Settings, load_case
from superopt.bench.planned.race import contenders
from superopt.bench.planned.warm import warm
from superopt.candidates import Candidate, RegionCandidates
from superopt.funnel.assembly import known_tensors
from superopt.targets import KernelReport

__all__ = ["profile"]

_EACH_S = 0.2
_ALONE = 5  # so many of the fastest candidates are shown kernel by kernel


def profile(case: Case, settings: Settings, *, minutes: float, tell: Callable[[str], None]) -> int:
    """Measure every candidate of a case and print what is known of it, the fastest first."""
    deadline = time.monotonic() + minutes * 60
    loaded = load_case(case, settings)
    reports = _reports(loaded, tell)
    kept, failures = warm([loaded], settings, deadline=time.monotonic() + minutes * 30, tell=tell)
    for name, reason in failures.items():
        print(f"failed: {name}: {reason}")
    inputs, known = _inputs(loaded, settings)
    rows = 0
    for work in kept[0].work:
        tensors = [{port.name: one[port.name] for port in work.goal.inputs} for one in known]
        timed = _timed(loaded, work, tensors, deadline)
        rows += len(timed)
        _show(loaded, work, timed, reports)
        if loaded.target.torch_device == "cuda":
            for one in sorted(timed, key=lambda one: timed[one])[:_ALONE]:
                _show_kernels(loaded, work, one, tensors[0])
    _show_whole(loaded, settings, inputs, tell)
    return 0 if rows else 1


_Reports = Mapping[tuple[str, str, int], KernelReport | str]


def _reports(loaded: Loaded, tell: Callable[[str], None]) -> _Reports:
    """Return what the compiler says of each kernel of each candidate."""
    jobs = [
        (work.goal.name, one, number)
        for work in loaded.work
        for one in work.candidates
        for number, config in enumerate(one.configs)
        if config is not None
    ]
    tell(f"compiling {len(jobs)} kernels for their registers")
    found: dict[tuple[str, str, int], KernelReport | str] = {}

    def on_done(at: int, report: KernelReport | str) -> None:
        goal, one, number = jobs[at]
        found[goal, one.name, number] = report

    if loaded.target.torch_device == "cuda":
        wanted = [(one.mugraph, number, one.configs[number]) for _, one, number in jobs]
        loaded.target.compile_ahead(wanted, seconds=120.0, on_done=on_done)
    return found


def _inputs(loaded: Loaded, settings: Settings) -> tuple[list[tuple[Any, ...]], list[Mapping[str, Any]]]:
    """Return copies of the inputs, and of every tensor that enters a region."""
    import torch

    with torch.no_grad():
        inputs = copies_like(loaded.result.inputs, loaded.target.torch_device, seed=settings.seed)
        return inputs, [known_tensors(loaded.traced, one) for one in inputs]


def _timed(
    loaded: Loaded, work: RegionCandidates, tensors: Sequence[Mapping[str, Any]], deadline: float
) -> dict[str, float]:
    """Return the median time of each candidate; one that fails says so and has none."""
    import torch

    from superopt.tune.errors import DeviceLostError

    names = [port.name for port in work.goal.inputs]
    copies = [tuple(one[name] for name in names) for one in tensors]
    found: dict[str, float] = {}
    for one in work.candidates:
        if time.monotonic() > deadline:
            print(f"not measured: {one.name}: out of time")
            continue
        try:
            kernel = loaded.target.make(one.mugraph, one.configs)

            def run(*given: Any, kernel: Any = kernel) -> Any:
                return kernel(**dict(zip(names, given, strict=True)))

            with torch.no_grad():
                taken = loaded.target.times({one.name: run}, copies, seconds=_EACH_S)
                timing = taken[one.name].summary()
        except DeviceLostError:
            raise
        except Exception as error:  # a kernel or its compiler may raise anything
            print(f"failed: {one.name}: {type(error).__name__}: {error}")
            continue
        found[one.name] = timing.median_us
    return found


def _show(loaded: Loaded, work: RegionCandidates, timed: Mapping[str, float], reports: _Reports) -> None:
    from rich.console import Console
    from rich.table import Table

    floor = loaded.target.floor_us(work.goal)
    table = Table(title=f"{loaded.case.name}, {work.goal.name}: at least {floor or 0:.1f} µs")
    table.add_column("candidate")
    for heading in ("µs", "guess", "of floor", "GB/s", "TFLOP/s", "registers", "spills", "shared"):
        table.add_column(heading, justify="right")
    table.add_column("configurations")
    for one in sorted(work.candidates, key=lambda one: timed.get(one.name, float("inf"))):
        us = timed.get(one.name)
        if us is None:
            continue
        known = loaded.target.reports(one.mugraph, one.configs)
        moved = sum(report.bytes or 0 for report in known)
        flops = sum(report.flops or 0 for report in known)
        guesses = [report.predicted_us for report in known]
        guess = f"{sum(us or 0 for us in guesses):.1f}" if None not in guesses else ""
        made = [reports.get((work.goal.name, one.name, number)) for number in range(len(one.configs))]
        table.add_row(
            one.name,
            f"{us:.2f}",
            guess,
            f"{(floor or 0) / us:.0%}",
            f"{moved / us / 1e3:.0f}",
            f"{flops / us / 1e6:.1f}",
            *(
                " ".join(str(getattr(report, field, "-")) for report in made)
                for field in ("registers", "spill_bytes", "shared_bytes")
            ),
            _configs(one),
        )
    Console(width=200).print(table)


def _configs(one: Candidate) -> str:
    """Return the configurations of a candidate's kernels in short."""
    found = []
    for config in one.configs:
        if config is None:
            found.append("library")
            continue
        tiles = " ".join(f"{axis}{tile}" for axis, tile in config.tiles)
        more = [f"w{config.num_warps}", f"s{config.num_stages}"] if hasattr(config, "num_warps") else []
        found.append(" ".join([tiles, *more]))
    return " | ".join(found)


def _show_kernels(loaded: Loaded, work: RegionCandidates, name: str, tensors: Mapping[str, Any]) -> None:
    """Print the device's time of each kernel of one candidate, by torch's profiler."""
    import torch
    from torch.profiler import ProfilerActivity
    from torch.profiler import profile as profiled

    one = next(one for one in work.candidates if one.name == name)
    kernel = loaded.target.make(one.mugraph, one.configs)
    calls = 10
    flush = torch.empty(256 << 20, dtype=torch.int8, device="cuda")
    with torch.no_grad():
        kernel(**tensors)
        with profiled(activities=[ProfilerActivity.CUDA]) as found:
            for _ in range(calls):
                flush.zero_()
                kernel(**tensors)
            torch.cuda.synchronize()
    print(f"{name}:")
    for event in found.key_averages():
        us = getattr(event, "device_time_total", 0.0) / calls
        if us > 0 and "FillFunctor" not in event.key and "Memset" not in event.key:
            print(f"  {us:9.2f} µs  {event.count // calls} x {event.key[:90]}")


def _show_whole(
    loaded: Loaded, settings: Settings, inputs: Sequence[tuple[Any, ...]], tell: Callable[[str], None]
) -> None:
    """Print the times of the rivals on the same inputs."""
    import torch

    tell("timing the peers")
    with torch.no_grad():
        runs, absent = contenders(loaded, loaded.case.function, settings.peers, settings, inputs[0])
        del runs["superopt"]
        for name, taken in loaded.target.times(runs, inputs, seconds=1.0).items():
            timing = taken.summary()
            print(f"{name:44} {timing.median_us:9.2f} µs  {timing.method} {timing.note}")
    for name, reason in absent.items():
        print(f"{name:44} {reason}")
