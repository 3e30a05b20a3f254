"""Any folder of captured PyTorch graphs, run through the backend `torch.compile(model, backend="superopt")`.

    python -m bench.graphs FOLDER                                    150 graphs, families in turn
    python -m bench.graphs FOLDER --way algebra --json OUT           whether regions mean what PyTorch means
    python -m bench.graphs FOLDER --seconds 2 --json OUT --resume    times against eager and Inductor
    python -m bench.graphs FOLDER --seconds 2 --tune 3               and after three minutes of deferred work
    python -m bench.graphs FOLDER --only timm/coat_tiny              one graph, or several by commas

A graph is a folder with a `model.py`, whose class GraphModule takes tensors by name, and a `weight_meta.py`
(or `input_meta.py`), which says of each tensor its shape, dtype and range, as PaddlePaddle/GraphNet has them.
THE CODE OF THE FOLDER IS RUN: only in processes that this command starts, with limits of time and memory,
but with your rights. What is said of tensors is read as data.

Each graph runs in a process of its own; if that crashes or hangs, it is one row of the table. Results are
compared with float64, where eager's own error is the yardstick, and Inductor's where ours is larger.

    algebra   each region is computed by torch as its graph says, the rest by ATen: what is traced, and
              whether it means the same, in seconds for a graph
    kernels   each region for which kernels are right takes them, however slow; the rest by ATen
    backend   as users have it; with --seconds, timed in turns against eager and Inductor

`--resume` tries again what was given up, failed or crashed; the limits may be other ones then.

The exit code is 1 where a result is wrong, or where the backend fails or crashes.
"""

import argparse
import tempfile
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from superopt.bench.graphs.folder import MODEL, drawn, family_of, graphs_of, read_tensors
from superopt.bench.graphs.launch import launched
from superopt.bench.graphs.request import WAYS, Request
from superopt.bench.harness.command import (
    Parser,
    above_zero,
    check_names,
    check_out,
    from_one,
    from_zero,
    listed,
)
from superopt.bench.harness.records import Record, geometric_means
from superopt.bench.harness.results import Results, begin, machine, resumed
from superopt.errors import InputError

__all__ = ["main", "table"]

_UNUSABLE = "unusable"
_FAULTS = ("wrong", "failed", "crash")
_AGAIN = ("time", "memory", "failed", "crash")  # results after which `--resume` tries a graph once more
_LIMITS = ("limit", "memory")


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the suite; return 1 where superopt is at fault anywhere."""
    parser = Parser("graphs", __doc__)
    add = parser.add_argument
    add("folder", type=Path, help="with the graphs, at any depth")
    add("--sample", type=from_one, default=150, help="graphs to run, families in turn (default: 150)")
    add("--seed", type=int, default=0, help="of the sample and of the numbers in tensors (default: 0)")
    add("--only", default="", help="these graphs, by commas, instead of a sample")
    add("--largest", type=above_zero, default=1000.0, help="MB of tensors above which no graph is drawn")
    add("--longest", type=from_one, default=10**9, help="lines of code above which no graph is drawn")
    add("--way", choices=WAYS, default="backend", help="how regions are computed (default: backend)")
    add("--budget", type=from_zero, default=5.0, help="seconds of search for each graph (default: 5)")
    add("--seconds", type=from_zero, default=0.0, help="of timing each graph (default: 0, nothing is timed)")
    add("--tune", type=from_zero, default=0.0, help="minutes of deferred work, then timed again (default: 0)")
    add("--threads", type=from_one, default=1, help="of PyTorch (default: 1)")
    add(
        "--limit", type=above_zero, default=10.0, help="minutes after which a graph is given up (default: 10)"
    )
    add("--memory", type=above_zero, default=8.0, help="GiB that a graph may use (default: 8)")
    parser.add_results(minutes=600.0)
    return parser.run(arguments, _run)


def _run(options: argparse.Namespace) -> int:
    check_out(options.json, resume=options.resume)
    if options.tune and not options.seconds:
        raise InputError("--tune is timed; give --seconds as well")
    if options.seconds and options.way != "backend":
        raise InputError(f"--seconds times what users have; --way {options.way} is not that")
    names = _named(options)
    document = begin("graphs", _settings(options), machine() | {"threads": options.threads}, {})
    results = Results(names, options.json, document)
    kept = resumed(options.json, resume=options.resume)
    if kept["cases"] and any(_meant(kept[part]) != _meant(document[part]) for part in ("suite", "settings")):
        raise InputError(f"{options.json} was made with other options")
    results.records.update(
        {name: one for name, one in kept["cases"].items() if name in names and one["result"] not in _AGAIN}
    )
    with tempfile.TemporaryDirectory() as caches:
        environment = {
            name: str(Path(caches, name)) for name in ("SUPEROPT_CACHE_DIR", "TORCHINDUCTOR_CACHE_DIR")
        }
        for name in results.left(options.minutes):
            request = Request(
                str(options.folder / name),
                seed=options.seed,
                way=options.way,
                budget_s=options.budget,
                seconds=options.seconds,
                tune_s=60 * options.tune,
                threads=options.threads,
                memory_bytes=int(options.memory * 2**30),
            )
            found = launched(request, options.limit, environment)
            results.keep(name, {"case": name, "family": family_of(name), **found})
            print(_line(results.records[name]), flush=True)
    print(table(results.records.values()))
    return 1 if any(one["result"] in _FAULTS for one in results.records.values()) else 0


def _meant(setting: Any) -> Any:
    """Return settings without the limits, which only say when a graph is given up."""
    return {**setting, **dict.fromkeys(_LIMITS)} if isinstance(setting, Mapping) else setting


def _settings(options: argparse.Namespace) -> Record:
    names = (
        *("sample", "seed", "only", "largest", "longest", "way"),
        *("budget", "seconds", "tune", "limit", "memory"),
    )
    return {name: getattr(options, name) for name in names}


def _named(options: argparse.Namespace) -> list[str]:
    """Return the graphs to run: those that are named, or a sample of those that are not too large."""
    known = graphs_of(options.folder)
    if options.only:
        check_names("--only", listed(options.only), known)
        return listed(options.only)
    chosen: list[str] = []
    for name in drawn(known, options.seed):
        if len(chosen) < options.sample and _fits(options.folder / name, options):
            chosen.append(name)
    return sorted(chosen, key=lambda name: (_lines(options.folder / name), name))  # most are done soon


def _fits(graph: Path, options: argparse.Namespace) -> bool:
    """Whether a graph is small enough to be drawn."""
    return bool(_lines(graph) <= options.longest and _bytes(graph) <= 1e6 * options.largest)


def _lines(graph: Path) -> int:
    return (graph / MODEL).read_text(encoding="utf-8", errors="replace").count("\n")


def _bytes(graph: Path) -> int:
    """Return what the tensors of a graph take; 0 where its files cannot be read, as its row will say."""
    try:
        return sum(meta.bytes for meta in read_tensors(graph))
    except InputError:
        return 0


# -- what is shown


def _line(record: Mapping[str, Any]) -> str:
    regions = f"{record['taken']} of {record['regions']} regions" if "regions" in record else ""
    ratio = f"{record['ratio']:.2f} of {record['best_peer']}" if record.get("ratio") else ""
    if record.get("tuned"):
        ratio += f", {record['tuned']['ratio']:.2f} once tuned"
    told = (f"{record['case']}: {record['result']}", regions, ratio, record.get("why") or "")
    return ", ".join(part for part in told if part)


_COLUMNS = (
    *("family", "graphs", "usable", "traced", "with regions", "regions", "taken", "right", "unjudged"),
    *("at fault", "given up", "timed", "mean", "least"),
)


def table(records: Iterable[Mapping[str, Any]]) -> str:
    """Return the records family by family, as a table in Markdown."""
    families: dict[str, list[Mapping[str, Any]]] = {}
    for record in records:
        families.setdefault(record["family"], []).append(record)
    everything = [one for several in families.values() for one in several]
    rows = [_row(family, several) for family, several in sorted(families.items())]
    rule = "|---" * len(_COLUMNS) + "|"
    return "\n".join([_cells(_COLUMNS), rule, *rows, _row("all", everything)])


def _row(family: str, records: Sequence[Mapping[str, Any]]) -> str:
    usable = [one for one in records if one["result"] != _UNUSABLE]
    traced = [one for one in usable if "regions" in one and not one["faults"]]
    results = Counter(one["result"] for one in usable)
    timed = [one for one in usable if one.get("ratio") is not None]
    mean = geometric_means(timed).get("all", {}).get("best peer", {}).get("mean")
    cells = [
        *(family, len(records), len(usable), len(traced), sum(bool(one["regions"]) for one in traced)),
        *(sum(one["regions"] for one in traced), sum(one["taken"] for one in traced)),
        *(results["right"], results["unjudged"], sum(results[name] for name in _FAULTS)),
        *(results["time"] + results["memory"], len(timed)),
        "" if mean is None else f"{mean:.2f}",
        f"{min(one['ratio'] for one in timed):.2f}" if timed else "",
    ]
    return _cells(cells)


def _cells(cells: Iterable[Any]) -> str:
    return f"| {' | '.join(map(str, cells))} |"
