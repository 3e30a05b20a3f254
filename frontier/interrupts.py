"""Interrupts: Ctrl-C as a wish to stop, so that long work ends with the best so far; other signals end it."""

import os
import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any, NoReturn, Protocol

__all__ = [
    "Ended",
    "Interruptible",
    "at_last",
    "ending_signals",
    "interrupt",
    "interrupts_noted",
    "received",
]


class Ended(BaseException):
    """A signal that ends the process: what is under way is cleaned up, and nothing more is done."""

    def __init__(self, number: int) -> None:
        super().__init__(number)
        self.number = number


_GRACE_S = 20.0  # seconds that a process has to clean up after it was told to end
_received: list[int] = []


def received() -> int | None:
    """Return the signal that came first since `ending_signals` began; None where none came.

    An exception raised by a handler may be lost where C code runs Python.
    """
    return _received[0] if _received else None


_at_last: list[Callable[[], None]] = []


@contextmanager
def at_last(work: Callable[[], None]) -> Iterator[None]:
    """Do some work, too, where the process is ended here and now: then no block is left in order."""
    _at_last.append(work)
    try:
        yield
    finally:
        _at_last.remove(work)


def interrupt(number: int, frame: FrameType | None) -> None:
    """Raise KeyboardInterrupt, as Python does by itself, but end at once where a module is imported."""
    _received.append(number)
    if _imports(frame):
        _leave(number, "interrupted")
    raise KeyboardInterrupt


def _imports(frame: FrameType | None) -> bool:
    """Whether a module is being imported: an exception in PyTorch's may be lost, or abort the process."""
    while frame is not None:
        if frame.f_code.co_filename.startswith("<frozen importlib"):
            return True
        frame = frame.f_back
    return False


def _leave(number: int, word: str) -> NoReturn:
    """End the process here and now, with one line and the exit code of the signal."""
    if word:
        os.write(2, f"superopt: {word}\n".encode())
    for work in _at_last:
        work()
    os._exit(128 + number)


@contextmanager
def ending_signals() -> Iterator[None]:
    """Raise Ended where SIGTERM or SIGHUP comes, so that children and scratch files go with the process.

    A signal that the caller ignores, as under nohup, stays ignored. A process that does not end in time does
    what is to be done `at_last`, and is gone.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    names = ("SIGTERM", "SIGHUP")  # Windows has no SIGHUP
    numbers = [getattr(signal, name) for name in names if hasattr(signal, name)]

    def end(number: int, frame: FrameType | None) -> None:
        _received.append(number)
        for other in numbers:  # a second one must not stop the cleaning up
            signal.signal(other, signal.SIG_IGN)
        if _imports(frame):
            _leave(number, f"ended by {signal.Signals(number).name}")
        threading.Thread(target=_end_late, args=(number,), daemon=True).start()
        raise Ended(number)

    _received.clear()
    handlers: dict[int, tuple[Any, Any]] = dict.fromkeys(numbers, (signal.SIG_DFL, end))
    handlers[signal.SIGINT] = (signal.default_int_handler, interrupt)
    mine = {number: usual for number, (usual, _) in handlers.items() if signal.getsignal(number) is usual}
    for number in mine:
        signal.signal(number, handlers[number][1])
    try:
        yield
    finally:
        for number, usual in mine.items():
            signal.signal(number, usual)


def _end_late(number: int) -> None:
    time.sleep(_GRACE_S)
    _leave(number, "")


class Interruptible(Protocol):
    """Work that looks now and then whether it was asked to stop."""

    interrupted: bool


@contextmanager
def interrupts_noted(work: Interruptible) -> Iterator[None]:
    """Make the first Ctrl-C a wish to stop; a second one raises as ever.

    Work that is `interruptible` at the moment, as while it waits, gets the exception at once.
    """
    usual = signal.getsignal(signal.SIGINT)
    ours = usual in (signal.default_int_handler, interrupt)
    if threading.current_thread() is not threading.main_thread() or not ours:
        yield  # another owner of the signal, or no right to change it
        return

    def note(number: int, frame: FrameType | None) -> None:
        if work.interrupted:
            raise KeyboardInterrupt
        work.interrupted = True
        if getattr(work, "interruptible", False):
            raise KeyboardInterrupt

    signal.signal(signal.SIGINT, note)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, usual)
