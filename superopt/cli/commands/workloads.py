"""`superopt list`: the named workloads, their default sizes and what each computes."""

import argparse
from typing import Any

from superopt.cli.screen import Table, print_blocks, print_json

__all__ = ["add_command"]


def add_command(commands: Any) -> None:
    """Add `superopt list`."""
    parser: argparse.ArgumentParser = commands.add_parser(
        "list",
        help="the named workloads",
        description="The named workloads: programs to search by name, with sizes to change (--size M=8).",
    )
    parser.add_argument("--json", action="store_true", help="print JSON")
    parser.set_defaults(run=_run)


def _run(arguments: argparse.Namespace) -> int:
    from superopt.workloads import WORKLOADS

    if arguments.json:
        print_json(
            {
                "schema": "superopt.workloads/1",
                "workloads": [
                    {
                        "name": one.name,
                        "summary": one.summary,
                        "tensors": {name: list(dims) for name, dims in one.tensors.items()},
                        "sizes": dict(one.sizes),
                    }
                    for one in WORKLOADS.values()
                ],
            }
        )
        return 0
    rows = tuple(
        (
            one.name,
            " ".join(f"{name}[{','.join(dims)}]" for name, dims in one.tensors.items()),
            " ".join(f"{name}={size}" for name, size in one.sizes.items()),
            one.summary,
        )
        for one in WORKLOADS.values()
    )
    print_blocks([Table(("name", "tensors", "default sizes", "what it computes"), rows)])
    return 0
