"""`superopt report`: a result as one HTML page."""

import argparse
import webbrowser
from pathlib import Path
from typing import Any

from superopt.cli.writing import check_place, check_source, write_text

__all__ = ["add_command"]

_EPILOG = """\
examples:
  superopt optimize rmsnorm-linear -o best.json
  superopt report best.json                        writes best.html
  superopt report best.json --html out.html --open
"""


def add_command(commands: Any) -> None:
    """Add `superopt report`."""
    parser: argparse.ArgumentParser = commands.add_parser(
        "report",
        help="make an HTML page of a result",
        description="Makes one HTML page of a result: programs, traffic, race, candidates, sources, proof.",
        epilog=_EPILOG,
    )
    parser.add_argument("result", metavar="RESULT", help="a file that superopt optimize -o wrote")
    parser.add_argument(
        "-o", "--html", metavar="FILE", help="where the page goes (default: RESULT with .html)"
    )
    parser.add_argument("--open", action="store_true", help="open the page in a browser")
    parser.set_defaults(run=_run)


def _run(arguments: argparse.Namespace) -> int:
    from superopt.report import report_html
    from superopt.result import read_result

    source = Path(arguments.result)
    result = read_result(source)
    page = check_place(str(source.with_suffix(".html")) if arguments.html is None else arguments.html)
    check_source(page, source)
    write_text(page, report_html(result))
    print(page)
    if arguments.open:
        webbrowser.open(page.resolve().as_uri())
    return 0
