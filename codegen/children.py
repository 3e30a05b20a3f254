"""Children: processes under a time limit, which end with all that they started; and those that serve.

A compiler may hang, crash, or leave processes of its own behind: each child leads a process group, and
the group is killed. A server reads one JSON request a line and answers one line each, so that many
requests share the cost of its start.
"""

import contextlib
import json
import os
import selectors
import signal
import subprocess
import tempfile
import threading
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

__all__ = [
    "LONGEST_S",
    "Children",
    "Finished",
    "LateError",
    "LostError",
    "Server",
    "exit_text",
    "start_no_more",
]

LONGEST_S = 1e6
"""The longest time to wait, in seconds; the system refuses an infinite one."""

_NICEST = 19
_ending = threading.Event()


def start_no_more() -> None:
    """Refuse to start any child from now on: this process ends at once, while its threads are at work."""
    _ending.set()


class LateError(Exception):
    """A child took longer than its limit, and was killed."""


class LostError(Exception):
    """A server ended, or its answer was no JSON object; carries the last line that it wrote."""


@dataclass(frozen=True, slots=True)
class Finished:
    """How a command ended: its exit code (negative for a signal), and what it wrote."""

    code: int
    output: str
    errors: str


class Children:
    """The processes that one piece of work started; leaving the `with` block kills all that are alive."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._alive: set[subprocess.Popen[bytes]] = set()
        self._closed = False

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *raised: object) -> None:
        self.close()

    def close(self) -> None:
        """Kill every child and all that it started; start no more."""
        with self._lock:
            self._closed = True
            alive = list(self._alive)
        for process in alive:
            kill_group(process)

    def run(
        self,
        command: Sequence[str],
        *,
        text: str = "",
        limit_seconds: float,
        environment: Mapping[str, str] | None = None,
    ) -> Finished:
        """Return how a command ended that was given a text to read, or raise LateError."""
        pipe = subprocess.PIPE
        process = self.start(command, stdin=pipe, stdout=pipe, stderr=pipe, env=environment)
        try:
            output, errors = process.communicate(text.encode(), timeout=min(limit_seconds, LONGEST_S))
        except subprocess.TimeoutExpired:
            raise LateError(f"not done within {limit_seconds:g} s") from None
        finally:
            self.end(process)
        return Finished(process.returncode, output.decode(errors="replace"), errors.decode(errors="replace"))

    def start(self, command: Sequence[str], **options: Any) -> "subprocess.Popen[bytes]":
        """Start a child in a group of its own."""
        with self._lock:
            if self._closed or _ending.is_set():
                raise LostError("it was stopped")
            process = subprocess.Popen(command, start_new_session=True, **options)
            self._alive.add(process)
        _stay_nice(process.pid)
        return process

    def end(self, process: "subprocess.Popen[bytes]") -> None:
        """Kill a child and all that it started, and forget it."""
        kill_group(process)
        process.wait()
        for stream in (process.stdin, process.stdout, process.stderr):
            if stream is not None:
                with contextlib.suppress(OSError):  # the dead child did not read its input
                    stream.close()
        with self._lock:
            self._alive.discard(process)


class Server:
    """A child that answers one line of JSON to each; started when first asked, and again after a fault."""

    def __init__(
        self,
        command: Sequence[str],
        children: Children,
        *,
        environment: Mapping[str, str] | None = None,
        start_seconds: float = 120.0,
    ) -> None:
        self.starts = 0
        self._command = tuple(command)
        self._children = children
        self._environment = dict(os.environ if environment is None else environment)
        self._start_seconds = start_seconds
        self._process: subprocess.Popen[bytes] | None = None
        self._errors = tempfile.TemporaryFile()  # noqa: SIM115 - it lives as long as the server
        self._buffer = b""

    def ask(self, request: Mapping[str, Any], *, limit_seconds: float) -> dict[str, Any]:
        """Return the answer to a request; LateError or LostError where there is none.

        The limit does not count the start, which ends with a line that the server writes unasked.
        """
        self.start()
        try:
            return self._exchange(json.dumps(request).encode() + b"\n", limit_seconds)
        except BaseException:
            self.stop()
            raise

    def start(self) -> None:
        """Start the process and wait until it is ready, unless it runs."""
        if self._process is None:
            self._start()

    def stop(self) -> None:
        """Kill the process, if there is one; the next request starts another."""
        process, self._process = self._process, None
        if process is not None:
            self._children.end(process)

    def close(self) -> None:
        """Kill the process for good."""
        self.stop()
        self._errors.close()

    def _start(self) -> None:
        self._errors.seek(0)
        self._errors.truncate()
        self._buffer = b""
        self.starts += 1
        pipe = subprocess.PIPE
        process = self._children.start(
            self._command, stdin=pipe, stdout=pipe, stderr=self._errors, env=self._environment, bufsize=0
        )
        self._process = process
        assert process.stdin is not None
        assert process.stdout is not None
        os.set_blocking(process.stdin.fileno(), False)
        os.set_blocking(process.stdout.fileno(), False)
        try:
            self._exchange(b"", self._start_seconds)
        except BaseException:
            self.stop()
            raise

    def _exchange(self, request: bytes, limit_seconds: float) -> dict[str, Any]:
        """Write a request and read one line, both without waiting past the limit."""
        process = self._process
        assert process is not None
        assert process.stdin is not None
        assert process.stdout is not None
        deadline = time.monotonic() + limit_seconds
        with selectors.DefaultSelector() as waiting:
            waiting.register(process.stdout, selectors.EVENT_READ)
            if request:
                waiting.register(process.stdin, selectors.EVENT_WRITE)
            while b"\n" not in self._buffer:
                left = deadline - time.monotonic()
                if left <= 0:
                    raise LateError(f"not done within {limit_seconds:g} s")
                ready = {key.fileobj for key, _ in waiting.select(min(left, LONGEST_S))}
                try:
                    if process.stdin in ready:
                        request = request[os.write(process.stdin.fileno(), request) :]
                        if not request:
                            waiting.unregister(process.stdin)
                    if process.stdout in ready:
                        found = os.read(process.stdout.fileno(), 1 << 16)
                        if not found:
                            raise LostError(self._last_words())
                        self._buffer += found
                except BrokenPipeError:
                    raise LostError(self._last_words()) from None
        line, _, self._buffer = self._buffer.partition(b"\n")
        try:
            answer = json.loads(line)
        except ValueError:
            answer = None
        if not isinstance(answer, dict):
            raise LostError(f"its answer is no JSON object: {line[:80].decode(errors='replace')!r}")
        return answer

    def _last_words(self) -> str:
        """Return why a server that closed its output ended, in one line."""
        assert self._process is not None
        try:
            code = self._process.wait(timeout=5.0)
        except subprocess.TimeoutExpired:
            return "it closed its output"
        self._errors.seek(0)
        lines = self._errors.read().decode(errors="replace").split("\n")
        last = next((line.strip() for line in reversed(lines) if line.strip()), "no message")
        return f"{exit_text(code)}: {last}"


def exit_text(code: int) -> str:
    """Return an exit code in words: of a process that a signal ended, the signal's name."""
    if code >= 0:
        return f"exit code {code}"
    with contextlib.suppress(ValueError):
        return f"ended by {signal.Signals(-code).name}"
    return f"ended by signal {-code}"


def _stay_nice(child: int) -> None:
    """Let a child of a process that is as nice as can be stay so: Linux weighs each session by itself."""
    if hasattr(os, "nice") and os.nice(0) >= _NICEST:
        with contextlib.suppress(OSError):
            Path(f"/proc/{child}/autogroup").write_text(str(_NICEST))


def kill_group(process: "subprocess.Popen[bytes]") -> None:
    """Kill a process that leads its group, and the rest of the group, which may outlive it."""
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(process.pid, signal.SIGKILL)
