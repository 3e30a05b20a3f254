"""How fast rules are discovered, how much memory that takes, and what each stage leaves.

    python -m bench.discover                              the table
    python -m bench.discover all-3 all-3/2 --json OUT     these cases, with results as data
    python -m bench.discover taso-3 --rules rules.json    one case, with its rules

A case is a set of operators and the size of graphs; `/2` is the same with two workers. Each runs in a process
of its own, so that its peak of memory is its own. Beside it stands TASO's generator, whose operators and
inputs are others: its numbers say what the field is used to, they are no race.
"""

import argparse
import multiprocessing
import statistics
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path

from superopt.bench.discover.cases import CASES
from superopt.bench.discover.measured import measure
from superopt.bench.harness.command import Parser, check_names, check_out, from_one
from superopt.bench.harness.records import Record
from superopt.bench.harness.results import Results, begin, machine, resumed
from superopt.errors import InputError

WORKERS = (1, 2)
PEERS = (
    "TASO's generator, 27 operator templates, one thread of a machine like this one: of 2 operators 58,176 "
    "graphs, 27 rules, 0.5 s; of 3 operators 16,405,411 graphs, 619 rules, 177 s, 7.1 GB, and 198 s to prove "
    "603 of them"
)


def names_of_cases() -> list[str]:
    """Return every case with each number of workers."""
    return [name if count == 1 else f"{name}/{count}" for name in CASES for count in WORKERS]


def apart(case: str, repeats: int, rules: Path | None) -> Record:
    """Return the record of the median of several runs, each in a process of its own."""
    context = multiprocessing.get_context("spawn")
    records = []
    for _ in range(repeats):
        with ProcessPoolExecutor(1, mp_context=context) as pool:
            records.append(pool.submit(measure, case, rules).result())
    middle = statistics.median_low(record["seconds"] for record in records)
    chosen = next(record for record in records if record["seconds"] == middle)
    return {"case": case, "repeats": repeats, **chosen}


_HEAD = (
    f"{'case':12} {'graphs':>9} {'graphs/s':>9} {'equal':>7} {'kept':>5} {'closed':>6} {'derived':>7} "
    f"{'rules':>5} {'proven':>6} {'find s':>7} {'prune s':>7} {'prove s':>7} {'all s':>7} {'cpu s':>7} "
    f"{'MiB':>5}"
)


def line(record: Record) -> str:
    """Return a record as a line of the table."""
    counts, ms = record["counts"], record["ms"]
    find = ms["enumerate"] + ms["evaluate"] + ms["compare"]
    return (
        f"{record['case']:12} {record['graphs']:9,} {record['graphs_per_second']:9,.0f} {counts['equal']:7,} "
        f"{counts['candidates']:5,} {counts['closed']:6,} {counts['followed']:7,} {counts['rules']:5} "
        f"{record['proven']:6} {find / 1e3:7.2f} {(ms['prune'] + ms['joint']) / 1e3:7.2f} "
        f"{ms['prove'] / 1e3:7.2f} {record['seconds']:7.2f} {record['cpu_seconds']:7.2f} "
        f"{record['peak_mib']:5.0f}"
    )


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the benchmark; return the exit code."""
    parser = Parser("discover", __doc__)
    parser.add_argument("names", nargs="*", metavar="CASE", help="only these (default: all)")
    parser.add_argument("--repeats", type=from_one, default=3, help="runs per case (default: 3)")
    parser.add_argument("--rules", type=Path, metavar="FILE", help="write the rules of the one case")
    parser.add_results(minutes=30.0)
    return parser.run(arguments, _run)


def _run(options: argparse.Namespace) -> int:
    names = options.names or names_of_cases()
    check_names("CASE", names, names_of_cases())
    check_out(options.json, resume=options.resume)
    if options.rules is not None and len(names) != 1:
        raise InputError(f"--rules takes the rules of one case, and {len(names)} are asked for; name one")
    known = resumed(options.json, resume=options.resume)["cases"]
    document = begin("discover", {"repeats": options.repeats, "seed": 0}, machine(), known)
    document["peers"] = [PEERS]
    results = Results(names, options.json, document, lambda records: {})
    print(_HEAD)
    try:
        for case in results.left(options.minutes):
            record = apart(case, options.repeats, options.rules)
            print(line(record), flush=True)
            results.keep(case, record)
    except KeyboardInterrupt:
        print("interrupted; what was measured is kept")
    print(f"beside it: {PEERS}")
    if options.json:
        print(f"written: {options.json}")
    return 0 if results.records else 1


if __name__ == "__main__":
    raise SystemExit(main())
