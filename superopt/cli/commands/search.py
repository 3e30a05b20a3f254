"""`superopt search`: every equivalent of a program, best first, with the statistics of the search."""

import argparse
from pathlib import Path
from typing import Any

from superopt.cli import options
from superopt.cli.live import LiveView
from superopt.cli.results import search_blocks, search_json
from superopt.cli.screen import print_blocks, print_json
from superopt.cli.target import add_inputs, load_target
from superopt.cli.userfile import to_stderr
from superopt.cli.writing import check_folder
from superopt.errors import InputError

__all__ = ["add_command"]

_EPILOG = """\
examples:
  superopt search rmsnorm-linear
  superopt search gqa --size M=2048 --workers 2
  superopt search model.py:norm --inputs "f16[16,4096] f16[4096]" --json
  superopt search saved.graph --prune none --seconds 5

Ctrl-C ends the search and prints the best so far (exit code 130). Exit code 1: no part of the
program is in the algebra, so there was nothing to search.
"""


def add_command(commands: Any) -> None:
    """Add `superopt search`."""
    parser: argparse.ArgumentParser = commands.add_parser(
        "search",
        help="find every equivalent of a program",
        description="Finds every equivalent of a program that the algebra reaches, and proves each.",
        epilog=_EPILOG,
    )
    parser.add_argument(
        "target", metavar="TARGET", help="a named workload (superopt list), file.py:function, or file.graph"
    )
    add_inputs(parser)
    limits = parser.add_argument_group("limits")
    limits.add_argument(
        "--seconds", type=options.seconds, default=60.0, metavar="S", help="stop after so long (default 60)"
    )
    limits.add_argument(
        "--rows",
        type=options.positive,
        default=200_000,
        metavar="R",
        help="tensors a region may reach (default 200000)",
    )
    limits.add_argument(
        "--max-graphs",
        type=options.positive,
        default=16,
        metavar="K",
        help="graphs kept besides the original (default 16)",
    )
    how = parser.add_argument_group("how to search")
    how.add_argument(
        "--workers", type=options.workers, default=1, metavar="N", help="processes (default 1); same result"
    )
    options.add_engine(how)
    how.add_argument(
        "--prune",
        choices=("egraph", "z3", "none"),
        default="egraph",
        help="what tells which tensors can lead to the goal (default egraph)",
    )
    how.add_argument("--no-split", action="store_true", help="leave reduction axes whole")
    how.add_argument(
        "--seed", type=options.whole, metavar="SEED", help="of the random tests (default: a fresh one)"
    )
    how.add_argument("--rules", type=Path, metavar="FILE", help="discovered rules, used as further axioms")
    how.add_argument("--checkpoint", type=Path, metavar="DIR", help="save each finished level in this folder")
    how.add_argument("--resume", action="store_true", help="go on from --checkpoint")
    output = parser.add_argument_group("output")
    output.add_argument(
        "--show",
        type=options.whole,
        default=1,
        metavar="K",
        help="graphs of each region printed in full (default 1)",
    )
    output.add_argument(
        "-v", "--verbose", action="store_true", help="print how the search went, level by level"
    )
    options.add_progress(output)
    parser.set_defaults(run=_run)


def _run(arguments: argparse.Namespace) -> int:
    from superopt.frontier.engine.engines import in_ranks

    return in_ranks(arguments.engine, arguments.workers, arguments.given, lambda: _search(arguments))


def _search(arguments: argparse.Namespace) -> int:
    if arguments.resume and arguments.checkpoint is None:
        raise InputError("--resume needs the folder to resume from: give --checkpoint DIR")
    checkpoint: Path | None = arguments.checkpoint
    if checkpoint is not None:
        check_folder("--checkpoint", checkpoint)
    target = load_target(arguments.target)
    program, inputs = target.without_torch(arguments)
    from superopt.driver import SearchOptions, search

    chosen = SearchOptions(
        workers=arguments.workers,
        seconds=arguments.seconds,
        prune=arguments.prune,
        max_graphs=arguments.max_graphs,
        split=not arguments.no_split,
        rows=arguments.rows,
        seed=arguments.seed,
        checkpoint=checkpoint,
        resume=arguments.resume,
        engine=arguments.engine,
        rules=arguments.rules,
    )
    with LiveView(quiet=arguments.json or arguments.quiet) as view, to_stderr():
        found = search(program, *inputs, name=target.name, options=chosen, on_progress=view)
    if arguments.json:
        print_json(search_json(found))
    else:
        print_blocks(search_blocks(found, show=arguments.show, verbose=arguments.verbose))
    if found.interrupted:
        return 130
    return 0 if found.regions else 1
