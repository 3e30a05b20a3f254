"""What `bench.gpu` found, as a table."""

from collections.abc import Iterable, Mapping
from typing import Any

__all__ = ["show"]

_COLUMNS = {
    "eager": "eager",
    "torch.compile": "compile",
    "torch.compile max-autotune-no-cudagraphs": "max-autotune",
    "sdpa": "sdpa",
}


def show(records: Iterable[Mapping[str, Any]], document: Mapping[str, Any]) -> None:
    """Print the table."""
    from rich.console import Console
    from rich.table import Table

    table = Table(title=f"{document['machine'].get('device')}: times of peers over ours")
    table.add_column("case", no_wrap=True)
    for heading in ("µs", "of floor", *_COLUMNS.values(), "best peer"):
        table.add_column(heading, justify="right", no_wrap=True)
    table.add_column("kernels")
    for record in records:
        if record.get("ratio") is None:
            table.add_row(record["case"], *[""] * (len(_COLUMNS) + 3), str(record.get("error")))
            continue
        ratios = record["ratios"]
        share = record["floor_share"]
        style = "green" if record["ratio"] > 1.02 else "red" if record["ratio"] < 0.98 else ""
        best = f"{record['ratio']:.2f}"
        table.add_row(
            record["case"],
            f"{record['measured']['superopt']['median_us']:.1f}",
            "" if share is None else f"{share:.0%}",
            *(f"{ratios[name]:.2f}" if name in ratios else "-" for name in _COLUMNS),
            f"[{style}]{best}[/{style}]" if style else best,
            "; ".join(one["name"] for one in record["chosen"]),
        )
    console = Console(width=None if Console().is_terminal else 160)
    console.print(table)
    missing = document.get("not_reached", ())
    suites = [one.partition("/")[2].partition("-")[0] for one in (*document["cases"], *missing)]
    for suite, means in document.get("geometric_mean", {}).items():
        listed = ", ".join(f"{name} {one['mean']:.2f} over {one['cases']}" for name, one in means.items())
        count = len(suites) if suite == "all" else suites.count(suite)
        console.print(f"geometric means, {suite}, {count} cases: {listed}")
    if missing:
        console.print(f"not reached: {', '.join(missing)}")
