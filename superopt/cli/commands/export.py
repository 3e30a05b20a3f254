"""`superopt export`: a result as a Python module that needs only torch and what compiles its kernels."""

import argparse
import sys
from pathlib import Path
from typing import Any

from superopt.cli import options
from superopt.cli.writing import write_text

__all__ = ["add_command"]

_EPILOG = """\
examples:
  superopt export best.json -o rmsnorm_linear.py
  python rmsnorm_linear.py             compares it with plain PyTorch
  superopt export best.json --region 2 --candidate "graph 1" > part.py

The module has the kernels' sources, the function, a reference in plain PyTorch and a check.
"""


def add_command(commands: Any) -> None:
    """Add `superopt export`."""
    parser: argparse.ArgumentParser = commands.add_parser(
        "export",
        help="write a result as a Python module that needs only torch",
        description="Writes a result as a Python module that needs only torch, and Triton or a C++ compiler.",
        epilog=_EPILOG,
    )
    parser.add_argument("result", metavar="RESULT", help="a file that superopt optimize -o wrote")
    parser.add_argument("-o", "--out", metavar="FILE", help="where the module goes (default: stdout)")
    parser.add_argument(
        "--region",
        type=options.positive,
        metavar="N",
        help="which region, from 1 (needed where there are more)",
    )
    parser.add_argument(
        "--candidate", metavar="ID", help="which candidate, by its id or name (default: the chosen one)"
    )
    parser.set_defaults(run=_run)


def _run(arguments: argparse.Namespace) -> int:
    from superopt.export import export_module
    from superopt.result import read_result

    source = Path(arguments.result)
    result = read_result(source)
    text = export_module(result, region=arguments.region, candidate=arguments.candidate)
    if arguments.out is None:
        sys.stdout.write(text)
    else:
        write_text(Path(arguments.out), text, source)
        print(arguments.out)
    return 0
