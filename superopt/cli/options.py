"""Numbers and sizes as options of the command line, each refused with one clear sentence."""

import argparse
import math
from collections.abc import Sequence
from typing import get_args

from superopt.errors import InputError
from superopt.weights.division import Weights

__all__ = [
    "add_engine",
    "add_progress",
    "add_race",
    "add_weights",
    "minutes",
    "parse_sizes",
    "positive",
    "seconds",
    "share",
    "whole",
    "workers",
]

_MOST_WORKERS = 1024
_MOST_DIGITS = 19  # of the size of the largest tensor that there can be


def add_race(parser: argparse.ArgumentParser) -> None:
    """Add how long and against what kernels race."""
    parser.add_argument(
        "--seconds", type=seconds, default=20.0, metavar="S", help="of racing, in all (default 20)"
    )
    parser.add_argument("--preset", choices=("quick", "full"), default="quick", help="how wide to look")
    parser.add_argument("--no-torch-compile", action="store_true", help="race against eager PyTorch only")
    parser.add_argument(
        "-v", "--verbose", action="store_true", help="print every candidate with its outcome, and each step"
    )


def add_weights(parser: argparse.ArgumentParser) -> None:
    """Add what may be made of weights ahead of the calls."""
    parser.add_argument(
        "--weights",
        choices=get_args(Weights),
        default="default",
        help="what a module's weights may be made into once: nothing (live), small tensors, or (frozen) any",
    )


def add_progress(parser: argparse._ActionsContainer) -> None:
    """Add in which form results are printed, and whether progress is shown."""
    parser.add_argument("--json", action="store_true", help="print JSON, and no progress")
    parser.add_argument("--quiet", action="store_true", help="show no progress")


def whole(text: str) -> int:
    """Return a whole number of at least 0."""
    return _integer(text, 0)


def positive(text: str) -> int:
    """Return a whole number of at least 1."""
    return _integer(text, 1)


def workers(text: str) -> int:
    """Return a number of processes."""
    count = _integer(text, 1)
    if count > _MOST_WORKERS:
        raise argparse.ArgumentTypeError(
            f"{text} is more than {_MOST_WORKERS}; use at most one for each core"
        )
    return count


def add_engine(parser: "argparse._ActionsContainer") -> None:
    """Add the engine that runs the workers of a search."""
    parser.add_argument(
        "--engine",
        choices=("processes", "mpi", "ray"),
        default="processes",
        help="what runs the workers: processes of this machine, MPI, or Ray (default processes); same result",
    )


def seconds(text: str) -> float:
    """Return seconds above 0; `inf` for no limit."""
    return _above_zero(text, "number of seconds")


def minutes(text: str) -> float:
    """Return minutes above 0."""
    return _above_zero(text, "number of minutes")


def share(text: str) -> float:
    """Return a share above 0, as in 0.05."""
    value = _above_zero(text, "share")
    if value >= 1:
        raise argparse.ArgumentTypeError(f"{text!r} is not a share below 1; 5% is 0.05")
    return value


def parse_sizes(items: Sequence[str]) -> dict[str, int]:
    """Return the sizes that `M=2048 K=4096` names."""
    sizes: dict[str, int] = {}
    for item in items:
        name, equals, value = item.partition("=")
        if not (name and equals and value.isascii() and value.isdigit()):
            raise InputError(f"--size {item!r}: write NAME=SIZE, as in --size M=2048")
        if name in sizes:
            raise InputError(f"--size: {name} is given twice")
        digits = value.lstrip("0") or "0"
        if len(digits) > _MOST_DIGITS:
            raise InputError(f"--size: {name} is larger than any tensor can be")
        sizes[name] = int(digits)
    return sizes


def _above_zero(text: str, what: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not value > 0:
        raise argparse.ArgumentTypeError(f"{text!r} is not a {what} above 0")
    return value


def _integer(text: str, least: int) -> int:
    try:
        value = int(text)
    except ValueError:
        value = least - 1
    if value < least:
        raise argparse.ArgumentTypeError(f"{text!r} is not a whole number of at least {least}")
    return value
