"""A worker in a forked process, from the fork to its end."""

from __future__ import annotations

import ctypes
import json
import os
import pickle
import signal
import sys
import traceback
from typing import NoReturn

from superopt.frontier.engine.history import History, Share
from superopt.frontier.engine.interface import Space
from superopt.frontier.engine.transports.memory import Board, Store, store_share
from superopt.frontier.engine.transports.queues import Kind, QueuePort, Queues
from superopt.frontier.engine.watch import Watch
from superopt.frontier.engine.worker import Worker

__all__ = ["ForkedWorker", "raise_remote"]

PR_SET_PDEATHSIG = 1


class RemoteTracebackError(Exception):
    """The traceback of an exception in a worker, as text; shown as its cause."""

    def __str__(self) -> str:
        return f'\n"""\n{self.args[0]}"""'


class ForkedWorker:
    """The worker of one forked process."""

    def __init__(
        self,
        space: Space,
        history: History,
        watch: Watch,
        store: Store,
        board: Board,
        queues: Queues,
        worker: int,
    ) -> None:
        self._space = space
        self._history = history
        self._watch = watch
        self._store = store
        self._board = board
        self._port = QueuePort(queues, board, worker, history.levels[-1].shares, self._alive)
        self._parent = 0

    def main(self, parent: int, mask: set[signal.Signals]) -> None:
        """Do all that the process does."""
        self._parent = parent
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        for number in (signal.SIGTERM, signal.SIGHUP):  # the parent's handlers are not meant for workers
            signal.signal(number, signal.SIG_DFL)
        signal.pthread_sigmask(signal.SIG_SETMASK, mask)
        if sys.platform == "linux":
            ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
        self._alive()
        try:
            self._explore()
        except BaseException as error:
            self._board.write_note(self._port.worker, _described(error))
            self._port.tell_parent(Kind.FAILED)

    def _alive(self) -> None:
        """End this process where its parent has ended."""
        if os.getppid() != self._parent:
            os._exit(1)

    def _explore(self) -> None:
        port = self._port
        worker = Worker(self._space, self._history, self._watch, port)
        totals = self._board.by_field["committed"]
        committed = totals.copy()
        while port.next_order() != Kind.LEAVE:
            now = totals.copy()
            if (now != committed).any():
                ends = zip(self._store.new, committed, now, strict=True)
                port.frontier = [array[start:stop] for array, start, stop in ends]
                worker.commit(port.frontier)
                committed = now
            self._keep(worker.explore_level(self._board.compact_rows))
            port.tell_parent(Kind.DONE)

    def _keep(self, share: Share) -> None:
        """Put a share where the parent finds it."""
        fields, me = self._board.by_field, self._port.worker
        store_share(self._store.new[me], int(fields["committed"][me]), share.new)
        store_share(self._store.arcs[me], int(fields["committed_arcs"][me]), share.arcs)
        fields["new"][me], fields["arcs"][me] = len(share.new), len(share.arcs)
        fields["expanded"][me], fields["candidates"][me] = share.expanded, share.candidates
        fields["busy_ns"][me] = int(1e9 * share.seconds)
        self._board.write_note(me, json.dumps(share.counts).encode())


def _described(error: BaseException) -> bytes:
    text = "".join(traceback.format_exception(error))
    try:
        return pickle.dumps((error, text))
    except Exception:  # whatever an exception's own reduction does
        return pickle.dumps((RuntimeError(f"{type(error).__name__}: {error}"), text))


def raise_remote(note: bytes) -> NoReturn:
    """Raise the exception that a worker has described in its note."""
    error, text = pickle.loads(note)
    raise error from RemoteTracebackError(text)
