"""`superopt bench`: measure a suite or one's own functions, compare two results, draw them."""

import argparse
from pathlib import Path
from typing import TYPE_CHECKING, Any

from superopt.cli import options
from superopt.cli.bench import run as benchrun
from superopt.cli.screen import Block, Table, Text, print_blocks, print_json
from superopt.cli.writing import check_folder

if TYPE_CHECKING:
    from superopt.bench.harness.comparison import Comparison, Row

__all__ = ["add_command"]

_EPILOG = """\
examples:
  superopt bench run mine.py --repeat 5 --json before.json
  superopt bench run mine.py --repeat 5 --json after.json
  superopt bench compare before.json after.json
  superopt bench run cpu --quick --json cpu.json
  superopt bench plot cpu.json -o pictures
"""
_COMPARE_EPILOG = """\
examples:
  superopt bench compare before.json after.json
  superopt bench compare before.json after.json --tolerance 0.02 --json

A case is slower or faster where the whole 95% interval of its change lies beyond the tolerance, same
where it lies within, unclear otherwise: then more launches (--repeat) or a quieter machine tell more.
Exit code 0: no regression. Exit code 1: a case is slower, or works no more. Exit code 2: bad input.
"""
_PLOT_EPILOG = """\
examples:
  superopt bench plot cpu.json search.json -o pictures

Writes a PNG and an SVG for each picture that the results allow: times of peers over ours, rates on the
device's roofline, search times beside published ones, rows per second with workers.
"""


def add_command(commands: Any) -> None:
    """Add `superopt bench`."""
    parser: argparse.ArgumentParser = commands.add_parser(
        "bench",
        help="measure, compare two results, and draw them",
        description="Measures a suite or your own functions, compares results, and draws them.",
        epilog=_EPILOG,
    )
    actions = parser.add_subparsers(title="actions", metavar="ACTION", dest="action")
    benchrun.add_actions(actions)
    compare: argparse.ArgumentParser = actions.add_parser(
        "compare",
        help="tell what became faster or slower between two results",
        description="Tells what became faster or slower between two results of the same suite.",
        epilog=_COMPARE_EPILOG,
    )
    compare.add_argument("old", metavar="OLD", type=Path, help="a file of superopt bench run --json")
    compare.add_argument("new", metavar="NEW", type=Path, help="another, of the same suite")
    compare.add_argument(
        "--tolerance",
        type=options.share,
        default=0.05,
        metavar="T",
        help="change that does not matter, as a share (default 0.05)",
    )
    compare.add_argument(
        "--any-machine", action="store_true", help="compare ratios to the baseline across machines"
    )
    compare.add_argument("--json", action="store_true", help="print JSON")
    compare.set_defaults(run=_compare)
    plot: argparse.ArgumentParser = actions.add_parser(
        "plot",
        help="draw results as PNG and SVG",
        description="Draws results as PNG and SVG; needs matplotlib.",
        epilog=_PLOT_EPILOG,
    )
    plot.add_argument("results", metavar="FILE", nargs="+", type=Path, help="files of superopt bench run")
    plot.add_argument(
        "-o", "--out", metavar="DIR", type=Path, default=Path(), help="folder of the pictures (default: here)"
    )
    plot.add_argument("--json", action="store_true", help="print JSON")
    plot.set_defaults(run=_plot)


def _compare(arguments: argparse.Namespace) -> int:
    from superopt.bench.harness.comparison import compare_results
    from superopt.bench.harness.results import read_results

    found = compare_results(
        read_results(arguments.old),
        read_results(arguments.new),
        tolerance=arguments.tolerance,
        any_machine=arguments.any_machine,
    )
    if arguments.json:
        print_json(_comparison_json(found))
    else:
        print_blocks(_comparison_blocks(found))
    return 1 if found.regressions else 0


def _comparison_json(found: "Comparison") -> dict[str, Any]:
    return {
        "schema": "superopt.bench.harness.comparison/1",
        "suite": found.suite,
        "tolerance": found.tolerance,
        "regressions": list(found.regressions),
        "notes": list(found.notes),
        "cases": [
            {
                "case": row.case,
                "verdict": row.verdict,
                "old_us": row.old_us,
                "new_us": row.new_us,
                "baseline": row.baseline or None,
                "change": row.change.ratio,
                "low": row.change.low,
                "high": row.change.high,
                "note": row.note or None,
            }
            for row in found.rows
        ],
    }


def _comparison_blocks(found: "Comparison") -> list[Block]:
    blocks: list[Block] = [
        Table(
            ("case", "old µs", "new µs", "change", "95% interval", "by", "verdict"),
            tuple(_cells(row) for row in found.rows),
        )
    ]
    blocks += [Text(f"{row.case}: {row.note}", "yellow") for row in found.rows if row.note]
    blocks += [Text(f"note: {note}", "yellow") for note in found.notes]
    if found.regressions:
        limit = f"by more than {found.tolerance:.0%}"
        blocks.append(Text(f"slower {limit}, or broken: {', '.join(found.regressions)}", "bold red"))
    else:
        unclear = sum(row.verdict == "unclear" for row in found.rows)
        rest = f"; {unclear} of {len(found.rows)} unclear: more launches tell more" if unclear else ""
        blocks.append(Text(f"no regression beyond {found.tolerance:.0%}{rest}", "bold"))
    return blocks


def _cells(row: "Row") -> tuple[str, ...]:
    change = row.change
    interval = f"{change.low:.3f} to {change.high:.3f}" if change.low == change.low else "-"
    return (
        row.case,
        *(f"{us:.1f}" if us == us else "-" for us in (row.old_us, row.new_us)),
        f"{change.ratio:.3f}" if change.ratio == change.ratio else "-",
        interval,
        row.baseline or "time",
        row.verdict,
    )


def _plot(arguments: argparse.Namespace) -> int:
    from superopt.bench.harness.results import read_results

    documents = [read_results(place) for place in arguments.results]
    from superopt.bench.pictures import draw

    check_folder("-o", arguments.out)
    written = draw(documents, [place.stem for place in arguments.results], arguments.out)
    if arguments.json:
        print_json({"schema": "superopt.bench.pictures/1", "files": [str(place) for place in written]})
    else:
        print_blocks(Text(str(place)) for place in written)
    return 0
