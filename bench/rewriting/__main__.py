"""What discovered rules gain on whole programs: equality saturation, measured costs and an exact extraction.

    python -m bench.rewriting                    both programs
    python -m bench.rewriting nasnet --json OUT  one, with the results as data

The rules are discovered first, and only those that are proven are used. The cost of every operator that
occurs is measured on this machine. The program as given, the cheapest by trees and the cheapest of all then
run in turns, and must agree.
"""

import argparse
import time
from collections.abc import Sequence

from superopt.bench.harness.command import Parser, above_zero, check_names, check_out, from_one
from superopt.bench.harness.records import Record
from superopt.bench.harness.results import Results, begin, machine, resumed
from superopt.bench.rewriting.graphs import GRAPHS, Workload
from superopt.bench.rewriting.rewrite import raced, rewriting_of
from superopt.frontier.engine import explore
from superopt.rules.discover.discover import default_setting, discover
from superopt.rules.discover.language.rule import Rule


def rules_of(work: Workload) -> list[Rule]:
    """Return the proven rules of the sets of operators that a program is given."""
    found = []
    for operators, constants, size in work.sets:
        made = discover(default_setting(size, operators, constants=constants), size, explore)
        found += [rule for rule, proof in made.rules if proof.status == "proven"]
    return found


def measure(name: str, seconds: float, rounds: int) -> Record:
    """Return the record of one program."""
    import torch

    torch.set_num_threads(1)
    work = GRAPHS[name]()
    began = time.perf_counter()
    rules = rules_of(work)
    discovered_s = time.perf_counter() - began
    made = rewriting_of(work.program, work.weights, rules, seconds=seconds)
    return {
        "case": name,
        "rules": [rule.name for rule in rules],
        "nodes": made.nodes,
        "complete": made.complete,
        "cost_us": dict(made.cost_us),
        "optimal": made.optimal,
        "median_us": raced(made, work.weights, rounds),
        "seconds": {"discover": discovered_s, "saturate": made.saturated_s, "extract": made.extracted_s},
        "program": made.programs["exact"].text(),
    }


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the benchmark; return the exit code."""
    parser = Parser("rewriting", __doc__)
    parser.add_argument("names", nargs="*", metavar="CASE", help="only these (default: all)")
    parser.add_argument(
        "--rounds", type=from_one, default=51, help="runs of each program, in turns (default 51)"
    )
    parser.add_argument("--seconds", type=above_zero, default=120.0, help="for the extraction (default 120)")
    parser.add_results(minutes=30.0)
    return parser.run(arguments, _run)


def _run(options: argparse.Namespace) -> int:
    names = options.names or list(GRAPHS)
    check_names("CASE", names, list(GRAPHS))
    check_out(options.json, resume=options.resume)
    known = resumed(options.json, resume=options.resume)["cases"]
    document = begin("rewriting", {"rounds": options.rounds}, machine(), known)
    results = Results(names, options.json, document, lambda records: {})
    for case in results.left(options.minutes):
        record = measure(case, options.seconds, options.rounds)
        cost, median = record["cost_us"], record["median_us"]
        print(
            f"{case}: {len(record['rules'])} rules, {record['nodes']:,} nodes; cost {cost['given']:,.0f} µs, "
            f"{cost['trees']:,.0f} by trees, {cost['exact']:,.0f} exact; measured {median['given']:,.0f}, "
            f"{median['trees']:,.0f}, {median['exact']:,.0f} µs\n  {record['program']}"
        )
        results.keep(case, record)
    return 0 if results.records else 1


if __name__ == "__main__":
    raise SystemExit(main())
