"""Kernels and models against PyTorch: the times of rivals over ours, and the roofline."""

from collections.abc import Mapping, Sequence
from statistics import geometric_mean
from typing import TYPE_CHECKING, Any

from superopt.bench.harness.records import Record
from superopt.bench.pictures.style import (
    BLUE,
    DARK,
    GREEN,
    GREY,
    ORANGE,
    PINK,
    RED,
    SKY,
    measured,
    plain_log_ticks,
    where,
)

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

__all__ = ["roofline", "speedups"]

_PEER_MARKS = {
    "eager": ("o", ORANGE),
    "torch.compile": ("s", SKY),
    "inductor": ("s", SKY),
    "sdpa": ("D", PINK),
    "sdpa, heads as rows": ("d", GREEN),
}
_OTHER_MARKS = (("^", GREEN), ("v", PINK), ("P", GREY), ("X", DARK))
_MOST_BARS = 44


def speedups(document: Record) -> "Figure | None":
    """Draw a bar for each case up to the time of its best rival, a mark for each rival, a panel by dtype."""
    from matplotlib import pyplot

    records = measured(document)
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
        mean = geometric_mean([best for *_, best in rows])
        text = f"{kind}: the best peer takes {mean:.2f} times the time of ours, in the geometric mean"
        axes.set_title(text.removeprefix(": "), fontsize=10)
    several[-1, 0].set_xlabel("time of the peer over ours; left of 1, the peer is faster")
    figure.suptitle(where(document), x=0.01, ha="left", weight="bold")
    _peer_legend(figure, peers, marks)
    return figure


def _draw_bars(
    axes: "Axes",
    rows: Sequence[tuple[str, dict[str, float], float]],
    marks: Mapping[str, tuple[str, str]],
) -> None:
    for at, (_, ratios, best) in enumerate(rows):
        axes.barh(at, best - 1, left=1, height=0.62, color=BLUE if best >= 1 else RED, alpha=0.85)
        for peer, ratio in ratios.items():
            shape, colour = marks[peer]
            edge: dict[str, Any] = {"markeredgecolor": DARK, "markeredgewidth": 0.5}
            axes.plot(ratio, at, shape, color=colour, markersize=5.5, **edge)
    values = [ratio for _, ratios, best in rows for ratio in (best, *ratios.values())]
    axes.set_xscale("log")
    axes.set_xlim(min(min(values) * 0.8, 0.8), max(max(values) * 1.35, 2.0))
    plain_log_ticks(axes)
    axes.axvline(1, color=DARK, linewidth=1.2)
    axes.set_yticks(range(len(rows)), [name for name, _, _ in rows], fontsize=9)
    axes.set_ylim(len(rows) - 0.4, -0.6)
    axes.grid(axis="y", visible=False)


def _bars(records: Sequence[Record]) -> list[tuple[str, dict[str, float], float]]:
    """Return name, ratios and best ratio of each case, or of each workload where there are too many cases."""
    if len(records) <= _MOST_BARS:
        return [(one["case"], dict(one["ratios"]), float(one["ratio"])) for one in records]
    groups: dict[str, list[Record]] = {}
    for one in records:
        groups.setdefault(" ".join(one[key] for key in ("workload", "dtype") if key in one), []).append(one)
    rows = []
    for name, several in groups.items():
        common = [peer for peer in several[0]["ratios"] if all(peer in one["ratios"] for one in several)]
        ratios = {peer: geometric_mean([one["ratios"][peer] for one in several]) for peer in common}
        rows.append((f"{name} ({len(several)})", ratios, geometric_mean([one["ratio"] for one in several])))
    return rows


def _marks(peers: Sequence[str]) -> dict[str, tuple[str, str]]:
    others = [peer for peer in peers if peer not in _PEER_MARKS]
    return _PEER_MARKS | {peer: _OTHER_MARKS[at % len(_OTHER_MARKS)] for at, peer in enumerate(others)}


def _peer_legend(figure: "Figure", peers: Sequence[str], marks: Mapping[str, tuple[str, str]]) -> None:
    from matplotlib.lines import Line2D
    from matplotlib.patches import Patch

    handles: list[Any] = [Patch(color=BLUE, label="best peer"), Patch(color=RED, label="a loss")]
    handles += [
        Line2D([], [], linestyle="", marker=marks[peer][0], color=marks[peer][1], label=peer, markersize=6)
        for peer in peers
    ]
    figure.legend(handles=handles, loc="outside lower center", ncols=4, fontsize=9)


def roofline(document: Record) -> "Figure | None":
    """Draw the share of the device's arithmetic that each case reaches, over its arithmetic for each byte."""
    from matplotlib import pyplot
    from matplotlib.ticker import FuncFormatter

    known = [one for one in measured(document) if one.get("roofs")]
    shown = [one for one in known if one["roofs"]["arithmetic_us"] > 0]
    if not shown:
        return None
    figure, axes = pyplot.subplots(figsize=(8.2, 5.4), layout="constrained")
    kinds = list(dict.fromkeys(one.get("dtype", "") for one in shown))
    colours = dict(zip(kinds, (BLUE, ORANGE, GREEN, PINK), strict=False))
    points = []
    for one in shown:
        roofs = one["roofs"]
        ours = one["measured"][one["ours"]]["median_us"]
        peer = one["measured"][one["best_peer"]]["median_us"]
        x = roofs["arithmetic_us"] / roofs["memory_us"]
        points.append((x, roofs["arithmetic_us"] / ours, roofs["arithmetic_us"] / peer, one.get("dtype", "")))
    for x, ours, peer, kind in points:
        axes.plot([x, x], [peer, ours], "-", color=GREY, linewidth=0.9, zorder=2)
        axes.plot(x, peer, "o", markerfacecolor="white", markeredgecolor=GREY, markersize=5, zorder=3)
        axes.plot(x, ours, "o", color=colours[kind], markeredgecolor="white", markersize=7.5, zorder=4)
    low = min(x for x, *_ in points) / 2
    high = max(4.0, 2 * max(x for x, *_ in points))
    faster = max(one["roofs"]["memory_us"] / one["roofs"]["cache_us"] for one in shown)
    axes.plot([low, 1, high], [low, 1, 1], color=DARK, linewidth=1.6, zorder=1)
    axes.plot([low, 1 / faster, 1], [low * faster, 1, 1], "--", color=GREY, linewidth=1.2, zorder=1)
    axes.set_xscale("log")
    axes.set_yscale("log")
    axes.set_xlim(low, high)
    axes.set_ylim(min(min(point[1:3]) for point in points) / 1.6, 2)
    axes.set_xlabel("arithmetic over bytes from memory; right of 1, arithmetic takes longer")
    axes.set_ylabel("share of the device's peak arithmetic")
    axes.set_title(f"{where(document)}: roofline", loc="left")
    plain_log_ticks(axes)
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
            color=GREY,
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
        Line2D([], [], markerfacecolor="white", markeredgecolor=GREY, label="best peer", **dot),
        Line2D([], [], color=DARK, linewidth=1.6, label="roof: memory, arithmetic"),
        Line2D([], [], color=GREY, linewidth=1.2, linestyle="--", label="roof where a cache holds all"),
    ]
    figure.legend(handles=handles, loc="outside lower center", ncols=3, fontsize=9)
