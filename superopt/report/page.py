"""Page: a result as one HTML page: what won, the program before and after, the race, and all that was tried.

The page loads nothing: style, script and pictures stand in it. Every text of the result is escaped.
"""

import re
from collections.abc import Sequence
from itertools import zip_longest
from typing import Any

from superopt.candidates import Candidate, RegionCandidates
from superopt.ir import describe_shifts
from superopt.ir.compose import compose, contract_products
from superopt.report.charts import bars, folded, race, state_of, traffic_after, traffic_before
from superopt.report.drawing import draw_graph, draw_mugraph
from superopt.report.look import document
from superopt.report.source import coloured
from superopt.report.svg import bytes_text, count_text, escape, number, table_of, time_text
from superopt.result import Result
from superopt.result.why import (
    agreement,
    best_rival,
    how_fast,
    what_is_left,
    why_faster,
    why_not_faster,
)
from superopt.targets import KernelReport, config_json
from superopt.tune import Measurement
from superopt.verify.floats.report import FloatReport

__all__ = ["report_html"]


_LEGEND = """<div class="legend"><span><i class="input"></i>tensor in</span>
<span><i class="reduction"></i>sum, maximum, product</span><span><i></i>elementwise</span>
<span><i class="output"></i>tensor out</span><span><i class="kernel"></i>kernel</span>
<span><i class="loop"></i>loop</span><span>hover for shapes and bytes</span></div>"""

_SIZE = re.compile(r'<svg [^>]*?width="([\d.]+)" height="([\d.]+)"')
_FRAME = (1110.0, 870.0)  # what is seen at once of a drawing
_BOUND = re.compile(r"chance of error below \S+")

_PHASE_COLOURS = ("accent", "second", "third", "bad", "dim", "edge")


def report_html(result: Result) -> str:
    """Return a page about a result; the same result, the same page."""
    sections = [_headline(result)]
    for at, region in enumerate(result.regions, 1):
        sections.append(_region(result, region, at))
    sections += [_limits(result), _verdicts(result), _opaque(result), _phases(result), _versions(result)]
    body = "\n".join(section for section in sections if section)
    return document(result.name, body)


def _headline(result: Result) -> str:
    if result.winner is None:
        line = "A plan: predicted times, not measured"
        if result.predicted_us is not None:
            line = f"A plan: <b>{escape(time_text(result.predicted_us))}</b> predicted, not measured"
    elif result.winner == "superopt" and result.speedup is not None:
        theirs = "PyTorch's stand-in for the original" if result.stood_in else best_rival(result)
        times, between = how_fast(result)
        line = f"<b>{times}</b> as fast as {theirs}{between}"
    elif result.winner == "superopt":
        line = "superopt's program is the fastest"
    else:
        why = result.unsettled or "nothing found beats it"
        line = f"<b>{escape(result.winner)}</b> stays the fastest; {escape(why)}"
    tags = [f"target {result.target.name}"]
    if result.device:
        tags.append(f"measured on {result.device}")
    tags += [
        f"{name} {time_text(one.median_us)}"
        for name, one in sorted(result.measurements.items(), key=lambda item: item[1].median_us)
    ]
    tags += _trust(result)
    if result.floor_us is not None:
        tags.append(f"floor {time_text(result.floor_us)}")
    shown = "".join(f"<span>{escape(tag)}</span>" for tag in tags)
    why = why_faster(result) if result.winner in (None, "superopt") else ""
    because = f'<p class="why">{escape(why)}</p>\n' if why else ""
    if result.doubt:
        because += f'<p class="why">Error: {escape(result.doubt)}</p>\n'
    return (
        f'<h1>{escape(result.name)}</h1>\n<p class="headline">{line}</p>\n{because}'
        f'<div class="tags">{shown}</div>'
    )


def _trust(result: Result) -> list[str]:
    """Return how sure it is that the kernels compute the program, in few words; the proof says more."""
    bounds = [found[0] for text in result.verdicts for found in _BOUND.finditer(text)]
    said = []
    if bounds and len(bounds) == len(result.verdicts):
        said.append(f"equal, {bounds[0]}" if len(bounds) == 1 else "equal, region by region")
    if result.floats is not None:
        said.append(f"checked in {result.floats.dtype}")
    return said


def _region(result: Result, region: RegionCandidates, at: int) -> str:
    several = len(result.regions) > 1
    parts = [f"<h2>Region {at}: {escape(region.goal.name)}</h2>"] if several else []
    shown = region.chosen or min(region.candidates, key=lambda one: one.us, default=None)
    if region.chosen is None:
        parts.append('<p class="note">PyTorch computes this region: no candidate was chosen.</p>')
    parts.append(_programs(region, shown, several))
    parts.append(_shifts(region))
    parts.append(_traffic(result, region, shown))
    plot = race(result, region, whole=not several)
    if plot:
        if not several and result.winner == "superopt":
            plot += "".join(f'<p class="note">{escape(line)}</p>' for line in agreement(result))
        title = "Race" if any(one.measurement for one in region.candidates) else "Predicted times"
        parts.append(f'<h2>{title}</h2>\n<div class="card">{plot}</div>')
    parts.append(_candidates(region))
    parts.append(_sources(region, shown))
    parts.append(_dropped(region))
    return "\n".join(part for part in parts if part)


def _programs(region: RegionCandidates, shown: Candidate | None, several: bool) -> str:
    level = "h3" if several else "h2"
    before = draw_graph(contract_products(compose(region.goal)), "the program before")
    parts = [f"<{level}>The program before</{level}>", _LEGEND, _framed(before)]
    if shown is not None:
        word = "after" if shown is region.chosen else "as the best candidate has it"
        labels = [_times(one) for one in shown.kernels]
        after = draw_mugraph(shown.mugraph, f"the program after: {shown.name}", labels)
        parts += [
            f"<{level}>The program {word}: {escape(shown.name)}</{level}>",
            _framed(after),
        ]
        text = f"<pre>{escape(str(region.goal))}</pre>\n<pre>{escape(str(shown.mugraph))}</pre>"
        parts.append(f"<details><summary>Both as text</summary>{text}</details>")
    return "\n".join(parts)


def _framed(picture: str) -> str:
    """Return a drawing in a frame that scrolls, with a switch that shows the whole where it is large."""
    size = _SIZE.match(picture)
    natural = f' style="--natural:{size[1]}px"' if size else ""
    frame = f'<div class="card graphs"{natural}>{picture}</div>'
    if size is None or (float(size[1]) <= _FRAME[0] and float(size[2]) <= _FRAME[1]):
        return frame
    return f'<label class="whole"><input type="checkbox">fit to the page</label>{frame}'


def _shifts(region: RegionCandidates) -> str:
    """Return which exponentials run under a shift of our choice, and why the others do not."""
    lines = describe_shifts(region.goal)
    shown = "".join(f"<li>{escape(line)}</li>" for line in lines)
    return f"<h2>Exponentials</h2>\n<div class=card><ul>{shown}</ul></div>" if shown else ""


def _times(kernel: KernelReport) -> str:
    return "" if kernel.predicted_us is None else f"{time_text(kernel.predicted_us)} predicted"


def _traffic(result: Result, region: RegionCandidates, shown: Candidate | None) -> str:
    if shown is None:
        return ""
    before = traffic_before(contract_products(compose(region.goal)))
    after = traffic_after(shown)
    picture = bars(
        [
            (f"before, {_counted(len(before), 'step')} one by one", before),
            (f"after, {_counted(len(after), 'kernel')}", after),
        ]
    )
    note = ""
    if result.eager is not None and len(result.program.nodes) == 1:
        moved, count = bytes_text(result.eager.bytes), _counted(result.eager.operators, "operator")
        note = f'<p class="note">PyTorch runs {count} for it and moves {moved}, copies included.</p>'
    return f'<h2>Memory traffic</h2>\n<div class="card graphs">{picture}{note}</div>'


_COLUMNS = (
    ("candidate", False), ("measured", True), ("low to high", True), ("predicted", True),
    ("kernels", True), ("bytes", True), ("outcome", False),
)  # fmt: skip


def _counted(count: int, noun: str) -> str:
    return f"{count} {noun}{'' if count == 1 else 's'}"


def _candidates(region: RegionCandidates) -> str:
    """Return the best candidate of each muGraph, and all of them folded away where there are more."""
    if not region.candidates:
        return ""
    best, every = folded(region), sorted(region.candidates, key=lambda one: one.us)
    content = _candidate_table([(one, count) for one, count in best], ("configurations", True))
    if len(every) > len(best):
        content += (
            f"<details><summary>all {len(every)} candidates, configuration by configuration</summary>"
            f"{_candidate_table([(one, None) for one in every])}</details>"
        )
    return f"<h2>Candidates, by muGraph</h2>\n<div class=card>{content}</div>"


def _candidate_table(rows: Sequence[tuple[Candidate, int | None]], *more: tuple[str, bool]) -> str:
    """Return candidates as a table that sorts by its columns, with a count where there is one."""
    heads = "".join(
        f'<th class="sorts{" number" if numeric else ""}" scope="col">{name}</th>'
        for name, numeric in (*_COLUMNS, *more)
    )
    body = "\n".join(
        f"<tr class={state_of(one)}>{_candidate_cells(one)}"
        f"{'' if count is None else _cell(str(count), float(count))}</tr>"
        for one, count in rows
    )
    return f"<table><thead><tr>{heads}</tr></thead>\n<tbody>{body}</tbody></table>"


def _candidate_cells(one: Candidate) -> str:
    known = [kernel.bytes for kernel in one.kernels if kernel.bytes is not None]
    total = sum(known) if known and len(known) == len(one.kernels) else None
    kernels, timing = len(one.mugraph.kernels), one.measurement
    median = None if timing is None else timing.median_us
    cells = [
        _cell(one.name),
        _cell(None if median is None else time_text(median), median),
        _cell(_spread(timing), None if timing is None else timing.low_us),
        _cell(None if one.predicted_us is None else time_text(one.predicted_us), one.predicted_us),
        _cell(str(kernels), float(kernels)),
        _cell(None if total is None else bytes_text(total), total),
        _cell(str(one.fate) if one.fate.is_sound else f"rejected: {one.fate}"),
    ]
    return "".join(cells)


def _cell(text: str | None, key: float | str | None = "") -> str:
    """Return a cell of a table, and what it is sorted by."""
    if key == "":
        return f'<td data-key="{escape(text or "")}">{escape(text or "")}</td>'
    shown = "" if key is None else number(float(key)) if isinstance(key, (int, float)) else key
    return f'<td class="number" data-key="{escape(shown)}">{escape(text or "-")}</td>'


def _spread(timing: Measurement | None) -> str | None:
    return None if timing is None else f"{time_text(timing.low_us)} to {time_text(timing.high_us)}"


def _sources(region: RegionCandidates, shown: Candidate | None) -> str:
    if shown is None:
        return ""
    parts = [_kernels(shown)]
    for at, text in enumerate(shown.sources):
        state = " open" if at == 0 else ""
        lines = text.count("\n") + 1
        parts.append(
            f"<details{state}><summary>source {at + 1} of {len(shown.sources)}, {lines} lines</summary>"
            f'<div class="source"><pre>{coloured(text)}</pre></div></details>'
        )
    content = "\n".join(part for part in parts if part)
    return f"<h2>Kernels</h2>\n<div class=card>{content}</div>" if content else ""


def _kernels(one: Candidate) -> str:
    rows: list[list[str]] = []
    for kernel, config in zip_longest(one.kernels, map(_config_text, one.configs), fillvalue=None):
        facts = kernel if isinstance(kernel, KernelReport) else None
        numbers = [
            None if facts is None or facts.predicted_us is None else time_text(facts.predicted_us),
            None if facts is None or facts.bytes is None else bytes_text(facts.bytes),
            None if facts is None or facts.flops is None else count_text(facts.flops),
            None if facts is None or facts.shared_bytes is None else bytes_text(facts.shared_bytes),
            None if facts is None or facts.registers is None else f"{facts.registers:.0f}",
            None if facts is None or facts.spill_bytes is None else bytes_text(facts.spill_bytes),
        ]
        name = facts.name if facts else f"kernel {len(rows)}"
        rows.append([name, *(text or "-" for text in numbers), config if isinstance(config, str) else ""])
    heads = ("kernel", "predicted", "bytes", "flops", "shared", "registers", "spilled", "configuration")
    return table_of(heads, rows, numeric=range(1, 7)) if rows else ""


def _dropped(region: RegionCandidates) -> str:
    if not region.dropped:
        return ""
    rows = [(one.name, str(one.fate)) for one in region.dropped]
    table = table_of(("schedule", "reason"), rows)
    count = _counted(len(region.dropped), "schedule")
    return (
        f"<h2>Dropped before compiling</h2>\n<details><summary>{count}</summary>"
        f"<div class=card>{table}</div></details>"
    )


def _limits(result: Result) -> str:
    """Return what keeps the program from being faster: the floor, its traffic and its arithmetic."""
    lines = what_is_left(result) if result.winner == "superopt" else why_not_faster(result)
    shown = "".join(f"<li>{escape(line)}</li>" for line in lines)
    return f"<h2>Why not faster</h2>\n<div class=card><ul>{shown}</ul></div>" if shown else ""


def _verdicts(result: Result) -> str:
    parts = [f'<pre class="wraps">{escape(text)}</pre>' for text in result.verdicts]
    parts.append(_floats(result.floats))
    content = "\n".join(part for part in parts if part)
    return f"<h2>Proof and checks</h2>\n<div class=card>{content}</div>" if content else ""


def _floats(report: FloatReport | None) -> str:
    if report is None:
        return ""
    rows = []
    for one in report.distributions:
        outcome = f"skipped: {one.skipped}" if one.skipped else "fine"
        if one.nonfinite:
            outcome = "NaN or infinity where PyTorch has none"
        elif not one.ok:
            outcome = "more than allowed"
        errors = (one.candidate_error, one.eager_error, one.ratio)
        rows.append([one.name, *(f"{error:.2g}" for error in errors), outcome])
    line = f"Computed in {report.dtype} and compared with float64: the errors may be {report.factor:g} times"
    line += " those of PyTorch itself."
    heads = ("inputs", "error", "PyTorch's error", "share of what is allowed", "outcome")
    return f"<p>{escape(line)}</p>" + (table_of(heads, rows, numeric=(1, 2, 3)) if rows else "")


def _config_text(config: Any) -> str:
    """Return a configuration in a few words."""
    words = []
    for name, value in ({} if config is None else config_json(config)).items():
        if name == "tiles":
            words += [f"{axis}={length}" for axis, length in value]
        elif value not in (None, [], False, ""):
            words.append(f"{name} {' '.join(map(str, value)) if isinstance(value, list) else value}")
    return ", ".join(words)


def _opaque(result: Result) -> str:
    rows = [(one.target, one.reason) for one in result.program.opaque]
    if not rows:
        return ""
    return f"<h2>Not optimized</h2>\n<div class=card>{table_of(('operator', 'reason'), rows)}</div>"


def _phases(result: Result) -> str:
    total = sum(result.phases_ms.values())
    if total <= 0:
        return ""
    strips, rows = [], []
    for at, (name, ms) in enumerate(result.phases_ms.items()):
        colour = _PHASE_COLOURS[at % len(_PHASE_COLOURS)]
        style = f"flex:{number(max(ms, 0.05))};background:var(--{colour})"
        strips.append(f'<span style="{style}" title="{escape(name)}"></span>')
        rows.append((name, time_text(ms * 1000), f"{100 * ms / total:.0f}%"))
    strip = f'<div class="phases">{"".join(strips)}</div>'
    table = table_of(("phase", "time", "share"), rows, numeric=(1, 2))
    return f"<h2>Where the time went</h2>\n<div class=card>{strip}{table}</div>"


def _versions(result: Result) -> str:
    if not result.versions:
        return ""
    rows = table_of(("package", "version"), result.versions.items())
    return f"<h2>Versions</h2>\n<div class=card>{rows}</div>"
