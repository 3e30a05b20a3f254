"""Triton kernels against PyTorch on a GPU: medians of interleaved calls, losses included.

    python -m bench.plans                                          on any machine: makes bench/plans
    python -m bench.gpu --suite all --minutes 8 --json OUT         on the machine with the GPU

Measured: the best kernels of each case, tuned from its plan. Against: eager PyTorch, torch.compile with
and without max-autotune, and scaled_dot_product_attention, all of them as CUDA graphs. Measuring needs
torch, triton, numpy and rich only.

Cases come in order, the most telling first, of decode and prefill in turns. The cases that are begun in
the first part of the time meet max-autotune as well, whose kernels are compiled beforehand on all cores;
the others meet it where time is left at the end. OUT is written after every case; `--resume` goes on after
the cases that it has, and then races those that did not meet max-autotune.

    python -m bench.gpu --list                                     the cases
    python -m bench.gpu --dry-run [--check]                        all but launching; kernels run once, small
    python -m bench.gpu --kernel rmsnorm-linear --case decode-8 --profile
                                                                   every candidate of one case
    python -m bench.gpu --smoke                                    what the device does at most
    python -m bench.gpu --audit [--json OUT --resume]              what the compiler makes of the best kernels
"""

import argparse
import os
import sys
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from superopt.bench.harness.command import Parser, check_names, check_out, listed
from superopt.bench.harness.records import Means, Record, failed, first_line, geometric_means, line
from superopt.bench.harness.results import Results, begin, machine, resumed, tell
from superopt.bench.kernels.cases import Case, chosen
from superopt.bench.kernels.gpu_cases import DTYPES, PEERS, SUITES, of_suite
from superopt.bench.kernels.table import best_peer, show, times_over_ours
from superopt.bench.plans import FOLDER
from superopt.errors import InputError, SuperoptError
from superopt.workloads import WORKLOADS

if TYPE_CHECKING:
    from superopt.bench.planned.loaded import Loaded, Settings

__all__ = ["main"]

_FIRST_CHUNK, _CHUNK = 6, 12  # cases whose kernels are compiled together
_START_S = 8.0  # seconds until the processes that compile are ready
_COMPILING = 0.6  # the share of a case's time that compiling takes
_LEAST_S = 15.0  # no case is begun with fewer seconds left
_SLOWLY = 0.6  # the share of the time in which cases are begun that meet max-autotune as well
_SLOW_S = 6.0  # seconds to compile max-autotune for a case on all cores, beside its other rivals and kernels
_AGAIN = 8  # cases that are raced once more, and whose max-autotune is compiled together
_AGAIN_S = 20.0  # seconds that such a case may take, as long as none was timed
_TRIALS = (8, 48)


@dataclass(slots=True)
class _Session:
    """A run: what was asked for, what it found so far, and how much time is left."""

    cases: list[Case]
    settings: "Settings"
    results: Results
    seconds: float  # of everything
    deadline: float

    @property
    def meets_autotune(self) -> bool:
        """Whether the cases that are begun now meet max-autotune as well."""
        return bool(self.settings.slow_peers) and self.left > (1 - _SLOWLY) * self.seconds

    @property
    def left(self) -> float:
        """Seconds until the end."""
        return self.deadline - time.monotonic()

    def loaded(self, cases: Sequence[Case], refuse: Callable[[Case, SuperoptError], None]) -> "list[Loaded]":
        """Return the cases that have a plan; `refuse` notes why the others have none."""
        from superopt.bench.planned.loaded import load_case

        found = []
        for case in cases:
            try:
                found.append(load_case(case, self.settings))
            except SuperoptError as error:
                refuse(case, error)
        return found


def race_all(run: _Session) -> None:
    """Race all cases that have no record, in chunks that are compiled together."""
    from superopt.bench.planned.warm import warm

    def refuse(case: Case, error: SuperoptError) -> None:
        run.results.keep(case.name, {**failed(case.known(), error), "begun": False})

    todo = [case for case in run.cases if case.name not in run.results.records]
    if not todo:
        return
    starts = [0, *range(_FIRST_CHUNK, len(todo), _CHUNK)]
    for start, end in zip(starts, [*starts[1:], len(todo)], strict=True):
        if run.left < _LEAST_S:
            return
        loaded = run.loaded(todo[start:end], refuse)
        slow = run.meets_autotune
        compiling = _START_S + _COMPILING * run.left * (end - start) / (len(todo) - start)
        compiling = min(compiling + _SLOW_S * (end - start) * slow, max(_START_S, run.left / 2))
        deadline = time.monotonic() + compiling
        loaded, failures = warm(loaded, run.settings, deadline=deadline, tell=tell, slow=slow)
        for at, one in enumerate(loaded):
            if run.left < _LEAST_S / 3:
                return
            share = run.left / (len(todo) - start - at) / 2
            record = _race_one(run, one, min(max(share, 2.0), 20.0), failures)
            run.results.keep(one.case.name, record)
            tell(line(record))


def _race_one(run: _Session, one: "Loaded", seconds: float, failures: Mapping[str, str]) -> Record:
    """Return the record of one case; a lost device is noted and raised, as nothing works after it."""
    from superopt.bench.planned.race import run_case
    from superopt.tune.errors import DeviceLostError

    peers = (*run.settings.quick_peers, *one.ready)
    try:
        return run_case(
            one, run.settings, seconds=seconds, peers=peers, failures=failures, tell=lambda message: None
        )
    except DeviceLostError as error:
        run.results.keep(one.case.name, failed(one.case.known(), error))
        raise
    except Exception as error:  # one case must not end the others
        return failed(one.case.known(), error)


def race_autotuned(run: _Session) -> None:
    """Race the cases that did not meet max-autotune once more, with it, as long as there is time."""
    from superopt.bench.planned.race import OUT_OF_TIME, race_again
    from superopt.bench.planned.warm import warm_slow
    from superopt.tune.errors import DeviceLostError

    records = run.results.records

    def refuse(case: Case, error: SuperoptError) -> None:
        _never_run(run, case, str(error))

    todo = [
        case for case in run.cases if OUT_OF_TIME in records.get(case.name, {}).get("not_run", {}).values()
    ]
    took = 0.0
    for first in range(0, len(todo), _AGAIN):
        if run.left < _START_S + (took * 1.5 or _AGAIN_S):
            return
        loaded = run.loaded(todo[first : first + _AGAIN], refuse)
        compiling = min(_START_S + _SLOW_S * len(loaded), run.left / 2)
        deadline = time.monotonic() + compiling
        loaded, failures = warm_slow(loaded, run.settings, deadline=deadline, tell=tell)
        for one in loaded:
            case = one.case
            reasons = [why for name, why in failures.items() if name.startswith(f"{case.name} ")]
            if not one.ready:
                if reasons:
                    _never_run(run, case, reasons[0])
                continue
            if run.left < (took * 1.5 or _AGAIN_S):
                return
            start = time.monotonic()
            try:
                record = race_again(one, run.settings, records[case.name], seconds=2.0, tell=tell)
                run.results.keep(case.name, record)
            except DeviceLostError:
                raise
            except SuperoptError as error:
                refuse(case, error)
            took = max(took, time.monotonic() - start)
            tell(line(records[case.name]))


def _never_run(run: _Session, case: Case, why: str) -> None:
    """Note why a case does not meet the rivals that it had no time for."""
    from superopt.bench.planned.race import OUT_OF_TIME

    record = run.results.records[case.name]
    reason = first_line(why)
    absent = {name: reason if one == OUT_OF_TIME else one for name, one in record["not_run"].items()}
    run.results.keep(case.name, {**record, "not_run": absent})


def _means(records: Iterable[Record]) -> Means:
    return geometric_means(records, "suite")


def show_table(document: Mapping[str, Any]) -> None:
    """Print the table."""
    rivals = {"eager": "eager", "torch.compile": "compile", PEERS[-1]: "max-autotune", "sdpa": "sdpa"}
    columns = {
        "of floor": _share_of_floor,
        "of copy": _share_of_copy,
        **times_over_ours(rivals),
        "best peer": best_peer,
    }
    show(document, columns, kernels=lambda record: "; ".join(one["name"] for one in record["chosen"]))


def _share_of_floor(record: Mapping[str, Any]) -> str:
    return "" if record["floor_share"] is None else f"{record['floor_share']:.0%}"


def _share_of_copy(record: Mapping[str, Any]) -> str:
    share = record.get("copy_share")
    return "" if share is None else f"{share:.0%}"


# -- without launching


def dry_run(
    cases: Sequence[Case], settings: "Settings", *, check: bool, say: Callable[[str], None] = print
) -> int:
    """Load every plan, prove its first candidate, emit every kernel; with `check`, run each once, small."""
    from superopt.bench.planned.check import check_case
    from superopt.bench.planned.loaded import load_case
    from superopt.candidates.proof import prove_by_graph

    bad = 0
    for case in cases:
        try:
            loaded = load_case(case, settings)
            kernels = 0
            for work in loaded.work:
                first = work.candidates[0]
                if prove_by_graph(work.goal, first.graph, first.mugraph) is None:
                    raise InputError(f"{first.name} is not equal to {work.goal.name}")
                for one in work.candidates:
                    kernels += len(loaded.target.sources(one.mugraph, one.configs))
            faults = check_case(loaded) if check else []
        except SuperoptError as error:
            faults = [str(error)]
        bad += bool(faults)
        if faults:
            say(f"{case.name:36} {faults[0]}" + (f" (and {len(faults) - 1} more)" if faults[1:] else ""))
        else:
            count = sum(len(work.candidates) for work in loaded.work)
            say(f"{case.name:36} fine: {count} candidates, {kernels} kernels")
    return 1 if bad else 0


# -- the command


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the benchmark; return the exit code."""
    arguments = list(sys.argv[1:] if arguments is None else arguments)
    parser = Parser("gpu", __doc__)
    add = parser.add_argument
    parser.add_cases(SUITES, DTYPES, "f16", "decode-8")
    add("--plans", type=Path, default=FOLDER, metavar="FOLDER", help="where the plans are")
    add("--trials", type=int, default=0, help="candidates of a region (default: as time allows)")
    add("--peers", default=",".join(PEERS), help="rivals, by commas (default: all)")
    add("--seed", type=int, default=0, help="of the inputs (default: 0)")
    parser.add_results(minutes=8.0)
    add("--dry-run", action="store_true", help="load plans and emit kernels, launch nothing")
    add("--check", action="store_true", help="run every kernel once at small sizes")
    add("--kernel", metavar="NAME", default="", help="measure all candidates of one workload")
    add("--profile", action="store_true", help="with --kernel: registers, and each kernel's time")
    add("--smoke", action="store_true", help="bandwidths, products and the start of a graph, nothing else")
    add("--audit", action="store_true", help="compile the best kernels without a GPU, and read their code")
    add("--device", default="h200", help="with --audit: for which device (default: h200)")
    add("--best", type=int, default=5, help="with --audit: candidates of a region (default: 5)")
    add("--list", action="store_true", help="print the cases")
    return parser.run(arguments, lambda options: _run(options, arguments))


def _run(options: argparse.Namespace, arguments: list[str]) -> int:
    if options.check and not _has_cuda():
        os.environ["TRITON_INTERPRET"] = "1"  # before triton is imported
    os.environ["PYTHONPATH"] = _with_root(os.environ.get("PYTHONPATH", ""))
    check_names("--kernel", listed(options.kernel), list(WORKLOADS))
    options.workloads = options.kernel or options.workloads
    check_names("--peers", listed(options.peers), PEERS)
    check_names("--dtype", [options.dtype], DTYPES)
    cases = chosen(options, of_suite(options.suite))
    if options.list:
        print("\n".join(f"{case.name:36} {_sizes(case)}" for case in cases))
        return 0
    from superopt.bench.planned.loaded import Settings, check_device

    settings = Settings(
        options.plans,
        options.dtype,
        options.trials or _trials(options.minutes, len(cases)),
        ("eager", *(name for name in listed(options.peers) if name != "eager")),
        options.seed,
    )
    if options.smoke:
        return _smoke()
    if options.audit:
        return _audit(cases, settings, options)
    if options.dry_run or options.check:
        return dry_run(cases, settings, check=options.check)
    if not options.kernel and options.json is None:
        raise InputError("give --json OUT, where the results go")
    check_out(options.json, resume=options.resume)
    check_device(cases[:1] if options.kernel else cases, settings)
    if options.kernel:
        from superopt.bench.planned.profile import profile

        settings = replace(settings, trials=options.trials or 64)
        return max(profile(case, settings, minutes=options.minutes, tell=tell) for case in cases[:1])
    return _measure(cases, settings, options, arguments)


def _smoke() -> int:
    """Print what the device reaches."""
    from superopt.bench.planned.smoke import smoke

    if not _has_cuda():
        raise InputError("--smoke measures a CUDA device, and none is here")
    for name, value in smoke().items():
        print(f"{name:32} {value if isinstance(value, dict) else f'{value:,.1f}'}")
    return 0


def _audit(cases: list[Case], settings: "Settings", options: argparse.Namespace) -> int:
    """Audit the kernels of all cases that have a plan; return 1 where there is a finding."""
    from superopt.bench.planned.audits import Audits
    from superopt.bench.planned.loaded import load_case

    audits = Audits(options.json, options.device, best=options.best, resume=options.resume)
    settings = replace(settings, trials=options.trials or options.best)
    done = []
    for case in cases:
        try:
            audits.audit(load_case(case, settings))
        except InputError as error:
            tell(f"{case.name}: {first_line(str(error))}")
            continue
        done.append(case.name)
    if not done:
        raise InputError(f"no case has a plan in {str(settings.folder)!r}; `python -m bench.plans` makes it")
    return audits.told(done)


def _measure(
    cases: list[Case], settings: "Settings", options: argparse.Namespace, arguments: list[str]
) -> int:
    from superopt.tune.errors import DeviceLostError

    chosen = {
        "part": options.suite,
        "dtype": settings.dtype,
        "trials": settings.trials,
        "peers": settings.peers,
        "seed": settings.seed,
        "minutes": options.minutes,
    }
    known = resumed(options.json, resume=options.resume)["cases"]
    seconds = options.minutes * 60
    deadline = time.monotonic() + seconds
    results = Results(
        [case.name for case in cases], options.json, begin("gpu", chosen, machine(), known), _means
    )
    run = _Session(cases, settings, results, seconds, deadline)
    try:
        race_all(run)
        race_autotuned(run)
    except DeviceLostError as error:
        tell(f"{error}; another process goes on with the cases that are left")
        _start_again(arguments, run.left / 60)
    except KeyboardInterrupt:
        tell("interrupted; what was measured is kept")
    show_table(results.document)
    return 0 if results.any_measured else 1


def _start_again(arguments: list[str], minutes: float) -> None:
    """Go on in this process's place: only a fresh process can use the device."""
    kept = [one for one in arguments if one != "--resume"]
    more = ["--resume", "--minutes", f"{max(minutes, 0.0):.2f}"]
    os.execv(sys.executable, [sys.executable, "-m", "superopt.bench.gpu", *kept, *more])


def _trials(minutes: float, cases: int) -> int:
    least, most = _TRIALS
    return int(min(max(3 * minutes * 60 / cases, least), most))


def _has_cuda() -> bool:
    import torch

    return torch.cuda.is_available()


def _with_root(path: str) -> str:
    """Return a search path with the folder of bench in it, for the processes that compile."""
    root = str(Path(__file__).resolve().parent.parent)
    return os.pathsep.join([root, *(one for one in path.split(os.pathsep) if one and one != root)])


def _sizes(case: Case) -> str:
    return " ".join(f"{size}={value}" for size, value in case.sizes.items())


if __name__ == "__main__":
    raise SystemExit(main())
