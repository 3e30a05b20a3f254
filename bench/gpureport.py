"""What `bench.gpu` found, as a table, and the geometric means of ratios; losses count like wins."""

import platform
from collections.abc import Iterable, Mapping
from math import exp, log
from typing import Any

__all__ = ["geometric_means", "machine", "show"]

_COLUMNS = {
    "eager": "eager",
    "torch.compile": "compile",
    "torch.compile max-autotune-no-cudagraphs": "max-autotune",
    "sdpa": "sdpa",
}


def machine() -> dict[str, Any]:
    """Return the device and the versions that results depend on."""
    import torch

    from superopt import __version__
    from superopt.cache import versions

    found: dict[str, Any] = {"python": platform.python_version(), "superopt": __version__}
    found["versions"] = versions()
    found["torch"] = torch.__version__
    if torch.cuda.is_available():
        one = torch.cuda.get_device_properties(0)
        found |= {"device": one.name, "capability": [one.major, one.minor], "cuda": torch.version.cuda}
        found |= {"memory_bytes": one.total_memory, "l2_bytes": one.L2_cache_size}
    else:
        found["device"] = platform.processor() or platform.machine()
    return found


def geometric_means(records: Iterable[Mapping[str, Any]]) -> dict[str, dict[str, Any]]:
    """Return, for each suite and each peer, the geometric mean of its time over ours, and of how many."""
    ratios: dict[str, dict[str, list[float]]] = {}
    for record in records:
        if record.get("ratio") is None:
            continue
        for suite in (record["suite"], "all"):
            found = ratios.setdefault(suite, {})
            for name, ratio in {**record["ratios"], "best peer": record["ratio"]}.items():
                found.setdefault(name, []).append(ratio)
    return {
        suite: {
            name: {"mean": _mean(several), "cases": len(several)} for name, several in sorted(found.items())
        }
        for suite, found in sorted(ratios.items())
    }


def _mean(ratios: list[float]) -> float:
    return exp(sum(map(log, ratios)) / len(ratios))


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
    for suite, means in document.get("geometric_mean", {}).items():
        listed = ", ".join(f"{name} {one['mean']:.2f} ({one['cases']})" for name, one in means.items())
        console.print(f"geometric mean, {suite}: {listed}")
    if missing := document.get("not_reached"):
        console.print(f"not reached: {', '.join(missing)}")
