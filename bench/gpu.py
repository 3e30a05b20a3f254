"""Kernels against PyTorch on a GPU: medians of interleaved calls, losses included.

    python -m bench.plans                                          on any machine: makes bench/plans
    python -m bench.gpu --suite all --minutes 8 --json OUT         on the machine with the GPU

The second needs torch, triton, numpy and rich only. Cases come in order, the most telling first, of decode
and prefill in turns; each is tuned from its plan and raced against eager PyTorch, torch.compile and
scaled_dot_product_attention. Those that are begun in the first part of the time meet torch.compile's
max-autotune, too, whose kernels are compiled beforehand on all cores; the others do where time is left at
the end. OUT is written after every case; `--resume` goes on after those that it has, and then races those
that did not meet max-autotune.

    python -m bench.gpu --list                                     the cases
    python -m bench.gpu --dry-run [--check]                        all but launching; kernels run once, small
    python -m bench.gpu --kernel rmsnorm-linear --case decode-8 --profile
                                                                   every candidate of one case
"""

import argparse
import os
import sys
import time
import traceback
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from superopt.bench.command import Parser, check_names, check_out, from_zero, mistakes_told
from superopt.bench.gpucases import DTYPES, PEERS, SUITES, Case
from superopt.bench.harness import (
    Results,
    begin,
    failed,
    geometric_means,
    line,
    listed,
    machine,
    resumed,
    tell,
)
from superopt.bench.plans import FOLDER, chosen_cases
from superopt.errors import InputError, SuperoptError
from superopt.workloads import WORKLOADS

__all__ = ["main"]

_FIRST_CHUNK, _CHUNK = 6, 12  # cases whose kernels are compiled together
_START_S = 8.0  # until the processes that compile are ready
_COMPILING = 0.6  # share of a case's time
_LEAST_S = 15.0  # below it, no more cases are begun
_SLOWLY = 0.6  # share of the time in which cases are begun that meet max-autotune, too
_SLOW_S = 6.0  # of compiling max-autotune for a case on all cores, beside its other peers and kernels
_AGAIN = 8  # cases that are raced once more and whose max-autotune is compiled together
_AGAIN_S = 20.0  # that such a case may take, as long as none was timed
_TRIALS = (8, 48)


@dataclass(slots=True)
class _Suite:
    """A run: what was asked for, what it found so far, and where that goes."""

    cases: list[Case]
    settings: Any
    deadline: float
    results: Results
    seconds: float  # of everything

    @property
    def is_slow(self) -> bool:
        """Whether the cases that are begun now meet max-autotune, too."""
        return bool(self.settings.slow_peers) and self.left > (1 - _SLOWLY) * self.seconds

    @property
    def left(self) -> float:
        """Seconds until the end."""
        return self.deadline - time.monotonic()

    @property
    def records(self) -> dict[str, dict[str, Any]]:
        """What is known of each case."""
        return self.results.records


def run_suite(suite: _Suite) -> None:
    """Race all cases that have no record, in chunks that are compiled together."""
    from superopt.bench.gpurun import load_case, run_case, warm
    from superopt.tune.errors import DeviceLostError

    todo = [case for case in suite.cases if case.name not in suite.records]
    if not todo:
        return
    starts = [0, *range(_FIRST_CHUNK, len(todo), _CHUNK)]
    for start, end in zip(starts, [*starts[1:], len(todo)], strict=True):
        if suite.left < _LEAST_S:
            return
        loaded = []
        for case in todo[start:end]:
            try:
                loaded.append(load_case(case, suite.settings))
            except SuperoptError as error:
                suite.results.keep(case.name, {**failed(_known(case), error), "begun": False})
        slow = suite.is_slow
        compiling = _START_S + _COMPILING * suite.left * (end - start) / (len(todo) - start)
        compiling = min(compiling + _SLOW_S * (end - start) * slow, max(_START_S, suite.left / 2))
        deadline = time.monotonic() + compiling
        loaded, failures = warm(loaded, suite.settings, deadline=deadline, tell=tell, slow=slow)
        for at, one in enumerate(loaded):
            if suite.left < _LEAST_S / 3:
                return
            share = suite.left / (len(todo) - start - at) / 2
            try:
                record = run_case(
                    one,
                    suite.settings,
                    seconds=min(max(share, 2.0), 20.0),
                    peers=(*suite.settings.quick_peers, *one.ready),
                    failures=failures,
                    tell=lambda message: None,
                )
            except DeviceLostError as error:
                suite.results.keep(one.case.name, failed(_known(one.case), error))
                raise
            except Exception as error:  # one case must not end the others
                record = failed(_known(one.case), error)
                record["traceback"] = traceback.format_exception(error)[-4:]
            suite.results.keep(one.case.name, record)
            tell(line(record))


def race_autotuned(suite: _Suite) -> None:
    """Race the cases that did not meet max-autotune once more, with it, as long as there is time."""
    from superopt.bench.gpurun import OUT_OF_TIME, load_case, race_again, warm_slow
    from superopt.tune.errors import DeviceLostError

    todo = [
        case
        for case in suite.cases
        if OUT_OF_TIME in suite.records.get(case.name, {}).get("not_run", {}).values()
    ]
    took = 0.0
    for first in range(0, len(todo), _AGAIN):
        if suite.left < _START_S + (took * 1.5 or _AGAIN_S):
            return
        loaded = []
        for case in todo[first : first + _AGAIN]:
            try:
                loaded.append(load_case(case, suite.settings))
            except SuperoptError as error:
                _never_run(suite, case, str(error))
        compiling = min(_START_S + _SLOW_S * len(loaded), suite.left / 2)
        deadline = time.monotonic() + compiling
        loaded, failures = warm_slow(loaded, suite.settings, deadline=deadline, tell=tell)
        for one in loaded:
            case = one.case
            reasons = [why for name, why in failures.items() if name.startswith(f"{case.name} ")]
            if not one.ready:
                if reasons:
                    _never_run(suite, case, reasons[0])
                continue
            if suite.left < (took * 1.5 or _AGAIN_S):
                return
            start = time.monotonic()
            try:
                record = race_again(one, suite.settings, suite.records[case.name], seconds=2.0, tell=tell)
                suite.results.keep(case.name, record)
            except DeviceLostError:
                raise
            except SuperoptError as error:
                _never_run(suite, case, str(error))
            took = max(took, time.monotonic() - start)
            tell(line(suite.records[case.name]))


def _never_run(suite: _Suite, case: Case, why: str) -> None:
    """Note why a case does not meet the peers that it had no time for."""
    from superopt.bench.gpurun import OUT_OF_TIME

    record = suite.records[case.name]
    reason = next(iter(why.splitlines()), "no message")
    absent = {name: reason if one == OUT_OF_TIME else one for name, one in record["not_run"].items()}
    suite.results.keep(case.name, {**record, "not_run": absent})


def _means(records: Iterable[dict[str, Any]]) -> dict[str, dict[str, dict[str, Any]]]:
    return geometric_means(records, "suite")


def _known(case: Case) -> dict[str, Any]:
    return {
        "case": case.name,
        "suite": case.suite,
        "workload": case.workload,
        "sizes": dict(case.sizes),
    }


# -- without launching


def dry_run(cases: Sequence[Case], settings: Any, *, check: bool, say: Callable[[str], None] = print) -> int:
    """Load every plan, prove its first candidate, emit every kernel; with `check`, run each once, small."""
    from superopt.bench.gpucheck import check_case
    from superopt.bench.gpurun import load_case
    from superopt.plans.proof import proven_by_graph

    bad = 0
    for case in cases:
        try:
            loaded = load_case(case, settings)
            kernels = 0
            for work in loaded.work:
                first = work.candidates[0]
                if proven_by_graph(work.goal, first.graph, first.mugraph, seed=settings.seed) is None:
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
    parser = _parser()
    options = parser.parse_args(arguments)
    with mistakes_told(parser):
        return _run(parser, options, arguments)


def _run(parser: argparse.ArgumentParser, options: argparse.Namespace, arguments: list[str]) -> int:
    if options.check and not _has_cuda():
        os.environ["TRITON_INTERPRET"] = "1"  # before triton is imported
    os.environ["PYTHONPATH"] = _with_root(os.environ.get("PYTHONPATH", ""))
    workloads = [options.kernel] if options.kernel else listed(options.workloads)
    check_names("--kernel" if options.kernel else "--workloads", workloads, list(WORKLOADS))
    check_names("--peers", listed(options.peers), PEERS)
    cases = chosen_cases(options.suite, workloads, listed(options.case))
    if not cases:
        parser.error("no case is of these names; --list shows all")
    if options.list:
        print("\n".join(f"{case.name:36} {_sizes(case)}" for case in cases))
        return 0
    from superopt.bench.gpurun import Settings, check_device

    settings = Settings(
        options.plans,
        options.dtype,
        options.trials or _trials(options.minutes, len(cases)),
        ("eager", *(name for name in listed(options.peers) if name != "eager")),
        options.seed,
    )
    if options.dry_run or options.check:
        return dry_run(cases, settings, check=options.check)
    if not options.kernel and options.json is None:
        parser.error("give --json OUT, where the results go")
    check_out(options.json, resume=options.resume)
    check_device(cases[:1] if options.kernel else cases, settings)
    if options.kernel:
        from superopt.bench.gpuprofile import profile

        settings = replace(settings, trials=options.trials or 64)
        return max(profile(case, settings, minutes=options.minutes, tell=tell) for case in cases[:1])
    return _measure(cases, settings, options, arguments)


def _measure(cases: list[Case], settings: Any, options: argparse.Namespace, arguments: list[str]) -> int:
    from superopt.bench.gpureport import show
    from superopt.tune.errors import DeviceLostError

    document = resumed(options.json) if options.resume else {"cases": {}}
    chosen = {
        "part": options.suite,
        "dtype": settings.dtype,
        "trials": settings.trials,
        "peers": settings.peers,
        "seed": settings.seed,
        "minutes": options.minutes,
    }
    document = begin("gpu", chosen, machine(), document["cases"])
    deadline = time.monotonic() + options.minutes * 60
    results = Results([case.name for case in cases], options.json, document, _means)
    suite = _Suite(cases, settings, deadline, results, options.minutes * 60)
    try:
        run_suite(suite)
        race_autotuned(suite)
    except DeviceLostError as error:
        tell(f"{error}; another process goes on with the cases that are left")
        _start_again(arguments, suite.left / 60)
    except KeyboardInterrupt:
        tell("interrupted; what was measured is kept")
    show(suite.records.values(), suite.results.document)
    return 0 if any(one.get("ratio") is not None for one in suite.records.values()) else 1


def _start_again(arguments: list[str], minutes: float) -> None:
    """Go on in this process's place: the device can only be used by a fresh one."""
    kept = [one for one in arguments if one != "--resume"]
    command = [
        sys.executable,
        "-m",
        "superopt.bench.gpu",
        *kept,
        "--resume",
        "--minutes",
        f"{max(minutes, 0.0):.2f}",
    ]
    os.execv(sys.executable, command)


def _parser() -> argparse.ArgumentParser:
    parser = Parser(
        prog="python -m bench.gpu",
        description=(__doc__ or "").strip(),
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--suite", choices=SUITES, default="all", help="which cases (default: all)")
    parser.add_argument("--workloads", default="", help="only these, by commas")
    parser.add_argument("--case", default="", help="only cases of these names, by commas, as in decode-8")
    parser.add_argument("--dtype", choices=DTYPES, default="f16", help="of the tensors (default: f16)")
    parser.add_argument("--plans", type=Path, default=FOLDER, metavar="FOLDER", help="where the plans are")
    parser.add_argument("--minutes", type=from_zero, default=8.0, help="of everything, about (default: 8)")
    parser.add_argument(
        "--trials", type=int, default=0, help="candidates of a region (default: as time allows)"
    )
    parser.add_argument("--peers", default=",".join(PEERS), help="by commas (default: all)")
    parser.add_argument("--seed", type=int, default=0, help="of the inputs (default: 0)")
    parser.add_argument("--json", type=Path, metavar="OUT", help="where the results go, after every case")
    parser.add_argument("--resume", action="store_true", help="keep what OUT has, and go on after it")
    parser.add_argument("--dry-run", action="store_true", help="load plans and emit kernels, launch nothing")
    parser.add_argument("--check", action="store_true", help="run every kernel once at small sizes")
    parser.add_argument("--kernel", metavar="NAME", default="", help="measure all candidates of one workload")
    parser.add_argument(
        "--profile", action="store_true", help="with --kernel: registers, and each kernel's time"
    )
    parser.add_argument("--list", action="store_true", help="print the cases")
    return parser


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
