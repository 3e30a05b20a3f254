"""Charts: memory traffic as bars, and the race as points on one axis of time."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

from superopt.candidates import Candidate, RegionCandidates
from superopt.fate import Kind
from superopt.ir import Graph
from superopt.ir.mugraph import Call
from superopt.report.svg import bytes_text, element, escape, number, text_width, time_text
from superopt.report.values import Values
from superopt.result import Result

__all__ = ["Traffic", "bars", "race", "state_of", "traffic_after", "traffic_before"]

_WIDTH = 1060.0
_ROW = 22.0


@dataclass(frozen=True, slots=True)
class Traffic:
    """Bytes that one operator or kernel reads and writes."""

    label: str
    bytes: float
    tip: str = ""


def traffic_before(graph: Graph) -> list[Traffic]:
    """Return what each operator moves where one after the other runs, results stored in between."""
    values = Values(graph)
    rows = []
    for value, step in graph.numbered:
        if values.tensorless[value] or step.op in ("rename", "select"):
            continue
        read = sum(values.stored_bytes(i) for i in values.open_inputs(step))
        write = values.stored_bytes(value)
        tip = f"reads {bytes_text(read)}, writes {bytes_text(write)}"
        rows.append(Traffic(values.label(value), read + write, tip))
    return rows


def traffic_after(candidate: Candidate) -> list[Traffic]:
    """Return what each kernel moves: as the result says, else every tensor it reads or writes once."""
    mugraph = candidate.mugraph
    values = Values(mugraph.graph)
    rows = []
    for at, kernel in enumerate(mugraph.kernels):
        known = candidate.kernels[at] if at < len(candidate.kernels) else None
        loads, stores = mugraph.loads(kernel), mugraph.stores(kernel)
        read = sum(values.stored_bytes(i, "f32") for i in loads)
        write = sum(values.stored_bytes(i, "f32") for i in stores)
        total = read + write if known is None or known.bytes is None else known.bytes
        label = f"kernel {at}" + (" · library" if isinstance(kernel, Call) else "")
        names = (", ".join(values.names[i] for i in group) or "nothing" for group in (loads, stores))
        rows.append(Traffic(label, total, "reads {}; writes {}".format(*names)))
    return rows


def bars(groups: Sequence[tuple[str, Sequence[Traffic]]]) -> str:
    """Return groups of horizontal bars on one scale, each with its total."""
    most = max((row.bytes for _, rows in groups for row in rows), default=0.0) or 1.0
    left = max((text_width(row.label) for _, rows in groups for row in rows), default=0.0) + 20
    room = _WIDTH - left - 90
    parts = []
    y = 0.0
    for at, (title, rows) in enumerate(groups):
        total = sum(row.bytes for row in rows)
        parts.append(element("text", escape(f"{title}: {bytes_text(total)}"), x=0, y=y + 16, class_="title"))
        y += _ROW + 4
        for row in rows:
            length = max(room * row.bytes / most, 1.5)
            tip = element("title", escape(f"{row.label}\n{bytes_text(row.bytes)}\n{row.tip}"))
            parts.append(
                element(
                    "g",
                    tip
                    + element("text", escape(row.label), x=left - 10, y=y + 15, text_anchor="end")
                    + element("rect", x=left, y=y + 4, width=length, height=14.0, rx=3, class_=f"bar bar{at}")
                    + element("text", bytes_text(row.bytes), x=left + length + 8, y=y + 15, class_="dim"),
                )
            )
            y += _ROW
        y += 12
    return _svg("".join(parts), _WIDTH, y, "memory traffic before and after")


def race(result: Result, region: RegionCandidates, *, whole: bool) -> str:
    """Return the times of all candidates; with `whole`, the peers and the roofline floor as lines."""
    shown = [one for one in region.candidates if math.isfinite(one.us)]
    if not shown:
        return ""
    shown.sort(key=lambda one: one.us)
    lines: list[tuple[str, float, str]] = []
    if whole:
        lines = [
            (name, one.median_us, "peer") for name, one in result.measurements.items() if name != "superopt"
        ]
        if result.floor_us:
            lines.append(("roofline floor", result.floor_us, "floor"))
        lines.sort(key=lambda one: one[1])
    times = [one.us for one in shown] + [us for _, us, _ in lines]
    for one in shown:
        if one.measurement is not None:
            times += [one.measurement.low_us, one.measurement.high_us]
    scale = _Scale([us for us in times if us > 0] or [1.0])
    left = min(max(text_width(_cut(one.name)) for one in shown) + 20, 420.0)
    scale.spread_over(left + 10, _WIDTH - 110)
    top = 20.0 * len(lines) + 8
    bottom = top + _ROW * len(shown) + 6
    parts = []
    for tick in scale.ticks():
        x = scale.at(tick)
        parts.append(element("line", x1=x, x2=x, y1=top, y2=bottom, class_="grid"))
        parts.append(element("text", time_text(tick), x=x, y=bottom + 18, text_anchor="middle", class_="dim"))
    for at, (name, us, kind) in enumerate(lines):
        x, y = scale.at(us), 14 + 20.0 * at
        text = f"{name} {time_text(us)}"
        is_right = x + 8 + text_width(text) > _WIDTH
        parts.append(element("line", x1=x, x2=x, y1=y - 10, y2=bottom, class_=f"line {kind}"))
        parts.append(
            element(
                "text",
                escape(text),
                x=x - 6 if is_right else x + 6,
                y=y,
                class_=f"label {kind}",
                text_anchor="end" if is_right else "start",
            )
        )
    for at, one in enumerate(shown):
        y = top + _ROW * at + _ROW / 2
        parts.append(_contender(one, scale, left, y))
    note = "" if any(one.measurement for one in shown) else " (predicted)"
    return _svg("".join(parts), _WIDTH, bottom + 28, f"the race{note}")


def _contender(one: Candidate, scale: "_Scale", left: float, y: float) -> str:
    state = state_of(one)
    timing = one.measurement
    kind = "predicted" if timing is None else "measured"
    x = scale.at(one.us)
    parts = [element("text", escape(_cut(one.name)), x=left - 8, y=y + 4, text_anchor="end")]
    parts.append(element("line", x1=left, x2=_WIDTH - 110, y1=y, y2=y, class_="row"))
    tip = f"{one.name}\n{time_text(one.us)} {kind}"
    end = x
    if timing is not None:
        a, b = scale.at(timing.low_us), scale.at(timing.high_us)
        end = max(x, b)
        tip += f", {time_text(timing.low_us)} to {time_text(timing.high_us)}"
        parts.append(element("path", d=f"M{number(a)} {number(y)}H{number(b)}M{number(a)} {number(y - 4)}v8"
                             f"M{number(b)} {number(y - 4)}v8", class_=f"whisker {state}"))  # fmt: skip
    if not one.fate.is_sound:
        tip += f"\nrejected: {one.fate}"
    parts.append(element("circle", cx=x, cy=y, r=5, class_=f"point {state} {kind}"))
    parts.append(element("text", time_text(one.us), x=end + 10, y=y + 4, class_="dim halo"))
    return element("g", element("title", escape(tip)) + "".join(parts))


def state_of(one: Candidate) -> str:
    """Return the style of a candidate."""
    if one.fate.kind is Kind.CHOSEN:
        return "chosen"
    return "other" if one.fate.is_sound else "rejected"


def _cut(name: str) -> str:
    return name if len(name) <= 52 else f"{name[:51]}…"


class _Scale:
    """Times as places: from zero, or in logarithms where they spread widely."""

    def __init__(self, times: Sequence[float]) -> None:
        self.low, self.high = min(times), max(times)
        self.is_log = self.high / self.low > 8
        self.left, self.right = 0.0, 1.0

    def spread_over(self, left: float, right: float) -> None:
        """Set where the axis begins and ends."""
        self.left, self.right = left, right

    def at(self, us: float) -> float:
        """Return the place of a time."""
        if self.is_log:
            room = math.log(self.high / self.low) or 1.0
            share = math.log(max(us, self.low) / self.low) / room
            return self.left + (self.right - self.left) * (0.04 + 0.94 * share)
        return self.left + (self.right - self.left) * min(us / (self.high * 1.04), 1.0)

    def ticks(self) -> list[float]:
        """Return round times along the axis."""
        if self.is_log:
            found = []
            exponent = math.floor(math.log10(self.low))
            while 10.0**exponent <= self.high:
                steps = (1, 2, 5) if self.high / self.low < 1000 else (1,)
                found += [step * 10.0**exponent for step in steps]
                exponent += 1
            return [one for one in found if self.low <= one <= self.high]
        size = 10.0 ** math.floor(math.log10(self.high))
        step = next(one for one in (size / 5, size / 2, size, 2 * size) if self.high / one <= 8)
        return [step * at for at in range(int(self.high * 1.04 / step) + 1)]


def _svg(content: str, width: float, height: float, title: str) -> str:
    return element(
        "svg", element("title", escape(title)) + content, class_="chart", width=width, height=height,
        viewBox=f"0 0 {number(width)} {number(height)}", role="img",
    )  # fmt: skip
