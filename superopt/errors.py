"""Every error superopt raises on a user's account, in one tree.

SuperoptError            anything the caller can act on; the command line prints it as one line, exit code 2
├── InputError           an argument, a shape, a path or an option is wrong
├── GraphError           a graph is malformed, or its text form does not parse
├── TraceError           a function could not be traced into a graph
└── CheckpointError      a saved file cannot be used: damaged, foreign, or of another version
"""

import re

__all__ = [
    "CheckpointError",
    "GraphError",
    "InputError",
    "SuperoptError",
    "TraceError",
    "first_line",
    "kind_and_line",
    "reason_of",
]


class SuperoptError(Exception):
    """Base of all errors that superopt raises for something its caller can change."""


class InputError(SuperoptError):
    """An argument is wrong: names the argument, what came, and the remedy."""


class GraphError(SuperoptError):
    """A graph breaks a rule of the IR, or its text does not parse."""


class TraceError(SuperoptError):
    """A function cannot be traced: names the function and the place that stops it."""


class CheckpointError(SuperoptError):
    """A saved file cannot be used: damaged, made by something else, or of another version."""


_COLOURS = re.compile(r"\x1b\[[0-9;]*m")


def first_line(error: BaseException) -> str:
    """Return the first line of what an error says, without colours, or else its kind."""
    lines = (line.strip() for line in _COLOURS.sub("", str(error)).splitlines())
    return next(filter(None, lines), type(error).__name__)


def kind_and_line(error: BaseException) -> str:
    """Return the kind of an error and the first line of what it says."""
    kind, line = type(error).__name__, first_line(error)
    return kind if line == kind else f"{kind}: {line}"


def reason_of(error: Exception) -> str:
    """Return why a file cannot be read or written, without the number and the path."""
    return (error.strerror if isinstance(error, OSError) else None) or str(error) or type(error).__name__
