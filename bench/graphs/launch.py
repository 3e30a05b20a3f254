"""Launch: one graph in a process of its own, with limits; whatever becomes of the process is a record.

The processes are forked from one that has imported PyTorch and has run nothing, so that each begins at once.
"""

import contextlib
import json
import multiprocessing
import os
import signal
import tempfile
from collections.abc import Mapping
from pathlib import Path

from superopt.bench.graphs.request import Request
from superopt.bench.harness.records import Record

__all__ = ["launched"]

_PRELOADED = ["torch", "torch._dynamo", "torch._inductor.compile_fx", "superopt.bench.graphs.host"]
_SHOWN = 200  # letters of the last line that a process wrote


def launched(request: Request, minutes: float, environment: Mapping[str, str]) -> Record:
    """Return the record of a graph; where its process ends early, how, and what it was doing."""
    server = multiprocessing.get_context("forkserver")
    server.set_forkserver_preload(_PRELOADED)
    with tempfile.TemporaryDirectory() as folder:
        out, errors = Path(folder, "record.json"), Path(folder, "errors")
        process = server.Process(target=_child, args=(request, out, errors, dict(environment)))
        process.start()
        process.join(60 * minutes)
        late = process.exitcode is None
        assert process.pid
        with contextlib.suppress(ProcessLookupError):  # all that it started ends with it
            os.killpg(process.pid, signal.SIGKILL)
        process.kill()
        process.join()
        found: Record = json.loads(out.read_text(encoding="utf-8")) if out.exists() else {}
        said = errors.read_text(errors="replace").split("\n") if errors.exists() else []
    if late:
        return {**found, "result": "time", "why": f"took more than {minutes:g} minutes"}
    code = process.exitcode or 0
    if code or "result" not in found:
        how = f"exit code {code}" if code >= 0 else signal.Signals(-code).name
        last = next((line.strip() for line in reversed(said) if line.strip()), "")
        return {**found, "result": "crash", "why": f"{how}: {last[:_SHOWN]}".rstrip(": ")}
    return found


def _child(request: Request, out: Path, errors: Path, environment: Mapping[str, str]) -> None:
    """Work in a group of processes of its own, with what is written going to a file."""
    os.setsid()
    os.environ.update(environment)
    with errors.open("wb") as said:
        os.dup2(said.fileno(), 1)
        os.dup2(said.fileno(), 2)
    from superopt.bench.graphs.measure import measure

    measure(request, out)
