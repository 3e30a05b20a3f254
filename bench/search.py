"""How long the search takes for every named workload, beside what the field's systems need.

    python -m bench.search                            the table
    python -m bench.search --prune egraph,z3,none     the ablation: what the pruning is worth
    python -m bench.search --json OUT                 the same as data

Measured: the search for each workload, several times; the table has the median. Against: a yardstick, some
work of the same kind that no change of ours touches, in turns with the searches; two results are compared
by it. Imports and the first trace are not counted, since a process pays them once.
"""

import argparse
import resource
import statistics
import sys
import time
from collections.abc import Iterable, Sequence

from superopt.bench.floors import yardstick
from superopt.bench.harness.command import Parser, above_zero, check_names, check_out, from_one, listed
from superopt.bench.harness.records import Means, Record, geometric_means, launch_record
from superopt.bench.harness.results import Results, begin, machine, resumed
from superopt.driver import SearchOptions, search
from superopt.tune.measure import Times
from superopt.workloads import WORKLOADS

PRUNES = ("egraph", "z3", "none")
_LONG_US = 5e6  # a search that takes longer is measured once

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


def measure(name: str, prune: str, seconds: float, repeats: int) -> Record:
    """Return the record of one workload under one way of pruning: the median of several searches."""
    workload = WORKLOADS[name]
    inputs = workload.inputs()
    options = SearchOptions(prune=prune, seconds=seconds)  # type: ignore[arg-type]
    ours, beside = Times([]), Times([])
    for _ in range(repeats):
        start = time.perf_counter()
        yardstick()
        beside.us.append((time.perf_counter() - start) * 1e6)
        start = time.perf_counter()
        result = search(workload.function, *inputs, name=name, options=options)
        ours.us.append((time.perf_counter() - start) * 1e6)
        if ours.us[-1] > _LONG_US:
            break
    stats = [region.statistics for region in result.regions]
    return {
        "case": _named(name, prune),
        **launch_record({"superopt": ours, "yardstick": beside}, "superopt", "yardstick"),
        "workload": name,
        "prune": prune,
        "regions": len(result.regions),
        "e_nodes": sum(one.e_nodes for one in stats),
        "saturate_ms": sum(one.phase_ms.get("saturate", 0.0) for one in stats),
        "tensors": sum(one.tensors for one in stats),
        "derivations": sum(one.derivations for one in stats),
        "graphs": sum(one.graphs for one in stats),
        "total_ms": statistics.median(ours.us) / 1e3,
        "slowest_ms": max(ours.us) / 1e3,
        # whether a graph was derived from what was explored, not only kept from the input
        "goal_reached": all(region.reached for region in result.regions),
        "truncated": list(result.truncated),
    }


def _named(workload: str, prune: str) -> str:
    return workload if prune == "egraph" else f"{workload}/{prune}"


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the benchmark; return the exit code."""
    parser = Parser("search", __doc__)
    add = parser.add_argument
    add("names", nargs="*", metavar="NAME", help="workloads (default: all)")
    add("--prune", default="egraph", help=f"one or several of {', '.join(PRUNES)}, by commas")
    add("--seconds", type=above_zero, default=20.0, help="limit of one search (default: 20)")
    add("--repeats", type=from_one, default=3, help="searches per workload (default: 3)")
    parser.add_results(minutes=60.0)
    return parser.run(arguments, _run)


def _run(options: argparse.Namespace) -> int:
    names, prunes = options.names or list(WORKLOADS), listed(options.prune)
    check_names("NAME", names, list(WORKLOADS))
    check_names("--prune", prunes, PRUNES)
    check_out(options.json, resume=options.resume)
    known = resumed(options.json, resume=options.resume)["cases"]
    settings = {"seconds": options.seconds, "repeats": options.repeats, "seed": 0}
    document = begin("search", settings, machine(), known)
    document["peers"] = {name: [list(peer) for peer in peers] for name, peers in PEERS.items()}
    in_order = sorted(prunes, key=PRUNES.index)  # the ablations need far more memory
    cases = [_named(name, prune) for prune in in_order for name in names]
    results = Results(cases, options.json, document, _means)

    search(WORKLOADS["softmax"].function, *WORKLOADS["softmax"].inputs())  # imports
    print(_HEAD)
    rows = []
    try:
        for case in results.left(options.minutes):
            name, _, prune = case.partition("/")
            rows.append(measure(name, prune or "egraph", options.seconds, options.repeats))
            print(_line(rows[-1]), flush=True)
            if not prune:
                document["peak_mib"] = round(_peak_mib())
            results.keep(case, rows[-1])
    except KeyboardInterrupt:
        print("interrupted; what was measured is kept")
    if missing := [case for case in cases if case not in results.records]:
        print(f"not reached: {', '.join(missing)}")
    _print_summary(rows, document.get("peak_mib", 0))
    if options.json:
        print(f"written: {options.json}")
    return 0 if results.records else 1


def _means(records: Iterable[Record]) -> Means:
    return geometric_means(records, "prune")


_HEAD = (
    f"{'workload':22} {'prune':6} {'e-nodes':>7} {'sat ms':>7} {'tensors':>8} {'derived':>8} "
    f"{'graphs':>6} {'total ms':>9}  {'':9} others"
)


def _line(row: Record) -> str:
    state = "complete" if not row["truncated"] else "truncated" if row["goal_reached"] else "no goal"
    peers = PEERS.get(row["workload"], ()) if row["prune"] == "egraph" else ()
    shown = (
        "{workload:22} {prune:6} {e_nodes:7} {saturate_ms:7.0f} {tensors:8} {derivations:8} {graphs:6}"
        " {total_ms:9.0f}  "
    ).format(**row)
    return f"{shown}{state:9} {'; '.join(_peer(row, peer) for peer in peers)}".rstrip()


def _peer(row: Record, peer: tuple[str, float | None, str]) -> str:
    system, seconds, how = peer
    if seconds is None:
        return f"{system}: {how}"
    return f"{system} {seconds:g} s = {seconds * 1e3 / row['total_ms']:,.0f}x ({how})"


def _print_summary(rows: Sequence[Record], peak_mib: float) -> None:
    base = {row["workload"]: row["total_ms"] for row in rows if row["prune"] == "egraph"}
    if total := sum(ms for name, ms in base.items() if name != "llama-layer"):
        print(f"\nall named workloads together: {total / 1e3:.2f} s (egraph; the llama layer apart)")
    for prune in PRUNES[1:]:
        found = [row for row in rows if row["prune"] == prune and row["workload"] in base]
        if found:
            ratio = statistics.geometric_mean(row["total_ms"] / base[row["workload"]] for row in found)
            missed = sum(not row["goal_reached"] for row in found)
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
