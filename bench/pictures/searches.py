"""The search: its times beside those of other systems, and how its engine scales with workers."""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from superopt.bench.harness.records import Record
from superopt.bench.pictures.style import (
    BLUE,
    DARK,
    GREEN,
    GREY,
    ORANGE,
    PINK,
    measured,
    plain_log_ticks,
    where,
)

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

__all__ = ["scaling", "search_times"]


def search_times(document: Record) -> "Figure | None":
    """Draw the time of each search, and the times of other systems for the same program."""
    from matplotlib import pyplot
    from matplotlib.lines import Line2D

    records = [one for one in document["cases"].values() if one.get("prune") == "egraph"]
    if not records:
        return None
    records.sort(key=lambda one: one["total_ms"])
    peers: Record = document.get("peers", {})
    figure, axes = pyplot.subplots(figsize=(8.6, 1.5 + 0.32 * len(records)), layout="constrained")
    systems = list(dict.fromkeys(peer[0] for known in peers.values() for peer in known))
    marks = dict(zip(systems, (("s", ORANGE), ("D", PINK), ("^", GREEN)), strict=False))
    limits = [one["total_ms"] / 1e3 for one in records]
    for at, one in enumerate(records):
        ours = one["total_ms"] / 1e3
        published = [peer for peer in peers.get(one["workload"], ()) if peer[1] is not None]
        endless = [peer for peer in peers.get(one["workload"], ()) if peer[1] is None]
        said = []
        if published:
            axes.plot([ours, max(peer[1] for peer in published)], [at, at], color="#c8c8c8", zorder=1)
            said.append(f"{min(peer[1] for peer in published) / ours:,.0f} times as long")
        axes.plot(ours, at, "o", color=BLUE, markersize=7.5, zorder=3)
        for system, seconds, _ in published:
            axes.plot(seconds, at, marks[system][0], color=marks[system][1], markersize=7, zorder=3)
            limits.append(seconds)
        said += [f"{system}: {how.partition(': ')[2].partition(',')[0]}" for system, _, how in endless]
        beside: dict[str, Any] = {"textcoords": "offset points", "va": "center", "fontsize": 8}
        axes.annotate(f"{ours:.2f}", (ours, at), (-9, 0), ha="right", **beside)
        last = max([ours, *(peer[1] for peer in published)])
        axes.annotate("; ".join(said), (last, at), (10, 0), color=DARK, **beside)
    axes.set_xscale("log")
    axes.set_xlim(min(limits) / 3.2, max(limits) * 15)
    plain_log_ticks(axes)
    axes.set_yticks(range(len(records)), [one["workload"] for one in records], fontsize=9)
    axes.set_ylim(-0.6, len(records) - 0.4)
    axes.grid(axis="y", visible=False)
    axes.set_xlabel("seconds; of others as published, or CPU seconds measured on 2 cores")
    axes.set_title(f"Search of every named workload ({where(document)})", loc="left", pad=26)
    handles = [Line2D([], [], linestyle="", marker="o", color=BLUE, label="superopt", markersize=7)]
    handles += [
        Line2D([], [], linestyle="", marker=marks[one][0], color=marks[one][1], label=one, markersize=7)
        for one in systems
    ]
    axes.legend(handles=handles, loc="lower left", bbox_to_anchor=(-0.01, 1.0), ncols=4, fontsize=9)
    return figure


_ENGINES = {"serial": GREY, "static": ORANGE, "owner": BLUE}


def scaling(document: Record) -> "Figure | None":
    """Draw the rows per second of each engine, and how the largest level spends its time."""
    from matplotlib import pyplot

    records = measured(document)
    if not records:
        return None
    record = records[0]
    workers, runs = record["workers"], [run for run in record["runs"] if run["counted"]]
    labels = {
        "serial": "serial",
        "static": f"static partition,\n{workers} workers",
        "owner": f"owner computes,\n{workers} workers",
    }
    figure, (rates, balance) = pyplot.subplots(1, 2, figsize=(11, 4.4), layout="constrained")
    for at, (engine, colour) in enumerate(_ENGINES.items()):
        rate = record["rows_per_second"][engine] / 1e6
        rates.bar(at, rate, color=colour, width=0.6)
        points = [run["candidates"] / run["seconds"] / 1e6 for run in runs if run["engine"] == engine]
        spread = [at + 0.22] * len(points)
        rates.plot(spread, points, "o", color=DARK, markersize=3.5, alpha=0.7)
        ratio = "" if engine == "serial" else f"\n{record['speedup_over_serial'][engine]:.2f} times serial"
        rates.text(
            at - 0.05, max(points) * 1.02, f"{rate:.2f}{ratio}", ha="center", va="bottom", fontsize=9.5
        )
    rates.set_xticks(range(len(_ENGINES)), [labels[engine] for engine in _ENGINES])
    rates.set_ylabel("million candidates per second")
    rates.set_title("Throughput: medians, and single runs")
    rates.margins(y=0.18)
    _draw_balance(balance, runs, workers, labels)
    for axes in (rates, balance):
        axes.grid(axis="x", visible=False)
    figure.suptitle(
        f"{record['candidates']:,} candidate programs, {record['states']:,} distinct; {where(document)},"
        f" {document['machine'].get('cores')} cores",
        fontsize=11,
        x=0.01,
        ha="left",
    )
    return figure


def _draw_balance(axes: "Axes", runs: Sequence[Record], workers: int, labels: Mapping[str, str]) -> None:
    """Draw how busy each worker is on the largest level in the middle run, and how long the barrier takes."""
    start, ticks, names = 0, [], []
    for engine in ("static", "owner"):
        mine = sorted((run for run in runs if run["engine"] == engine), key=lambda run: run["seconds"])
        run = mine[len(mine) // 2]
        largest = max(range(len(run["busy_seconds"])), key=lambda level: max(run["busy_seconds"][level]))
        parts = [(f"worker {at + 1}", took, 1.0) for at, took in enumerate(run["busy_seconds"][largest])]
        parts.append(("barrier", run["barrier_seconds"][largest], 0.45))
        for at, (name, took, alpha) in enumerate(parts, start):
            axes.bar(at, took, color=_ENGINES[engine], alpha=alpha, width=0.75)
            axes.text(at, took, f"{took:.2f}", ha="center", va="bottom", fontsize=9)
            ticks.append(at)
            names.append(name)
        middle = start + (len(parts) - 1) / 2
        text = labels[engine].partition(",")[0]
        axes.text(
            middle, -0.12, text, transform=axes.get_xaxis_transform(), ha="center", va="top", weight="bold"
        )
        start += len(parts) + 1
    axes.set_xticks(ticks, names, fontsize=9)
    axes.set_ylabel("seconds")
    axes.set_title("Largest level: busy workers, and what waits at its end")
    axes.margins(y=0.12)
