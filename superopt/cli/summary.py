"""A finished optimization as a few blocks: the race in three rows, why, and where to read on."""

from datetime import datetime
from pathlib import Path

from superopt.cli.screen import Block, Table, Text
from superopt.result import Result
from superopt.result.why import agreement, headline, why_faster, why_not_faster

__all__ = ["summary"]

_LONG_US = 10_000.0  # from which on times are printed in ms


def summary(result: Result, out: Path | None, *, recalled: datetime | None = None) -> list[Block]:
    """Return what a user wants to know at first; `recalled` is when an earlier run measured it."""
    blocks: list[Block] = [Text(headline(result), "bold", wraps=True)]
    if recalled is not None:
        when = recalled.astimezone().strftime("%Y-%m-%d %H:%M")
        blocks.append(Text(f"measured on {when}, proven equal again now; --fresh races anew", "dim"))
    if result.measurements:
        blocks += [Text(), _race(result), Text()]
    if result.winner == "superopt":
        blocks += [Text(line, wraps=True) for line in (why_faster(result), *agreement(result)) if line]
    elif result.winner is not None:
        blocks += [Text(line, wraps=True) for line in why_not_faster(result)]
    if result.interrupted:
        blocks.append(Text("Interrupted: this is the best so far.", "yellow"))
    blocks += [
        Text(f"{node.target} stays as PyTorch runs it: {node.reason}", "yellow", wraps=True)
        for node in result.program.opaque
    ]
    blocks.append(Text(_further(result, out), "dim", wraps=True))
    return blocks


def _race(result: Result) -> Table:
    """Return the times of all programs, the fastest first."""
    ordered = sorted(result.measurements.items(), key=lambda item: item[1].median_us)
    unit, size = ("ms", 1e3) if ordered[0][1].median_us >= _LONG_US else ("µs", 1.0)
    rows = []
    for name, one in ordered:
        median, low, high = (_number(us / size) for us in (one.median_us, one.low_us, one.high_us))
        rows.append((name, f"{median} {unit}", f"{low} to {high}"))
    return Table(("program", "median", "8 of 10 calls"), tuple(rows))


def _number(value: float) -> str:
    return f"{value:,.0f}" if value >= 100 else f"{value:.1f}"


def _further(result: Result, out: Path | None) -> str:
    if out is None:
        page = "-o result.json keeps it for superopt report and export"
    elif result.winner is None:
        page = f"The plan: superopt tune {out}, where the device is"
    else:
        page = f"The report: superopt report {out}"
    return f"{page}; -v shows every candidate"
