"""Page: a sharded program as an HTML page: the machine, its links' traffic, when what runs, and more."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from math import prod
from typing import TYPE_CHECKING

from superopt.ir import value_names
from superopt.report.look import document
from superopt.report.svg import bytes_text, element, escape, table_of, text_width, time_text
from superopt.shard.costs import Costs, Timeline
from superopt.shard.machine import Level, Machine
from superopt.shard.sharded import Instruction, Sharded

if TYPE_CHECKING:
    from superopt.shard.api import ShardResult
    from superopt.shard.plans import Plan

__all__ = ["shard_html"]

_SHOWN = 4  # parts of a level that are drawn; of the innermost level, twice as many
_DEVICE, _GAP, _LABEL = 54.0, 10.0, 22.0
_WIDE = 1080.0
_NAMED = 24.0  # the least width of a move whose name is written on it


def shard_html(result: ShardResult) -> str:
    """Return a page about a result; the same result, the same page."""
    plans = result.plans
    best = plans.best
    costs = Costs(best.sharded.layout, plans.machine)
    traffic = _traffic(best.sharded, costs)
    sections = [
        _headline(result),
        "<h2>The machine, and what its busiest links carry</h2>",
        _card(_drawn(plans.machine, traffic)),
        _links(plans.machine, traffic),
        "<h2>What runs when</h2>",
        _card(_timeline(best.sharded, costs.timed(best.sharded))),
        "<p class=note>Simulated. Moves run beside computing as soon as their operands are there.</p>",
        "<h2>Where the tensors lie</h2>",
        _tensors(result),
        "<h2>Moves</h2>",
        _moves(best.sharded, costs),
        "<h2>Alternatives</h2>",
        _alternatives(plans.found),
        "" if plans.complete else "<p class=note>Not all states were kept: a faster plan may exist.</p>",
        "<h2>Proof</h2>",
        f"<pre class=wraps>{escape(result.verdict.verdict)}</pre>",
        f"<details><summary>The program of every device</summary><pre>{escape(best.sharded)}</pre></details>",
    ]
    if result.verdict:
        sections.append(
            f"<details><summary>As a module</summary><pre>{escape(result.source)}</pre></details>"
        )
    body = "\n".join(section for section in sections if section)
    title = f"{best.sharded.layout.graph.name} on {plans.machine.devices} devices"
    return document(title, body)


def _headline(result: ShardResult) -> str:
    plans, best = result.plans, result.plans.best
    name = best.sharded.layout.graph.name
    line = (
        f"<b>{time_text(best.seconds * 1e6)}</b> simulated on {plans.machine.devices} devices,"
        f" {bytes_text(best.bytes)} on each"
    )
    verdict = result.verdict
    proof = "proven equal" if verdict else "not proven"
    tags = [
        str(plans.machine),
        f"{time_text(best.moving_s * 1e6)} of moves",
        f"{len(best.sharded.moves)} moves",
        proof,
    ]
    fault = ""
    if verdict.fault is not None:
        fault = f"<p class=why>{escape(verdict.fault.text(best.sharded.layout.mesh.names))}</p>"
    shown = "".join(f"<span>{escape(tag)}</span>" for tag in tags)
    return f'<h1>{escape(name)}</h1>\n<p class="headline">{line}</p>\n{fault}<div class="tags">{shown}</div>'


def _card(content: str) -> str:
    return f'<div class="card">{content}</div>'


def _traffic(sharded: Sharded, costs: Costs) -> tuple[float, ...]:
    """Return the bytes that the whole program puts on the busiest link of each level."""
    loads = [costs.loads(sharded, one) for one in sharded.moves]
    return tuple(sum(own[at] for own in loads) for at in range(len(costs.machine.levels)))


def _drawn(machine: Machine, traffic: Sequence[float]) -> str:
    """Return the drawing of all levels, each part a box in the part around it."""
    content, width, height = _level(machine, traffic, 0, 0.0, 0.0)
    return element(
        "svg",
        content,
        class_="graph",
        width=width,
        height=height,
        viewBox=f"0 0 {width:.0f} {height:.0f}",
        role="img",
        aria_label=f"the machine {machine}",
    )


def _level(
    machine: Machine, traffic: Sequence[float], at: int, x: float, y: float
) -> tuple[str, float, float]:
    """Return the parts of a level from a place on, with the room that they take."""
    level = machine.levels[at]
    last = at + 1 == len(machine.levels)
    many = min(level.count, 2 * _SHOWN if last else _SHOWN)
    caption = _caption(level, traffic[at])
    content = element("text", escape(caption), x=x, y=y + 14, class_="title" if traffic[at] else "dim")
    right, bottom = x, y + _LABEL
    for part in range(many):
        if last:
            content += element(
                "rect", x=right, y=y + _LABEL, width=_DEVICE, height=_DEVICE, rx=6, class_="box kernel"
            )
            content += element(
                "text",
                escape(part),
                x=right + _DEVICE / 2,
                y=y + _LABEL + _DEVICE / 2 + 4,
                text_anchor="middle",
            )
            right, bottom = right + _DEVICE + _GAP, y + _LABEL + _DEVICE
            continue
        name = element(
            "text", escape(f"{level.name} {part}"), x=right + _GAP, y=y + _LABEL + 18, class_="dim"
        )
        inner, wide, high = _level(machine, traffic, at + 1, right + _GAP, y + _LABEL + _LABEL)
        box = element(
            "rect",
            x=right,
            y=y + _LABEL,
            width=wide + 2 * _GAP,
            height=high + _LABEL + _GAP,
            rx=8,
            class_="box loop" if at % 2 == 0 else "box",
        )
        content += box + name + inner
        right += wide + 3 * _GAP
        bottom = max(bottom, y + _LABEL + high + _LABEL + _GAP)
    if many < level.count:
        rest = f"and {level.count - many} more"
        content += element("text", escape(rest), x=right, y=y + _LABEL + 30, class_="dim")
        right += text_width(rest) + _GAP
    return content, max(right - _GAP, x + text_width(caption)) - x, bottom - y


def _caption(level: Level, carried: float) -> str:
    whose = "of all devices in it" if level.shared else "of each device"
    return f"{level.name}: {bytes_text(carried)} over a link of {level.bytes_per_s / 1e9:g} GB/s {whose}"


def _links(machine: Machine, traffic: Sequence[float]) -> str:
    rows = [
        (
            level.name,
            str(level.count),
            str(prod(machine.counts[: at + 1]) if level.shared else machine.devices),
            f"{level.bytes_per_s / 1e9:g} GB/s",
            f"{level.latency_s * 1e6:g} µs",
            bytes_text(traffic[at]),
            time_text(traffic[at] / level.bytes_per_s * 1e6),
        )
        for at, level in enumerate(machine.levels)
    ]
    heads = ("level", "parts", "links", "speed", "latency", "on the busiest link", "for at least")
    return _tabled(heads, rows, numeric=range(1, 7))


def _timeline(sharded: Sharded, timeline: Timeline) -> str:
    """Return two rows: when devices compute, and when data move."""
    whole = timeline.seconds or 1.0
    names = value_names(sharded.layout.graph)
    left, high = 80.0, 26.0
    scale = (_WIDE - left) / whole
    content = "".join(
        element("text", text, x=0, y=row * (high + 8) + 18, class_="dim")
        for row, text in enumerate(("compute", "move"))
    )
    for one, (start, end) in zip(sharded.instructions, timeline.spans, strict=True):
        if end <= start:
            continue
        x, y, width = left + start * scale, float(one.moves) * (high + 8), (end - start) * scale
        what = _named(sharded, one)
        tip = element("title", escape(f"{what} -> {names[one.value]}: {time_text((end - start) * 1e6)}"))
        label = ""
        if one.moves and width > max(_NAMED, text_width(one.kind)):
            label = element("text", escape(one.kind), x=x + 4, y=y + 17)
        fill = "var(--second-soft)" if one.moves else "var(--accent-soft)"
        stroke = "var(--second)" if one.moves else "var(--accent)"
        bar = element(
            "rect", x=x, y=y, width=max(width, 1.0), height=high, rx=2, style=f"fill:{fill};stroke:{stroke}"
        )
        content += element("g", tip + bar + label)
    total = time_text(whole * 1e6)
    content += element("text", total, x=_WIDE, y=2 * (high + 8) + 14, text_anchor="end", class_="dim")
    content += element("text", "0", x=left, y=2 * (high + 8) + 14, class_="dim")
    tall = 2 * (high + 8) + 20
    return element(
        "svg",
        content,
        width=_WIDE,
        height=tall,
        viewBox=f"0 0 {_WIDE:.0f} {tall:.0f}",
        role="img",
        aria_label="what runs when",
    )


def _named(sharded: Sharded, one: Instruction) -> str:
    if one.kind == "call":
        return sharded.layout.made_by[one.value][0].target
    if one.kind == "step":
        return sharded.layout.graph.step_at(one.value).op
    over = "+".join(sharded.layout.mesh.names[dim] for dim in one.dims)
    return f"{one.kind} over {over}"


def _tensors(result: ShardResult) -> str:
    sharded = result.plans.best.sharded
    rows = [
        (name, sharded.placed(sharded.placement_of(name)), ", ".join(own))
        for name, own in result.placements.items()
    ]
    return _tabled(("tensor", "lies", "DTensor"), rows)


def _moves(sharded: Sharded, costs: Costs) -> str:
    names = value_names(sharded.layout.graph)
    rows = []
    for one in sharded.moves:
        source = sharded.instructions[one.inputs[0]]
        size = costs.bytes(source.value, source.placement)
        seconds = costs.move_seconds(one.kind, one.dims, size)
        own = [sharded.layout.mesh.names[dim] for dim in one.dims if sharded.layout.mesh.sizes[dim] > 1]
        program = ""
        if one.kind == "all-reduce" and own:
            steps = costs.reduction(tuple(map(sharded.layout.mesh.names.index, own)), size)[1]
            program = ", ".join(step.text(tuple(own)) for step in steps)
        rows.append(
            (
                names[one.value],
                _named(sharded, one),
                sharded.placed(source.placement),
                sharded.placed(one.placement),
                bytes_text(size),
                time_text(seconds * 1e6),
                program,
            )
        )
    heads = ("tensor", "move", "lies before", "lies after", "bytes", "time", "program")
    return _tabled(heads, rows, numeric=(4, 5)) if rows else "<p>No device needs data of another one.</p>"


def _alternatives(found: Sequence[Plan]) -> str:
    first = found[0].seconds or 1.0
    rows = []
    for plan in found:
        sharded = plan.sharded
        ports = [port.name for port in sharded.layout.entering]
        lies = "; ".join(
            f"{name} {sharded.placed(placement)}"
            for name in ports
            if any(placement := sharded.placement_of(name))
        )
        kinds = [one.kind for one in sharded.moves]
        counted = ", ".join(f"{kinds.count(kind)} {kind}" for kind in dict.fromkeys(kinds)) or "none"
        rows.append(
            (
                time_text(plan.seconds * 1e6),
                f"{plan.seconds / first:.2f}",
                time_text(plan.moving_s * 1e6),
                bytes_text(plan.bytes),
                counted,
                lies or "all whole",
            )
        )
    heads = ("time", "times the first", "moves take", "on each device", "moves", "split inputs")
    return _tabled(heads, rows, numeric=range(4))


def _tabled(heads: Sequence[str], rows: Iterable[Sequence[str]], *, numeric: Iterable[int] = ()) -> str:
    return _card(table_of(heads, rows, numeric=numeric))
