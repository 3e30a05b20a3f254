"""Pictures of results, PNG and SVG, all in one style: white, few lines, colours that everyone can tell apart.

Which pictures come of a result follows from its suite: times of peers over ours, the roofline, search
times beside published ones, rows per second with workers.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from math import exp, log
from pathlib import Path
from typing import TYPE_CHECKING, Any

from superopt.bench.harness import Record
from superopt.errors import InputError

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

__all__ = ["draw"]

_BLUE, _ORANGE, _GREEN, _RED = "#0072b2", "#e69f00", "#009e73", "#d55e00"
_PINK, _SKY, _GREY, _DARK = "#cc79a7", "#56b4e9", "#8a8a8a", "#222222"
_PEER_MARKS = {
    "eager": ("o", _ORANGE),
    "torch.compile": ("s", _SKY),
    "inductor": ("s", _SKY),
    "sdpa": ("D", _PINK),
    "sdpa, heads as rows": ("d", _GREEN),
}
_OTHER_MARKS = (("^", _GREEN), ("v", _PINK), ("P", _GREY), ("X", _DARK))
_MOST_BARS = 44
_STYLE: dict[str, Any] = {
    "figure.facecolor": "white",
    "axes.facecolor": "white",
    "savefig.facecolor": "white",
    "font.family": "DejaVu Sans",
    "font.size": 10,
    "axes.titlesize": 12,
    "axes.titleweight": "bold",
    "axes.titlelocation": "left",
    "axes.edgecolor": _DARK,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.axisbelow": True,
    "axes.grid": True,
    "grid.color": "#e3e3e3",
    "grid.linewidth": 0.8,
    "legend.frameon": False,
    "svg.hashsalt": "superopt",
    "svg.fonttype": "none",
    "figure.dpi": 110,
}


def draw(documents: Sequence[Record], names: Sequence[str], folder: Path) -> list[Path]:
    """Draw all that the results allow; return the files, named after the results."""
    drawn = [
        (f"{name}-{kind}", picture, document)
        for name, document in zip(names, documents, strict=True)
        for kind, picture in _PICTURES.get(document["suite"], {}).items()
    ]
    if not drawn:
        suites = ", ".join(sorted({document["suite"] for document in documents}))
        raise InputError(f"there is no picture of a result of {suites}; there are of {', '.join(_PICTURES)}")
    written = []
    with _style():
        for stem, picture, document in drawn:
            figure = picture(document)
            if figure is not None:
                written += _saved(figure, folder, stem)
    if not written:
        raise InputError("the results have no case that can be drawn: none was measured")
    return written


@contextmanager
def _style() -> Iterator[None]:
    try:
        import matplotlib
    except ImportError as error:
        raise InputError('pictures need matplotlib: pip install "superopt[bench]"') from error
    from matplotlib import pyplot

    matplotlib.use("Agg")
    with pyplot.rc_context(_STYLE):  # type: ignore[arg-type]
        yield


def _saved(figure: "Figure", folder: Path, stem: str) -> list[Path]:
    from matplotlib import pyplot

    places = [folder / f"{stem}.png", folder / f"{stem}.svg"]
    try:
        folder.mkdir(parents=True, exist_ok=True)
        figure.savefig(places[0], bbox_inches="tight", metadata={"Software": None})
        figure.savefig(places[1], bbox_inches="tight", metadata={"Date": None})
    except OSError as error:
        raise InputError(f"cannot write in {str(folder)!r}: {error.strerror or error}") from error
    finally:
        pyplot.close(figure)
    return places


def _measured(document: Record) -> list[Record]:
    return [one for one in document["cases"].values() if one.get("ratio") is not None]


def _where(document: Record) -> str:
    about = document["machine"]
    threads = about.get("threads")
    return f"{about.get('device')}" + (f", {threads} threads" if threads else "")


# -- times of peers over ours


def _speedups(document: Record) -> "Figure | None":
    """A bar for each case from 1 to what the best peer takes, and a mark for every peer; a panel by dtype."""
    from matplotlib import pyplot

    records = _measured(document)
    panels = {
        kind: _bars([one for one in records if one.get("dtype", "") == kind])
        for kind in dict.fromkeys(one.get("dtype", "") for one in records)
    }
    if not panels:
        return None
    peers = list(dict.fromkeys(peer for rows in panels.values() for _, ratios, _ in rows for peer in ratios))
    marks = _marks(peers)
    heights = [len(rows) + 3 for rows in panels.values()]
    figure, several = pyplot.subplots(
        len(panels),
        figsize=(8.6, 1.0 + 0.27 * sum(heights)),
        height_ratios=heights,
        layout="constrained",
        squeeze=False,
    )
    for axes, (kind, rows) in zip(several[:, 0], panels.items(), strict=True):
        _draw_bars(axes, rows, marks)
        text = f"{_mean([best for *_, best in rows]):.2f} times the time of ours, in the geometric mean"
        axes.set_title(f"{kind}: the best peer takes {text}".removeprefix(": "), fontsize=10)
    several[-1, 0].set_xlabel("time of the peer over ours; left of 1, the peer is faster")
    figure.suptitle(_where(document), x=0.01, ha="left", weight="bold")
    _peer_legend(figure, peers, marks)
    return figure


def _draw_bars(
    axes: "Axes",
    rows: Sequence[tuple[str, dict[str, float], float]],
    marks: Mapping[str, tuple[str, str]],
) -> None:
    for at, (_, ratios, best) in enumerate(rows):
        axes.barh(at, best - 1, left=1, height=0.62, color=_BLUE if best >= 1 else _RED, alpha=0.85)
        for peer, ratio in ratios.items():
            shape, colour = marks[peer]
            edge: dict[str, Any] = {"markeredgecolor": _DARK, "markeredgewidth": 0.5}
            axes.plot(ratio, at, shape, color=colour, markersize=5.5, **edge)
    values = [ratio for _, ratios, best in rows for ratio in (best, *ratios.values())]
    axes.set_xscale("log")
    axes.set_xlim(min(min(values) * 0.8, 0.8), max(max(values) * 1.35, 2.0))
    _plain_log_ticks(axes)
    axes.axvline(1, color=_DARK, linewidth=1.2)
    axes.set_yticks(range(len(rows)), [name for name, _, _ in rows], fontsize=9)
    axes.set_ylim(len(rows) - 0.4, -0.6)
    axes.grid(axis="y", visible=False)


def _bars(records: Sequence[Record]) -> list[tuple[str, dict[str, float], float]]:
    """Return name, ratios and ratio to the best peer by case, or by workload where there are too many."""
    if len(records) <= _MOST_BARS:
        return [(one["case"], dict(one["ratios"]), float(one["ratio"])) for one in records]
    groups: dict[str, list[Record]] = {}
    for one in records:
        groups.setdefault(" ".join(one[key] for key in ("workload", "dtype") if key in one), []).append(one)
    rows = []
    for name, several in groups.items():
        common = [peer for peer in several[0]["ratios"] if all(peer in one["ratios"] for one in several)]
        ratios = {peer: _mean([one["ratios"][peer] for one in several]) for peer in common}
        rows.append((f"{name} ({len(several)})", ratios, _mean([one["ratio"] for one in several])))
    return rows


def _mean(ratios: Sequence[float]) -> float:
    return exp(sum(map(log, ratios)) / len(ratios))


def _marks(peers: Sequence[str]) -> dict[str, tuple[str, str]]:
    others = [peer for peer in peers if peer not in _PEER_MARKS]
    return _PEER_MARKS | {peer: _OTHER_MARKS[at % len(_OTHER_MARKS)] for at, peer in enumerate(others)}


def _peer_legend(figure: "Figure", peers: Sequence[str], marks: Mapping[str, tuple[str, str]]) -> None:
    from matplotlib.lines import Line2D
    from matplotlib.patches import Patch

    handles: list[Any] = [Patch(color=_BLUE, label="best peer"), Patch(color=_RED, label="a loss")]
    handles += [
        Line2D([], [], linestyle="", marker=marks[peer][0], color=marks[peer][1], label=peer, markersize=6)
        for peer in peers
    ]
    figure.legend(handles=handles, loc="outside lower center", ncols=4, fontsize=9)


def _plain_log_ticks(axes: "Axes") -> None:
    """Write 0.5, 1, 2, 10 and not powers."""
    from matplotlib.ticker import FuncFormatter, LogLocator, NullFormatter

    low, high = axes.get_xlim()
    steps = (1.0, 2.0, 5.0) if high / low < 1000 else (1.0,)
    axes.xaxis.set_major_locator(LogLocator(subs=steps))
    axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
    axes.xaxis.set_minor_formatter(NullFormatter())


# -- the roofline


def _roofline(document: Record) -> "Figure | None":
    """What share of the device's arithmetic each case reaches, over how much arithmetic its bytes need."""
    from matplotlib import pyplot
    from matplotlib.ticker import FuncFormatter

    known = [one for one in _measured(document) if one.get("roofs")]
    shown = [one for one in known if one["roofs"]["arithmetic_us"] > 0]
    if not shown:
        return None
    figure, axes = pyplot.subplots(figsize=(8.2, 5.4), layout="constrained")
    kinds = list(dict.fromkeys(one.get("dtype", "") for one in shown))
    colours = dict(zip(kinds, (_BLUE, _ORANGE, _GREEN, _PINK), strict=False))
    points = []
    for one in shown:
        roofs = one["roofs"]
        ours = one["measured"][one["ours"]]["median_us"]
        peer = one["measured"][one["best_peer"]]["median_us"]
        x = roofs["arithmetic_us"] / roofs["memory_us"]
        points.append((x, roofs["arithmetic_us"] / ours, roofs["arithmetic_us"] / peer, one.get("dtype", "")))
    for x, ours, peer, kind in points:
        axes.plot([x, x], [peer, ours], "-", color=_GREY, linewidth=0.9, zorder=2)
        axes.plot(x, peer, "o", markerfacecolor="white", markeredgecolor=_GREY, markersize=5, zorder=3)
        axes.plot(x, ours, "o", color=colours[kind], markeredgecolor="white", markersize=7.5, zorder=4)
    low = min(x for x, *_ in points) / 2
    high = max(4.0, 2 * max(x for x, *_ in points))
    faster = max(one["roofs"]["memory_us"] / one["roofs"]["cache_us"] for one in shown)
    axes.plot([low, 1, high], [low, 1, 1], color=_DARK, linewidth=1.6, zorder=1)
    axes.plot([low, 1 / faster, 1], [low * faster, 1, 1], "--", color=_GREY, linewidth=1.2, zorder=1)
    axes.set_xscale("log")
    axes.set_yscale("log")
    axes.set_xlim(low, high)
    axes.set_ylim(min(min(point[1:3]) for point in points) / 1.6, 2)
    axes.set_xlabel("arithmetic over bytes from memory; right of 1, arithmetic takes longer")
    axes.set_ylabel("share of the device's peak arithmetic")
    axes.set_title(f"{_where(document)}: roofline", loc="left")
    _plain_log_ticks(axes)
    axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{100 * value:g}%"))
    _roof_legend(figure, colours)
    if len(known) > len(shown):
        axes.text(
            1,
            -0.14,
            f"{len(known) - len(shown)} cases without products of matrices are not shown",
            transform=axes.transAxes,
            ha="right",
            va="top",
            fontsize=8.5,
            color=_GREY,
        )
    return figure


def _roof_legend(figure: "Figure", colours: Mapping[str, str]) -> None:
    from matplotlib.lines import Line2D

    dot: dict[str, Any] = {"linestyle": "", "marker": "o"}
    handles = [
        Line2D([], [], color=colour, label=f"ours, {kind}".rstrip(", "), markersize=7.5, **dot)
        for kind, colour in colours.items()
    ]
    handles += [
        Line2D([], [], markerfacecolor="white", markeredgecolor=_GREY, label="best peer", **dot),
        Line2D([], [], color=_DARK, linewidth=1.6, label="roof: memory, arithmetic"),
        Line2D([], [], color=_GREY, linewidth=1.2, linestyle="--", label="roof where a cache holds all"),
    ]
    figure.legend(handles=handles, loc="outside lower center", ncols=3, fontsize=9)


# -- search times


def _search_times(document: Record) -> "Figure | None":
    """The time of each search, and what other systems need for the same program."""
    from matplotlib import pyplot
    from matplotlib.lines import Line2D

    records = [one for one in document["cases"].values() if one.get("prune") == "egraph"]
    if not records:
        return None
    records.sort(key=lambda one: one["total_ms"])
    peers: Record = document.get("peers", {})
    figure, axes = pyplot.subplots(figsize=(8.6, 1.5 + 0.32 * len(records)), layout="constrained")
    systems = list(dict.fromkeys(peer[0] for known in peers.values() for peer in known))
    marks = dict(zip(systems, (("s", _ORANGE), ("D", _PINK), ("^", _GREEN)), strict=False))
    limits = [one["total_ms"] / 1e3 for one in records]
    for at, one in enumerate(records):
        ours = one["total_ms"] / 1e3
        published = [peer for peer in peers.get(one["workload"], ()) if peer[1] is not None]
        endless = [peer for peer in peers.get(one["workload"], ()) if peer[1] is None]
        said = []
        if published:
            axes.plot([ours, max(peer[1] for peer in published)], [at, at], color="#c8c8c8", zorder=1)
            said.append(f"{min(peer[1] for peer in published) / ours:,.0f} times as long")
        axes.plot(ours, at, "o", color=_BLUE, markersize=7.5, zorder=3)
        for system, seconds, _ in published:
            axes.plot(seconds, at, marks[system][0], color=marks[system][1], markersize=7, zorder=3)
            limits.append(seconds)
        said += [f"{system}: {how.partition(': ')[2].partition(',')[0]}" for system, _, how in endless]
        beside: dict[str, Any] = {"textcoords": "offset points", "va": "center", "fontsize": 8}
        axes.annotate(f"{ours:.2f}", (ours, at), (-9, 0), ha="right", **beside)
        last = max([ours, *(peer[1] for peer in published)])
        axes.annotate("; ".join(said), (last, at), (10, 0), color=_DARK, **beside)
    axes.set_xscale("log")
    axes.set_xlim(min(limits) / 3.2, max(limits) * 15)
    _plain_log_ticks(axes)
    axes.set_yticks(range(len(records)), [one["workload"] for one in records], fontsize=9)
    axes.set_ylim(-0.6, len(records) - 0.4)
    axes.grid(axis="y", visible=False)
    axes.set_xlabel("seconds; of others as published, or CPU seconds measured on 2 cores")
    axes.set_title(f"Search of every named workload ({_where(document)})", loc="left", pad=26)
    handles = [Line2D([], [], linestyle="", marker="o", color=_BLUE, label="superopt", markersize=7)]
    handles += [
        Line2D([], [], linestyle="", marker=marks[one][0], color=marks[one][1], label=one, markersize=7)
        for one in systems
    ]
    axes.legend(handles=handles, loc="lower left", bbox_to_anchor=(-0.01, 1.0), ncols=4, fontsize=9)
    return figure


# -- scaling with workers

_ENGINES = {"serial": _GREY, "static": _ORANGE, "owner": _BLUE}


def _scaling(document: Record) -> "Figure | None":
    """Rows per second of each engine, and where the time of the largest level goes."""
    from matplotlib import pyplot

    records = _measured(document)
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
        rates.plot(spread, points, "o", color=_DARK, markersize=3.5, alpha=0.7)
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
        f"{record['candidates']:,} candidate programs, {record['states']:,} distinct; {_where(document)},"
        f" {document['machine'].get('cores')} cores",
        fontsize=11,
        x=0.01,
        ha="left",
    )
    return figure


def _draw_balance(axes: "Axes", runs: Sequence[Record], workers: int, labels: Mapping[str, str]) -> None:
    """Draw how busy each worker is on the largest level in the middle run, and what the barrier takes."""
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


_PICTURES: Mapping[str, Mapping[str, Callable[[Record], "Figure | None"]]] = {
    "cpu": {"speedups": _speedups, "roofline": _roofline},
    "gpu": {"speedups": _speedups, "roofline": _roofline},
    "models": {"speedups": _speedups},
    "functions": {"speedups": _speedups},
    "search": {"times": _search_times},
    "frontier": {"scaling": _scaling},
}
"""For each suite its pictures by kind."""
