"""The live view of a search: a small table on a terminal, a line a second elsewhere, always on stderr.

It draws when the search reports, which is often. The line of longer work is also drawn by a thread, once a
second: torch.compile reports nothing for a minute.
"""

import contextlib
import os
import shutil
import signal
import sys
import threading
import time
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rich.live import Live
    from rich.table import Table

    from superopt.driver import Progress

__all__ = ["LiveLine", "LiveView"]

_SECONDS_BETWEEN_DRAWINGS = 0.1
_SECONDS_BETWEEN_LINES = 1.0
_SECONDS_BETWEEN_TICKS = 1.0
_SECONDS_BETWEEN_WORDS = 5.0  # of what takes a minute


class LiveView:
    """Shows the progress of one search: `with LiveView() as view: search(..., on_progress=view)`."""

    def __init__(self, *, quiet: bool = False) -> None:
        self._quiet = quiet or sys.stderr is None
        self._terminal = not self._quiet and sys.stderr.isatty()
        self._started = self._phase_started = time.perf_counter()
        self._shown = self._started if not self._terminal else 0.0
        self._last: Progress | None = None
        self._phase_seconds: dict[str, float] = {}
        self._totals = {"candidates": 0, "new": 0, "duplicates": 0}
        self._live: Live | None = None

    def __enter__(self) -> "LiveView":
        if self._terminal:
            from rich.console import Console
            from rich.live import Live

            console = Console(file=sys.stderr, highlight=False, markup=False, emoji=False)
            self._live = Live(console=console, auto_refresh=False, transient=True, redirect_stderr=False)
            self._live.start()
        return self

    def __exit__(self, *raised: object) -> None:
        if self._live is not None:
            self._live.stop()

    def __call__(self, progress: "Progress") -> None:
        """Take note of what the search does now, and draw it when it is time to."""
        if self._quiet:
            return
        now = time.perf_counter()
        if self._last is not None:
            phase = self._last.phase
            self._phase_seconds[phase] = self._phase_seconds.get(phase, 0.0) + now - self._phase_started
        self._phase_started = now
        if self._last is None or (progress.region, progress.name) != (self._last.region, self._last.name):
            self._totals = dict.fromkeys(self._totals, 0)
        if progress.level is not None:
            for name in self._totals:
                self._totals[name] += getattr(progress.level, name)
        self._last = progress
        wait = _SECONDS_BETWEEN_DRAWINGS if self._terminal else _SECONDS_BETWEEN_LINES
        if now - self._shown < wait:
            return
        self._shown = now
        if self._live is not None:
            self._live.update(self._table(progress), refresh=True)
        else:
            print(f"superopt: {self.line(progress)}", file=sys.stderr, flush=True)

    def line(self, progress: "Progress") -> str:
        """Return what is going on as one plain line."""
        parts = [f"{time.perf_counter() - self._started:.0f} s", progress.phase, _region(progress)]
        if progress.level is not None:
            level = progress.level
            parts.append(
                f"level {level.level}: frontier {level.frontier:,}, candidates {level.candidates:,},"
                f" new {level.new:,}, duplicates {level.duplicates:,}"
            )
        return " · ".join(parts)

    def _table(self, progress: "Progress") -> "Table":
        from rich.table import Table

        table = Table.grid(padding=(0, 2))
        table.add_row("phase", f"{progress.phase} ({time.perf_counter() - self._started:.1f} s)")
        table.add_row("region", _region(progress))
        if progress.level is not None:
            level = progress.level
            table.add_row("level", f"{level.level} (frontier {level.frontier:,})")
            table.add_row(
                "tensors",
                ", ".join(f"{name} {count:,}" for name, count in self._totals.items()),
            )
        if self._phase_seconds:
            table.add_row(
                "seconds", ", ".join(f"{phase} {took:.1f}" for phase, took in self._phase_seconds.items())
            )
        return table


class LiveLine:
    """Shows in one line of a terminal what is being done: `with LiveLine() as show: show("tracing")`.

    With `lines`, each thing has a line of its own. Elsewhere than on a terminal, there is a line for each
    thing that takes longer than some seconds.
    """

    def __init__(self, *, quiet: bool = False, lines: bool = False) -> None:
        self._quiet = quiet or sys.stderr is None
        self._lines = lines
        self._terminal = sys.stderr is not None and not quiet and not lines and sys.stderr.isatty()
        self._started = time.perf_counter()
        self._shown = 0.0 if self._terminal else self._started
        self._length = 0
        self._text = ""
        self._drawing = threading.Lock()
        self._ended = threading.Event()
        self._clock = threading.Thread(target=self._tick, daemon=True) if self._terminal else None

    def __enter__(self) -> "LiveLine":
        if self._clock is not None:
            self._clock.start()
        return self

    def __exit__(self, *raised: object) -> None:
        self._ended.set()
        if self._clock is not None:
            self._clock.join()
        self._write("")

    def __call__(self, text: str) -> None:
        """Show what is done now; between two drawings some time passes."""
        now = time.perf_counter()
        if self._quiet:
            return
        self._text = text
        if self._terminal:
            if now - self._shown >= _SECONDS_BETWEEN_DRAWINGS:
                self._shown = now
                self._draw()
        elif self._lines or now - self._shown >= _SECONDS_BETWEEN_WORDS:
            self._shown = now
            print(f"superopt: {now - self._started:.0f} s · {text}", file=sys.stderr, flush=True)

    def _tick(self) -> None:
        """Draw the line again and again; signals are left to the main thread."""
        if hasattr(signal, "pthread_sigmask"):
            signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())
        while not self._ended.wait(_SECONDS_BETWEEN_TICKS):
            if self._text:
                self._draw()

    def _draw(self) -> None:
        self._write(f"{time.perf_counter() - self._started:.0f} s · {self._text}")

    def _write(self, text: str) -> None:
        """Write over what the line held before.

        It is written past Python's buffer, whose lock a process that is forked meanwhile would never get.
        """
        with self._drawing:
            if self._length or text:
                width = shutil.get_terminal_size().columns - 1
                line = f"\r{text[:width]:<{min(self._length, width)}}\r"
                with contextlib.suppress(OSError):  # the terminal was closed
                    os.write(sys.stderr.fileno(), line.encode(sys.stderr.encoding, "replace"))
            self._length = len(text)


def _region(progress: "Progress") -> str:
    count = f"{progress.region}/{progress.regions} " if progress.regions > 1 else ""
    return f"{count}{progress.name}"
