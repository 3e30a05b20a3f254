"""main(): reads the arguments, runs one command, and turns every end into an exit code.

0 fine · 1 the answer is no · 2 bad input · 130 interrupted · 141 the reader of our output went away.
"""

import argparse
import errno
import os
import sys
from collections.abc import Sequence
from types import ModuleType
from typing import Any, NoReturn

from superopt._version import __version__
from superopt.cli.commands import (
    axioms,
    bench,
    cache,
    doctor,
    export,
    optimize,
    report,
    search,
    tune,
    verify,
    workloads,
)
from superopt.errors import InputError, SuperoptError

__all__ = ["main", "make_parser"]

_COMMANDS: tuple[ModuleType, ...] = (
    search,
    optimize,
    tune,
    report,
    export,
    verify,
    axioms,
    bench,
    cache,
    workloads,
    doctor,
)

_EPILOG = """\
examples:
  superopt list
  superopt search rmsnorm-linear
  superopt optimize gated-mlp --size M=8 K=2048 N=2048 --dtype f32
  superopt search model.py:attention --inputs "f16[8,1024,128] f16[8,4096,128] f16[8,4096,128]"
  superopt verify before.py:f after.py:f --inputs "f16[16,4096] f16[4096]"

exit codes: 0 fine, 1 the answer is no, 2 bad input, 3 the answer is unknown, 130 interrupted
"""


class _Parser(argparse.ArgumentParser):
    """Reports a wrong argument as every other bad input is reported: one line, exit code 2."""

    def __init__(self, **settings: Any) -> None:
        super().__init__(formatter_class=argparse.RawDescriptionHelpFormatter, allow_abbrev=False, **settings)

    def error(self, message: str) -> NoReturn:
        """Print the one line and exit."""
        message = message[0].lower() + message[1:] if message else message
        _complain(f"error: {message} (see {self.prog} --help)")
        raise SystemExit(2)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line and return its exit code."""
    for stream in (sys.stdout, sys.stderr):
        if hasattr(stream, "reconfigure"):  # no exception for a µ on a terminal that has none
            stream.reconfigure(errors="replace")
    try:
        code = _run(arguments)
        if sys.stdout is not None:
            sys.stdout.flush()
    except BrokenPipeError:
        _discard_output()
        return 141
    except OSError as error:
        if error.errno != errno.ENOSPC:
            raise
        _discard_output()
        _complain(f"error: cannot write the output: {error.strerror}")
        return 2
    except KeyboardInterrupt:
        _complain("interrupted")
        return 130
    except SuperoptError as error:
        _complain(f"error: {' '.join(str(error).split())}")
        return 2
    return code


def make_parser() -> argparse.ArgumentParser:
    """Return the parser of the whole command line."""
    parser = _Parser(
        prog="superopt",
        description="Finds and proves every equivalent of a tensor program written in PyTorch.",
        epilog=_EPILOG,
    )
    parser.add_argument("--version", action="version", version=f"superopt {__version__}")
    commands = parser.add_subparsers(title="commands", metavar="COMMAND", dest="command", required=True)
    for module in _COMMANDS:
        module.add_command(commands)
    return parser


def _run(arguments: Sequence[str] | None) -> int:
    try:
        parsed = make_parser().parse_args(arguments)
    except SystemExit as end:  # --help, --version, or a wrong argument
        return end.code if isinstance(end.code, int) else 2
    try:
        code = parsed.run(parsed)
    except SystemExit as end:
        raise InputError(f"the given program called sys.exit({end.code!r}); let it return") from end
    assert isinstance(code, int)
    return code


def _discard_output() -> None:
    """Let the interpreter flush stdout once more as it ends, to where it cannot fail."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _complain(message: str) -> None:
    if sys.stderr is not None:
        print(f"superopt: {message}", file=sys.stderr)
