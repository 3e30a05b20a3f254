"""What discovered rules gain on whole programs: equality saturation, measured costs and an exact extraction.

    python -m bench.rewriting                    both programs
    python -m bench.rewriting nasnet --json OUT  one, with the results as data

The rules are discovered first, and only those that are proven are used. The cost of every operator that
occurs is measured on this machine. The program as given, the cheapest by trees and the cheapest of all then
run in turns, and must agree.
"""

import argparse
import time
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

from superopt.bench.harness.command import Parser, above_zero, check_names, check_out, from_one
from superopt.bench.harness.records import Record
from superopt.bench.harness.results import Results, begin, machine, resumed
from superopt.bench.rewriting.graphs import GRAPHS, Workload
from superopt.bench.rewriting.measured import MeasuredCosts, compiled
from superopt.frontier.engine import explore
from superopt.rules.discover.apply import Program
from superopt.rules.discover.discover import default_setting, discover
from superopt.rules.discover.language.constants import constant_named
from superopt.rules.discover.language.rule import Rule
from superopt.rules.discover.programs.extract import Extraction, cheapest, cheapest_trees
from superopt.rules.discover.programs.saturate import Choices, Saturation, choices_of


def rules_of(work: Workload) -> list[Rule]:
    """Return the proven rules of the sets of operators that a program is given."""
    found = []
    for operators, constants, size in work.sets:
        made = discover(default_setting(size, operators, constants=constants), size, explore)
        found += [rule for rule, proof in made.rules if proof.status == "proven"]
    return found


def inputs_for(work: Workload) -> dict[str, Any]:
    """Return random inputs of the program, and the constants that any rewritten program may need."""
    import torch

    generator = torch.Generator().manual_seed(0)
    made = {}
    for name, shape in work.program.inputs:
        sizes = [sum(map(int, word)) for word in shape]
        constant = constant_named(name)
        if constant is None:
            made[name] = torch.randn(sizes, generator=generator) * 0.05
        else:
            made[name] = torch.tensor(
                constant.holds(tuple(sizes)) * float(constant.share), dtype=torch.float32
            )
    return made


def program_of(work: Workload, choices: Choices, chosen: Extraction) -> Program:
    """Return an extracted program; a constant that a rule has brought in is one more input."""
    nodes = dict(chosen.chosen)
    outputs = tuple(choices.expression(nodes, made) for made in choices.outputs)
    known = dict(work.program.inputs)
    fresh = {node.name: node.words for node in nodes.values() if node.is_input and node.name not in known}
    return Program((*work.program.inputs, *fresh.items()), outputs)


def measure(name: str, seconds: float, rounds: int) -> Record:
    """Return the record of one program."""
    import torch

    torch.set_num_threads(1)
    work = GRAPHS[name]()
    began = time.perf_counter()
    rules = rules_of(work)
    discovered_s = time.perf_counter() - began
    began = time.perf_counter()
    choices = choices_of(work.program, rules, Saturation(rounds=5, joint_rounds=2, nodes=30_000))
    saturated_s = time.perf_counter() - began
    cost = MeasuredCosts(choices, work.weights)
    given = cheapest(choices_of(work.program, []), cost_of_given(work, cost))
    trees = cheapest_trees(choices, cost)
    began = time.perf_counter()
    best = cheapest(choices, cost, seconds=seconds)
    extracted_s = time.perf_counter() - began
    tensors = inputs_for(work)
    programs = {
        "given": work.program,
        "trees": program_of(work, choices, trees),
        "exact": program_of(work, choices, best),
    }
    functions: dict[str, Callable[[], Any]] = {}
    outputs = {}
    for kind, program in programs.items():
        weights = {n: tensors[n] for n in work.weights}
        for constant, shape in program.inputs:
            kept = constant_named(constant)
            if kept is not None:
                sizes = tuple(sum(map(int, word)) for word in shape)
                held = kept.holds(sizes) * float(kept.share)
                weights[constant] = torch.tensor(held, dtype=torch.float32)
        run = compiled(program, weights)
        free = {n: tensors[n] for n, _ in work.program.inputs if n not in weights}
        functions[kind] = partial(run, **free)
        outputs[kind] = functions[kind]()
    for kind in ("trees", "exact"):
        for one, other in zip(outputs["given"], outputs[kind], strict=True):
            torch.testing.assert_close(one, other, rtol=1e-3, atol=1e-4)
    times: dict[str, list[float]] = {kind: [] for kind in functions}
    with torch.no_grad():
        for _ in range(rounds):
            for kind, function in functions.items():
                started = time.perf_counter()
                function()
                times[kind].append(time.perf_counter() - started)
    medians = {kind: sorted(some)[len(some) // 2] * 1e6 for kind, some in times.items()}
    return {
        "case": name,
        "rules": [rule.name for rule in rules],
        "nodes": len(choices.nodes),
        "complete": choices.complete,
        "cost_us": {"given": given.cost, "trees": trees.cost, "exact": best.cost},
        "optimal": best.exact,
        "median_us": medians,
        "seconds": {"discover": discovered_s, "saturate": saturated_s, "extract": extracted_s},
        "program": programs["exact"].text(),
    }


def cost_of_given(work: Workload, cost: MeasuredCosts) -> MeasuredCosts:
    """Return the same costs for the e-graph of the program alone."""
    own = MeasuredCosts(choices_of(work.program, []), work.weights)
    own.share(cost)
    return own


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
