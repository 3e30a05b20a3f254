"""What a helper costs: turns in which it works and turns in which it is stopped, with all that it started."""

import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from superopt.backend.deferred import helper as work
from superopt.backend.deferred.live import helper_at_work
from superopt.backend.deferred.priority import descendants
from superopt.bench import helper
from superopt.bench.helper import cost_of, processor_s
from superopt.errors import InputError

pytestmark = pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="needs /proc")

_BUSY = "while True: pass"
_PARENT = f"import subprocess, sys; subprocess.run([sys.executable, '-c', {_BUSY!r}])"
_LONG_S, _SHORT_S = 0.02, 0.004


@contextmanager
def started(*command: str) -> Iterator[int]:
    process = subprocess.Popen(command)
    try:
        yield process.pid
    finally:
        for one in (*descendants(process.pid), process.pid):
            subprocess.run(["kill", "-9", str(one)], check=False)
        process.wait()


def state(process: int) -> str:
    return Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[0]


def until(done: Callable[[], bool]) -> None:
    end = time.monotonic() + 60
    while not done():
        assert time.monotonic() < end
        time.sleep(0.01)


@pytest.mark.parametrize("lump_s", [0.0, 5.0])
def test_a_helper_takes_its_share_of_the_time(lump_s: float, monkeypatch: pytest.MonkeyPatch) -> None:
    """What it computes itself counts at once, what compilers took once they have ended."""
    now = used = known = rested = 0.0

    def pass_time(seconds: float) -> None:
        nonlocal now, used, known
        now, used = now + seconds, used + seconds
        known = used if used - known >= lump_s else known

    def hold_still(seconds: float) -> None:
        nonlocal now, rested
        now, rested = now + seconds, rested + seconds

    monkeypatch.setattr(work, "_processor_s", lambda: known)
    monkeypatch.setattr(work, "_hold_still", hold_still)
    monkeypatch.setattr(work.time, "monotonic", lambda: now)
    rests = work.Rests()
    while now < 200:
        if not rests.taken():
            pass_time(0.25)
    assert used / now == pytest.approx(work._SHARE, abs=0.03)
    assert used + rested == pytest.approx(now)
    now += 60  # it was stopped: no rest is saved up
    while not rests.taken():
        pass_time(0.25)
        assert now < 280


def test_no_other_thread_goes_on_during_a_rest() -> None:
    count, done = 0, threading.Event()

    def run() -> None:
        nonlocal count
        while not done.is_set():
            count += 1

    other = threading.Thread(target=run)
    other.start()
    before = count
    work._hold_still(0.3)
    during = count - before
    time.sleep(0.3)
    after = count - before - during
    done.set()
    other.join()
    assert during <= after / 2


def test_calls_beside_a_process_are_told_from_calls_alone() -> None:
    with started(sys.executable, "-c", _PARENT) as process:
        until(lambda: bool(descendants(process)))
        [child] = descendants(process)

        def call() -> None:
            stopped = all(state(one) == "T" for one in (process, child))
            time.sleep(_SHORT_S if stopped else _LONG_S)

        found = cost_of(call, process, 1.0, 0.1)
        assert found["turns"] == len(found["alone_us"]) == len(found["beside_us"]) >= 2
        assert found["ratio"] > 1.5
        assert found["busy"] > 0.0
        assert "T" not in (state(process), state(child))


def test_calls_that_nothing_disturbs_take_as_long_alone() -> None:
    with started("sleep", "600") as process:  # an interpreter would still be starting
        found = cost_of(lambda: time.sleep(_LONG_S), process, 1.0, 0.1)
    assert 0.5 < found["ratio"] < 2.0
    assert found["busy"] < 0.1


def test_processor_time_of_children_that_ended_counts() -> None:
    burn = "import time; [None for _ in iter(lambda: time.process_time() < 0.3, False)]"
    code = f"import subprocess, sys, time; subprocess.run([sys.executable, '-c', {burn!r}]); time.sleep(600)"
    with started(sys.executable, "-c", code) as process:
        until(lambda: processor_s(process) >= 0.3 and not descendants(process))
        assert processor_s(process) >= 0.3


def test_no_helper_is_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(helper, "_PATIENCE_S", 0.2)
    assert helper_at_work() is None
    with pytest.raises(InputError, match="no helper was at work"):
        helper._helper()


def test_a_helper_that_ended_says_so() -> None:
    with pytest.raises(InputError, match="ended before"):
        cost_of(lambda: None, 2**22 + 1, 0.1, 0.1)  # no process has such a number
