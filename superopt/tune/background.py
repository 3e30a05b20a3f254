"""Background: work in a thread of its own, which can be waited for, and which an interrupt ends."""

import ctypes
import sys
import threading
import time
from collections.abc import Callable
from math import inf
from typing import Any, Generic, Self, TypeVar

__all__ = ["Background"]

T = TypeVar("T")

_PATIENCE_S = 15.0  # seconds in which a thread must end that is interrupted,
_INTERRUPT_S = 1.0  # once in so many seconds
_IMPORT_S = 0.005  # a thread that holds locks of the import system is left alone so long
_LOOK_S = 0.2  # a thread that waits for another one looks so often whether it is interrupted

_here = threading.local()  # `work`: the work that this thread does


class Interrupted(KeyboardInterrupt):
    """What ends work in another thread.

    Python ends a whole process as Ctrl-C does, with another exit code, if a plain KeyboardInterrupt has left
    code that was given to `exec` as text, in any thread and even if it was caught afterwards.
    """


class Background(Generic[T]):
    """Work for a thread of its own, which knows nothing of what the others have under way."""

    def __init__(self, work: Callable[[], T]) -> None:
        self._work = work
        self._made: list[T] = []
        self._raised: list[BaseException] = []
        self._asked = False
        self._entered = False  # the thread has come so far that an interrupt may be needed to end it
        self._over = False  # the work itself is done: nothing is left to interrupt
        self._unwanted = False
        self._done = threading.Event()
        self._interrupted_at = -_INTERRUPT_S
        self._begun: list[Background[Any]] = []  # by this work, in threads of their own
        # No daemon: PyTorch aborts a process that ends while a thread is in its code. It is not joined, since
        # Python 3.11 takes a thread for ended whose `join` was interrupted.
        self._thread = threading.Thread(target=self._run, name="superopt", daemon=False)

    def begin(self) -> Self:
        """Begin the work if nobody has."""
        if not self._asked:
            self._asked = True
            above: Background[Any] | None = getattr(_here, "work", None)
            if above is not None:
                above._begun.append(self)
            self._thread.start()
        return self

    def _run(self) -> None:
        _here.work = self
        self._entered = True
        try:
            if self._unwanted:
                raise Interrupted
            self._made.append(self._work())
        except BaseException as error:  # handed over to the thread that waits
            self._over = True
            self._raised.append(error)
            if isinstance(error, Interrupted):  # perhaps before this work could wait for what it began
                for one in self._begun:
                    one.end()
        finally:
            self._over = True
            self._done.set()

    @property
    def busy(self) -> bool:
        """Whether the work has begun and goes on."""
        if not self._asked or self._done.is_set():
            return False
        return not self._entered or self._thread.is_alive()

    def result(self, seconds: float = inf) -> T:
        """Begin the work, wait for it and return its result, or raise its error; an interrupt ends it.

        Where it takes more `seconds`, it is ended, and TimeoutError raised.
        """
        try:
            self.begin()
            end = time.monotonic() + seconds
            while self.busy:  # longer waits are not interrupted but in the main thread
                self._done.wait(_LOOK_S)
                if self.busy and time.monotonic() > end:
                    raise TimeoutError
        except BaseException as error:  # Ctrl-C, or the end of a thread that waits for this one
            self.end()
            if not (isinstance(error, TimeoutError) and self._made):  # or it was done just then
                raise
        if self._made:
            return self._made[0]
        raise self._raised[0] if self._raised else Interrupted

    def end(self) -> None:
        """Interrupt the work until it ends, since it may catch an interrupt, or wait in C.

        Whoever else ends it at the same time adds no interrupt, which could come amid its last steps.
        """
        self._unwanted = True  # a thread that has not entered yet ends by itself
        patience = time.monotonic() + _PATIENCE_S
        while self._entered and self.busy and (now := time.monotonic()) < patience:
            if self._over or now - self._interrupted_at < _INTERRUPT_S:
                self._done.wait(_LOOK_S)
            elif self._in_import_system():
                self._done.wait(_IMPORT_S)
            else:
                self._interrupted_at = now
                ctypes.pythonapi.PyThreadState_SetAsyncExc(
                    ctypes.c_ulong(self._thread.ident or 0), ctypes.py_object(Interrupted)
                )

    def _in_import_system(self) -> bool:
        """Whether the thread may just have taken the import lock, which an interrupt would leave held."""
        frame = sys._current_frames().get(self._thread.ident or 0)
        return frame is not None and frame.f_code.co_filename.startswith("<frozen importlib.")
