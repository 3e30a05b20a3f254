"""Command: what the command lines of all suites share. A mistake is one line, told before anything runs."""

import argparse
import math
import os
from collections.abc import Callable, Sequence
from difflib import get_close_matches
from pathlib import Path
from typing import NoReturn

from superopt.errors import InputError, SuperoptError

__all__ = ["Parser", "above_zero", "check_names", "check_out", "from_one", "from_zero", "listed"]

_SHOWN, _CLOSE = 100, 5  # names that an error lists at most, and how many of a longer list


class Parser(argparse.ArgumentParser):
    """Parses the options of `python -m bench.NAME`; a wrong argument is one line and exit code 2."""

    def __init__(self, name: str, description: str | None) -> None:
        super().__init__(
            prog=f"python -m bench.{name}",
            description=(description or "").strip(),
            formatter_class=argparse.RawDescriptionHelpFormatter,
        )

    def error(self, message: str) -> NoReturn:
        """Print the one line and exit."""
        self.exit(2, f"{self.prog}: error: {' '.join(message.split())}\n")

    def run(self, arguments: Sequence[str] | None, action: Callable[[argparse.Namespace], int]) -> int:
        """Return what the action makes of the options; an error that the user can mend is one line."""
        options = self.parse_args(arguments)
        try:
            return action(options)
        except SuperoptError as error:
            self.error(str(error))

    def add_cases(self, suites: Sequence[str], dtypes: Sequence[str], dtype: str, example: str) -> None:
        """Add the options that choose among the cases of named workloads."""
        self.add_argument("--suite", choices=suites, default="all", help="the part to measure (default: all)")
        self.add_argument("--workloads", default="", help="only these workloads, by commas (default: all)")
        self.add_argument("--case", default="", help=f"only these cases, by commas, as in {example}")
        known, shown = ", ".join(dtypes), dtype or "all"
        self.add_argument("--dtype", default=dtype, help=f"of the tensors: {known} (default: {shown})")

    def add_results(self, *, minutes: float) -> None:
        """Add the options that say how long a suite runs, and where its results go."""
        self.add_argument(
            "--minutes",
            type=from_zero,
            default=minutes,
            help=f"begin no case after them (default: {minutes:g})",
        )
        self.add_argument("--json", type=Path, metavar="OUT", help="write the results here after every case")
        self.add_argument("--resume", action="store_true", help="keep the results that OUT has, and go on")


def check_out(place: Path | None, *, resume: bool = False) -> None:
    """Raise InputError where a result cannot be written: before minutes are spent on it."""
    if place is None:
        if resume:
            raise InputError("--resume goes on after what --json has; give both")
        return
    folder = place.parent
    if place.is_dir():
        raise InputError(f"--json {str(place)!r} is a folder; name a file in it")
    if not folder.is_dir():
        raise InputError(f"--json {str(place)!r}: there is no folder {str(folder)!r}; make it first")
    if not os.access(folder, os.W_OK):
        raise InputError(f"--json {str(place)!r}: nothing can be written in {str(folder)!r}")


def check_names(option: str, given: Sequence[str], known: Sequence[str]) -> None:
    """Raise InputError for a name that is not known."""
    if unknown := [name for name in given if name not in known]:
        raise InputError(f"{option} has no {unknown[0]!r}; there are {_named(unknown[0], known)}")


def _named(unknown: str, known: Sequence[str]) -> str:
    """Return all names, or of many those that may be meant."""
    if len(known) <= _SHOWN:
        return ", ".join(known)
    close = get_close_matches(unknown, known, _CLOSE) or known[:_CLOSE]
    return f"{', '.join(close)} and {len(known) - len(close)} more"


def listed(text: str) -> list[str]:
    """Return the names in a text, by commas."""
    return [name.strip() for name in text.split(",") if name.strip()]


def from_one(text: str) -> int:
    """Return the whole number of at least 1 that an option is given."""
    if not (text.isascii() and text.isdigit() and int(text)):
        raise argparse.ArgumentTypeError(f"{text!r} is not a whole number of at least 1")
    return int(text)


def above_zero(text: str) -> float:
    """Return the number above 0 that an option is given."""
    value = from_zero(text)
    if not value:
        raise argparse.ArgumentTypeError(f"{text!r} is not above 0")
    return value


def from_zero(text: str) -> float:
    """Return the number from 0 up that an option is given."""
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not value >= 0:
        raise argparse.ArgumentTypeError(f"{text!r} is not a number from 0 up")
    return value
