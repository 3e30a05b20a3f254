"""C++ kernels against PyTorch on this machine: medians of interleaved calls, losses included.

    python -m bench.cpu --quick --json OUT                 8 cases, some 3 minutes on 2 cores
    python -m bench.cpu --minutes 30 --json OUT            cases in order, the most telling first
    python -m bench.cpu --minutes 30 --json OUT --resume   goes on after those that OUT has
    python -m bench.cpu --suite squares --no-library --threads 1,2 --json OUT
    python -m bench.cpu --dtype bf16 --peers torch.compile,max-autotune --minutes 60 --json OUT

Measured: the kernels of each case, searched, scheduled, compiled, tuned and checked in floats as
`superopt.optimize` does it, with a short time for races. Against: eager PyTorch, torch.compile, perhaps
max-autotune and, for attention, scaled_dot_product_attention, in turns and on changing inputs. A ratio
above 1 means that the kernels are faster than the best of these. The column "returned" is what `optimize`
returns: the kernels where they beat PyTorch's own programs, the fastest of those otherwise. Let nothing
else run meanwhile.

A case of which eager PyTorch would take more than `--longest` seconds a call is left out, and listed as such.
"""

import argparse
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

from superopt.bench.harness.command import Parser, above_zero, check_names, check_out, from_one, listed
from superopt.bench.harness.records import Means, Record, failed, geometric_means, launch_record, line
from superopt.bench.harness.results import Results, begin, machine, resumed, tell
from superopt.bench.harness.rivals import compiled, copies_like, ready
from superopt.bench.kernels.by_hand import hand_written
from superopt.bench.kernels.cases import Case, chosen
from superopt.bench.kernels.cpu_cases import DEFAULT, DTYPES, SUITES, of_suite
from superopt.bench.kernels.roofs import roofs_of
from superopt.bench.kernels.table import best_peer, show, times_over_ours
from superopt.candidates import RegionCandidates
from superopt.candidates.candidate import all_summed
from superopt.clock import Clock
from superopt.errors import InputError
from superopt.funnel import Limits, State, run_regions
from superopt.funnel.assembly import assemble, in_parts

__all__ = ["main"]

TUNED = "torch.compile max-autotune-no-cudagraphs"
PEERS = ("eager", "torch.compile", TUNED)
"""What `optimize` may return instead of kernels; attention is raced against more."""

_COMPILED = 6  # candidates of a region
_LEAST_S = 5.0  # no case is begun with fewer seconds left
_PART = 8  # how many times fewer tokens a case is tried with, to see how long a call of it would take


@dataclass(frozen=True, slots=True)
class Settings:
    """What holds for all cases of a run."""

    seconds: float = 2.0  # of tuning and racing candidates, and as much again of racing the rivals
    graphs: int = 2  # of a case, which are made into kernels
    peers: tuple[str, ...] = PEERS[:2]  # the last one takes half a minute a case
    threads: tuple[int, ...] = ()  # numbers of threads to scale over
    library: bool = True  # whether a kernel may be a call of PyTorch's matmul
    longest: float = 1.5  # seconds of a call of eager PyTorch, above which a case is left out
    seed: int = 0


def measure(case: Case, settings: Settings) -> Record:
    """Return the record of one case."""
    import torch

    from superopt.tune.measure import times_together

    start = time.monotonic()
    if (eager_s := _expected_s(case)) > settings.longest:
        left_out = f"left out: eager PyTorch would take some {eager_s:.1f} s a call"
        return case.known() | {"ratio": None, "error": left_out, "left_out": True}
    state, regions = _optimized(case, settings)
    if not state.kernels:
        fates = [one.fate for region in regions for one in region.candidates]
        reasons = [str(fate) for fate in fates if not fate.is_sound]
        raise InputError(f"no kernel came of it: {next(iter(reasons), 'nothing was found')}")
    torch._dynamo.reset()  # else torch.compile would make one program for all sizes of a function
    copies = copies_like(case.inputs(), "cpu", seed=settings.seed)
    with torch.no_grad():
        rivals, absent = ready(_wanted(case, settings), lambda: copies[0])
        runs = {"superopt": assemble(state.traced, state.kernels), **rivals}
        raced = launch_record(times_together(runs, copies, seconds=settings.seconds), "superopt", "eager")
        scaling = _scaling(runs, copies, settings)
    return {
        **case.known(),
        "chosen": [one.chosen.name if one.chosen else "none: PyTorch's operators" for one in regions],
        "seconds": {name: round(ms / 1e3, 2) for name, ms in state.clock.ms.items()},
        **raced,
        "floor_us": all_summed(state.target.floor_us(one.goal) for one in regions),
        "roofs": roofs_of([one.goal for one in regions], state.target.cost_device()),
        "not_run": absent,
        **_returned(raced),
        "threads": scaling,
        "wall_s": round(time.monotonic() - start, 1),
    }


def _returned(raced: Record) -> Record:
    """Return what `optimize` would return after this race, and its ratio to PyTorch's own programs."""
    medians = {name: one["median_us"] for name, one in raced["measured"].items()}
    originals = {name: us for name, us in medians.items() if name in PEERS}
    best = min(originals, key=lambda name: originals[name])
    winner = best if originals[best] < medians["superopt"] else "superopt"
    return {"returned": winner, "returned_ratio": originals[best] / medians[winner]}


def _wanted(case: Case, settings: Settings) -> dict[str, Callable[[], Callable[..., Any]]]:
    """Return what makes each rival of a case."""
    import torch

    wanted: dict[str, Callable[[], Callable[..., Any]]] = {"eager": lambda: case.function}
    if "torch.compile" in settings.peers:
        wanted["torch.compile"] = lambda: torch.compile(case.function)
    if TUNED in settings.peers:
        wanted[TUNED] = lambda: compiled(case.function, TUNED)
    for name, other in hand_written(case.workload).items():
        wanted[name] = lambda other=other: other  # type: ignore[misc]
    return wanted


def _expected_s(case: Case) -> float:
    """Return how long a call of eager PyTorch should take, from one with an eighth of the tokens."""
    import torch

    from superopt.verify.floats.compare import typical

    tokens = [size for size in ("M", "S", "T") if case.sizes.get(size, 1) >= 2 * _PART]
    if not tokens:
        return 0.0
    few = {**case.sizes, **{size: case.sizes[size] // _PART for size in tokens}}
    given = typical(replace(case, sizes=few).inputs())
    start = time.perf_counter()
    with torch.no_grad():
        case.function(*given)
    seconds = time.perf_counter() - start
    return seconds * (_PART**2 if case.suite == "prefill" else _PART)  # tokens look at tokens


def _optimized(case: Case, settings: Settings) -> tuple[State, list[RegionCandidates]]:
    """Return the program of a case with the kernels that the funnel chose; PyTorch races later."""
    from superopt.optimizer import candidates_of
    from superopt.options import OptimizeOptions
    from superopt.targets import pick_target
    from superopt.trace import trace

    target = pick_target("cpu")
    options = OptimizeOptions(
        target=target.name,
        seconds=settings.seconds / 2,
        graphs=settings.graphs,
        torch_compile=False,
        guarded=False,
        cache=False,
        seed=settings.seed,
    )
    inputs, clock = case.inputs(), Clock()
    traced = trace(case.function, *inputs, name=case.workload)
    found, _ = candidates_of(traced.program, target, options, clock)
    if not settings.library:
        found = [
            replace(one, candidates=tuple(other for other in one.candidates if not other.library))
            for one in found
        ]
    traced = in_parts(traced, [one.goal for one in found])
    limits = Limits(options.seconds, most=_COMPILED)
    state = State(case.function, traced, inputs, target, options, limits, clock)
    return state, run_regions(found, state)


def _scaling(
    runs: Mapping[str, Callable[..., Any]], copies: Sequence[tuple[Any, ...]], settings: Settings
) -> dict[str, dict[str, float]]:
    """Return the times of our kernels and of eager PyTorch on each number of threads."""
    import torch

    from superopt.tune import measure_together

    before, found = torch.get_num_threads(), {}
    both = {name: runs[name] for name in ("superopt", "eager")}
    try:
        for threads in settings.threads:
            torch.set_num_threads(threads)
            timed = measure_together(both, copies, seconds=settings.seconds / 2)
            found[str(threads)] = {name: one.median_us for name, one in timed.items()}
    finally:
        torch.set_num_threads(before)
    return found


def means(records: Iterable[Mapping[str, Any]]) -> Means:
    """Return the geometric means by dtype and by suite; what is returned is one more column."""
    known = [
        {**one, "ratios": {**one["ratios"], "returned": one["returned_ratio"]}}
        for one in records
        if one.get("ratio") is not None
    ]
    return geometric_means(known, "dtype", "suite")


def run_cases(cases: Sequence[Case], settings: Settings, results: Results, *, minutes: float) -> None:
    """Measure all cases that have no record, until the time is over."""
    by_name = {case.name: case for case in cases}
    for name in results.left(minutes, least_s=_LEAST_S):
        try:
            record = measure(by_name[name], settings)
        except Exception as error:  # one case must not end the others
            record = failed(by_name[name].known(), error)
        results.keep(name, record)
        tell(line(record))


def show_table(document: Mapping[str, Any]) -> None:
    """Print the table."""
    names = {"eager": "eager", "torch.compile": "compile", TUNED: "max-autotune", "sdpa": "sdpa"}
    rivals = times_over_ours(names)
    columns = {
        **rivals,
        "best peer": best_peer,
        "returned": lambda record: f"{record['returned_ratio']:.2f}",
        "1 thread / all": _gain_of_threads,
    }
    show(document, columns, kernels=lambda record: "; ".join(record["chosen"]))


def _gain_of_threads(record: Mapping[str, Any]) -> str:
    by_threads = [one["superopt"] for one in record["threads"].values()]
    return f"{by_threads[0] / by_threads[-1]:.2f}" if len(by_threads) > 1 else "-"


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the benchmark; return the exit code."""
    parser = Parser("cpu", __doc__)
    add = parser.add_argument
    add("--quick", action="store_true", help="8 cases of all kinds")
    parser.add_cases(SUITES, DTYPES, ",".join(DEFAULT), "2048-m8")
    add("--seconds", type=above_zero, default=2.0, help="of the races of a case (default: 2)")
    add("--graphs", type=from_one, default=2, help="how many graphs of a case become kernels (default: 2)")
    shown = "torch.compile, max-autotune; default: torch.compile"
    add("--peers", default=PEERS[1], help=f"rivals besides eager, by commas ({shown})")
    add("--threads", default="", help="measure scaling over these numbers of threads, as in 1,2")
    add("--no-library", action="store_true", help="let no kernel be a call of PyTorch's matmul")
    add("--longest", type=above_zero, default=1.5, help="leave out cases of which eager takes more seconds")
    add("--seed", type=int, default=0, help="of the inputs (default: 0)")
    parser.add_results(minutes=30.0)
    add("--list", action="store_true", help="print the cases")
    return parser.run(arguments, _run)


def _run(options: argparse.Namespace) -> int:
    check_names("--dtype", listed(options.dtype), DTYPES)
    check_names("--peers", listed(options.peers), [*PEERS[:2], "max-autotune"])
    suite = "quick" if options.quick else options.suite
    cases = chosen(options, of_suite(suite))
    if options.list:
        print("\n".join(case.name for case in cases))
        return 0
    settings = Settings(
        options.seconds,
        options.graphs,
        tuple(TUNED if one == "max-autotune" else one for one in listed(options.peers)),
        _threads(options.threads),
        not options.no_library,
        options.longest,
        options.seed,
    )
    check_out(options.json, resume=options.resume)
    return _measure_all(cases, settings, options, suite)


def _threads(text: str) -> tuple[int, ...]:
    try:
        found = tuple(int(one) for one in listed(text))
    except ValueError:
        found = (0,)
    if any(one < 1 for one in found):
        raise InputError(f"--threads is {text!r}; give numbers above 0 by commas, as in 1,2")
    return found


def _measure_all(cases: Sequence[Case], settings: Settings, options: argparse.Namespace, suite: str) -> int:
    import torch

    from superopt.codegen.cpp import find_compiler

    about = machine() | {"threads": torch.get_num_threads(), "compiler": find_compiler().version}
    known = resumed(options.json, resume=options.resume)["cases"]
    document = begin("cpu", {**asdict(settings), "part": suite}, about, known)
    results = Results([case.name for case in cases], options.json, document, means)
    try:
        run_cases(cases, settings, results, minutes=options.minutes)
    except KeyboardInterrupt:
        tell("interrupted; what was measured is kept")
    show_table(results.document)
    return 0 if results.any_measured else 1


if __name__ == "__main__":
    raise SystemExit(main())
