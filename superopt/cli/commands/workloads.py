"""`superopt list`: the named workloads, their default sizes and what each computes."""

import argparse
import textwrap
from typing import TYPE_CHECKING, Any

from superopt.cli.screen import Table, Text, print_blocks, print_json

if TYPE_CHECKING:
    from superopt.workloads import Workload

__all__ = ["add_command"]

_SIZES_WIDTH = 30


def add_command(commands: Any) -> None:
    """Add `superopt list`."""
    parser: argparse.ArgumentParser = commands.add_parser(
        "list",
        help="the named workloads",
        description="The named workloads: programs to search by name, with sizes to change (--size M=8).",
    )
    parser.add_argument("name", metavar="NAME", nargs="?", help="show one workload with its tensors")
    parser.add_argument("--json", action="store_true", help="print JSON")
    parser.set_defaults(run=_run)


def _run(arguments: argparse.Namespace) -> int:
    from superopt.cli.target import workload_named
    from superopt.workloads import WORKLOADS

    shown = list(WORKLOADS.values()) if arguments.name is None else [workload_named(arguments.name)]
    if arguments.json:
        print_json({"schema": "superopt.workloads/1", "workloads": [_json(one) for one in shown]})
    elif arguments.name is not None:
        print_blocks(_one(shown[0]))
    else:
        rows = tuple(row for one in shown for row in _rows(one))
        print_blocks([Table(("name", "default sizes", "what it computes"), rows)])
    return 0


def _rows(one: "Workload") -> list[tuple[str, ...]]:
    """Return the row of a workload, and another for sizes that it has no room for."""
    first, *rest = textwrap.wrap(_sizes(one), _SIZES_WIDTH)
    return [(one.name, first, one.summary), *(("", sizes, "") for sizes in rest)]


def _one(one: "Workload") -> list[Text]:
    tensors = " ".join(f"{name}[{','.join(dims)}]" for name, dims in one.tensors.items())
    size, value = next(iter(one.sizes.items()))
    return [
        Text(f"{one.name}: {one.summary}", "bold"),
        *(Text(f"  {line}") for line in textwrap.wrap(tensors, 96)),
        Text(f"  {_sizes(one)}"),
        Text(f"superopt search {one.name} --size {size}={value}", "dim"),
    ]


def _sizes(one: "Workload") -> str:
    return " ".join(f"{name}={size}" for name, size in one.sizes.items())


def _json(one: "Workload") -> dict[str, Any]:
    return {
        "name": one.name,
        "summary": one.summary,
        "tensors": {name: list(dims) for name, dims in one.tensors.items()},
        "sizes": dict(one.sizes),
    }
