"""How long the search takes for every named workload, beside what the field's systems need.

    python -m bench.search                            the table
    python -m bench.search --prune egraph,z3,none     the ablation: what the pruning is worth
    python -m bench.search --json OUT                 the same as data

Imports and the first trace are not counted: they are paid once per process. Each workload is
searched several times; the table has the median.
"""

import argparse
import json
import platform
import resource
import statistics
import sys
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from pathlib import Path

from superopt import __version__
from superopt.driver import SearchOptions, search
from superopt.workloads import WORKLOADS

VERSION = 1
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


def measure(name: str, prune: str, seconds: float, repeats: int) -> Row:
    """Search one workload several times; return the median times."""
    workload = WORKLOADS[name]
    inputs = workload.inputs()
    options = SearchOptions(prune=prune, seconds=seconds)  # type: ignore[arg-type]
    times = []
    for _ in range(repeats):
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
    )


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the benchmark; return the exit code."""
    parser = argparse.ArgumentParser(
        prog="python -m bench.search", description="How long the search takes for every named workload."
    )
    parser.add_argument("names", nargs="*", metavar="NAME", help="workloads (default: all)")
    parser.add_argument("--prune", default="egraph", help="egraph, z3, none: one or several, by commas")
    parser.add_argument("--seconds", type=float, default=20.0, help="limit of one search (default: 20)")
    parser.add_argument("--repeats", type=int, default=3, help="searches per workload (default: 3)")
    parser.add_argument("--json", type=Path, default=None, help=f"write the results here, e.g. {RESULTS}")
    options = parser.parse_args(arguments)
    names = options.names or list(WORKLOADS)
    prunes = options.prune.split(",")
    wrong = [name for name in names if name not in WORKLOADS] + [
        prune for prune in prunes if prune not in ("egraph", "z3", "none")
    ]
    if wrong:
        parser.error(f"unknown: {', '.join(wrong)}; workloads: {', '.join(WORKLOADS)}")

    search(WORKLOADS["softmax"].function, *WORKLOADS["softmax"].inputs())  # imports
    print(_HEAD)
    rows = []
    peak = 0.0
    for prune in sorted(prunes, key=("egraph", "z3", "none").index):  # the ablations need far more memory
        for name in names:
            rows.append(measure(name, prune, options.seconds, options.repeats))
            print(_line(rows[-1]), flush=True)
        if prune == "egraph":
            peak = _peak_mib()
    _print_summary(rows, peak)
    if options.json:
        options.json.parent.mkdir(parents=True, exist_ok=True)
        options.json.write_text(json.dumps(_document(rows, peak), indent=1) + "\n")
        print(f"written: {options.json}")
    return 0


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


def _document(rows: Sequence[Row], peak_mib: float) -> dict[str, object]:
    import torch

    return {
        "format": VERSION,
        "suite": "search",
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        "superopt": __version__,
        "torch": torch.__version__,
        "machine": {"cpu": platform.processor() or platform.machine(), "python": platform.python_version()},
        "peak_mib": round(peak_mib),
        "rows": [asdict(row) for row in rows],
        "peers": {name: [list(peer) for peer in peers] for name, peers in PEERS.items()},
    }


if __name__ == "__main__":
    raise SystemExit(main())
