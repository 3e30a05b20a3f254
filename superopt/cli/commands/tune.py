"""`superopt tune`: a plan raced on the machine that has the device, or what budgets left undone."""

import argparse
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

from superopt.cli import options
from superopt.cli.commands.optimize import save_and_show
from superopt.cli.live import LiveLine
from superopt.cli.pending import run_pending
from superopt.cli.scratch import own_scratch
from superopt.cli.target import load_target
from superopt.cli.userfile import to_stderr
from superopt.cli.writing import check_place, check_source
from superopt.errors import InputError

__all__ = ["add_command"]

_EPILOG = """\
examples:
  superopt optimize mha --device cuda:90 -o plan.json   on any machine
  superopt tune plan.json                               where the device is
  superopt tune --pending --minutes 30                  what torch.compile left

Racing a plan needs neither egglog nor z3. Where the original function is not at hand, PyTorch races with a
stand-in: the program as it was traced, in the dtypes of its tensors. Exit code 1: PyTorch's own program is
the fastest.

With --pending, what is found is kept, and the program has it when it starts again. Ctrl-C loses only the
region under way, which stays pending.
"""


def add_command(commands: Any) -> None:
    """Add `superopt tune`."""
    parser: argparse.ArgumentParser = commands.add_parser(
        "tune",
        help="race the candidates of a plan on this machine, or work off what budgets left undone",
        description="Makes the kernels of a plan or an earlier result, checks them in floats and races them.",
        epilog=_EPILOG,
    )
    parser.add_argument("plan", metavar="PLAN", nargs="?", help="a file that superopt optimize -o wrote")
    parser.add_argument(
        "--pending", action="store_true", help="the regions that torch.compile left for want of time"
    )
    parser.add_argument(
        "--minutes", type=options.minutes, metavar="M", help="with --pending: about how long at most"
    )
    parser.add_argument(
        "--function", metavar="FILE:NAME", help="the original, where the file does not name a workload"
    )
    options.add_race(parser)
    parser.add_argument(
        "-o", "--out", metavar="FILE", help="where the result goes (default: PLAN with .tuned before .json)"
    )
    options.add_progress(parser)
    parser.set_defaults(run=_run)


def _run(arguments: argparse.Namespace) -> int:
    if arguments.pending:
        if given := [name for name in ("plan", "function", "out") if getattr(arguments, name) is not None]:
            raise InputError(f"--pending takes no {given[0]}: it works off the queue in the cache")
        return run_pending(arguments.minutes, quiet=arguments.quiet, json=arguments.json)
    if arguments.minutes is not None:
        raise InputError("--minutes goes with --pending; of a plan, --seconds says how long to race")
    if arguments.plan is None:
        raise InputError("give a PLAN that superopt optimize -o wrote, or --pending")
    plan = Path(arguments.plan)
    beside = plan.parent / f"{plan.stem}.tuned{plan.suffix or '.json'}"
    wanted = str(beside) if arguments.out is None else arguments.out
    out = check_place(wanted) if os.path.exists(plan) else beside
    check_source(out, plan)
    function = _function(arguments.function, out)
    from superopt.optimizer import tune

    quiet = arguments.json or arguments.quiet
    with own_scratch(), to_stderr(), LiveLine(quiet=quiet, lines=arguments.verbose) as tell:
        best = tune(
            plan,
            function,
            seconds=arguments.seconds,
            preset=arguments.preset,
            torch_compile=not arguments.no_torch_compile,
            on_progress=tell,
        )
        if best.interrupted and not best.measurements:
            raise KeyboardInterrupt
    save_and_show(best, arguments, out)
    if best.interrupted:
        return 130
    return 0 if best.winner == "superopt" else 1


def _function(text: str | None, out: Path) -> Callable[..., Any] | None:
    if text is None:
        return None
    target = load_target(text)
    check_source(out, target.file)
    if not callable(target.program):
        raise InputError(f"--function {text} is a graph; give file.py:function")
    return target.program
