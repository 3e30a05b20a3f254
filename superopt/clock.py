"""Clock: every second of some work, attributed to a phase."""

import time
from collections.abc import Iterator
from contextlib import contextmanager

__all__ = ["Clock"]


class Clock:
    """Adds up milliseconds by phase; a phase inside another one counts in its own name only."""

    def __init__(self) -> None:
        self.ms: dict[str, float] = {}
        self._inner: list[float] = []  # ms of phases inside each open one

    @contextmanager
    def phase(self, name: str) -> Iterator[None]:
        """Add the time spent inside to a phase."""
        start = time.perf_counter()
        self._inner.append(0.0)
        try:
            yield
        finally:
            spent = (time.perf_counter() - start) * 1e3
            self.ms[name] = self.ms.get(name, 0.0) + spent - self._inner.pop()
            if self._inner:
                self._inner[-1] += spent
