"""Interrupts: Ctrl-C as a wish to stop, so that long work ends with the best so far."""

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Protocol

__all__ = ["Interruptible", "interrupts_noted"]


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
