"""Engines: the transports by name, and how a command runs in the ranks of MPI."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path

from superopt.errors import InputError
from superopt.frontier.engine.transport import OpenTransport

__all__ = ["ENGINES", "in_ranks", "launched", "mpiexec", "transport_named"]

ENGINES = ("processes", "mpi", "ray")
"""The names of the engines: forked processes, ranks of MPI, and actors of Ray."""

_RANKS = ("PMI_RANK", "PMIX_RANK", "OMPI_COMM_WORLD_RANK")
_ENDED = (129, 130, 141, 143)  # exit codes of a command that was told to end
_RULE = "=" * 20  # how the report of mpiexec about a lost rank begins
_PATIENCE_S = 10.0  # seconds in which mpiexec must end the ranks


def transport_named(name: str) -> OpenTransport | None:
    """Return the transport of an engine; None stands for processes, or this process alone."""
    if name not in ENGINES:
        raise InputError(f"there is no engine {name!r}; there are {', '.join(ENGINES)}")
    if name == "mpi":
        if _rank() is None:
            raise InputError("the engine mpi runs in ranks: start the program with `mpiexec -n 2 ...`")
        from superopt.frontier.engine.transports.mpi import Mpi

        return Mpi
    if name == "ray":
        from superopt.frontier.engine.transports.rays import RayActors

        return RayActors
    return None


def in_ranks(engine: str, workers: int, arguments: Sequence[str], command: Callable[[], int]) -> int:
    """Run a command: as it is, or in rank 0 of MPI while the other ranks work for it.

    Where mpiexec has not started this process, it starts the command line with these arguments.
    """
    if engine != "mpi":
        return command()
    rank = _rank()
    if rank is None:
        return launched([sys.executable, "-m", "superopt", *arguments], workers)
    from superopt.frontier.engine.transports.mpi import leave, serve

    if rank:
        signal.signal(signal.SIGINT, signal.SIG_IGN)  # rank 0 says when to stop
        serve()
        return 0
    try:
        return command()
    finally:
        leave()


def launched(command: Sequence[str], ranks: int) -> int:
    """Run a command in so many ranks and return its exit code; a lost rank is one line and exit code 2."""
    lost = False
    with subprocess.Popen(
        [mpiexec(), "-n", str(ranks), *command], stdout=subprocess.PIPE, text=True, errors="replace"
    ) as process:
        assert process.stdout is not None
        try:
            try:
                lost = _passed_on(process.stdout)
            except KeyboardInterrupt:  # the ranks have it, too, and rank 0 ends in good order
                lost = _passed_on(process.stdout)
            code = process.wait()
        except BaseException:  # the ranks know nothing of what ends this process alone
            _end(process)
            raise
    if lost or code < 0 or (code > 128 and code not in _ENDED):
        print(
            "superopt: error: a rank of MPI was lost, and the search ended with it; "
            "the last checkpoint is whole: go on from it with --resume",
            file=sys.stderr,
        )
        return 2
    return code


def _end(process: subprocess.Popen[str]) -> None:
    """End mpiexec, which ends the ranks."""
    process.terminate()
    try:
        process.wait(_PATIENCE_S)
    except subprocess.TimeoutExpired:
        process.kill()


def _passed_on(lines: Iterable[str]) -> bool:
    """Print what the ranks print, up to the report of a lost rank; return whether there is one."""
    lost, blank = False, ""
    for line in lines:
        lost |= line.startswith(_RULE)  # a blank line comes before it
        if lost:
            continue
        if line == "\n":
            blank += line
        else:
            print(blank + line, end="", flush=True)
            blank = ""
    return lost


def mpiexec() -> str:
    """Return the program that starts ranks; the one beside this Python comes first."""
    beside = Path(sys.executable).with_name("mpiexec")
    found = str(beside) if beside.exists() else shutil.which("mpiexec")
    if found is None:
        raise InputError("the engine mpi needs mpiexec; install an MPI with `superopt[mpi]`")
    return found


def _rank() -> int | None:
    """Return the rank of this process, None where mpiexec did not start it."""
    return next((int(os.environ[name]) for name in _RANKS if name in os.environ), None)
