"""A process that compiles rivals, so that the process which races finds them in Inductor's cache.

It reads one request as JSON from each line, {"workload", "case", "dtype", "peer", "device", "threads"},
and answers one line each; many of them run beside one another before anything is timed. What Inductor
picks by timing is not kept, as other processes disturb it: the racing process picks anew, among kernels
that are compiled by then.
"""

import json
import os
import sys
from dataclasses import dataclass
from typing import Any

from superopt.bench.harness.records import failed
from superopt.bench.harness.rivals import compiled
from superopt.codegen.children import LateError
from superopt.errors import SuperoptError

__all__ = ["COMMAND", "LATE", "CompileJob", "serve"]

LATE = "not compiled in time"
"""The reason why a kernel or a rival is missing that there was no time for."""

COMMAND = (sys.executable, "-P", "-m", "superopt.bench.planned.compiler")
_THREADS = "TORCHINDUCTOR_COMPILE_THREADS"
_DISTURBED = "picked beside other processes"


class PeerError(SuperoptError):
    """A rival does not compile or run."""


@dataclass(frozen=True, slots=True)
class CompileJob:
    """A job of the pool that compiles one rival of a case."""

    name: str
    workload: str
    case: str
    dtype: str
    peer: str
    device: str
    threads: int = 1  # that compile the kernels which max-autotune picks among

    def run(self, worker: Any, limit_seconds: float) -> None:
        """Let the worker's server compile the rival, or raise PeerError."""
        request = {name: getattr(self, name) for name in _FIELDS}
        try:
            answer = worker.server(COMMAND).ask(request, limit_seconds=limit_seconds)
        except LateError as error:
            raise PeerError(LATE) from error
        if answer.get("fault"):
            raise PeerError(str(answer["fault"]))


_FIELDS = ("workload", "case", "dtype", "peer", "device", "threads")


def serve() -> None:
    """Answer requests until there are no more; the first line says it is ready."""
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # the output of compilers must not mix with the answers
    os.environ[_THREADS] = "1"  # many such processes run at once: none starts a pool of its own
    import torch

    print(json.dumps({"ready": True}), file=answers, flush=True)
    for line in sys.stdin:
        answer: dict[str, Any] = {"fault": None}
        try:
            _warm(json.loads(line))
        except Exception as error:  # any error of Inductor is told to the racing process
            answer = {"fault": failed({}, error)["error"]}
        torch._dynamo.reset()
        if torch.cuda.is_available():
            torch.cuda.empty_cache()  # many processes share the device
        print(json.dumps(answer), file=answers, flush=True)


def _warm(request: dict[str, Any]) -> None:
    import torch
    import torch.compiler.config

    from superopt.bench.kernels.gpu_cases import case_named

    case = case_named(request["workload"], request["case"])
    assert case is not None
    os.environ[_THREADS] = str(request["threads"])
    inputs = case.inputs(request["dtype"], request["device"])
    # Inductor keeps the kernels it picked with the graph. The tag hides them: they were picked beside others.
    torch.compiler.config.cache_key_tag = _DISTURBED if "autotune" in request["peer"] else ""
    with torch.no_grad():
        compiled(case.function, request["peer"])(*inputs)


if __name__ == "__main__":
    serve()
