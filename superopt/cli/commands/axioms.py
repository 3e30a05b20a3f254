"""`superopt rules check`: every axiom with its proof, or why it needs none; or the rules of a file."""

import argparse
from pathlib import Path
from typing import Any

from superopt.cli.rulesets import add_actions, check_file
from superopt.cli.screen import Code, Text, print_blocks, print_json

__all__ = ["add_command"]


def add_command(commands: Any) -> None:
    """Add `superopt rules`."""
    parser: argparse.ArgumentParser = commands.add_parser(
        "rules",
        help="prove the axioms; discover, prove and apply rules",
        description="What the search rests on, and the rules between graphs that can be discovered.",
    )
    actions = parser.add_subparsers(metavar="ACTION", dest="action")
    check: argparse.ArgumentParser = actions.add_parser(
        "check",
        help="prove each axiom that claims an identity",
        description="Proves each axiom that claims an identity, and prints the table with its status. With a "
        "FILE of discovered rules, proves these again, with fresh numbers, and checks the operators' axioms.",
        epilog="Exit code 1 if a proof fails, 3 if a rule of the file is neither proven nor refuted.",
    )
    check.add_argument("file", metavar="FILE", type=Path, nargs="?", help="a file of discovered rules")
    check.add_argument("--json", action="store_true", help="print JSON")
    check.set_defaults(run=_check)
    add_actions(actions)


def _check(arguments: argparse.Namespace) -> int:
    if arguments.file is not None:
        return check_file(arguments.file, json=arguments.json)
    from superopt.rules.proofs import format_proofs, prove_axioms, to_json

    proofs = prove_axioms()
    failed = [proof.axiom.name for proof in proofs if not proof.holds]
    if arguments.json:
        print_json({"schema": "superopt.axioms/1", "failed": failed, "axioms": to_json(proofs)})
        return 1 if failed else 0
    ending = f"not proved: {', '.join(failed)}" if failed else "each holds"
    print_blocks(
        [
            Code(format_proofs(proofs)),
            Text(f"{len(proofs)} axioms, {ending}", "bold red" if failed else "bold"),
        ]
    )
    return 1 if failed else 0
