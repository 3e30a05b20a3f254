"""`superopt rules discover|show|apply`, and the part of `check` that proves discovered rules."""

import argparse
import os
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from superopt.cli.live import LiveLine
from superopt.cli.options import add_engine, positive, whole, workers
from superopt.cli.screen import Block, Table, Text, print_blocks, print_json
from superopt.cli.writing import check_folder, check_place
from superopt.errors import InputError, reason_of

if TYPE_CHECKING:
    from superopt.rules.discover.apply import Program
    from superopt.rules.discover.language.rule import Rule
    from superopt.rules.discover.proof.prove import Proof
    from superopt.rules.discover.search.enumerate import Explored, Explorer
    from superopt.rules.discover.search.graphs import Graphs

__all__ = ["add_actions", "check_file"]

_EXAMPLES = """\
examples:
  superopt rules discover --size 2 -o rules.json
  superopt rules discover --size 3 --operators add,matmul -o rules.json
  superopt rules discover --operators avg_pool,relu -o pools.json
  superopt rules show rules.json
  superopt rules apply rules.json \\
      "a[m,k] b[k,n] c[k,n]: add(matmul(a,b), matmul(a,c))"
  superopt rules apply rules.json --cheapest --weights w,v \\
      "a[64,512] w[512,4] v[512,4]: matmul(a,w), matmul(a,v)"
"""
_UNKNOWN = 3  # the exit code of an answer that is neither yes nor no


def add_actions(actions: Any) -> None:
    """Add the actions for rules that are discovered."""
    discover: argparse.ArgumentParser = actions.add_parser(
        "discover",
        help="find the rules between small graphs, and prove them",
        description="Enumerates all small graphs of some operators, finds which are equal, drops the "
        "equalities that follow from others, and proves the rest.",
        epilog=_EXAMPLES,
    )
    discover.add_argument(
        "--size", type=positive, default=2, metavar="N", help="operators in a graph (default 2)"
    )
    discover.add_argument("--operators", metavar="A,B", help="these operators (default: those of matrices)")
    discover.add_argument("--constants", metavar="A,B", help="constants among the inputs, as eye or dirac")
    discover.add_argument("--workers", type=workers, default=1, metavar="N", help="processes (default 1)")
    add_engine(discover)
    discover.add_argument(
        "--checkpoint",
        type=Path,
        metavar="DIR",
        help="save each finished level and the equalities in this folder",
    )
    discover.add_argument("--resume", action="store_true", help="go on from --checkpoint")
    discover.add_argument(
        "--seed", type=whole, default=0, metavar="SEED", help="of the numbers that graphs are tried with"
    )
    discover.add_argument("-o", "--output", metavar="FILE", required=True, help="the file of rules to write")
    discover.add_argument("--json", action="store_true", help="print JSON")
    discover.set_defaults(run=_discover)
    show: argparse.ArgumentParser = actions.add_parser(
        "show",
        help="print discovered rules, or why an equality is none of them",
        description="Prints the rules of a file with their proofs, or says why an equality is none of them.",
    )
    show.add_argument("file", metavar="FILE", type=Path, help="a file of rules")
    show.add_argument(
        "--dropped", action="store_true", help="the equalities dropped one by one, with reasons"
    )
    show.add_argument("--why", metavar="RULE", help="say why this equality is no rule of its own")
    show.add_argument("--json", action="store_true", help="print JSON")
    show.set_defaults(run=_show)
    apply: argparse.ArgumentParser = actions.add_parser(
        "apply",
        help="print the programs that rules make of one",
        description="Prints the programs that proven rules make of one, those of the fewest operators first; "
        "or the cheapest of all, by costs that are measured here.",
        epilog=_EXAMPLES,
    )
    apply.add_argument("file", metavar="FILE", type=Path, help="a file of rules")
    apply.add_argument(
        "program",
        metavar="PROGRAM",
        help="inputs with shapes, a colon, and the outputs; or a file with that; or bert or nasnet",
    )
    apply.add_argument("--steps", type=positive, default=2, metavar="N", help="rules in a row (default 2)")
    apply.add_argument("--most", type=positive, default=1000, metavar="N", help="programs (default 1000)")
    apply.add_argument("--show", type=positive, default=10, metavar="N", help="programs printed (default 10)")
    cheapest = apply.add_argument_group("the cheapest program of all")
    cheapest.add_argument(
        "--cheapest",
        action="store_true",
        help="measure every operator, and find the program of the least total (superopt[rules])",
    )
    cheapest.add_argument(
        "--weights", metavar="A,B", help="inputs that stay as they are: what is made of them alone is free"
    )
    cheapest.add_argument(
        "--seconds", type=positive, default=60, metavar="N", help="for the choice (default 60)"
    )
    cheapest.add_argument(
        "--rounds", type=positive, default=21, metavar="N", help="runs of each program (default 21)"
    )
    apply.add_argument("--json", action="store_true", help="print JSON")
    apply.set_defaults(run=_apply)


def _discover(arguments: argparse.Namespace) -> int:
    from superopt.frontier.engine.engines import in_ranks

    if arguments.resume and arguments.checkpoint is None:
        raise InputError("--resume needs the folder to resume from: give --checkpoint DIR")
    return in_ranks(arguments.engine, arguments.workers, arguments.given, lambda: _discovered(arguments))


def _explorer(arguments: argparse.Namespace) -> "Explorer":
    """Return the engine that was asked for, with a checkpoint for each space of graphs."""
    from superopt.frontier.engine import explore
    from superopt.frontier.engine.engines import transport_named

    folder: Path | None = arguments.checkpoint
    if folder is not None:
        check_folder("--checkpoint", folder)
        folder.mkdir(parents=True, exist_ok=True)

    def explored(graphs: "Graphs") -> "Explored":
        path = None if folder is None else folder / f"graphs-{graphs.label}.ckpt"
        return explore(
            graphs,
            workers=arguments.workers,
            transport=transport_named(arguments.engine),
            checkpoint=path,
            resume=arguments.resume and path is not None and path.exists(),
        )

    return explored


def _discovered(arguments: argparse.Namespace) -> int:
    from superopt.rules.discover.discover import MATRICES, default_setting, discover
    from superopt.rules.discover.store import write_rules

    path, folder = check_place(arguments.output), arguments.checkpoint
    names = MATRICES if arguments.operators is None else _listed("--operators", arguments.operators)
    constants = [] if arguments.constants is None else _listed("--constants", arguments.constants)
    setting = default_setting(arguments.size, names, arguments.seed, constants)
    with LiveLine() as show:
        found = discover(
            setting,
            arguments.size,
            _explorer(arguments),
            saved=folder and folder / f"equalities-{arguments.size}.json",
            resume=arguments.resume,
            tell=show,
        )
    write_rules(found, path)
    statuses = [proof.status for _, proof in found.rules]
    if arguments.json:
        ms = {name: round(ms, 1) for name, ms in found.ms.items()}
        told = {"counts": dict(found.counts), "ms": ms, "statuses": _tally(statuses)}
        print_json({"schema": "superopt.discovery/1", "file": str(path), **told})
        return _code(statuses)
    counts = found.counts
    rows = (
        ("graphs made", counts["graphs"], "each once; separate outputs are graphs of their own"),
        ("tensors", counts["terms"], "inputs and results of these graphs"),
        ("equalities", counts["equal"], "between a tensor and the first one of its fingerprint"),
        ("of parts", counts["replaced"], "dropped: a part of one side can be replaced"),
        ("renamed", counts["renamed"], "dropped: others with renamed inputs"),
        ("closed", counts["closed"], "dropped: follow among these tensors from rules kept before"),
        (
            "derived",
            counts["followed"],
            "dropped one by one: follow by saturation, or are wrong at other sizes",
        ),
        ("rules", counts["rules"], f"of which {counts['joint']} make two outputs at once"),
    )
    seconds = ", ".join(f"{name} {ms / 1e3:.1f}" for name, ms in found.ms.items())
    print_blocks(
        [
            Table(
                ("stage", "count", "what"), tuple((name, f"{count:,}", what) for name, count, what in rows)
            ),
            Text(f"seconds: {seconds}"),
            Text(f"{_shown(statuses)}; written to {path}", "bold"),
        ]
    )
    return _code(statuses)


def _show(arguments: argparse.Namespace) -> int:
    from superopt.rules.discover.language.rule import parse_rule, rule_text
    from superopt.rules.discover.store import read_rules
    from superopt.rules.discover.why import why
    from superopt.verify.seeds import fresh_seed

    file = read_rules(arguments.file)
    if arguments.why is not None:
        answer = why(parse_rule(arguments.why), [rule for rule, _ in file.rules], fresh_seed())
        if arguments.json:
            print_json({"schema": "superopt.rule-reason/1", "rule": arguments.why, "reason": answer})
        else:
            print_blocks([Text(answer)])
        return 0
    if arguments.json:
        rules = [{"name": r.name, "rule": rule_text(r), "status": p.status} for r, p in file.rules]
        dropped = [{"rule": one.rule, "reason": one.reason} for one in file.dropped]
        print_json({"schema": "superopt.rules/1", "rules": rules, "dropped": dropped})
        return 0
    blocks: list[Block] = [_table(file.rules)]
    if arguments.dropped:
        blocks.append(Table(("dropped", "why"), tuple((one.rule, one.reason) for one in file.dropped)))
    else:
        blocks.append(
            Text(f"{len(file.rules)} rules; {len(file.dropped)} dropped one by one (--dropped)", "bold")
        )
    print_blocks(blocks)
    return 0


def _apply(arguments: argparse.Namespace) -> int:
    from superopt.rules.discover.apply import Program, rewritten
    from superopt.rules.discover.language.rule import parse_program
    from superopt.rules.discover.proof.check import counterexample
    from superopt.rules.discover.store import read_rules

    file = read_rules(arguments.file)
    text, weights = _program(arguments.program)
    program = Program(*parse_program(text))
    rules = [rule for rule, proof in file.rules if proof.status == "proven"]
    for rule in rules:  # a file that was changed may say so of any rule
        if (refuted := counterexample(rule, 0)) is not None:
            raise InputError(f"{str(arguments.file)!r}: rule {rule.name!r} is false: {refuted.text()}")
    if arguments.cheapest:
        if arguments.weights is not None:
            weights = _listed("--weights", arguments.weights)
        return _cheapest(arguments, program, weights, rules)
    if arguments.weights is not None:
        raise InputError("--weights goes with --cheapest: without costs no input is free")
    made = list(rewritten(program, rules, steps=arguments.steps, most=arguments.most))
    made.sort(key=lambda one: (one.program.operators, len(one.rules), one.program.text()))
    shown = made[: arguments.show]
    if arguments.json:
        found = [
            {"operators": one.program.operators, "program": one.program.text(), "rules": list(one.rules)}
            for one in shown
        ]
        told = {"programs": len(made), "given_operators": program.operators, "found": found}
        print_json({"schema": "superopt.rewritten/1", **told})
        return 0 if made else 1
    rows = [(str(program.operators), program.text(), "as given")]
    rows += [(str(one.program.operators), one.program.text(), ", ".join(one.rules)) for one in shown]
    print_blocks(
        [Table(("operators", "program", "rules"), tuple(rows)), Text(f"{len(made)} equal programs", "bold")]
    )
    return 0 if made else 1


def _program(given: str) -> tuple[str, list[str]]:
    """Return the text of a program, which may be in a file or have a name, and its weights where it says."""
    from superopt.bench.rewriting.graphs import GRAPHS

    if given in GRAPHS:
        work = GRAPHS[given]()
        return work.program.whole_text(), list(work.weights)
    if ":" not in given and os.path.isfile(given):
        try:
            return " ".join(Path(given).read_text(encoding="utf-8").split()), []
        except (OSError, ValueError) as error:
            raise InputError(f"cannot read {given!r}: {reason_of(error)}") from error
    return given, []


def _cheapest(
    arguments: argparse.Namespace, program: "Program", weights: Sequence[str], rules: "Sequence[Rule]"
) -> int:
    """Print the cheapest program that rules make of one; the exit code is 1 where that is the given one."""
    from superopt.bench.rewriting.rewrite import raced, rewriting_of

    with LiveLine() as show:
        show("finding all equal programs, measuring their operators and choosing the cheapest")
        found = rewriting_of(program, weights, rules, seconds=arguments.seconds)
        median_us = raced(found, weights, arguments.rounds)
    best = found.programs["exact"]
    better = found.cost_us["exact"] < found.cost_us["given"]
    if arguments.json:
        told = {"cost_us": dict(found.cost_us), "median_us": median_us, "optimal": found.optimal}
        sizes = {"nodes": found.nodes, "complete": found.complete}
        print_json({"schema": "superopt.cheapest/1", "program": best.whole_text(), **told, **sizes})
        return 0 if better else 1
    names = {"given": "as given", "trees": "cheapest by trees", "exact": "cheapest of all"}
    rows = tuple(
        (
            names[kind],
            str(one.operators),
            f"{found.cost_us[kind]:,.0f} µs",
            f"{median_us[kind]:,.0f} µs",
        )
        for kind, one in found.programs.items()
    )
    limits = "" if found.complete else "; a limit ended the search for equal programs"
    limits += "" if found.optimal else "; --seconds ended the choice"
    print_blocks(
        [
            Table(("program", "operators", "cost", "measured"), rows),
            Text(best.whole_text()),
            Text(f"{len(rules)} rules, {found.nodes:,} ways to make a tensor{limits}", "bold"),
        ]
    )
    return 0 if better else 1


def check_file(path: Path, *, json: bool) -> int:
    """Prove the rules of a file again, with fresh numbers, and check the axioms that the proofs rest on."""
    from superopt.rules.discover.proof.prove import check_axioms, prove_each
    from superopt.rules.discover.store import read_rules
    from superopt.verify.seeds import fresh_seed

    file, seed = read_rules(path), fresh_seed()
    with LiveLine() as show:
        show("checking the axioms of the operators")
        given = [rule for rule, _ in file.rules]
        axioms = check_axioms(seed, given)
        found = prove_each(given, seed, lambda done: show(f"proving: {done} of {len(given)} rules"))
        proofs = list(zip(given, found, strict=True))
    wrong = [(rule, proof) for rule, proof in axioms if proof.status != "proven"]
    statuses = [proof.status for _, proof in (*proofs, *wrong)]
    if json:
        rules = [{"name": r.name, "status": p.status, "detail": p.detail} for r, p in proofs]
        bad = [{"name": r.name, "status": p.status, "detail": p.detail} for r, p in wrong]
        summary = {"axioms": len(axioms), "wrong_axioms": bad, "seed": seed}
        print_json({"schema": "superopt.checked-rules/1", **summary, "rules": rules})
        return _code(statuses)
    blocks: list[Block] = [_table([*proofs, *wrong])]
    ending = "each holds at small sizes" if not wrong else f"{len(wrong)} do not hold at small sizes"
    blocks.append(Text(f"{len(axioms)} axioms of operators, {ending}"))
    blocks.append(Text(f"{_shown([proof.status for _, proof in proofs])} (seed {seed})", "bold"))
    print_blocks(blocks)
    return _code(statuses)


def _table(rules: "Sequence[tuple[Rule, Proof]]") -> Table:
    from superopt.rules.discover.language.rule import rule_text

    rows = []
    for rule, proof in rules:
        detail = "" if proof.status == "proven" else proof.detail
        rows.append((rule.name, rule_text(rule), proof.status, detail))
    return Table(("name", "rule", "status", "detail"), tuple(rows))


def _listed(option: str, text: str) -> list[str]:
    names = [name.strip() for name in text.split(",") if name.strip()]
    if not names:
        raise InputError(f"{option} {text!r} names none; write names with commas, as in add,relu,matmul")
    return names


def _tally(statuses: Sequence[str]) -> dict[str, int]:
    from superopt.rules.discover.proof.prove import STATUSES

    return {status: statuses.count(status) for status in STATUSES}


def _shown(statuses: Sequence[str]) -> str:
    parts = [f"{count} {status}" for status, count in _tally(statuses).items() if count]
    return f"{len(statuses)} rules: {', '.join(parts)}" if parts else "no rules"


def _code(statuses: Sequence[str]) -> int:
    return 1 if "refuted" in statuses else _UNKNOWN if "unknown" in statuses else 0
