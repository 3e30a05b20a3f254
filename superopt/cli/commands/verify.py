"""`superopt verify`: whether two functions compute the same, and where they differ if not."""

import argparse
from typing import Any

from superopt.cli import options
from superopt.cli.live import LiveLine
from superopt.cli.screen import Text, print_blocks, print_json
from superopt.cli.target import add_inputs, load_target
from superopt.cli.userfile import to_stderr

__all__ = ["add_command"]

_EPILOG = """\
examples:
  superopt verify before.py:f after.py:f --inputs "f16[16,4096] f16[4096]"
  superopt verify old.py:f new.py:f --inputs "f32[8,128]" --no-floats --json

Exit code 0: equal. Exit code 1: different, with the inputs and both outputs at the first differing
place. Exit code 3: unknown, with what was tried and what stands in the way. Exit code 2: bad input.
"""

_CODES = {"equal": 0, "different": 1, "unknown": 3}
_COLOURS = {"equal": "green", "different": "red", "unknown": "yellow"}


def add_command(commands: Any) -> None:
    """Add `superopt verify`."""
    parser: argparse.ArgumentParser = commands.add_parser(
        "verify",
        help="tell whether two programs are equal",
        description="Tells whether two programs are equal: by exact algebra, then in floats.",
        epilog=_EPILOG,
    )
    for name, which in (("first", "FIRST"), ("second", "SECOND")):
        parser.add_argument(name, metavar=which, help="file.py:function, or a named workload")
    add_inputs(parser)
    parser.add_argument(
        "--trials",
        type=options.positive,
        metavar="N",
        help="random tests over finite fields (default: enough for a small chance of error)",
    )
    parser.add_argument(
        "--seed",
        type=options.whole,
        metavar="SEED",
        help="of the random tests (default: a fresh one, which the verdict names)",
    )
    parser.add_argument("--no-floats", action="store_true", help="compare by algebra only")
    parser.add_argument("--json", action="store_true", help="print JSON")
    parser.set_defaults(run=_run)


def _run(arguments: argparse.Namespace) -> int:
    first, second = load_target(arguments.first), load_target(arguments.second)
    inputs = first.inputs(arguments)
    from superopt.verify.equivalent import equivalent

    with to_stderr(), LiveLine() as show:
        verdict = equivalent(
            first.program,
            second.program,
            *inputs,
            trials=arguments.trials,
            seed=arguments.seed,
            floats=not arguments.no_floats,
            progress=show,
        )
    if arguments.json:
        print_json(
            {
                "schema": "superopt.verdict/2",
                "first": arguments.first,
                "second": arguments.second,
                **verdict.to_json(),
            }
        )
    else:
        headline, *rest = str(verdict).splitlines()
        print_blocks([Text(headline, f"bold {_COLOURS[verdict.outcome]}"), *map(Text, rest)])
    return _CODES[verdict.outcome]
