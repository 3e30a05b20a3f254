"""Background: work in a thread of its own gives its result or its error, and ends when it is interrupted."""

import subprocess
import sys
import threading
import time

import pytest

from superopt.tune.background import Background


def test_the_result_is_waited_for() -> None:
    release = threading.Event()
    work = Background(lambda: (release.wait(10), threading.current_thread().name))
    assert not work.busy
    work.begin()
    assert work.busy
    release.set()
    assert work.result() == (True, "superopt")
    assert not work.busy


def test_an_error_is_raised_where_the_result_is_asked_for() -> None:
    def fails() -> None:
        raise ValueError("no such thing")

    with pytest.raises(ValueError, match="no such thing"):
        Background(fails).result()


def test_work_that_is_ended_is_interrupted() -> None:
    reached: list[str] = []

    def endless() -> None:
        try:
            while True:
                time.sleep(0.01)
        finally:
            reached.append("end")

    work = Background(endless).begin()
    work.end()
    assert reached == ["end"]
    with pytest.raises(KeyboardInterrupt):
        work.result()
    work.end()  # once it is done, nothing is left to end


def test_work_that_is_interrupted_ends_what_it_has_begun_and_does_not_wait_for() -> None:
    begun, ended = threading.Event(), threading.Event()

    def endless() -> None:
        try:
            while True:
                begun.set()
                time.sleep(0.01)
        finally:
            ended.set()

    def outer() -> None:
        Background(endless).begin()  # the interrupt may come before its result is asked for
        while True:
            time.sleep(0.01)

    work = Background(outer).begin()
    assert begun.wait(10)
    work.end()
    assert ended.is_set()


def test_work_that_ends_by_itself_leaves_what_it_has_begun() -> None:
    release = threading.Event()
    inner = Background(lambda: Background(lambda: release.wait(10)).begin()).result()
    assert inner.busy
    release.set()
    assert inner.result()


def test_an_interrupt_while_work_begins_ends_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """Before: nobody ended a thread whose start was interrupted, which Ctrl-C can do on a slow machine."""
    running, ended = threading.Event(), threading.Event()

    def endless() -> None:
        try:
            while True:
                running.set()
                time.sleep(0.001)
        finally:
            ended.set()

    def interrupted_start(thread: threading.Thread) -> None:
        start(thread)
        assert running.wait(10)
        raise KeyboardInterrupt

    start = threading.Thread.start
    work = Background(endless)
    with monkeypatch.context() as patched:
        patched.setattr(threading.Thread, "start", interrupted_start)
        with pytest.raises(KeyboardInterrupt):
            work.result()
    assert ended.is_set()


def test_work_that_was_never_begun_needs_no_end() -> None:
    work = Background(lambda: pytest.fail("it ran"))
    work.end()
    assert not work.busy
    with pytest.raises(KeyboardInterrupt):
        work.result()


def test_two_threads_that_end_the_same_work_interrupt_it_once() -> None:
    """A second interrupt amid the last steps of the work would leave them undone."""
    steps: list[int] = []

    def endless() -> None:
        try:
            while True:
                time.sleep(0.001)
        finally:
            for step in range(20):
                time.sleep(0.001)
                steps.append(step)

    work = Background(endless).begin()
    enders = [threading.Thread(target=work.end) for _ in range(4)]
    for ender in enders:
        ender.start()
    for ender in enders:
        ender.join()
    assert len(steps) == 20


INTERRUPTED_IMPORTS = """
import _imp, importlib, os, sys, time
from superopt.tune.background import Background

class Nothing:
    def find_spec(self, *names): return None

def endless():
    while True:
        try: importlib.import_module("no_such_module")
        except ImportError: pass

sys.meta_path[:] = [Nothing()]
for turn in range(60):
    work = Background(endless).begin()
    time.sleep(0.0001 * (turn % 20))
    work.end()
    if work.busy or _imp.lock_held():
        print("after", turn, flush=True)
        os._exit(1)
"""


def test_an_interrupted_import_leaves_no_lock_behind() -> None:
    """Interrupted at any moment, one in twelve did: all 60 would pass once in 185 runs."""
    ran = subprocess.run(
        [sys.executable, "-c", INTERRUPTED_IMPORTS], capture_output=True, text=True, timeout=120
    )
    assert (ran.returncode, ran.stdout) == (0, "")


def test_an_interrupted_text_of_code_does_not_change_how_the_process_ends() -> None:
    code = (
        "import time\n"
        "from superopt.tune.background import Background\n"
        "work = Background(lambda: exec('while True: pass')).begin()\n"
        "time.sleep(0.05)\n"
        "work.end()\n"
        "assert not work.busy\n"
    )
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert (ran.returncode, ran.stderr) == (0, "")
