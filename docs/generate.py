"""Writes what follows from the code: pictures for the documentation, and the command line's reference.

python docs/generate.py            writes what has changed
python docs/generate.py --check    writes nothing; exit code 1 where something is out of date
"""

import argparse
import json
import re
import statistics
import sys
import textwrap
from collections.abc import Iterator
from pathlib import Path

import house

from superopt.cli.entry import EXIT_CODES, make_parser
from superopt.cost import device_of
from superopt.driver import Search, search
from superopt.report.drawing import draw_graph, draw_mugraph
from superopt.report.look import STYLE
from superopt.report.svg import element, escape, number
from superopt.schedule import schedules
from superopt.trace import trace
from superopt.workloads import WORKLOADS

DOCS = Path(__file__).parent
README = DOCS.parent / "README.md"
ARCHITECTURE = DOCS / "architecture.md"
MODELS = DOCS / "use-it-on-your-model.md"
GUARANTEES = DOCS / "guarantees.md"
RESULTS = DOCS.parent / "bench" / "results"
SHOWN = ("rmsnorm-linear", "gated-mlp", "rmsnorm-mlp", "gqa-decode", "qknorm-attention", "softmax")


def main(arguments: list[str]) -> int:
    """Write what has changed, or say that something has."""
    texts = generated()
    stale = [path for path, text in texts.items() if not path.exists() or path.read_text() != text]
    if "--check" in arguments:
        for path in stale:
            print(f"{path.relative_to(DOCS.parent)} is out of date: run python docs/generate.py")
        return 1 if stale else 0
    for path in stale:
        path.parent.mkdir(exist_ok=True)
        path.write_text(texts[path])
        print(f"written: {path.relative_to(DOCS.parent)}")
    return 0


def generated() -> dict[Path, str]:
    """Return every generated file with its text."""
    pictures = {DOCS / "pictures" / f"{name}.svg": text for name, text in _pictures()}
    rooms = _between(ARCHITECTURE, "rooms", house.table())
    right = _between(GUARANTEES, "verdicts", verdicts_asked())
    numbers = {README: readme(), MODELS: models(), GUARANTEES: right}
    graphs = {DOCS.parent / "superopt" / "data" / "workloads.graphs": workload_graphs()}
    return {**pictures, **graphs, **numbers, DOCS / "command-line.md": command_line(), ARCHITECTURE: rooms}


def workload_graphs() -> str:
    """Return the graphs of all named workloads at their default sizes, so that a search needs no torch."""
    traced = [
        trace(one.function, *one.inputs(), name=one.function.__name__).graph for one in WORKLOADS.values()
    ]
    head = "The named workloads as they are traced; written by python docs/generate.py.\n"
    return "\n".join([head, *map(str, traced)])


# -- what was measured


def readme() -> str:
    """Return the README with the table of what was measured on a CPU, losses included."""
    return _between(README, "measured", measured())


def models() -> str:
    """Return the page on models with the table of what was measured of them, losses included."""
    return _between(MODELS, "models", models_measured())


def _between(page: Path, mark: str, table: str) -> str:
    """Return a page with a table in the place that two comments mark."""
    before, _, rest = page.read_text(encoding="utf-8").partition(f"<!-- {mark} -->\n")
    _, _, after = rest.partition(f"<!-- /{mark} -->")
    return f"{before}<!-- {mark} -->\n{table}<!-- /{mark} -->{after}"


def models_measured() -> str:
    """Return a table of all models, each with its steps, its compilation, and what superopt has of it."""
    document = json.loads((RESULTS / "models.json").read_text(encoding="utf-8"))
    head = "| model | eager, ms | Inductor, ms | superopt, ms | speedup | its matmuls | cold | warm |"
    lines = [head, "|" + "---|" * 8]
    cases = {name: one for name, one in document["cases"].items() if "measured" in one}
    for name, one in cases.items():
        steps = [one["measured"][label]["median_us"] / 1e3 for label in ("eager", "inductor", "superopt")]
        compiling = [one[when]["superopt"] / one[when]["inductor"] for when in ("cold_s", "warm_s")]
        cells = [*(f"{ms:.1f}" for ms in steps), f"{one['speedup']:.2f}", f"{one['flops']:.0%}"]
        cells += [f"{ratio:.1f}" for ratio in compiling]
        lines.append(f"| {' | '.join([name.replace(':', ', '), *cells])} |")
    steps = [one["speedup"] for name, one in cases.items() if ":" in name]
    said = (
        "Speedup: Inductor's time over superopt's; its matmuls: what share of their operations is superopt's;"
        " cold and warm: the time of the first step, times Inductor's. The geometric mean of the speedups is"
        f" {statistics.geometric_mean(one['speedup'] for one in cases.values()):.2f}, of prefills and decodes"
        f" {statistics.geometric_mean(steps):.2f}."
    )
    return "\n".join([*lines, "", *textwrap.wrap(said, 110, break_on_hyphens=False), ""])


def _rows_measured() -> tuple[list[tuple[str, str, float, float, str, float]], list[float], str]:
    """Return what was measured of the fp32 cases in `SHOWN`, the ratios of all, and on what."""
    document = json.loads((RESULTS / "cpu.json").read_text(encoding="utf-8"))
    rows, ratios = [], []
    for case in document["cases"].values():
        if case["dtype"] != "f32" or "measured" not in case:
            continue
        times = {name: one["median_us"] for name, one in case["measured"].items()}
        ours = times.pop("superopt", None)
        if ours is None:
            continue
        best = min(times, key=lambda name: times[name])
        ratios.append(times[best] / ours)
        if case["workload"] in SHOWN and all(row[0] != case["workload"] for row in rows):
            sizes = ", ".join(f"{name}={size}" for name, size in case["sizes"].items())
            rows.append((case["workload"], sizes, ours, times[best], best, ratios[-1]))
    rows.sort(key=lambda row: SHOWN.index(row[0]))
    machine = document["machine"]
    return rows, ratios, f"{machine['threads']} threads of an {machine['device']}"


def measured() -> str:
    """Return a table of the fp32 cases in `SHOWN`, and the geometric mean of all that were measured."""
    rows, ratios, where = _rows_measured()
    mean = statistics.geometric_mean(ratios)
    lines = ["| program, fp32 | sizes | kernel | best of PyTorch | ratio |", "|---|---|---|---|---|"]
    lines += [
        f"| {name} | {sizes} | {ours:.0f} µs | {theirs:.0f} µs, {peer} | {ratio:.2f} |"
        for name, sizes, ours, theirs, peer, ratio in rows
    ]
    said = (
        f"Medians on {where} ([bench/results/cpu.json](bench/results/cpu.json)); the"
        f" geometric mean over all {len(ratios)} fp32 cases there is {mean:.2f}, from {min(ratios):.2f} to"
        f" {max(ratios):.2f}. Where a ratio is below 1, PyTorch's own program is what comes back."
    )
    return "\n".join([*lines, "", *textwrap.wrap(said, 110, break_on_hyphens=False), ""])


_ASKED = {
    "equal by laws/equal": "random programs, made equal by laws",
    "pure algebra/equal": "the same without comparisons and maxima",
    "mutated/different": "random programs, one with a mistake",
    "equations/equal": "equations of operators",
    "inequalities/equal": "inequalities, and what follows from them",
}


def verdicts_asked() -> str:
    """Return a table of the pairs whose truth is known, and what was said of them."""
    document = json.loads((RESULTS / "verdicts.json").read_text(encoding="utf-8"))
    words = ("pairs", "equal", "different", "unknown", "wrong")
    counts: dict[str, dict[str, int]] = {}
    for name, one in document["cases"].items():
        if not name.endswith("/undecided"):
            named = "idioms that users write" if name.endswith("/equal") else "near misses of idioms"
            row = counts.setdefault(_ASKED.get(name, named), dict.fromkeys(words, 0))
            for word in words:
                row[word] += one.get(word, 0) + (one.get("refused", 0) if word == "unknown" else 0)
    lines = ["| pairs of programs | asked | equal | different | unknown | wrong |", "|" + "---|" * 6]
    lines += [f"| {name} | {' | '.join(str(row[word]) for word in words)} |" for name, row in counts.items()]
    said = (
        f"Seed {document['settings']['seed']}, {document['seconds'] / 60:.0f} minutes on"
        f" {document['machine']['cores']} cores of an {document['machine']['device']}"
        " ([bench/results/verdicts.json](../bench/results/verdicts.json)). Programs were asked about against"
        " themselves, too."
    )
    return "\n".join([*lines, "", *textwrap.wrap(said, 110, break_on_hyphens=False), ""])


# -- pictures


def _pictures() -> Iterator[tuple[str, str]]:
    yield "house", _alone(house.drawing())
    workload = WORKLOADS["rmsnorm-linear"]
    found = search(workload.function, *workload.inputs(), name=workload.name)
    region = found.regions[0]
    yield "before", _alone(draw_graph(region.goal, "RMS norm, then a matmul, as it is written"))
    best = region.found[0]
    yield "after", _alone(draw_graph(best.graph, "the best equivalent of it"))
    yield "mugraph", _alone(draw_mugraph(best.mugraph, "the best equivalent as one kernel"))
    yield "levels", _alone(_levels(found))
    yield "ratios", _alone(_ratios())
    attention = WORKLOADS["gqa-decode"]
    inputs = attention.inputs(B=1, H=8, G=2)
    graph = search(attention.function, *inputs, name=attention.name).regions[0].found[0].graph
    kept = schedules(graph, device_of("h200"), library=False).kept
    running = next(one.mugraph for one in kept if "running" in str(one.mugraph))
    yield (
        "attention",
        _alone(
            draw_mugraph(
                running, "attention of one new token: the cached tokens in parts, then the parts together"
            )
        ),
    )


def _levels(found: Search) -> str:
    """Return the levels of a search as bars: the new tensors of each.

    How many candidates were duplicates depends on how a level was cut in batches, and is not shown.
    """
    statistics = found.regions[0].statistics
    most = max(level.new for level in statistics.levels)
    left, row, width = 90.0, 26.0, 440.0
    parts = [element("title", "the levels of a search")]
    parts.append(element("text", "level", x=10.0, y=22.0, class_="dim"))
    parts.append(element("text", "new tensors, from those of the level before", x=left, y=22.0, class_="dim"))
    y = 36.0
    for level in statistics.levels:
        new = (width - left - 60) * level.new / most
        parts += [
            element("text", str(level.level), x=38.0, y=y + 14, text_anchor="end"),
            element("rect", x=left, y=y + 2, width=max(new, 1.0), height=15.0, style=_fill("accent")),
            element("text", str(level.new), x=left + new + 10, y=y + 14, class_="dim"),
        ]
        y += row
    foot = f"{statistics.tensors} tensors in all, on the way from the inputs to the goal"
    parts.append(element("text", escape(foot), x=10.0, y=y + 16, class_="dim"))
    return element(
        "svg", "".join(parts), xmlns="http://www.w3.org/2000/svg", width=width, height=y + 30,
        viewBox=f"0 0 {number(width)} {number(y + 30)}", role="img",
    )  # fmt: skip


def _ratios() -> str:
    """Return what was measured of the programs in `SHOWN` as bars: how fast ours is, in speeds of PyTorch."""
    rows = _rows_measured()[0]
    left, row, width = 140.0, 30.0, 420.0
    most = max(ratio for *_, ratio in rows)
    scale = (width - left - 60) / most
    parts = [element("title", "how fast superopt's kernels are, in speeds of the best of PyTorch")]
    for at, (name, sizes, _, _, peer, ratio) in enumerate(rows):
        y, color = 12 + row * at, "accent" if ratio >= 1 else "second"
        tip = element("title", escape(f"{name}, {sizes}: against {peer}"))
        parts.append(
            element(
                "g",
                tip
                + element("text", escape(name), x=left - 10, y=y + 15, text_anchor="end")
                + element("rect", x=left, y=y + 2, width=scale * ratio, height=18.0, rx=3, style=_fill(color))
                + element("text", f"{ratio:.2f}", x=width - 8, y=y + 15, text_anchor="end"),
            )
        )
    bottom = 12 + row * len(rows)
    even = left + scale
    parts.append(
        element(
            "line", x1=even, x2=even, y1=8.0, y2=bottom, style="stroke:var(--dim)", stroke_dasharray="4 3"
        )
    )
    parts.append(element("text", "as fast as PyTorch", x=even + 6, y=bottom + 14, class_="dim"))
    return element(
        "svg", "".join(parts), xmlns="http://www.w3.org/2000/svg", width=width, height=bottom + 24,
        viewBox=f"0 0 {number(width)} {number(bottom + 24)}", role="img",
    )  # fmt: skip


def _fill(color: str) -> str:
    return f"fill:var(--{color})"


def _alone(svg: str) -> str:
    """Return a drawing of the report as a file of its own: with its style, light and dark, a line each."""
    colors = STYLE.partition("* {")[0].strip()
    rules = re.findall(r"^(?:svg|\.box|\.edge|\.node)[^{}]*\{[^{}]*\}", STYLE, re.MULTILINE)
    style = "\n".join([colors, *rules, "svg { background: var(--card); }"])
    head, _, rest = svg.partition(">")
    return f"{head}><style>\n{style}\n</style>{rest}\n".replace("><g", ">\n<g").replace("><path", ">\n<path")


# -- the command line


def command_line() -> str:
    """Return the reference of all commands as Markdown."""
    parts = [
        "# Command line",
        "This page is generated from the parser. Every command takes `--help`; most take `--json`, which"
        " prints the same as data and no progress.",
        "A word that no command knows gets one line, with a guess at what was meant. `superopt completion`"
        " makes a shell complete commands, options and named workloads.",
        "\n".join(
            [
                "| exit code | meaning |",
                "|---|---|",
                *(f"| {n} | {_plain(why)} |" for n, why in EXIT_CODES.items()),
            ]
        ),
    ]
    for name, parser in _commands(make_parser(), "superopt"):
        parts.append(f"## {name}")
        parts.append(_plain(parser.description or ""))
        parts.append(f"```text\n{_usage(name, parser)}\n```")
        rows = [
            _row(action)
            for action in sorted(parser._actions, key=lambda one: bool(one.option_strings))
            if action.help != argparse.SUPPRESS and action.dest not in ("help", "command")
        ]
        if rows:
            parts.append("\n".join(["| argument | meaning |", "|---|---|", *rows]))
        if parser.epilog:
            parts.append(f"```text\n{parser.epilog.strip()}\n```")
    return "\n\n".join(part for part in parts if part) + "\n"


def _commands(parser: argparse.ArgumentParser, name: str) -> Iterator[tuple[str, argparse.ArgumentParser]]:
    """Yield the commands that do something, with their full names."""
    groups = [one for one in parser._actions if isinstance(one, argparse._SubParsersAction)]
    for group in groups:
        for word, inner in group.choices.items():
            yield from _commands(inner, f"{name} {word}")
    if not groups:
        yield name, parser


def _usage(name: str, parser: argparse.ArgumentParser) -> str:
    wanted = [_name(one) for one in parser._actions if not one.option_strings]
    return " ".join([name, *wanted, "[options]"])


def _name(action: argparse.Action) -> str:
    shown = action.metavar if isinstance(action.metavar, str) else action.dest.upper()
    return f"[{shown}]" if action.nargs in ("?", "*") else shown


def _row(action: argparse.Action) -> str:
    if not action.option_strings:
        names = f"`{_name(action)}`"
    else:
        value = ""
        if action.nargs != 0:
            value = (
                f" {action.metavar}" if action.metavar else f" {{{','.join(map(str, action.choices or ()))}}}"
            )
            value += " ..." if action.nargs == "+" else ""
        names = ", ".join(f"`{one}{value}`" for one in action.option_strings)
    return f"| {names} | {_plain(action.help or '')} |"


def _plain(text: str) -> str:
    return " ".join(text.split()).replace("|", "\\|").replace("%%", "%").replace("<", "&lt;")


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
