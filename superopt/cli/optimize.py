"""`superopt optimize`: the fastest correct program for a function on this machine, measured."""

import argparse
import sys
from typing import Any

from superopt.cli import options
from superopt.cli.screen import print_json
from superopt.cli.target import add_inputs, load_target
from superopt.cli.userfile import to_stderr
from superopt.errors import InputError

__all__ = ["add_command"]

_EPILOG = """\
examples:
  superopt optimize gated-mlp --size M=8 K=2048 N=2048 --dtype f32
  superopt optimize model.py:norm --inputs "f32[16,4096] f32[4096]" --show-source

What is slower than PyTorch here, or less accurate, is never taken: then PyTorch's own program is
what comes back (exit code 1).
"""


def add_command(commands: Any) -> None:
    """Add `superopt optimize`."""
    parser: argparse.ArgumentParser = commands.add_parser(
        "optimize",
        help="make the fastest correct kernels for this CPU, raced against PyTorch",
        description="Searches, compiles C++ kernels for this CPU, checks them in floats and races them.",
        epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    parser.add_argument(
        "target", metavar="TARGET", help="a named workload (superopt list), or file.py:function"
    )
    add_inputs(parser)
    parser.add_argument(
        "--seconds", type=options.seconds, default=20.0, metavar="S", help="of racing, in all (default 20)"
    )
    parser.add_argument(
        "--graphs",
        type=options.positive,
        default=6,
        metavar="K",
        help="graphs compiled per region (default 6)",
    )
    parser.add_argument("--no-torch-compile", action="store_true", help="race against eager PyTorch only")
    parser.add_argument("--seed", type=options.whole, default=0, metavar="SEED", help="of inputs and tests")
    parser.add_argument("--show-source", action="store_true", help="print the kernels that were taken")
    parser.add_argument("--json", action="store_true", help="print JSON, and no progress")
    parser.add_argument("--quiet", action="store_true", help="show no progress")
    parser.set_defaults(run=_run)


def _run(arguments: argparse.Namespace) -> int:
    target = load_target(arguments.target)
    if not callable(target.program):
        raise InputError(f"{arguments.target} is a graph; optimize takes a function, to race against it")
    inputs = target.inputs(arguments)
    from superopt.optimizer import OptimizeOptions, optimize

    chosen = OptimizeOptions(
        seconds=arguments.seconds,
        graphs=arguments.graphs,
        torch_compile=not arguments.no_torch_compile,
        seed=arguments.seed,
    )
    silent = arguments.json or arguments.quiet

    def tell(message: str) -> None:
        if not silent:
            print(f"superopt: {message}", file=sys.__stderr__)

    with to_stderr():
        best = optimize(target.program, *inputs, name=target.name, options=chosen, on_progress=tell)
    if arguments.json:
        print_json(best.to_json())
    else:
        print(best.explain())
        if arguments.show_source:
            print("\n".join(("", *best.sources)))
    return 0 if best.winner == "superopt" else 1
