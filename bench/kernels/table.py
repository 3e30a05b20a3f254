"""What `bench.cpu` and `bench.gpu` found, as one table with a column for each rival."""

from collections.abc import Callable, Mapping
from typing import Any

__all__ = ["best_peer", "show", "times_over_ours"]

Cell = Callable[[Mapping[str, Any]], str]

_FASTER, _SLOWER = 1.02, 0.98  # ratios beyond which a case is green or red
_WIDTH = 160  # characters of a line where the output is no terminal


def times_over_ours(rivals: Mapping[str, str]) -> dict[str, Cell]:
    """Return a column for each rival, from the headings by the names of the rivals."""

    def cell(name: str) -> Cell:
        return lambda record: f"{record['ratios'][name]:.2f}" if name in record["ratios"] else "-"

    return {heading: cell(name) for name, heading in rivals.items()}


def show(document: Mapping[str, Any], columns: Mapping[str, Cell], *, kernels: Cell) -> None:
    """Print a row for each case, the geometric means, and the cases that were left out or not reached."""
    from rich.console import Console
    from rich.table import Table

    about = document["machine"]
    threads = f", {about['threads']} threads" if "threads" in about else ""
    table = Table(title=f"{about.get('device')}{threads}: times of peers over ours")
    table.add_column("case", no_wrap=True)
    shown = {"µs": _ours, **columns}
    for heading in shown:
        table.add_column(heading, justify="right", no_wrap=True)
    table.add_column("kernels")
    for record in document["cases"].values():
        if record.get("ratio") is None:
            table.add_row(record["case"], *[""] * len(shown), str(record.get("error")))
        else:
            table.add_row(record["case"], *(cell(record) for cell in shown.values()), kernels(record))
    console = Console(width=None if Console().is_terminal else _WIDTH)
    console.print(table)
    for group, means in document.get("geometric_mean", {}).items():
        listed = ", ".join(f"{name} {one['mean']:.2f} ({one['cases']})" for name, one in means.items())
        console.print(f"geometric mean, {group}: {listed}")
    left_out = [name for name, one in document["cases"].items() if one.get("left_out")]
    missing = document.get("not_reached", ())
    total = len(document["cases"]) + len(missing)
    for what, names in (("left out, too slow", left_out), ("not reached", missing)):
        if names:
            console.print(f"{what}: {len(names)} of {total} cases: {', '.join(names)}")


def best_peer(record: Mapping[str, Any]) -> str:
    """Return the ratio to the best rival, green where it is a gain and red where it is a loss."""
    ratio = record["ratio"]
    style = "green" if ratio > _FASTER else "red" if ratio < _SLOWER else ""
    return f"[{style}]{ratio:.2f}[/{style}]" if style else f"{ratio:.2f}"


def _ours(record: Mapping[str, Any]) -> str:
    return f"{record['measured']['superopt']['median_us']:.1f}"
