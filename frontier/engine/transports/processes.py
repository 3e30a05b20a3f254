"""The transport of forked processes: a key's owner alone deduplicates it, the parent supervises.

A worker takes slices of the frontier, expands them, and sends every candidate to the owner of its key.
When all have said that nothing more comes, each owner deduplicates what it got, writes its new states
to shared memory and reports. The engine then commits the level: what is committed outlives any worker.
When a worker dies, the level is begun again by a new set of workers, forked from the parent.
"""

from __future__ import annotations

import json
import logging
import multiprocessing
import os
import select
import signal
import time
import warnings
from collections import deque
from contextlib import ExitStack
from multiprocessing.process import BaseProcess

from superopt.errors import InputError
from superopt.frontier.engine.history import History, Level, Share
from superopt.frontier.engine.interface import Space
from superopt.frontier.engine.records import KEY_WORDS
from superopt.frontier.engine.transport import WorkerLostError
from superopt.frontier.engine.transports.forked import ForkedWorker, raise_remote
from superopt.frontier.engine.transports.logs import forwarded
from superopt.frontier.engine.transports.memory import Board, Store
from superopt.frontier.engine.transports.queues import Kind, Message, Queues, Ticket
from superopt.frontier.engine.watch import Watch

__all__ = ["Processes"]

MOST_WORKERS = 128
LOOK_SECONDS = 0.02
# After a limit, the time that workers have to end the level before its finds are given up.
GRACE_SECONDS = {"interrupted": 0.5, "limit": 3.0}
TICKETS_PER_WORKER = 64
TICKET_SECONDS = 0.003


class Processes:
    """A transport with forked workers, which are begun with the first level, and again when one is lost."""

    def __init__(self, space: Space, history: History, watch: Watch, workers: int) -> None:
        if workers > MOST_WORKERS:
            raise InputError(f"workers is {workers}; give at most {MOST_WORKERS}")
        if not hasattr(os, "fork"):
            raise InputError("several workers need a system with fork; give workers=1")
        self._space = space
        self._history = history
        self._watch = watch
        self._store = Store(workers, history.width + KEY_WORDS, keep_arcs=history.keep_arcs)
        self._board = Board(workers)
        self._committed = len(history.levels)
        self._crew: Crew | None = None
        self._logs = ExitStack()
        self._logs.enter_context(forwarded(logging.getLogger("superopt")))

    def explore_level(self) -> tuple[Level | None, str | None]:
        """Let the workers explore the level after the last one of the history."""
        if len(self._history.levels) > self._committed:
            self._committed = len(self._history.levels)
            self._board.commit_level()
        self._board.begin_level(self._watch.compact_rows(self._history, self._board.workers))
        if self._crew is None:
            self._crew = Crew(self._space, self._history, self._watch, self._store, self._board)
        try:
            return self._crew.explore_level()
        except WorkerLostError:
            self._crew.end(kill=True)
            self._crew = None
            raise

    def close(self, *, at_once: bool) -> None:
        """End all workers, at once or after they have sent their last log records."""
        if self._crew is not None:
            self._crew.end(kill=at_once)
        self._logs.close()


class Crew:
    """Workers forked from the history of now, and their supervisor."""

    def __init__(self, space: Space, history: History, watch: Watch, store: Store, board: Board) -> None:
        self._history = history
        self._watch = watch
        self._store = store
        self._board = board
        self._workers = board.workers
        self._queues = Queues(self._workers, history.width + KEY_WORDS)
        context = multiprocessing.get_context("fork")
        self._processes: list[BaseProcess] = []
        # Signals may go to the whole process group: they must not meet a child with the parent's handlers.
        mask = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT, signal.SIGTERM, signal.SIGHUP})
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore", DeprecationWarning)  # fork in a process with threads
                for worker in range(self._workers):
                    work = ForkedWorker(space, history, watch, store, board, self._queues, worker)
                    process: BaseProcess = context.Process(
                        target=work.main, args=(os.getpid(), mask), name=f"superopt-{worker}", daemon=True
                    )
                    self._processes.append(process)
                    process.start()
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, mask)
        self._poll = select.poll()
        self._poll.register(self._queues.mailboxes[self._workers].reader, select.POLLIN)
        for process in self._processes:
            self._poll.register(process.sentinel, select.POLLIN)

    def explore_level(self) -> tuple[Level | None, str | None]:
        """Let the workers do the next level; return it, and which limit ended it early if one did."""
        began = time.perf_counter()
        board = self._board
        tickets = self._tickets()
        self._feed(tickets)
        for mailbox in self._queues.mailboxes[:-1]:
            mailbox.write(Kind.LEVEL, self._workers, 0, 0)
        done = 0
        why: str | None = None
        give_up = float("inf")
        while done < self._workers:
            for message in self._messages():
                if message.kind == Kind.FAILED:
                    raise_remote(board.read_note(message.source))
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
        shares = [self._share(worker) for worker in range(self._workers)]
        level = self._history.ended_level(shares, time.perf_counter() - began)
        return level, None if level.stats.complete else why

    def _tickets(self) -> deque[Ticket]:
        """Return slices of the frontier: many, for balance, but none so small that batches get slow."""
        last = self._history.levels[-1]
        frontier = last.new
        row_seconds = TICKET_SECONDS
        if last.stats.frontier:
            row_seconds = sum(last.stats.worker_seconds) / last.stats.frontier
        size = max(frontier // (self._workers * TICKETS_PER_WORKER), int(TICKET_SECONDS / row_seconds))
        size = max(1, min(size, -(-frontier // (2 * self._workers))))
        tickets = deque(
            Ticket(number, start, min(start + size, len(share)))
            for number, share in enumerate(last.shares)
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
        """Return what workers report within a moment; raise when one of them has died."""
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
                        raise WorkerLostError(f"worker {worker} was lost ({_end_of(process)})")
        return messages

    def _why(self) -> str | None:
        fields = self._board.by_field
        closing = 1e-9 * int(fields["closing_ns"].max())
        found = int(fields["settled"].sum()), int(fields["bytes"].sum())
        return self._watch.why(self._history, *found, closing)

    def _share(self, worker: int) -> Share:
        """Return what a worker has left in the store and on the board."""
        field = {name: int(numbers[worker]) for name, numbers in self._board.by_field.items()}
        start, arcs_start = field["committed"], field["committed_arcs"]
        return Share(
            new=self._store.new[worker][start : start + field["new"]],
            arcs=self._store.arcs[worker][arcs_start : arcs_start + field["arcs"]],
            counts=json.loads(self._board.read_note(worker)),
            expanded=field["expanded"],
            candidates=field["candidates"],
            seconds=1e-9 * field["busy_ns"],
        )

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


def _end_of(process: BaseProcess) -> str:
    code = process.exitcode
    return f"killed by signal {-code}" if code is not None and code < 0 else f"exit code {code}"
