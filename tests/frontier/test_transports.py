"""Every transport finds the same states, in spaces of the package, of the tests and of a stranger."""

import pickle
import threading
from collections.abc import Iterator
from queue import SimpleQueue
from typing import Any

import numpy as np
import pytest
from pages import ROOT, blocks
from quick import few
from spaces import SPACES, as_bytes

from superopt.frontier.engine import Limits, explore
from superopt.frontier.engine.history import History, Level
from superopt.frontier.engine.records import Index, Records, merge
from superopt.frontier.engine.transport import Progress, Take
from superopt.frontier.engine.transports.processes import Processes
from superopt.frontier.engine.transports.serial import Serial
from superopt.frontier.engine.watch import Watch
from superopt.frontier.engine.worker import Worker


class Mail:
    """A queue of pickled messages: what one end puts in is no object of the other end."""

    def __init__(self) -> None:
        self._queue: SimpleQueue[bytes] = SimpleQueue()

    def put(self, *message: object) -> None:
        self._queue.put(pickle.dumps(message))

    def get(self) -> Any:
        return pickle.loads(self._queue.get(timeout=60))


class Threads:
    """A transport whose workers share no memory, as on several machines; each expands a fixed part."""

    def __init__(self, space: Any, history: History, watch: Watch, workers: int) -> None:
        self.history, self.watch = history, watch
        self.boxes = [Mail() for _ in range(workers + 1)]
        start = pickle.dumps((space, history))
        ends = [ThreadEnd(start, self.boxes, worker) for worker in range(workers)]
        self.threads = [threading.Thread(target=end.main) for end in ends]
        for thread in self.threads:
            thread.start()
        self.begun = False

    def explore_level(self) -> tuple[Level, str | None]:
        *boxes, own = self.boxes
        shares = self.history.levels[-1].shares
        frontier = merge(shares, self.history.width)
        parts = np.array_split(frontier, len(boxes))
        rows = self.watch.compact_rows(self.history, len(boxes))
        for box, part in zip(boxes, parts, strict=True):
            box.put("level", shares if self.begun else None, part, rows)
        self.begun = True
        ended = dict(own.get() for _ in boxes)
        level = self.history.ended_level([ended[worker] for worker in range(len(boxes))], 0.0)
        assert level.stats.complete
        return level, None

    def close(self, *, at_once: bool) -> None:
        for box in self.boxes:
            box.put("leave")
        for thread in self.threads:
            thread.join(timeout=60)


class ThreadEnd:
    """One worker of `Threads`, and its port."""

    def __init__(self, start: bytes, boxes: list[Mail], worker: int) -> None:
        self.space, self.history = pickle.loads(start)
        self.boxes, self.worker, self.workers = boxes, worker, len(boxes) - 1
        self.early: list[Any] = []
        self.ended = 0

    def main(self) -> None:
        worker = Worker(self.space, self.history, Watch(Limits()), self)
        while (message := self.boxes[self.worker].get())[0] != "leave":
            if message[0] != "level":
                self.early.append(message)
                continue
            _, shares, self.part, compact_rows = message
            if shares is not None:
                worker.commit(shares)
            self.boxes[-1].put(self.worker, worker.explore_level(compact_rows))

    def slices(self, take: Take) -> Iterator[Records]:
        for message in self.early:
            self.receive(message, take)
        self.early.clear()
        yield self.part

    def send(self, owner: int, records: Records, lines: Index, take: Take) -> None:
        self.boxes[owner].put("data", records[lines])

    def end_level(self, take: Take) -> None:
        for owner, box in enumerate(self.boxes[:-1]):
            if owner != self.worker:
                box.put("end")
        while self.ended < self.workers - 1:
            self.receive(self.boxes[self.worker].get(), take)
        self.ended = 0

    def receive(self, message: Any, take: Take) -> None:
        if message[0] == "data":
            take(message[1])
        else:
            assert message == ("end",)
            self.ended += 1

    def report(self, progress: Progress) -> bool:
        return False


TRANSPORTS = [(Serial, 1), *((kind, workers) for kind in (Processes, Threads) for workers in (1, 2, 3, 8))]


def named(value: Any) -> str:
    return getattr(value, "__name__", str(value))


@pytest.mark.parametrize(
    "keep_arcs", [pytest.param(False, id="states"), pytest.param(True, marks=pytest.mark.slow, id="arcs")]
)
@pytest.mark.parametrize("name", SPACES)
def test_any_number_of_workers_gives_the_same_bytes(name, keep_arcs):
    one = explore(SPACES[name](), keep_arcs=keep_arcs)
    assert one.stopped is None
    assert len(one.rows) > 100
    assert bool(len(one.arcs)) == keep_arcs
    for transport, workers in TRANSPORTS:
        several = explore(SPACES[name](), workers=workers, keep_arcs=keep_arcs, transport=transport)
        assert as_bytes(several) == as_bytes(one)
        assert several.counts == one.counts
        assert [(s.frontier, s.candidates, s.new) for s in several.levels] == [
            (s.frontier, s.candidates, s.new) for s in one.levels
        ]
        assert all(len(stats.worker_seconds) == workers for stats in several.levels[1:])


def stranger(name: str) -> Any:
    """Return the space that the walk-through adds in one file."""
    [file] = [block for block in blocks(ROOT / "docs" / "extend" / "space.md") if block.kind == "file"]
    module = {"__name__": "sums"}
    exec(file.body, module)
    return module[name]


def reachable(coins: tuple[int, ...], most: int) -> dict[int, int]:
    """Return each amount that the coins can pay with the least number of coins, by trying all."""
    fewest = {0: 0}
    for amount in range(1, most + 1):
        ways = [fewest[amount - coin] for coin in coins if amount - coin in fewest]
        if ways:
            fewest[amount] = 1 + min(ways)
    return fewest


@pytest.mark.parametrize(
    ("transport", "workers"), few(TRANSPORTS, (Serial, 1), (Processes, 3), (Threads, 3)), ids=named
)
@pytest.mark.parametrize(
    "coins",
    [(6, 9, 20), *(pytest.param(one, marks=pytest.mark.slow) for one in ((7, 31, 365), (5,)))],
    ids=str,
)
def test_a_space_of_one_file(monkeypatch, transport, workers, coins):
    space = stranger("Sums")
    monkeypatch.setitem(globals(), "Sums", space)  # pickle looks for the class by its module and name
    space.__module__, space.__qualname__ = __name__, "Sums"
    found = explore(space(coins, 2000), workers=workers, transport=transport)
    assert found.stopped is None
    assert dict(zip(found.rows[:, 0].tolist(), found.level_of.tolist(), strict=True)) == reachable(
        coins, 2000
    )
