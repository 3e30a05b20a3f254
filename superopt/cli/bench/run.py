"""`superopt bench run`: a suite, or the functions of a user's file, each launch in a process of its own."""

import argparse
import difflib
import fnmatch
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from superopt.cli import options
from superopt.cli.inputs import parse_inputs
from superopt.cli.screen import Block, Table, Text, print_blocks
from superopt.cli.userfile import run_file
from superopt.cli.writing import check_place, check_source
from superopt.errors import InputError, SuperoptError, reason_of

if TYPE_CHECKING:
    from superopt.bench.functions.declared import Declared
    from superopt.bench.harness.launches import Launches
    from superopt.bench.suites import Suite

__all__ = ["add_actions", "declared_by"]

_EPILOG = """\
examples:
  superopt bench run cpu --quick --json cpu.json
  superopt bench run models --minutes 20 --json models.json --resume
  superopt bench run mine.py --repeat 5 --threads 1 --json before.json
  superopt bench run floors

A file of your own decorates functions:

  from superopt.bench import case

  @case(inputs="f32[8,1024] f32[1024,1024]")
  def product(x, w):
      return (x @ w).relu()

Each is measured as what superopt makes of it, against eager PyTorch and torch.compile, in turns.
Exit code 1: a case failed, or is surely below its floor. Ctrl-C keeps what was measured.
"""
_FLOORS = "floors"
_FUNCTIONS_REPEAT = 5


def add_actions(actions: Any) -> None:
    """Add `run`."""
    run: argparse.ArgumentParser = actions.add_parser(
        "run",
        help="measure a suite, or the functions of your own file",
        description="Measures search, frontier, cpu, gpu, models, floors (a check in 40 s), or your file.",
        epilog=_EPILOG,
    )
    run.add_argument("suite", metavar="SUITE", help="search, frontier, cpu, gpu, models, floors; or file.py")
    run.add_argument("--quick", action="store_true", help="few cases, or short measurements")
    run.add_argument(
        "--minutes", type=options.minutes, metavar="M", help="begin nothing new after so many minutes"
    )
    run.add_argument("--json", metavar="FILE", help="write the result here, after every case or launch")
    run.add_argument("--resume", action="store_true", help="keep what --json has, and go on after it")
    run.add_argument("--filter", metavar="PATTERN", help="only cases of such names, as in 'gqa*' or softmax")
    run.add_argument(
        "--repeat",
        type=options.positive,
        metavar="N",
        help=f"launches: processes that measure everything (default {_FUNCTIONS_REPEAT} for a file, else 1)",
    )
    own = run.add_argument_group("for your own file")
    own.add_argument("--threads", type=options.workers, metavar="T", help="of PyTorch (default: its own)")
    own.add_argument(
        "--seconds", type=options.seconds, metavar="S", help="of each case in a launch (default 3)"
    )
    own.add_argument(
        "--fresh", action="store_true", help="search and tune anew, whatever the cache has from earlier"
    )
    run.set_defaults(run=_run)


def _run(arguments: argparse.Namespace) -> int:
    from superopt.bench.harness.launches import Launches

    if arguments.resume and arguments.json is None:
        raise InputError("--resume goes on after what --json has; give both")
    out = check_place(arguments.json) if arguments.json is not None else None
    minutes = float("inf") if arguments.minutes is None else arguments.minutes
    is_file = Path(arguments.suite).suffix == ".py"
    check_source(out, Path(arguments.suite) if is_file else None)
    own = is_file or arguments.suite == _FLOORS
    launches = arguments.repeat or (_FUNCTIONS_REPEAT if is_file else 1)
    plan = Launches(launches, time.monotonic() + 60 * minutes, out, arguments.resume)
    if own:
        return _run_functions(arguments, plan)
    from superopt.bench.suites import SUITES

    if arguments.threads or arguments.seconds or arguments.fresh:
        raise InputError("--threads, --seconds and --fresh are for your own file.py")
    if arguments.suite not in SUITES:
        near = difflib.get_close_matches(arguments.suite, (*SUITES, _FLOORS), 1)
        hint = f"did you mean {near[0]}?" if near else f"there are {', '.join((*SUITES, _FLOORS))}"
        raise InputError(f"no suite is named {arguments.suite!r}; {hint} (your own file ends in .py)")
    return _run_suite(arguments, SUITES[arguments.suite], plan)


# -- a suite


def _run_suite(arguments: argparse.Namespace, suite: "Suite", plan: "Launches") -> int:
    from superopt.bench.harness.launches import launched
    from superopt.bench.harness.results import read_results
    from superopt.bench.suites import run_suite

    if not suite.timed and (arguments.resume or arguments.minutes is not None):
        raise InputError(f"{suite.name} takes neither --minutes nor --resume")
    names = _filtered(suite.cases(arguments.quick), arguments.filter)
    codes = []

    def launch(out: Path, *, resume: bool = False) -> int:
        left = None if arguments.minutes is None else plan.minutes_left
        command = suite.command(names, out, quick=arguments.quick, minutes=left, resume=resume)
        codes.append(run_suite(command))
        return codes[-1]

    def launched_once(number: int) -> dict[str, Any]:
        _tell(f"launch {number} of {plan.count}")
        place = Path(folder, f"{number}.json")
        launch(place)
        if not place.exists():
            raise SuperoptError(f"{suite.name} ended with exit code {codes[-1]} and has no result")
        return read_results(place)

    with tempfile.TemporaryDirectory(prefix="superopt-bench-") as folder:
        if plan.count == 1:
            return launch(plan.out or Path(folder, "result.json"), resume=plan.resume)
        for _ in launched(plan, launched_once):
            pass
    return max(codes, default=0)


# -- functions of a file


def _run_functions(arguments: argparse.Namespace, plan: "Launches") -> int:
    from superopt.bench.functions import launch
    from superopt.bench.harness.launches import launched
    from superopt.bench.harness.records import with_floor

    floors = arguments.suite == _FLOORS
    file = _file_of(arguments.suite)
    declared = {one.name: one for one in declared_by(file)}
    names = _filtered(list(declared), arguments.filter)
    command = (sys.executable, "-m", "superopt.cli.bench.launch")
    document: dict[str, Any] = {"cases": {}}
    interrupted = False

    def finish(merged: dict[str, Any]) -> dict[str, Any]:
        cases = {name: with_floor(one, declared[name].floor) for name, one in merged["cases"].items()}
        settings = merged["settings"] | {"launches": merged["launches"]}
        return merged | {"settings": settings, "cases": cases}

    def launched_once(number: int) -> dict[str, Any]:
        _tell(f"launch {number} of {plan.count}: {', '.join(names)}")
        return launch.run_launch(request, command)

    with tempfile.TemporaryDirectory(prefix="superopt-bench-") as folder:
        request = launch.Request(
            file=str(file.resolve()),
            names=tuple(names),
            out=str(Path(folder, "out.json")),
            folder=folder,
            seconds=arguments.seconds or (1.0 if arguments.quick or floors else 3.0),
            optimize_seconds=2.0 if arguments.quick or floors else 5.0,
            threads=arguments.threads or (1 if floors else None),
            fresh=arguments.fresh or floors,
        )
        try:
            for found in launched(plan, launched_once, finish):
                document = found
        except KeyboardInterrupt:
            interrupted = True
    _show(document, names)
    if interrupted:
        return 130
    good = all(not one.get("error") and one["held"] for one in document["cases"].values())
    return 0 if good and document["cases"] else 1


def _show(document: dict[str, Any], names: Sequence[str]) -> None:
    cases = [document["cases"][name] for name in names if name in document["cases"]]
    peers = list(dict.fromkeys(peer for one in cases for peer in one.get("ratios", ())))
    rows: list[tuple[str, ...]] = []
    blocks: list[Block] = []
    for one in cases:
        if one.get("error"):
            blocks.append(Text(f"{one['case']}: {one['error']}", "red"))
            continue
        speed, floor = one["speed"], one["floor"]
        rows.append(
            (
                one["case"],
                f"{one['measured'][one['ours']]['median_us']:.1f}",
                *(f"{one['ratios'][peer]:.2f}" if peer in one["ratios"] else "-" for peer in peers),
                f"{speed['low']:.2f} to {speed['high']:.2f} of {one['baseline']}",
                "-" if floor is None else f"{floor:g}",
            )
        )
        blocks += [Text(f"{one['case']}: {peer}: {why}", "yellow") for peer, why in one["not_run"].items()]
        if not one["held"]:
            blocks.append(Text(f"{one['case']}: below its floor of {floor:g}", "bold red"))
    if rows:
        columns = ("case", "µs", *(f"{peer} / ours" for peer in peers), "95% interval", "floor")
        blocks.insert(0, Table(columns, tuple(rows)))
    print_blocks(blocks)


def _file_of(suite: str) -> Path:
    if suite == _FLOORS:
        from superopt.bench import floors

        return Path(floors.__file__)
    file = Path(suite)
    try:
        exists, is_folder = file.exists(), file.is_dir()
    except (OSError, ValueError) as error:
        raise InputError(f"{suite!r} is not a path: {reason_of(error)}") from error
    if not exists or is_folder:
        raise InputError(
            f"{suite!r} {'is a folder' if is_folder else 'does not exist'}; give your own file.py"
        )
    return file


def declared_by(file: Path) -> "list[Declared]":
    """Return the benchmarks of a user's file, or raise InputError where it has none."""
    from superopt.bench.functions.declared import declared_in

    found = declared_in(run_file(file))
    if not found:
        raise InputError(
            f"{file} has no benchmark: decorate a function with"
            ' @case(inputs="f32[8,1024]"), from superopt.bench import case'
        )
    for one in found:
        if isinstance(one.inputs, str):
            try:
                parse_inputs(one.inputs)
            except InputError as error:
                raise InputError(f"{file}: {one.name}: {str(error).replace('--inputs', 'inputs')}") from error
    return found


def _filtered(names: Sequence[str], pattern: str | None) -> list[str]:
    """Return the names that a pattern matches, or has as a part where it has no wildcard."""
    if pattern is None:
        return list(names)
    whole = pattern if any(mark in pattern for mark in "*?[") else f"*{pattern}*"
    found = [name for name in names if fnmatch.fnmatchcase(name, whole)]
    if not found:
        some = ", ".join(names[:6]) + (", ..." if len(names) > 6 else "")
        raise InputError(f"--filter {pattern!r} matches no case; there are {some}")
    return found


def _tell(message: str) -> None:
    print(f"superopt: {message}", file=sys.stderr, flush=True)
