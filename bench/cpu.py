"""C++ kernels against PyTorch on this machine: medians of interleaved calls, losses included.

    python -m bench.cpu --quick --json OUT                 8 cases, some 3 minutes on 2 cores
    python -m bench.cpu --minutes 30 --json OUT            cases in order, the most telling first
    python -m bench.cpu --minutes 30 --json OUT --resume   goes on after those that OUT has
    python -m bench.cpu --suite squares --no-library --threads 1,2 --json OUT

Every case is searched, scheduled, compiled, tuned and checked in floats as `superopt.optimize` does it,
with a short time for races; then its kernels meet eager PyTorch, torch.compile and, where it is
attention, scaled_dot_product_attention, in turns, on changing inputs. A ratio above 1 means that the
kernels are faster than the best of these. What `optimize` returns is the kernels where they beat eager
PyTorch and torch.compile, and the faster of those otherwise: the column "returned". Let nothing else run
meanwhile.

A peer that takes ten times as long as our kernels is timed by three calls. A case of which eager PyTorch
would take more than `--longest` seconds a call is left out, and listed as such.
"""

import argparse
import sys
import time
import traceback
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from superopt.bench.command import (
    Parser,
    above_zero,
    check_names,
    check_out,
    from_zero,
    mistakes_told,
)
from superopt.bench.cpucases import SUITES, CpuCase, chosen, hand_written
from superopt.bench.harness import (
    Results,
    begin,
    failed,
    geometric_means,
    launch_record,
    line,
    listed,
    machine,
    resumed,
    tell,
)
from superopt.bench.roofs import roofs_of
from superopt.errors import InputError, SuperoptError
from superopt.workloads import WORKLOADS

__all__ = ["main"]

PEERS = ("eager", "torch.compile")
_COPIES = 3
_LEAST_S = 5.0  # below it, no more cases are begun
_SLOW = 10.0  # times as long as our kernels: such a peer is timed by a few calls of its own
_FEW = 3
_PART = 8  # a case is tried with so many times fewer tokens, to see how long it would take


@dataclass(frozen=True, slots=True)
class Settings:
    """What holds for all cases of a run."""

    seconds: float = 2.0  # of tuning and racing candidates; as much again of racing peers
    graphs: int = 2
    peers: tuple[str, ...] = PEERS
    threads: tuple[int, ...] = ()  # numbers of threads to scale over
    library: bool = True
    longest: float = 1.5  # seconds of a call of eager PyTorch, above which a case is left out
    seed: int = 0


def measure(case: CpuCase, settings: Settings) -> dict[str, Any]:
    """Return the record of one case."""
    import torch

    from superopt.tune.measure import times_together
    from superopt.verify.floats import typical

    start = time.monotonic()
    if (eager_s := _expected_s(case)) > settings.longest:
        left_out = f"left out: eager PyTorch would take some {eager_s:.1f} s a call"
        return _known(case) | {"ratio": None, "error": left_out, "left_out": True}
    best = _optimized(case, settings)
    record = _known(case) | {
        "chosen": [plan.chosen.name if plan.chosen else "none: PyTorch's operators" for plan in best.regions],
        "seconds": {name: round(ms / 1e3, 2) for name, ms in best.phases_ms.items()},
    }
    if best.fused is None:
        reasons = [one.rejected for plan in best.regions for one in plan.candidates if one.rejected]
        raise InputError(f"no kernel came of it: {next(iter(reasons), 'nothing was found')}")
    torch._dynamo.reset()  # another case of the same function must not make it one of any sizes
    like = tuple(torch.empty_like(one, device="cpu") for one in case.inputs())
    copies = [typical(like, seed=settings.seed + at) for at in range(_COPIES)]
    runs, absent = _contenders(case, best.fused, settings, copies[0])
    with torch.no_grad():
        raced = launch_record(times_together(runs, copies, seconds=settings.seconds), "superopt", "eager")
    ours = raced["measured"]["superopt"]["median_us"]
    rivals = {name: one["median_us"] for name, one in raced["measured"].items() if name != "superopt"}
    replaceable = {
        name: us for name, us in {"superopt": ours, **rivals}.items() if name in ("superopt", *PEERS)
    }
    returned = min(replaceable, key=lambda name: replaceable[name])
    originals = min(us for name, us in rivals.items() if name in PEERS)
    return {
        **record,
        **raced,
        "floor_us": best.floor_us,
        "roofs": roofs_of([plan.goal for plan in best.regions], best.target.cost_device()),
        "not_run": absent,
        "returned": returned,
        "returned_ratio": originals / replaceable[returned],
        "threads": _scaling(runs, copies, settings),
        "wall_s": round(time.monotonic() - start, 1),
    }


def _expected_s(case: CpuCase) -> float:
    """Return how long a call of eager PyTorch should take, from one with an eighth of the tokens."""
    import torch

    from superopt.verify.floats import typical

    tokens = [size for size in ("M", "S", "T") if case.sizes.get(size, 1) >= 2 * _PART]
    if not tokens:
        return 0.0
    few = {**case.sizes, **{size: case.sizes[size] // _PART for size in tokens}}
    inputs = WORKLOADS[case.workload].inputs(dtype=case.dtype, device="meta", **few)
    given = typical(inputs)
    start = time.perf_counter()
    with torch.no_grad():
        case.function(*given)
    seconds = time.perf_counter() - start
    return seconds * (_PART**2 if case.suite == "prefill" else _PART)  # tokens look at tokens


def _timed(
    runs: Mapping[str, Callable[..., Any]], copies: Sequence[tuple[Any, ...]], seconds: float
) -> dict[str, Any]:
    """Return the times of our kernels and its near rivals in turns, and of slow ones by a few calls."""
    from superopt.targets import pick_target
    from superopt.tune.measure import Times

    once: dict[str, float] = {}
    for name, run in runs.items():
        run(*copies[1])
        start = time.perf_counter_ns()
        run(*copies[2])
        once[name] = (time.perf_counter_ns() - start) / 1e3
    near = {name: run for name, run in runs.items() if once[name] < _SLOW * once["superopt"]}
    found = dict(pick_target("cpu").measure(near, copies, seconds=seconds))
    for name in runs.keys() - near.keys():
        us = [once[name]]
        while len(us) < _FEW or (sum(us) < seconds * 1e6 / 10 and len(us) < 100):
            start = time.perf_counter_ns()
            runs[name](*copies[len(us) % len(copies)])
            us.append((time.perf_counter_ns() - start) / 1e3)
        found[name] = Times(us, note="slow: timed by calls of its own").summary()
    return {name: found[name] for name in runs}


def _optimized(case: CpuCase, settings: Settings) -> Any:
    """Return what optimizing a case gives; PyTorch races later."""
    from superopt.clock import Clock
    from superopt.driver import search
    from superopt.optimizer import OptimizeOptions
    from superopt.plans.plan import Within, Work
    from superopt.plans.schedules import schedules
    from superopt.plans.settle import settle
    from superopt.targets import pick_target
    from superopt.trace import trace

    target, clock = pick_target("cpu"), Clock()
    options = OptimizeOptions(
        target=target.name,
        seconds=settings.seconds / 2,
        graphs=settings.graphs,
        torch_compile=False,
        guarded=False,
        cache=False,
        seed=settings.seed,
    )
    inputs = case.inputs()
    traced = trace(case.function, *inputs, name=case.workload)
    with clock.phase("search"):
        found = search(traced.program, options=options.search)
    work = []
    with clock.phase("schedule"):
        for one in found.regions:
            some = schedules(one.goal, one.found, target, graphs=settings.graphs)
            kept = tuple(c for c in some.candidates if settings.library or not c.library)
            work.append(Work(some.goal, kept, some.dropped))
    return settle(
        case.function,
        traced,
        work,
        target=target,
        options=options,
        inputs=inputs,
        clock=clock,
        tell=lambda message: None,
        search=found,
        within=Within(deadline=float("inf"), beat_us=float("inf")),
    )


def _contenders(
    case: CpuCase, fused: Callable[..., Any], settings: Settings, inputs: tuple[Any, ...]
) -> tuple[dict[str, Callable[..., Any]], dict[str, str]]:
    """Return all that can be raced, each called once, and why others cannot."""
    import torch

    wanted: dict[str, Callable[[], Callable[..., Any]]] = {"eager": lambda: case.function}
    if "torch.compile" in settings.peers:
        wanted["torch.compile"] = lambda: torch.compile(case.function)
    for name, other in hand_written(case.workload).items():
        wanted[name] = lambda other=other: other  # type: ignore[misc]
    found: dict[str, Callable[..., Any]] = {"superopt": fused}
    absent: dict[str, str] = {}
    for name, make in wanted.items():
        try:
            run = make()
            with torch.no_grad():
                run(*inputs)
            found[name] = run
        except Exception as error:  # whatever stops a peer must not stop the race
            absent[name] = failed({}, error)["error"]
    return found, absent


def _scaling(
    runs: Mapping[str, Callable[..., Any]], copies: Sequence[tuple[Any, ...]], settings: Settings
) -> dict[str, dict[str, float]]:
    """Return the times of our kernels and of eager PyTorch on each number of threads."""
    import torch

    from superopt.targets import pick_target

    before, found = torch.get_num_threads(), {}
    both = {name: runs[name] for name in ("superopt", "eager")}
    try:
        for threads in settings.threads:
            torch.set_num_threads(threads)
            timed = pick_target("cpu").measure(both, copies, seconds=settings.seconds / 2)
            found[str(threads)] = {name: one.median_us for name, one in timed.items()}
    finally:
        torch.set_num_threads(before)
    return found


def _known(case: CpuCase) -> dict[str, Any]:
    return {
        "case": case.name,
        "suite": case.suite,
        "workload": case.workload,
        "dtype": case.dtype,
        "sizes": dict(case.sizes),
    }


def run_cases(cases: Sequence[CpuCase], settings: Settings, results: Results, *, minutes: float) -> None:
    """Measure all cases that have no record, until the time is over."""
    deadline = time.monotonic() + minutes * 60
    longest = _LEAST_S
    for case in cases:
        if case.name in results.records:
            continue
        if time.monotonic() + longest > deadline:
            return
        start = time.monotonic()
        try:
            record = measure(case, settings)
        except SuperoptError as error:
            record = failed(_known(case), error)
        except Exception as error:  # one case must not end the others
            record = failed(_known(case), error)
            record["traceback"] = traceback.format_exception(error)[-4:]
        longest = max(longest, (time.monotonic() - start) / 2)
        results.keep(case.name, record)
        tell(line(record))


def means(records: Iterable[Mapping[str, Any]]) -> dict[str, dict[str, dict[str, Any]]]:
    """Return the geometric means by dtype and by suite; what is returned is one more column."""
    known = [
        {**one, "ratios": {**one["ratios"], "returned": one["returned_ratio"]}}
        for one in records
        if one.get("ratio") is not None
    ]
    return geometric_means(known, "dtype", "suite")


def show(document: Mapping[str, Any]) -> None:
    """Print the table."""
    from rich.console import Console
    from rich.table import Table

    about = document["machine"]
    table = Table(title=f"{about.get('device')}, {about.get('threads')} threads: times of peers over ours")
    table.add_column("case", no_wrap=True)
    for heading in ("µs", "eager", "compile", "sdpa", "best peer", "returned", "1 thread / all"):
        table.add_column(heading, justify="right", no_wrap=True)
    table.add_column("kernels")
    for record in document["cases"].values():
        if record.get("ratio") is None:
            table.add_row(record["case"], *[""] * 7, str(record.get("error")))
            continue
        ratios = record["ratios"]
        style = "green" if record["ratio"] > 1.02 else "red" if record["ratio"] < 0.98 else "default"
        by_threads = [one["superopt"] for one in record["threads"].values()]
        table.add_row(
            record["case"],
            f"{record['measured']['superopt']['median_us']:.1f}",
            *(f"{ratios[name]:.2f}" if name in ratios else "-" for name in (*PEERS, "sdpa")),
            f"[{style}]{record['ratio']:.2f}[/{style}]",
            f"{record['returned_ratio']:.2f}",
            f"{by_threads[0] / by_threads[-1]:.2f}" if len(by_threads) > 1 else "-",
            "; ".join(record["chosen"]),
        )
    console = Console(width=None if Console().is_terminal else 160)
    console.print(table)
    for group, found in document.get("geometric_mean", {}).items():
        shown = ", ".join(f"{name} {one['mean']:.2f} ({one['cases']})" for name, one in found.items())
        console.print(f"geometric mean, {group}: {shown}")
    left_out = [name for name, one in document["cases"].items() if one.get("left_out")]
    for what, names in (("left out, too slow", left_out), ("not reached", document.get("not_reached"))):
        if names:
            total = len(document["cases"]) + len(document.get("not_reached", ()))
            console.print(f"{what}: {len(names)} of {total} cases: {', '.join(names)}")


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the benchmark; return the exit code."""
    parser = _parser()
    options = parser.parse_args(sys.argv[1:] if arguments is None else list(arguments))
    with mistakes_told(parser):
        return _main(parser, options)


def _main(parser: argparse.ArgumentParser, options: argparse.Namespace) -> int:
    check_names("--workloads", listed(options.workloads), list(WORKLOADS))
    check_names("--dtype", listed(options.dtype), ("f32", "bf16"))
    check_names("--peers", listed(options.peers), PEERS)
    suite = "quick" if options.quick else options.suite
    cases = chosen(suite, listed(options.workloads), listed(options.case), listed(options.dtype))
    if not cases:
        parser.error("no case is of these names; --list shows all")
    if options.list:
        print("\n".join(case.name for case in cases))
        return 0
    try:
        threads = tuple(int(one) for one in listed(options.threads))
    except ValueError:
        parser.error(f"--threads is {options.threads!r}; give numbers by commas, as in 1,2")
    if any(one < 1 for one in threads) or options.graphs < 1:
        parser.error("--threads and --graphs must be above 0")
    settings = Settings(
        options.seconds,
        options.graphs,
        tuple(listed(options.peers)),
        threads,
        not options.no_library,
        options.longest,
        options.seed,
    )
    check_out(options.json, resume=options.resume)
    return _run(cases, settings, options, suite)


def _run(cases: Sequence[CpuCase], settings: Settings, options: argparse.Namespace, suite: str) -> int:
    import torch

    from superopt.codegen.cpp import find_compiler

    document = resumed(options.json) if options.resume else {"cases": {}}
    about = machine() | {"threads": torch.get_num_threads(), "compiler": find_compiler().version}
    document = begin("cpu", {**asdict(settings), "part": suite}, about, document["cases"])
    results = Results([case.name for case in cases], options.json, document, means)
    try:
        run_cases(cases, settings, results, minutes=options.minutes)
    except KeyboardInterrupt:
        tell("interrupted; what was measured is kept")
    show(results.document)
    return 0 if any(one.get("ratio") is not None for one in results.records.values()) else 1


def _parser() -> argparse.ArgumentParser:
    parser = Parser(
        prog="python -m bench.cpu",
        description=(__doc__ or "").strip(),
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--quick", action="store_true", help="8 cases of all kinds")
    parser.add_argument("--suite", choices=SUITES, default="all", help="which cases (default: all)")
    parser.add_argument("--workloads", default="", help="only these, by commas")
    parser.add_argument("--case", default="", help="only cases of these names, by commas, as in 2048-m8")
    parser.add_argument("--dtype", default="", help="f32 or bf16 (default: both)")
    parser.add_argument("--minutes", type=from_zero, default=30.0, help="of everything, about (default: 30)")
    parser.add_argument("--seconds", type=above_zero, default=2.0, help="of the races of a case (default: 2)")
    parser.add_argument("--graphs", type=int, default=2, help="of a case, made into kernels (default: 2)")
    parser.add_argument("--peers", default=",".join(PEERS), help="besides eager, by commas (default: all)")
    parser.add_argument("--threads", default="", help="measure scaling over these numbers, as in 1,2")
    parser.add_argument(
        "--no-library", action="store_true", help="let no kernel be a call of PyTorch's matmul"
    )
    parser.add_argument(
        "--longest",
        type=above_zero,
        default=1.5,
        help="leave out cases of which eager takes more seconds a call",
    )
    parser.add_argument("--seed", type=int, default=0, help="of the inputs (default: 0)")
    parser.add_argument("--json", type=Path, metavar="OUT", help="where the results go, after every case")
    parser.add_argument("--resume", action="store_true", help="keep what OUT has, and go on after it")
    parser.add_argument("--list", action="store_true", help="print the cases")
    return parser


if __name__ == "__main__":
    raise SystemExit(main())
