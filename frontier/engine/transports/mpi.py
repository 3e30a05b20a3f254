"""The transport of MPI: one worker in each rank, and rows exchanged by `Alltoallv` at each level.

Rank 0 runs the program and leads; every other rank runs `serve()` and does what it is told until rank 0
ends. A rank that waits for rank 0 sleeps, since a search is a small part of what rank 0 does.
"""

from __future__ import annotations

import pickle
import time
import traceback
from collections.abc import Sequence
from typing import Any

import numpy as np

from superopt.errors import InputError
from superopt.frontier.engine.history import History, Level, Share
from superopt.frontier.engine.interface import Space
from superopt.frontier.engine.records import Records
from superopt.frontier.engine.transports.bulk import Member, Order, Start
from superopt.frontier.engine.transports.forked import raise_remote
from superopt.frontier.engine.watch import Watch

__all__ = ["Mpi", "leave", "serve"]

_ORDER, _STOP, _SHARE = 1, 2, 3  # tags of messages
_NAP_S = 0.001


def _world() -> Any:
    try:
        from mpi4py import MPI
    except ImportError as error:
        raise InputError(
            "the engine mpi needs mpi4py and an MPI; install them with `superopt[mpi]`"
        ) from error
    return MPI.COMM_WORLD


class Mpi:
    """The transport as rank 0 sees it, which is the first worker, too."""

    def __init__(self, space: Space, history: History, watch: Watch, workers: int) -> None:
        self._comm = _world()
        if workers not in (1, self._comm.size):
            raise InputError(
                f"workers is {workers}, but {self._comm.size} ranks were started; start as many with mpiexec"
            )
        self._shared = space.shared
        self._history = history
        self._watch = watch
        start = Start(space, history, watch.limits, watch.elapsed())
        self._tell(("begin", start))
        self._member = Member(start, 0, self._comm.size, lambda: watch.interrupted)
        self._member.watch = watch

    def explore_level(self) -> tuple[Level | None, str | None]:
        """Let all ranks explore the level after the last one of the history."""
        began = time.perf_counter()
        history = self._history
        order = Order(
            len(history.levels),
            self._watch.compact_rows(history, self._comm.size),
            history.rows,
            history.bytes,
            history.levels[-1].shares if self._shared else None,
        )
        if self._shared and len(history.levels[-1].shares) != self._comm.size:
            order = Order(order.level, order.compact_rows, order.rows, order.bytes, None)
        self._tell(("level", order))
        mine = _level(self._comm, self._member, order)
        shares = [mine, *(self._comm.recv(source=rank, tag=_SHARE) for rank in range(1, self._comm.size))]
        level = history.ended_level([share for share, _ in shares], time.perf_counter() - began)
        if level.stats.complete:
            return level, None
        whys = [why for _, why in shares if why is not None]
        return level, "interrupted" if self._watch.interrupted else whys[0]

    def close(self, *, at_once: bool) -> None:
        """Let the other ranks forget this search."""
        self._tell(("end",))

    def _tell(self, message: tuple[Any, ...]) -> None:
        for rank in range(1, self._comm.size):
            self._comm.send(message, dest=rank, tag=_ORDER)


def _level(comm: Any, member: Member, order: Order) -> tuple[Share, str | None]:
    """Do one rank's part of a level; raise in every rank what one of them met."""
    failed: bytes | None = None
    outgoing: list[Records] = []
    try:
        outgoing = member.expand(order)
    except Exception as error:
        failed = pickle.dumps((error, traceback.format_exc()))
    if comm.rank == 0 and (member.port.why is not None or member.watch.interrupted):
        for rank in range(1, comm.size):
            comm.send(order.level, dest=rank, tag=_STOP)
    for note in comm.allgather(failed):
        if note is not None:
            raise_remote(note)
    return member.finish(_exchanged(comm, outgoing)), member.port.why


def _exchanged(comm: Any, outgoing: Sequence[Records]) -> list[Records]:
    """Return what each rank has for this one."""
    words = outgoing[0].shape[1]
    counts = np.array([len(records) * words for records in outgoing], dtype=np.int64)
    arriving = np.empty_like(counts)
    comm.Alltoall(counts, arriving)
    sent, received = np.concatenate(outgoing).reshape(-1), np.empty(int(arriving.sum()), dtype=np.int64)
    comm.Alltoallv([sent, counts.tolist()], [received, arriving.tolist()])
    ends = np.cumsum(arriving)
    return [part.reshape(-1, words) for part in np.split(received, ends[:-1])]


def serve() -> None:
    """Work for rank 0 until it says to leave."""
    comm = _world()
    member: Member | None = None
    level = 0

    def told() -> bool:
        while comm.iprobe(source=0, tag=_STOP):
            if comm.recv(source=0, tag=_STOP) == level:
                return True
        return False

    while True:
        while not comm.iprobe(source=0, tag=_ORDER):
            time.sleep(_NAP_S)
        kind, *rest = comm.recv(source=0, tag=_ORDER)
        if kind == "leave":
            return
        if kind == "end":
            member = None
        elif kind == "begin":
            member = Member(rest[0], comm.rank, comm.size, told)
        else:
            assert member is not None
            level = rest[0].level
            try:
                share = _level(comm, member, rest[0])
            except Exception:  # rank 0 raises the same
                continue
            comm.send(share, dest=0, tag=_SHARE)


def leave() -> None:
    """Let the other ranks end; rank 0 calls this when its work is done."""
    comm = _world()
    for rank in range(1, comm.size):
        comm.send(("leave",), dest=rank, tag=_ORDER)
