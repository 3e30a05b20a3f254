"""Background: work in a thread of its own gives its result or its error, and ends when it is interrupted."""

import threading
import time

import pytest

from superopt.tune.background import Background


def test_the_result_is_waited_for() -> None:
    release = threading.Event()
    work = Background(lambda: (release.wait(10), threading.current_thread().name))
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

    work = Background(endless)
    work.end()
    assert reached == ["end"]
    with pytest.raises(KeyboardInterrupt):
        work.result()
    work.end()  # once it is done, nothing is left to end
