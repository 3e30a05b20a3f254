"""Command: what the command lines of benchmarks share: a mistake is one line, told before anything is run."""

import argparse
import math
import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import NoReturn

from superopt.errors import InputError, SuperoptError

__all__ = ["Parser", "above_zero", "check_names", "check_out", "from_one", "from_zero", "mistakes_told"]


class Parser(argparse.ArgumentParser):
    """Reports a wrong argument in one line, and exits with 2."""

    def error(self, message: str) -> NoReturn:
        """Print the one line and exit."""
        self.exit(2, f"{self.prog}: error: {' '.join(message.split())}\n")


@contextmanager
def mistakes_told(parser: argparse.ArgumentParser) -> Iterator[None]:
    """Turn what the user can change into one line and exit code 2."""
    try:
        yield
    except SuperoptError as error:
        parser.error(str(error))


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
        raise InputError(f"{option} has no {unknown[0]!r}; there are {', '.join(known)}")


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
