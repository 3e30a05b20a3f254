"""The search in forked processes: a key's owner alone deduplicates it, the parent supervises.

A worker takes slices of the frontier, expands them, and sends every candidate to the owner of its key.
When all have said that nothing more comes, each owner deduplicates what it got, writes its new states
to shared memory and reports. The parent then commits the level: what is committed outlives any worker.
When a worker dies, the level is begun again by a new set of workers, forked from the parent.
"""

from __future__ import annotations

import ctypes
import json
import logging
import multiprocessing
import os
import pickle
import select
import signal
import sys
import time
import traceback
import warnings
from collections import deque
from collections.abc import Callable
from functools import partial
from multiprocessing.process import BaseProcess

import numpy as np

from superopt.errors import InputError
from superopt.frontier.queues import Board, Kind, Message, Port, Queues, Store, Ticket, store_share
from superopt.frontier.records import forwarded
from superopt.frontier.serial import Pace, candidates_of, pending_for
from superopt.frontier.space import History, Level, LevelStats, Space, Watch, absorb, less_counts
from superopt.frontier.states import KEY_WORDS, Pending, Records, keys_of, merge, owners, thinned

__all__ = ["run"]

log = logging.getLogger(__name__)

MOST_WORKERS = 128
LOOK_SECONDS = 0.02
# After a limit, the time that workers have to close the level before its finds are given up.
GRACE_SECONDS = {"interrupted": 0.5, "limit": 3.0}
LOSSES = 3
TICKETS_PER_WORKER = 64
TICKET_SECONDS = 0.003
PR_SET_PDEATHSIG = 1


class WorkerLostError(Exception):
    """A worker ended without being told to; `how` says by what."""

    def __init__(self, worker: int, exitcode: int | None) -> None:
        if exitcode is not None and exitcode < 0:
            self.how = f"killed by signal {-exitcode}"
        else:
            self.how = f"exit code {exitcode}"
        super().__init__(f"worker {worker} was lost ({self.how})")


class RemoteTracebackError(Exception):
    """The traceback of an exception in a worker, as text; shown as its cause."""

    def __str__(self) -> str:
        return f'\n"""\n{self.args[0]}"""'


def run(
    space: Space, history: History, watch: Watch, on_barrier: Callable[[Level], None], *, workers: int
) -> str | None:
    """Explore with forked workers; like `serial.run`, and with the same result."""
    if workers > MOST_WORKERS:
        raise InputError(f"workers is {workers}; give at most {MOST_WORKERS}")
    if not hasattr(os, "fork"):
        raise InputError("several workers need a system with fork; give workers=1")
    if not history.levels[-1].new:
        return None
    store = Store(workers, history.width + KEY_WORDS, keep_arcs=history.keep_arcs)
    crew: Crew | None = None
    losses = 0
    with forwarded(logging.getLogger("superopt")):
        try:
            while history.levels[-1].new:
                why = watch.why_no_level(history)
                if why is not None:
                    return why
                try:
                    crew = crew or Crew(space, history, store, watch, workers)
                    level, why = crew.explore_level()
                except WorkerLostError as lost:
                    assert crew is not None
                    crew.end(kill=True)
                    crew = None
                    losses += 1
                    if losses == LOSSES:
                        return f"{lost} {losses} times on level {len(history.levels)}"
                    log.warning("%s on level %d; the level is done again", lost, len(history.levels))
                    continue
                losses = 0
                if level is None:
                    return why
                if not level.stats.complete:
                    history.partial = level
                    on_barrier(level)
                    return why
                history.commit(level)
                on_barrier(level)
            return None
        finally:
            if crew is not None:
                crew.end(kill=sys.exc_info()[0] is not None or watch.interrupted)


class Crew:
    """Workers that share the levels from now on, and their supervisor."""

    def __init__(self, space: Space, history: History, store: Store, watch: Watch, workers: int) -> None:
        self._history = history
        self._store = store
        self._watch = watch
        self._workers = workers
        self._queues = Queues(workers, history.width + KEY_WORDS)
        self._board = Board(workers)
        for name, arrays in (("committed", store.new), ("committed_arcs", store.arcs)):
            self._board.by_field[name][:] = [_filled(history, array) for array in arrays]
        context = multiprocessing.get_context("fork")
        self._processes: list[BaseProcess] = []
        # Ctrl-C goes to the whole process group: it must not meet a child that doesn't ignore it yet.
        mask = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore", DeprecationWarning)  # fork in a process with threads
                for worker in range(workers):
                    work = Worker(space, history, store, watch, self._queues, self._board, worker)
                    process: BaseProcess = context.Process(
                        target=work.main, args=(os.getpid(), mask), name=f"superopt-{worker}", daemon=True
                    )
                    self._processes.append(process)
                    process.start()
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, mask)
        self._poll = select.poll()
        self._poll.register(self._queues.mailboxes[workers].reader, select.POLLIN)
        for process in self._processes:
            self._poll.register(process.sentinel, select.POLLIN)

    def explore_level(self) -> tuple[Level | None, str | None]:
        """Let the workers do the next level; the level, and which limit ended it early if one did."""
        began = time.perf_counter()
        history, board = self._history, self._board
        frontier = history.levels[-1].new
        board.begin_level()
        tickets = self._tickets(frontier)
        self._feed(tickets)
        for mailbox in self._queues.mailboxes[:-1]:
            mailbox.write(Kind.LEVEL, self._workers, 0, 0)
        done = 0
        why: str | None = None
        give_up = float("inf")
        while done < self._workers:
            for message in self._messages():
                if message.kind == Kind.FAILED:
                    _raise_remote(self._board.read_note(message.source))
                done += 1
            self._feed(tickets)
            why = why or self._why()
            if why is not None and not board.stop:
                board.stop = True
                if tickets:
                    tickets.clear()
                    tickets.extend([Ticket(-1, 0, 0)] * self._workers)
            if why is not None and give_up == float("inf"):
                give_up = time.perf_counter() + GRACE_SECONDS["limit"]
            if self._watch.interrupted:
                why = "interrupted"
                give_up = min(give_up, time.perf_counter() + GRACE_SECONDS["interrupted"])
            if time.perf_counter() > give_up:
                self.end(kill=True)
                return None, why
        level = self._close_level(frontier, time.perf_counter() - began)
        return level, None if level.stats.complete else why

    def _tickets(self, frontier: int) -> deque[Ticket]:
        """Slices of the frontier: many, to balance the work, but none so small that batches get slow."""
        last = self._history.levels[-1].stats
        row_seconds = sum(last.worker_seconds) / last.frontier if last.frontier else TICKET_SECONDS
        size = max(frontier // (self._workers * TICKETS_PER_WORKER), int(TICKET_SECONDS / row_seconds))
        size = max(1, min(size, -(-frontier // (2 * self._workers))))
        tickets = deque(
            Ticket(number, start, min(start + size, len(share)))
            for number, share in enumerate(self._history.levels[-1].shares)
            for start in range(0, len(share), size)
        )
        tickets.extend([Ticket(-1, 0, 0)] * self._workers)
        return tickets

    def _feed(self, tickets: deque[Ticket]) -> None:
        while tickets:
            try:
                self._queues.tickets.write(*tickets[0])
            except BlockingIOError:
                return
            tickets.popleft()

    def _messages(self) -> list[Message]:
        """What workers report within a moment; raises when one of them has died."""
        seconds = self._watch.limits.seconds
        left = (
            LOOK_SECONDS if seconds is None else max(0.0, min(LOOK_SECONDS, seconds - self._watch.elapsed()))
        )
        events = self._poll.poll(1000 * left if left else 1)
        mailbox = self._queues.mailboxes[self._workers]
        messages = [Message(*values) for values in mailbox.read(256)]
        if any(handle != mailbox.reader for handle, _ in events):
            messages += [Message(*values) for values in mailbox.read(256)]
            if not any(message.kind == Kind.FAILED for message in messages):
                for worker, process in enumerate(self._processes):
                    if not process.is_alive():
                        raise WorkerLostError(worker, process.exitcode)
        return messages

    def _why(self) -> str | None:
        history, fields = self._history, self._board.by_field
        closing = 1e-9 * int(fields["closing_ns"].max())
        return self._watch.why(history, int(fields["settled"].sum()), int(fields["bytes"].sum()), closing)

    def _close_level(self, frontier: int, seconds: float) -> Level:
        history, fields = self._history, self._board.by_field
        shares, arcs = [], []
        for worker in range(self._workers):
            start, count = int(fields["committed"][worker]), int(fields["new"][worker])
            shares.append(self._store.new[worker][start : start + count])
            start, count = int(fields["committed_arcs"][worker]), int(fields["arcs"][worker])
            arcs.append(self._store.arcs[worker][start : start + count])
        counts: dict[str, int] = {}
        for worker in range(self._workers):
            for reason, count in json.loads(self._board.read_note(worker)).items():
                counts[reason] = counts.get(reason, 0) + count
        added = sum(share.nbytes for share in (*shares, *arcs))
        stats = LevelStats(
            level=len(history.levels),
            frontier=frontier,
            candidates=int(fields["candidates"].sum()),
            new=sum(map(len, shares)),
            seconds=seconds,
            bytes=history.bytes + added,
            complete=int(fields["expanded"].sum()) == frontier,
            worker_seconds=tuple((fields["busy_ns"] * 1e-9).tolist()),
            worker_candidates=tuple(fields["candidates"].tolist()),
            worker_new=tuple(fields["new"].tolist()),
        )
        fields["committed"][:] += fields["new"]
        fields["committed_arcs"][:] += fields["arcs"]
        return Level(tuple(shares), tuple(arcs), stats, counts)

    def end(self, *, kill: bool) -> None:
        """End all workers, at once or after they have sent their last log records."""
        if not self._processes:
            return
        if not kill:
            for mailbox in self._queues.mailboxes[:-1]:
                mailbox.write(Kind.LEAVE, self._workers, 0, 0)
            patience = time.perf_counter() + 1.0
            for process in self._processes:
                process.join(max(0.0, patience - time.perf_counter()))
        for process in self._processes:
            if process.is_alive():
                process.kill()
        for process in self._processes:
            process.join()
            process.close()
        self._processes = []
        self._queues.close()


class Worker:
    """One forked process: expands slices of the frontier, owns a share of the keys."""

    def __init__(
        self,
        space: Space,
        history: History,
        store: Store,
        watch: Watch,
        queues: Queues,
        board: Board,
        worker: int,
    ) -> None:
        self._space = space
        self._history = history
        self._store = store
        self._watch = watch
        self._queues = queues
        self._board = board
        self._me = worker
        self._parent = 0
        self._pace = Pace()

    def main(self, parent: int, mask: set[signal.Signals]) -> None:
        """What the process does from the fork to its end."""
        self._parent = parent
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        signal.signal(signal.SIGTERM, signal.SIG_DFL)  # the parent's handler is not meant for workers
        signal.pthread_sigmask(signal.SIG_SETMASK, mask)
        if sys.platform == "linux":
            ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
        self._alive()
        port = Port(self._queues, self._me, self._alive)
        try:
            self._explore(port)
        except BaseException as error:
            self._board.write_note(self._me, _described(error))
            port.tell_parent(Kind.FAILED)

    def _alive(self) -> None:
        if os.getppid() != self._parent:
            os._exit(1)

    def _explore(self, port: Port) -> None:
        history, store, space, board = self._history, self._store, self._space, self._board
        seen = history.restore(space, partial(_owned_by, worker=self._me, workers=self._queues.workers))
        shares = list(history.levels[-1].shares)
        fields = board.by_field
        committed = fields["committed"].copy()
        before = space.counts()
        while True:
            early: list[Records] = []  # from workers that have begun the level already
            while not port.orders:
                port.receive(early.append, wait=True)
            if port.orders.popleft().kind == Kind.LEAVE:
                return
            now = fields["committed"].copy()
            if (now != committed).any():
                shares = [array[committed[w] : now[w]] for w, array in enumerate(store.new)]
                history.rows += int((now - committed).sum())
                committed = now
                seen.add(shares[self._me])
                if space.shared:
                    absorb(space, merge(shares))
            pending = pending_for(self._watch, history, seen, self._queues.workers)
            for records in early:
                pending.add(records)
            self._expand(port, pending, shares)
            began = time.perf_counter_ns()
            new, arcs = pending.finish()
            if len(new):
                store_share(store.new[self._me], int(committed[self._me]), new)
            if len(arcs):
                store_share(store.arcs[self._me], int(fields["committed_arcs"][self._me]), arcs)
            fields["new"][self._me], fields["arcs"][self._me] = len(new), len(arcs)
            after = space.counts()
            board.write_note(self._me, json.dumps(less_counts(after, before)).encode())
            before = after
            fields["busy_ns"][self._me] += time.perf_counter_ns() - began
            port.tell_parent(Kind.DONE)

    def _expand(self, port: Port, pending: Pending, shares: list[Records]) -> None:
        """Expand slices until there are no more, and take in what the others found for this worker."""
        fields, me = self._board.by_field, self._me
        while (ticket := port.ticket(pending.add)) is not None:
            began = time.perf_counter_ns()
            share = shares[ticket.share]
            at = ticket.start
            while at < ticket.stop and not self._board.stop:
                batch_began = time.perf_counter()
                lines = share[at : min(ticket.stop, at + self._pace.rows), KEY_WORDS:]
                made = candidates_of(self._space, np.ascontiguousarray(lines))
                count = 0 if made is None else len(made)
                self._pace.learn(len(lines), count, time.perf_counter() - batch_began)
                if made is not None:
                    self._deal(port, pending, made)
                at += len(lines)
                fields["expanded"][me] += len(lines)
                fields["candidates"][me] += count
                fields["settled"][me], fields["bytes"][me] = pending.settled, pending.bytes
                fields["closing_ns"][me] = int(1e9 * pending.closing_seconds)
            fields["busy_ns"][me] += time.perf_counter_ns() - began
        port.end()
        while port.ended < self._queues.workers - 1:
            port.receive(pending.add, wait=True)
        port.ended = 0

    def _deal(self, port: Port, pending: Pending, made: Records) -> None:
        """Give every candidate to the owner of its key."""
        workers = self._queues.workers
        made = thinned(made, copies_only=self._history.keep_arcs)
        owner = owners(made.view(np.uint64)[:, :KEY_WORDS], workers)
        for step in range(workers):
            worker = (self._me + step) % workers
            lines = np.flatnonzero(owner == worker)
            if not len(lines):
                continue
            if worker == self._me:
                pending.add(made.take(lines, axis=0))
            else:
                port.send(worker, made, lines, pending.add)


def _owned_by(records: Records, *, worker: int, workers: int) -> Records:
    owned: Records = records[owners(keys_of(records), workers) == worker]
    return owned


def _filled(history: History, array: Records) -> int:
    """How much of a store's array finished levels use."""
    last = 0
    base = array.__array_interface__["data"][0]
    for level in history.levels:
        for share in (*level.shares, *level.arcs):
            address = share.__array_interface__["data"][0]
            if len(share) and base <= address < base + array.nbytes:
                last = max(last, (address - base) // array.strides[0] + len(share))
    return last


def _described(error: BaseException) -> bytes:
    text = "".join(traceback.format_exception(error))
    try:
        return pickle.dumps((error, text))
    except Exception:  # whatever an exception's own reduction does
        return pickle.dumps((RuntimeError(f"{type(error).__name__}: {error}"), text))


def _raise_remote(note: bytes) -> None:
    error, text = pickle.loads(note)
    raise error from RemoteTracebackError(text)
