"""Charts: memory traffic as bars, and the race as points on one axis of time.

A chart is rows of a name, a track and a value, placed in shares of the width: on a narrow screen the track
stands below its name, so that no text meets another.
"""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from superopt.candidates import Candidate, RegionCandidates
from superopt.fate import Kind
from superopt.ir import Graph
from superopt.ir.mugraph import Call
from superopt.report.svg import bytes_text, element, escape, number, time_text
from superopt.report.values import Values
from superopt.result import Result

__all__ = ["Traffic", "bars", "folded", "race", "state_of", "traffic_after", "traffic_before"]

_APART = 0.15  # of the width, between the labels of an axis on a narrow screen


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
        if values.tensorless[value] or step.op in ("rename", "select", "window"):
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
    parts = []
    for at, (title, rows) in enumerate(groups):
        total = sum(row.bytes for row in rows)
        parts.append(_title(f"{title}: {bytes_text(total)}"))
        for row in rows:
            bar = _mark(f"bar bar{at}", 0.0, max(row.bytes / most, 0.003))
            tip = f"{row.label}\n{bytes_text(row.bytes)}\n{row.tip}"
            parts.append(_row(row.label, bar, bytes_text(row.bytes), tip=tip))
    return _chart(parts, "memory traffic before and after")


def folded(region: RegionCandidates) -> list[tuple[Candidate, int]]:
    """Return the best candidate of each muGraph and how many there are of it, the fastest first."""
    groups: dict[str, list[Candidate]] = {}
    for one in region.candidates:
        groups.setdefault(str(one.mugraph), []).append(one)
    best = [(min(several, key=_merit), len(several)) for several in groups.values()]
    return sorted(best, key=lambda found: found[0].us)


def _merit(one: Candidate) -> tuple[bool, bool, float]:
    return one.fate.kind is not Kind.CHOSEN, not one.fate.is_sound, one.us


def race(result: Result, region: RegionCandidates, *, whole: bool) -> str:
    """Return the best time of each muGraph; with `whole`, the last race of whole programs above them."""
    shown = [one for one, _ in folded(region) if math.isfinite(one.us)]
    if not shown:
        return ""
    last = sorted(result.measurements.items(), key=lambda one: one[1].median_us) if whole else []
    floor = result.floor_us if whole else None
    times = [floor or 0.0, *(one.us for one in shown)]
    for timing in (*(one for _, one in last), *(one.measurement for one in shown)):
        times += [] if timing is None else [timing.median_us, timing.low_us, timing.high_us]
    scale = _Scale([us for us in times if us > 0] or [1.0])
    parts = []
    if last:
        parts.append(_title("the whole program, in the last race"))
        for name, timing in last:
            kind = "chosen" if name == result.winner else "peer" if name != "superopt" else "other"
            parts.append(_contender(name, timing.median_us, scale, (timing.low_us, timing.high_us), kind))
    if floor:
        parts.append(_contender("floor: the least possible", floor, scale, None, "floor"))
    if parts:
        parts.append(_title("the best of each muGraph, in the race of the candidates"))
    for one in shown:
        timing = one.measurement
        interval = None if timing is None else (timing.low_us, timing.high_us)
        kind = state_of(one) if timing is not None else f"{state_of(one)} predicted"
        note = "" if one.fate.is_sound else f"rejected: {one.fate}"
        parts.append(_contender(one.name, one.us, scale, interval, kind, note))
    ticks = "".join(
        f'<i class="tick" style="left:{_share(scale.at(us))}">{escape(time_text(us))}</i>'
        for us in scale.ticks()
    )
    parts.append(_row("", ticks, "", kind="axis"))
    measured = any(one.measurement for one in shown)
    return _chart(parts, "the race" if measured else "the race (predicted)")


def _contender(
    name: str, us: float, scale: "_Scale", interval: tuple[float, float] | None, kind: str, note: str = ""
) -> str:
    tip = f"{name}\n{time_text(us)}{' predicted' if 'predicted' in kind else ''}"
    marks = ""
    if interval is not None:
        low, high = map(scale.at, interval)
        tip += ", {} to {}".format(*map(time_text, interval))
        marks = _mark("whisker", low, high - low)
    marks += f'<i class="point" style="left:{_share(scale.at(us))}"></i>'
    return _row(name, marks, time_text(us), kind=kind, tip=f"{tip}\n{note}".strip())


def state_of(one: Candidate) -> str:
    """Return the style of a candidate."""
    if one.fate.kind is Kind.CHOSEN:
        return "chosen"
    return "other" if one.fate.is_sound else "rejected"


class _Scale:
    """Times as shares of the width: from zero, or in logarithms where they spread widely."""

    def __init__(self, times: Sequence[float]) -> None:
        self.low, self.high = min(times), max(times)
        self.is_log = self.high / self.low > 8

    def at(self, us: float) -> float:
        """Return the place of a time, from 0 to 1."""
        if self.is_log:
            share = math.log(max(us, self.low) / self.low) / math.log(self.high / self.low)
            return 0.04 + 0.92 * share
        return 0.96 * min(us / self.high, 1.0)

    def ticks(self) -> list[float]:
        """Return round times along the axis, whose labels stand apart."""
        shown: list[float] = []
        for us in self._round():
            if not shown or self.at(us) - self.at(shown[-1]) >= _APART:
                shown.append(us)
        return shown

    def _round(self) -> list[float]:
        if self.is_log:
            exponents = range(math.floor(math.log10(self.low)), math.floor(math.log10(self.high)) + 1)
            decades = math.log10(self.high / self.low)
            steps = (1, 2, 5) if decades < 1.6 else (1, 3) if decades < 3 else (1,)
            found = [step * 10.0**exponent for exponent in exponents for step in steps]
            return [one for one in found if self.low <= one <= self.high]
        size = 10.0 ** math.floor(math.log10(self.high))
        step = next(one for one in (size / 5, size / 2, size, 2 * size) if self.high / one <= 5)
        return [step * at for at in range(int(self.high / step) + 1)]


def _share(place: float) -> str:
    return f"{number(100 * place)}%"


def _mark(kind: str, start: float, length: float) -> str:
    return f'<i class="{kind}" style="left:{_share(start)};width:{_share(length)}"></i>'


def _title(text: str) -> str:
    return element("div", escape(text), class_="title")


def _row(name: str, track: str, value: str, *, kind: str = "", tip: str = "") -> str:
    cells = (("name", escape(name)), ("track", track), ("value", escape(value)))
    content = "".join(element("span", inner, class_=cell) for cell, inner in cells)
    return element("div", content, class_=f"row {kind}".strip(), title=tip or None)


def _chart(rows: Iterable[str], title: str) -> str:
    return element("div", "\n".join(rows), class_="chart", role="figure", aria_label=title)
