"""A finished optimization as a few blocks: the race in three rows, why, and where to read on."""

from collections.abc import Sequence
from datetime import datetime
from pathlib import Path

from superopt.cli.screen import Block, Table, Text
from superopt.result import Result
from superopt.result.why import best_rival, why_faster, why_not_faster
from superopt.rivals.rivals import PEERS

__all__ = ["summary"]

_LONG_US = 10_000.0  # from which on times are printed in ms
_APART = 1.1  # times that two times of one program differ before a reader is told why


def summary(result: Result, out: Path | None, *, recalled: datetime | None = None) -> list[Block]:
    """Return what a user wants to know at first; `recalled` is when an earlier run measured it."""
    blocks: list[Block] = [Text(_headline(result), "bold")]
    if recalled is not None:
        when = recalled.astimezone().strftime("%Y-%m-%d %H:%M")
        blocks.append(Text(f"measured on {when}, proven equal again now; --fresh races anew", "dim"))
    if result.measurements:
        blocks += [Text(), _race(result), Text()]
    if result.winner == "superopt":
        blocks += [Text(line, wraps=True) for line in (why_faster(result), *_agreement(result)) if line]
    elif result.winner is not None:
        blocks += [Text(line, wraps=True) for line in why_not_faster(result)]
    if result.interrupted:
        blocks.append(Text("Interrupted: this is the best so far.", "yellow"))
    blocks += [
        Text(f"{node.target} stays as PyTorch runs it: {node.reason}", "yellow")
        for node in result.program.opaque
    ]
    blocks.append(Text(_further(result, out), "dim"))
    return blocks


def _headline(result: Result) -> str:
    name = result.name
    if result.winner is None:
        took = (
            f"{result.predicted_us:.1f} µs predicted" if result.predicted_us is not None else "no prediction"
        )
        return f"{name}: a plan for {result.target.name}, {took}; nothing was measured"
    if result.winner != "superopt":
        kept = "PyTorch's program" if result.winner == "eager" else result.winner
        return f"{name}: {kept} stays; nothing that was found is surely faster"
    against = "a stand-in for the original" if result.stood_in else best_rival(result)
    between = "" if result.interval is None else " ({:.2f} to {:.2f})".format(*result.interval)
    return f"{name}: {result.speedup:.2f} times as fast as {against}{between}"


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


def _agreement(result: Result) -> Sequence[str]:
    """Return why the times that were printed do not agree, where they do not."""
    ours = result.measurements.get("superopt")
    rivals = [one.median_us for name, one in result.measurements.items() if name in PEERS]
    said = []
    if ours is not None and rivals and result.ratio is not None:
        together = min(rivals) / ours.median_us
        if max(together, result.ratio) > _APART * min(together, result.ratio):
            said.append(
                f"In the race of all, the ratio was {together:.2f}; the one above is of a second race, of"
                " the best two alone, which noise disturbs less."
            )
    kernels = [one.chosen.measurement for one in result.regions if one.chosen is not None]
    known = [one.median_us for one in kernels if one is not None]
    if ours is not None and known and len(known) == len(kernels) == len(result.program.nodes):
        alone = sum(known)
        if max(alone, ours.median_us) > _APART * min(alone, ours.median_us):
            said.append(
                f"In the race of the candidates it took {alone:,.0f} µs: there other programs did not empty"
                " the caches between its calls, or the machine was less busy."
            )
    return said


def _further(result: Result, out: Path | None) -> str:
    if out is None:
        page = "-o result.json keeps it, for superopt report and superopt export"
    elif result.winner is None:
        page = f"The plan: superopt tune {out}, where the device is"
    else:
        page = f"The report: superopt report {out}"
    return f"{page}; -v shows every candidate"
