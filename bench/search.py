"""How long the search takes for every named workload, beside what the field's systems need.

    python -m bench.search                            the table
    python -m bench.search --prune egraph,z3,none     the ablation: what the pruning is worth
    python -m bench.search --json OUT                 the same as data

Imports and the first trace are not counted: they are paid once per process. Each workload is
searched several times, in turns with a yardstick, some work of the same kind that no change of ours
touches, by which results are compared; the table has the median.
"""

import argparse
import resource
import statistics
import sys
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from superopt.bench.command import Parser, above_zero, check_out, from_one, from_zero, mistakes_told
from superopt.bench.floors import yardstick
from superopt.bench.harness import Record, Results, begin, geometric_means, launch_record, machine, resumed
from superopt.driver import SearchOptions, search
from superopt.tune.measure import Times
from superopt.workloads import WORKLOADS

RESULTS = Path(__file__).parent / "results" / "search.json"

PEERS: dict[str, tuple[tuple[str, float | None, str], ...]] = {
    "rmsnorm-linear": (
        ("Mirage", 79.0, "CPU seconds on 2 cores, x[16,4096] w[4096,4096]: 116,016 states, 13 graphs"),
        ("Mirage", 28.0, "published, 11 block operators, many cores"),
    ),
    "rmsnorm": (("Prism", 0.3, "published"),),
    "rmsnorm-mlp": (("Prism", 871.0, "published"), ("Mirage", None, "published: not in an hour")),
    "gated-mlp": (("Mirage", 127.0, "CPU seconds on 2 cores, x[8,4096]: 212,430 states, 44 graphs"),),
    "gqa-decode": (("Mirage", None, "on 2 cores: not finished after 900 s, 771,601 states, no graph yet"),),
}
"""What other systems need for the same program: seconds, or None where they did not finish."""


@dataclass(frozen=True, slots=True)
class Row:
    """One workload under one way of pruning."""

    workload: str
    prune: str
    regions: int
    e_nodes: int
    saturate_ms: float
    tensors: int
    derivations: int
    graphs: int
    total_ms: float
    slowest_ms: float
    goal_reached: bool  # a graph was derived from what was explored, not only kept from the input
    truncated: tuple[str, ...]
    raced: Record  # the times of its searches and of the yardstick

    @property
    def case(self) -> str:
        """Its name in tables and files."""
        return self.workload if self.prune == "egraph" else f"{self.workload}/{self.prune}"

    def record(self) -> Record:
        """Return it as plain data."""
        data = asdict(self)
        return {"case": self.case, **data.pop("raced"), **data, "truncated": list(self.truncated)}


def measure(name: str, prune: str, seconds: float, repeats: int) -> Row:
    """Search one workload several times; return the median times."""
    workload = WORKLOADS[name]
    inputs = workload.inputs()
    options = SearchOptions(prune=prune, seconds=seconds)  # type: ignore[arg-type]
    times: list[float] = []
    beside: list[float] = []
    for _ in range(repeats):
        start = time.perf_counter()
        yardstick()
        beside.append((time.perf_counter() - start) * 1e3)
        start = time.perf_counter()
        result = search(workload.function, *inputs, name=name, options=options)
        times.append((time.perf_counter() - start) * 1e3)
        if times[-1] > 5e3:
            break  # a search that long needs no second look
    stats = [region.statistics for region in result.regions]
    return Row(
        workload=name,
        prune=prune,
        regions=len(result.regions),
        e_nodes=sum(one.e_nodes for one in stats),
        saturate_ms=sum(one.phase_ms.get("saturate", 0.0) for one in stats),
        tensors=sum(one.tensors for one in stats),
        derivations=sum(one.derivations for one in stats),
        graphs=sum(one.graphs for one in stats),
        total_ms=statistics.median(times),
        slowest_ms=max(times),
        goal_reached=all(region.reached for region in result.regions),
        truncated=result.truncated,
        raced=launch_record(
            {
                "superopt": Times([ms * 1e3 for ms in times]),
                "yardstick": Times([ms * 1e3 for ms in beside]),
            },
            "superopt",
            "yardstick",
        ),
    )


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the benchmark; return the exit code."""
    parser = Parser(
        prog="python -m bench.search", description="How long the search takes for every named workload."
    )
    parser.add_argument("names", nargs="*", metavar="NAME", help="workloads (default: all)")
    parser.add_argument("--prune", default="egraph", help="egraph, z3, none: one or several, by commas")
    parser.add_argument("--seconds", type=above_zero, default=20.0, help="limit of one search (default: 20)")
    parser.add_argument("--repeats", type=from_one, default=3, help="searches per workload (default: 3)")
    parser.add_argument("--minutes", type=from_zero, default=60.0, help="begin nothing new after them")
    parser.add_argument("--json", type=Path, default=None, help=f"write the results here, e.g. {RESULTS}")
    parser.add_argument("--resume", action="store_true", help="keep what --json has, and go on after it")
    options = parser.parse_args(arguments)
    names = options.names or list(WORKLOADS)
    prunes = options.prune.split(",")
    wrong = [name for name in names if name not in WORKLOADS] + [
        prune for prune in prunes if prune not in ("egraph", "z3", "none")
    ]
    if wrong:
        parser.error(f"unknown: {', '.join(wrong)}; workloads: {', '.join(WORKLOADS)}")
    with mistakes_told(parser):
        check_out(options.json, resume=options.resume)
        return _run(names, prunes, options)


def _run(names: Sequence[str], prunes: Sequence[str], options: argparse.Namespace) -> int:
    deadline = time.monotonic() + 60 * options.minutes
    known = resumed(options.json)["cases"] if options.resume else {}
    settings = {"seconds": options.seconds, "repeats": options.repeats, "seed": 0}
    document = begin("search", settings, machine(), known)
    document["peers"] = {name: [list(peer) for peer in peers] for name, peers in PEERS.items()}
    in_order = sorted(prunes, key=("egraph", "z3", "none").index)  # the ablations need far more memory
    cases = [name if prune == "egraph" else f"{name}/{prune}" for prune in in_order for name in names]
    results = Results(cases, options.json, document, _means)

    search(WORKLOADS["softmax"].function, *WORKLOADS["softmax"].inputs())  # imports
    print(_HEAD)
    rows = []
    try:
        for case in cases:
            if case in results.records:
                continue
            if time.monotonic() > deadline:
                print(f"not reached: {', '.join(one for one in cases if one not in results.records)}")
                break
            name, _, prune = case.partition("/")
            rows.append(measure(name, prune or "egraph", options.seconds, options.repeats))
            print(_line(rows[-1]), flush=True)
            if not prune:
                document["peak_mib"] = round(_peak_mib())
            results.keep(case, rows[-1].record())
    except KeyboardInterrupt:
        print("interrupted; what was measured is kept")
    _print_summary(rows, document.get("peak_mib", 0))
    if options.json:
        print(f"written: {options.json}")
    return 0 if results.records else 1


def _means(records: Iterable[Mapping[str, Any]]) -> dict[str, dict[str, dict[str, Any]]]:
    return geometric_means(records, "prune")


_HEAD = (
    f"{'workload':22} {'prune':6} {'e-nodes':>7} {'sat ms':>7} {'tensors':>8} {'derived':>8} "
    f"{'graphs':>6} {'total ms':>9}  {'':9} others"
)


def _line(row: Row) -> str:
    state = "complete" if not row.truncated else "truncated" if row.goal_reached else "no goal"
    peers = (
        "" if row.prune != "egraph" else "; ".join(_peer(row, peer) for peer in PEERS.get(row.workload, ()))
    )
    return (
        f"{row.workload:22} {row.prune:6} {row.e_nodes:7} {row.saturate_ms:7.0f} {row.tensors:8} "
        f"{row.derivations:8} {row.graphs:6} {row.total_ms:9.0f}  {state:9} {peers}"
    ).rstrip()


def _peer(row: Row, peer: tuple[str, float | None, str]) -> str:
    system, seconds, how = peer
    if seconds is None:
        return f"{system}: {how}"
    return f"{system} {seconds:g} s = {seconds * 1e3 / row.total_ms:,.0f}x ({how})"


def _print_summary(rows: Sequence[Row], peak_mib: float) -> None:
    total = sum(row.total_ms for row in rows if row.prune == "egraph" and row.workload != "llama-layer")
    if total:
        print(f"\nall named workloads together: {total / 1e3:.2f} s (egraph; the llama layer apart)")
    base = {row.workload: row for row in rows if row.prune == "egraph"}
    for prune in ("z3", "none"):
        found = [(row, base[row.workload]) for row in rows if row.prune == prune and row.workload in base]
        if found:
            ratio = statistics.geometric_mean(row.total_ms / other.total_ms for row, other in found)
            missed = sum(not row.goal_reached for row, _ in found)
            print(
                f"--prune {prune}: {ratio:.0f} times as long in the geometric mean (a lower bound: stopped "
                f"at the limit), {missed} of {len(found)} goals not reached"
            )
    if peak_mib:
        print(f"peak memory of the searches with e-graph: {peak_mib:.0f} MiB")


def _peak_mib() -> float:
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak / (1 << 20 if sys.platform == "darwin" else 1 << 10)


if __name__ == "__main__":
    raise SystemExit(main())
