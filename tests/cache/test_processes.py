"""Several processes at one file: writing, clearing, being killed, forking."""

import multiprocessing
import os
import signal
import sqlite3
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from superopt.cache import Cache, Key, Record
from superopt.cache.place import LOCK_SECONDS, folder_lock
from superopt.cache.store import FileStore

Keys = Callable[..., Key]
Warnings = Callable[[], list[str]]

WRITER = """
import logging, sys
from superopt.cache import Cache, Record, key_of
logging.basicConfig(level=logging.WARNING, stream=sys.stdout, format="warning %(message)s")
folder, first, count, clears = sys.argv[1], *map(int, sys.argv[2:])
parts = dict(device="cpu", options={"seed": 0}, superopt="1", torch="2", compiler="3")
cache = Cache.open(folder)
for number in range(first, first + count):
    key = key_of("plan", program=f"axes m={number}\\n", **parts)
    cache.put(key, Record({"number": number, "text": "x" * 2000}))
    if clears > 0 and number % 5 == 0:
        cache.clear()
    elif clears < 0:
        assert cache.get(key).data["number"] == number
    if count > 10_000:
        print(number, flush=True)
assert cache.info().unsaved == 0
cache.close()
"""


def writer(folder: Path, first: int, count: int, clears: int = -1) -> "subprocess.Popen[str]":
    return subprocess.Popen(
        [sys.executable, "-c", WRITER, str(folder), str(first), str(count), str(clears)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def finish(writers: "list[subprocess.Popen[str]]") -> None:
    for process in writers:
        out, err = process.communicate(timeout=60)
        assert (process.returncode, out) == (0, ""), err


@pytest.mark.parametrize("count", [2, 8])
def test_processes_write_at_the_same_time(folder: Path, plan_key: Keys, count: int) -> None:
    finish([writer(folder, 100 * number, 30) for number in range(count)])
    with Cache.open() as cache:
        assert len(cache.entries()) == 30 * count
        for number in range(count):
            record = cache.get(plan_key(100 * number + 29))
            assert record is not None
            assert record.data["number"] == 100 * number + 29


def test_processes_clear_while_others_write(folder: Path, warnings: Warnings) -> None:
    writers = [writer(folder, 100 * number, 30, clears=number % 2) for number in range(4)]
    with Cache.open() as cache:
        while any(process.poll() is None for process in writers):
            cache.entries()
            cache.clear()
        finish(writers)
        cache.clear()
        assert cache.entries() == ()
    assert warnings() == []


def test_a_process_killed_while_writing_loses_nothing_written(
    folder: Path, plan_key: Keys, warnings: Warnings
) -> None:
    for attempt in range(3):
        first = 100_000 * (attempt + 1)
        process = writer(folder, first, 90_000)
        assert process.stdout is not None
        for _ in range(20 + 13 * attempt):
            last = int(process.stdout.readline())
        process.send_signal(signal.SIGKILL)
        written = [last, *map(int, process.stdout.read().split("\n")[:-1])]
        process.communicate()
        with Cache.open() as cache:
            for number in (first, *written):
                record = cache.get(plan_key(number))
                assert record is not None
                assert record.data["number"] == number
    with sqlite3.connect(folder / "cache-1.db") as connection:
        assert connection.execute("PRAGMA integrity_check").fetchall() == [("ok",)]
    connection.close()
    assert warnings() == []


def in_child(work: Callable[[], None]) -> int:
    """Run something in a forked child and return its exit code."""
    child = os.fork()
    if child == 0:
        code = 1
        try:
            work()
            code = 0
        finally:
            os._exit(code)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


needs_fork = pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork here")


@needs_fork
def test_a_forked_child_has_a_connection_of_its_own(folder: Path, plan_key: Keys, warnings: Warnings) -> None:
    with Cache.open() as cache:
        cache.put(plan_key(0), Record({"n": 0}))

        def work() -> None:
            assert cache.get(plan_key(0)) is not None
            cache.put(plan_key(1), Record({"n": 1}))
            cache.close()

        for _ in range(3):
            assert in_child(work) == 0
            assert cache.get(plan_key(1)) is not None
        cache.put(plan_key(2), Record({"n": 2}))
        assert len(cache.entries()) == 3
    assert warnings() == []


@needs_fork
def test_children_write_beside_their_parent(folder: Path, plan_key: Keys, warnings: Warnings) -> None:
    with Cache.open() as cache:

        def work(first: int) -> None:
            for number in range(first, first + 20):
                cache.put(plan_key(number), Record({"n": number}))

        context = multiprocessing.get_context("fork")
        children = [context.Process(target=work, args=(1000 * number,)) for number in range(1, 4)]
        for child in children:
            child.start()
        work(0)
        for child in children:
            child.join(30)
            assert child.exitcode == 0
        assert len(cache.entries()) == 80
    assert warnings() == []


@needs_fork
@pytest.mark.skipif(sys.version_info >= (3, 12), reason="Python itself warns of forking beside threads")
def test_a_fork_beside_threads_that_write(folder: Path, plan_key: Keys, warnings: Warnings) -> None:
    with Cache.open() as cache:
        stop = threading.Event()

        def write(first: int) -> None:
            number = first
            while not stop.is_set():
                cache.put(plan_key(number), Record({"n": number}))
                number += 1
                time.sleep(0.001)

        threads = [threading.Thread(target=write, args=(10_000 * number,)) for number in range(1, 3)]
        for thread in threads:
            thread.start()
        try:
            for number in range(10):
                assert in_child(lambda number=number: cache.put(plan_key(number), Record({"n": 0}))) == 0
        finally:
            stop.set()
            for thread in threads:
                thread.join()
        assert all(cache.get(plan_key(number)) is not None for number in range(10))
        assert cache.info().unsaved == 0
    assert warnings() == []


@needs_fork
def test_a_connection_met_in_another_process_is_left_alone(
    folder: Path, plan_key: Keys, monkeypatch: pytest.MonkeyPatch
) -> None:
    with Cache.open() as cache:
        cache.put(plan_key(0), Record({}))
        process = os.getpid()
        monkeypatch.setattr(os, "getpid", lambda: process + 1)  # as after a fork unseen by Python
        assert cache.get(plan_key(0)) is not None
        cache.put(plan_key(1), Record({}))
        monkeypatch.undo()
        assert len(cache.entries()) == 2


@needs_fork
@pytest.mark.skipif(sys.version_info >= (3, 12), reason="Python itself warns of forking beside threads")
def test_a_fork_while_another_thread_opens_the_cache(
    folder: Path, plan_key: Keys, warnings: Warnings, monkeypatch: pytest.MonkeyPatch
) -> None:
    codes: list[int] = []
    forking = threading.Thread(target=lambda: codes.append(in_child(lambda: None)))
    plain = FileStore._open

    def opening(self: FileStore) -> None:
        plain(self)
        forking.start()
        forking.join(0.2)  # it waits for the end of this

    monkeypatch.setattr(FileStore, "_open", opening)
    with Cache.open() as cache:
        monkeypatch.undo()
        forking.join()
        cache.put(plan_key(0), Record({}))
    assert codes == [0]
    assert warnings() == []


@needs_fork
def test_a_child_holds_no_lock_of_its_parent(tmp_path: Path) -> None:
    begin, end = os.pipe()
    with folder_lock(tmp_path):
        child = os.fork()
        if child == 0:
            os.read(begin, 1)
            os._exit(0)
    try:
        start = time.monotonic()
        with folder_lock(tmp_path):
            assert time.monotonic() - start < LOCK_SECONDS / 2
    finally:
        os.write(end, b"x")
        os.waitpid(child, 0)
        os.close(begin)
        os.close(end)


@needs_fork
def test_a_child_that_leaves_the_block_closes_no_other_file(tmp_path: Path) -> None:
    def work() -> None:
        with folder_lock(tmp_path):
            child = os.fork()
            other = os.open(tmp_path / "other", os.O_RDWR | os.O_CREAT)
        if child == 0:
            os.fstat(other)
            os._exit(0)
        assert os.waitpid(child, 0)[1] == 0

    assert in_child(work) == 0
