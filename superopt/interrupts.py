"""Interrupts: Ctrl-C as a wish to stop, so that long work ends with the best so far; other signals end it."""

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Protocol

__all__ = ["Ended", "Interruptible", "ending_signals", "interrupts_noted"]


class Ended(BaseException):
    """A signal that ends the process: what is under way is cleaned up, and nothing more is done."""

    def __init__(self, number: int) -> None:
        super().__init__(number)
        self.number = number


@contextmanager
def ending_signals() -> Iterator[None]:
    """Raise Ended where SIGTERM or SIGHUP comes, so that children and scratch files go with the process.

    A signal that the caller ignores, as under nohup, stays ignored.
    """
    names = ("SIGTERM", "SIGHUP")  # Windows has no SIGHUP
    numbers = [getattr(signal, name) for name in names if hasattr(signal, name)]
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    def end(number: int, frame: FrameType | None) -> None:
        for other in numbers:  # a second one must not stop the cleaning up
            signal.signal(other, signal.SIG_IGN)
        raise Ended(number)

    usual = {number: signal.getsignal(number) for number in numbers}
    mine = [number for number, handler in usual.items() if handler is signal.SIG_DFL]
    for number in mine:
        signal.signal(number, end)
    try:
        yield
    finally:
        for number in mine:
            signal.signal(number, usual[number])


class Interruptible(Protocol):
    """Work that looks now and then whether it was asked to stop."""

    interrupted: bool


@contextmanager
def interrupts_noted(work: Interruptible) -> Iterator[None]:
    """Make the first Ctrl-C a wish to stop; a second one raises as ever.

    Work that is `interruptible` at the moment, as while it waits, gets the exception at once.
    """
    usual = signal.getsignal(signal.SIGINT)
    if threading.current_thread() is not threading.main_thread() or usual is not signal.default_int_handler:
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
