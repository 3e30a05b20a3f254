"""What a command works on: a named workload, `file.py:function`, or a graph in a text file."""

import argparse
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from superopt.cli.inputs import make_inputs, parse_dtype, parse_inputs
from superopt.cli.options import parse_sizes
from superopt.cli.parser import did_you_mean
from superopt.cli.userfile import load_function, signature_text
from superopt.errors import GraphError, InputError, reason_of
from superopt.ir import Graph, parse_graph

if TYPE_CHECKING:
    from superopt.workloads import Workload

__all__ = ["Target", "add_inputs", "load_target", "workload_named"]


@dataclass(frozen=True, slots=True)
class Target:
    """A function, module or graph to work on, and how the user names it."""

    name: str
    program: Callable[..., Any] | Graph
    workload: "Workload | None" = None
    file: Path | None = None  # that it was read from

    def without_torch(
        self, arguments: argparse.Namespace
    ) -> tuple[Callable[..., Any] | Graph, tuple[Any, ...]]:
        """Return the program and its inputs; a workload at its default sizes needs no torch."""
        default = arguments.inputs is None and not arguments.size and not arguments.dtype
        if self.workload is not None and default and (graph := self.workload.graph()) is not None:
            return graph, ()
        return self.program, self.inputs(arguments)

    def inputs(self, arguments: argparse.Namespace) -> tuple[Any, ...]:
        """Return its inputs, as `--inputs`, or `--size` and `--dtype` of a named workload, say."""
        if isinstance(self.program, Graph):
            if arguments.inputs is not None or arguments.size or arguments.dtype:
                raise InputError(
                    f"{self.name} is a graph, whose inputs are in its file:"
                    " leave out --inputs, --size and --dtype"
                )
            return ()
        if arguments.inputs is not None:
            if arguments.size or arguments.dtype:
                raise InputError("--inputs says everything: leave out --size and --dtype")
            return make_inputs(parse_inputs(arguments.inputs))
        if self.workload is None:
            unused = "--size and --dtype are for named workloads" if arguments.size or arguments.dtype else ""
            raise InputError(
                f"{self.name}{signature_text(self.program)} needs its inputs:"
                f' give --inputs "f16[16,4096] ..."{"; " if unused else ""}{unused}'
            )
        sizes: dict[str, Any] = dict(parse_sizes(arguments.size))
        for size in sizes:  # here, since any other name is an argument of inputs() or none at all
            if size not in self.workload.sizes:
                known = ", ".join(self.workload.sizes)
                raise InputError(f"--size {size}: {self.name} has no such size; it has {known}")
        if arguments.dtype is not None:
            sizes["dtype"] = parse_dtype(arguments.dtype)
        return self.workload.inputs(**sizes)


def add_inputs(parser: argparse.ArgumentParser) -> None:
    """Add the options that say what the inputs are."""
    group = parser.add_argument_group("inputs")
    group.add_argument(
        "--inputs",
        metavar="TEXT",
        help='dtype[sizes] of each argument, or a number: "f16[16,4096] f16[4096] 0.5"',
    )
    group.add_argument(
        "--size",
        nargs="+",
        action="extend",
        default=[],
        metavar="NAME=SIZE",
        help="sizes of a named workload, as in M=2048",
    )
    group.add_argument("--dtype", metavar="DTYPE", help="dtype of a named workload's inputs")


def load_target(text: str) -> Target:
    """Return what a user names, or raise InputError."""
    if text.endswith(".graph"):
        return _load_graph(text)
    path, colon, function = text.rpartition(":")
    if not colon:
        path, function = text, ""
    file = Path(path)
    if not (colon or file.suffix or "/" in text or "\\" in text):
        workload = workload_named(text)
        return Target(text, workload.function, workload)
    try:
        exists, is_folder = file.exists(), file.is_dir()
    except (OSError, ValueError) as error:  # a name too long, or with a null byte
        raise InputError(f"{path!r} is not a path: {reason_of(error)}") from error
    if not exists:
        raise InputError(f"{path!r} does not exist")
    if is_folder:
        raise InputError(f"{path!r} is a folder; give file.py:function")
    if file.suffix != ".py":
        raise InputError(f"{path!r} is not a Python file (.py) or a graph (.graph)")
    return Target(function or file.stem, load_function(file, function), file=file)


def workload_named(name: str) -> "Workload":
    """Return a named workload, or raise InputError with a guess at the one that was meant."""
    from superopt.workloads import WORKLOADS

    if name not in WORKLOADS:
        hint = f"; {guess}" if (guess := did_you_mean(name, WORKLOADS)) else ""
        raise InputError(
            f"no workload is named {name!r}{hint} (superopt list shows all;"
            " a function is given as file.py:function)"
        )
    return WORKLOADS[name]


def _load_graph(text: str) -> Target:
    file = Path(text)
    try:
        graph = parse_graph(file.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise InputError(f"{text!r} does not exist") from None
    except (OSError, ValueError) as error:
        raise InputError(f"cannot read {text!r}: {reason_of(error)}") from error
    except GraphError as error:
        raise InputError(f"{text}: {error}") from error
    return Target(graph.name, graph, file=file)
