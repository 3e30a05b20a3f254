"""main(): reads the arguments, runs one command, and turns every end into an exit code.

Each exit code with its meaning is in `EXIT_CODES`.
"""

import errno
import os
import signal
import sys
from collections.abc import Sequence
from types import ModuleType

from superopt._version import __version__
from superopt.cli.commands import (
    axioms,
    bench,
    cache,
    completion,
    doctor,
    export,
    optimize,
    report,
    search,
    shard,
    tune,
    verify,
    workloads,
)
from superopt.cli.parser import Parser, complain
from superopt.errors import InputError, SuperoptError, reason_of
from superopt.frontier.interrupts import Ended, ending_signals, received

__all__ = ["EXIT_CODES", "main", "make_parser"]

_COMMANDS: tuple[ModuleType, ...] = (
    search,
    optimize,
    tune,
    report,
    export,
    verify,
    axioms,
    shard,
    bench,
    cache,
    workloads,
    doctor,
    completion,
)

EXIT_CODES = {
    0: "fine: equal, faster, found, or nothing is wrong",
    1: "the answer is no: PyTorch's program is as fast, the programs differ, a case became slower",
    2: "bad input, or something that this needs is missing; one line on stderr says what",
    3: "unknown: nothing was proven either way (only `superopt verify`)",
    129: "ended by SIGHUP: the terminal was closed",
    130: "interrupted by Ctrl-C; what was printed before is the best so far",
    141: "whoever read the output went away, as in `superopt list | head -1`",
    143: "ended by SIGTERM",
}
"""What each exit code says."""

_NO_MEMORY = ("can't allocate memory", "out of memory")  # as PyTorch says it

_EPILOG = """\
examples:
  superopt list
  superopt search rmsnorm-linear
  superopt optimize gated-mlp --size M=8 K=2048 N=2048 --dtype f32
  superopt search model.py:norm --inputs "f16[16,4096] f16[4096]"
  superopt verify before.py:f after.py:f --inputs "f16[16,4096] f16[4096]"

exit codes: 0 fine, 1 the answer is no, 2 bad input, 3 the answer is unknown, 130 interrupted
"""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line and return its exit code."""
    for stream in (sys.stdout, sys.stderr):
        if hasattr(stream, "reconfigure"):  # no exception for a µ on a terminal that has none
            stream.reconfigure(errors="replace")
    try:
        with ending_signals():
            code = _run(arguments)
            if sys.stdout is not None:
                sys.stdout.flush()
    except BrokenPipeError:
        _discard_output()
        return 141
    except (Ended, KeyboardInterrupt, Exception) as error:
        return _failed(error)
    number = received()
    return code if number in (None, signal.SIGINT) else _failed(Ended(number))


def _failed(error: BaseException) -> int:
    """Say in one line what ended a command, and return its exit code; a fault of ours is raised again."""
    number = received()
    if isinstance(error, Ended) or number not in (None, signal.SIGINT):
        number = error.number if isinstance(error, Ended) else number
        assert number is not None
        complain(f"ended by {signal.Signals(number).name}")
        return 128 + number
    if isinstance(error, KeyboardInterrupt):
        complain("interrupted")
        return 130
    no_memory = isinstance(error, RuntimeError) and any(one in str(error).lower() for one in _NO_MEMORY)
    if no_memory or isinstance(error, MemoryError):
        complain("error: the program does not fit into the memory of this machine; give smaller sizes")
        return 2
    if isinstance(error, SuperoptError):
        complain(f"error: {' '.join(str(error).split())}")
        return 2
    if isinstance(error, OSError):
        complain(f"error: {_told(error)}")
        return 2
    raise error


def _told(error: OSError) -> str:
    """Return what the system refused; nothing more is written to stdout where that is what it refused."""
    reason = " ".join(reason_of(error).split())
    if error.filename is not None:
        return f"{error.filename!r}: {reason}"
    is_output = error.errno == errno.ENOSPC  # of a write, which has no name
    try:
        if sys.stdout is not None:
            sys.stdout.flush()
    except OSError:
        _discard_output()
        is_output = True
    return f"cannot write the output: {reason}" if is_output else reason


def make_parser() -> Parser:
    """Return the parser of the whole command line."""
    parser = Parser(
        prog="superopt",
        description="Finds and proves every equivalent of a tensor program written in PyTorch.",
        epilog=_EPILOG,
    )
    parser.add_argument("--version", action="version", version=f"superopt {__version__}")
    commands = parser.add_subparsers(title="commands", metavar="COMMAND", dest="command")
    for module in _COMMANDS:
        module.add_command(commands)
    return parser


def _run(arguments: Sequence[str] | None) -> int:
    parser = make_parser()
    try:
        parsed = parser.parse_args(arguments)
    except SystemExit as end:  # --help, --version, or a wrong argument
        return end.code if isinstance(end.code, int) else 2
    if not hasattr(parsed, "run"):  # no command, or no action of one
        parser.named(parsed).print_help()
        return 0
    parsed.given = list(sys.argv[1:] if arguments is None else arguments)
    try:
        code = parsed.run(parsed)
    except SystemExit as end:
        raise InputError(f"the given program called sys.exit({end.code!r}); let it return") from end
    assert isinstance(code, int)
    return code


def _discard_output() -> None:
    """Let the interpreter flush stdout once more as it ends, to where it cannot fail."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
