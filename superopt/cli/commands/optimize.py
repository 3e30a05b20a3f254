"""`superopt optimize`: the fastest correct program for a function, measured here or planned for elsewhere."""

import argparse
from pathlib import Path
from typing import TYPE_CHECKING, Any

from superopt.cli import options
from superopt.cli.live import LiveLine
from superopt.cli.options import parse_sizes
from superopt.cli.scratch import own_scratch
from superopt.cli.screen import print_blocks, print_json
from superopt.cli.target import Target, add_inputs, load_target
from superopt.cli.userfile import to_stderr
from superopt.cli.writing import check_place, check_source
from superopt.errors import InputError

if TYPE_CHECKING:
    from superopt.live.optimized import Optimized

__all__ = ["add_command", "save_and_show"]

_EPILOG = """\
examples:
  superopt optimize gated-mlp --size M=8 K=2048 N=2048 --dtype f32
  superopt optimize model.py:norm --inputs "f32[16,4096] f32[4096]"
  superopt optimize rmsnorm-linear --device cuda:90 -o plan.json

What is slower than PyTorch here, or less accurate, is never taken: then PyTorch's own program is
what comes back (exit code 1). For a device that is not here, a plan is made: kernels compiled ahead
of time, by predicted times; `superopt tune` races it where the device is.

What was measured is kept: the same command again gives it back in seconds, unless its kernels have
become slower than PyTorch on this machine since, and --fresh races anew.
Ctrl-C ends with the best so far (exit code 130); before anything was measured, nothing is written.

What is raced holds for sizes up to the next power of two. The kernels serve others, too, by default
configurations; superopt.load(FILE, function, retune=True) races some for those that come.
"""


def add_command(commands: Any) -> None:
    """Add `superopt optimize`."""
    parser: argparse.ArgumentParser = commands.add_parser(
        "optimize",
        help="make the fastest correct kernels, raced against PyTorch",
        description="Searches, makes kernels for a CPU or a GPU, checks them in floats and races them.",
        epilog=_EPILOG,
    )
    parser.add_argument(
        "target", metavar="TARGET", help="a named workload (superopt list), or file.py:function"
    )
    add_inputs(parser)
    options.add_race(parser)
    options.add_weights(parser)
    parser.add_argument(
        "--device",
        default="auto",
        metavar="DEVICE",
        help="cpu, cuda, cuda:90, a name as in H100; auto (default): a GPU if one is here",
    )
    parser.add_argument(  # what older versions call it
        "--target", dest="device", default=argparse.SUPPRESS, help=argparse.SUPPRESS
    )
    parser.add_argument("--plan", action="store_true", help="predict only: compile and measure nothing here")
    parser.add_argument("-o", "--out", metavar="FILE", help="write the result to a file")
    parser.add_argument(
        "--graphs",
        type=options.positive,
        default=6,
        metavar="K",
        help="graphs compiled per region (default 6)",
    )
    parser.add_argument(
        "--seed", type=options.whole, metavar="SEED", help="of inputs and tests (default: a fresh one)"
    )
    parser.add_argument("--fresh", action="store_true", help="race anew, though the same was measured before")
    parser.add_argument("--show-source", action="store_true", help="print the kernels that were taken")
    options.add_progress(parser)
    parser.set_defaults(run=_run)


def _run(arguments: argparse.Namespace) -> int:
    out = check_place(arguments.out) if arguments.out is not None else None
    target = load_target(arguments.target)
    check_source(out, target.file)
    if not callable(target.program):
        raise InputError(f"{arguments.target} is a graph; optimize takes a function, to race against it")
    inputs = target.inputs(arguments)
    from superopt.optimizer import OptimizeOptions, optimize
    from superopt.verify.seeds import fresh_seed

    chosen = OptimizeOptions(
        target=arguments.device,
        preset=arguments.preset,
        weights=arguments.weights,
        measure=not arguments.plan,
        seconds=arguments.seconds,
        graphs=arguments.graphs,
        torch_compile=not arguments.no_torch_compile,
        seed=fresh_seed() if arguments.seed is None else arguments.seed,
        recall=not arguments.fresh and arguments.seed is None,
    )
    quiet = arguments.json or arguments.quiet
    with own_scratch(), to_stderr(), LiveLine(quiet=quiet, lines=arguments.verbose) as tell:
        best = optimize(
            target.program,
            *inputs,
            name=target.name,
            options=chosen,
            on_progress=tell,
            source=_source(target, arguments),
        )
        if best.interrupted and not best.measurements:
            raise KeyboardInterrupt
    save_and_show(best, arguments, out)
    if best.interrupted:
        return 130
    return 0 if best.winner in (None, "superopt") else 1


def save_and_show(best: "Optimized", arguments: argparse.Namespace, out: Path | None) -> None:
    """Save what came of a race, and print it; where it cannot be saved, that is raised after printing."""
    fault = None
    try:
        if out is not None:
            best.save(out)
    except InputError as error:
        fault, out = error, None
    _show(best, arguments, out)
    if fault is not None:
        raise fault


def _show(best: "Optimized", arguments: argparse.Namespace, out: Path | None) -> None:
    """Print a few lines, or all that is known."""
    if arguments.json:
        print_json(best.to_json())
    elif arguments.verbose:
        print(best.explain())
    else:
        from superopt.cli.summary import summary

        print_blocks(summary(best.result, out, recalled=best.recalled))
    if getattr(arguments, "show_source", False) and not arguments.json:
        print("\n".join(("", *best.sources)))


def _source(target: Target, arguments: argparse.Namespace) -> dict[str, Any]:
    """Return where the function comes from, for the result file."""
    if target.workload is not None:
        return {"workload": target.workload.name, "sizes": parse_sizes(arguments.size)}
    path, _, function = arguments.target.rpartition(":")
    return {"file": path, "function": function}
