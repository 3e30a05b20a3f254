"""The picture of all engines: their rates, how evenly workers are busy, what barriers take, and many more."""

from typing import TYPE_CHECKING

from superopt.bench.harness.records import Record
from superopt.bench.pictures.style import BLUE, DARK, GREEN, GREY, ORANGE, PINK, RED, where

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

__all__ = ["engines"]

_COLOURS = {"serial": GREY, "processes": BLUE, "mpi": ORANGE, "ray": GREEN}
_PARTS = {"work": BLUE, "skew": ORANGE, "exchange": GREEN, "barrier": RED}


def engines(document: Record) -> "Figure | None":
    """Draw what each engine did here, and the simulation of many workers."""
    from matplotlib import pyplot

    records = [document["cases"][name] for name in _COLOURS if name in document["cases"]]
    if not records:
        return None
    figure, panels = pyplot.subplots(2, 2, figsize=(12, 8.4), layout="constrained")
    (rates, balance), (beside, many) = panels
    _draw_rates(rates, records)
    _draw_balance(balance, records)
    _draw_beside(beside, records)
    _draw_simulation(many, document["simulated"])
    for axes in (rates, beside):
        axes.grid(axis="x", visible=False)
        axes.margins(y=0.18)
    first, workers = records[0], document["settings"]["workers"]
    figure.suptitle(
        f"{first['candidates']:,} candidates, {first['states']:,} states, {workers} workers; "
        f"{where(document)}",
        fontsize=11,
        x=0.01,
        ha="left",
    )
    return figure


def _draw_rates(axes: "Axes", records: list[Record]) -> None:
    for at, record in enumerate(records):
        rate = record["rows_per_second"] / 1e6
        axes.bar(at, rate, color=_COLOURS[record["case"]], width=0.6)
        points = [record["candidates"] / seconds / 1e6 for seconds in record["all_seconds"]]
        axes.plot([at + 0.22] * len(points), points, "o", color=DARK, markersize=3.5, alpha=0.7)
        axes.text(
            at - 0.05, max(points) * 1.02, f"{rate:.2f}\n{record['speedup']:.2f} times serial", ha="center"
        )
    axes.set_xticks(range(len(records)), [record["case"] for record in records])
    axes.set_ylabel("million candidates per second")
    axes.set_title("Throughput: medians, and single runs")


def _draw_balance(axes: "Axes", records: list[Record]) -> None:
    """Draw the busy seconds of each worker on each level as a share of the busiest one's."""
    for record in records:
        levels = [level["busy_seconds"] for level in record["levels"]]
        if not levels or len(levels[0]) < 2:
            continue
        for worker in range(len(levels[0])):
            shares = [some[worker] / max(some) if max(some) else 1.0 for some in levels]
            axes.plot(
                range(1, len(levels) + 1),
                shares,
                "o" if worker else "s",
                linestyle="-" if worker else "--",
                color=_COLOURS[record["case"]],
                alpha=0.8,
                label=f"{record['case']}, worker {worker + 1}",
            )
    axes.set_ylim(0, 1.1)
    axes.set_xlabel("level")
    axes.set_ylabel("busy, as a share of the busiest")
    axes.set_title("Balance of workers, level by level")
    if axes.lines:
        axes.legend(fontsize=8, ncols=2)


def _draw_beside(axes: "Axes", records: list[Record]) -> None:
    """Draw what levels take beside their busiest worker, and the bytes that may have crossed."""
    for at, record in enumerate(records):
        axes.bar(at, record["beside_work_seconds"], color=_COLOURS[record["case"]], width=0.6)
        axes.text(
            at,
            record["beside_work_seconds"],
            f"{record['beside_work_seconds']:.2f} s\nat most {record['exchanged_bytes'] / 2**20:,.0f} MiB",
            ha="center",
            va="bottom",
            fontsize=9,
        )
    axes.set_xticks(range(len(records)), [record["case"] for record in records])
    axes.set_ylabel("seconds beside the busiest worker")
    axes.set_title("Exchange and barriers, all levels")


def _draw_simulation(axes: "Axes", rows: list[Record]) -> None:
    """Draw the simulated hours of many workers, by what they are spent on."""
    workers = [row["workers"] for row in rows]
    axes.loglog(workers, [row["seconds"] / 3600 for row in rows], "o-", color=DARK, label="all")
    for part, colour in _PARTS.items():
        spent = [(row["workers"], row[part] / 3600) for row in rows if row[part] > 0]
        if spent:
            axes.loglog(*zip(*spent, strict=True), "o--", color=colour, label=part, markersize=3)
    ideal = [rows[0]["seconds"] / 3600 / count for count in workers]
    axes.loglog(workers, ideal, ":", color=PINK, label="as many times faster")
    axes.set_xlabel("workers")
    axes.set_ylabel("hours for 10^10 states")
    axes.set_title("Simulated from these rates")
    axes.legend(fontsize=8)
