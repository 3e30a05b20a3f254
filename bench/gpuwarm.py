"""A process that compiles peers with torch.compile, so that the racing one finds them in Inductor's cache.

It reads one request as JSON from each line, {"workload", "case", "dtype", "peer", "device", "threads"},
and answers one line each; many of them run beside one another before anything is timed. What Inductor
picks by timing is not kept, as other processes disturb it: the racing process picks anew, among kernels
that are compiled by then.
"""

import json
import os
import sys
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from superopt.codegen.children import LateError
from superopt.errors import SuperoptError

__all__ = ["COMMAND", "LATE", "CompileJob", "compiled", "serve"]

LATE = "not compiled in time"
"""Why a kernel or a peer is missing for which there was no time."""

COMMAND = (sys.executable, "-P", "-m", "superopt.bench.gpuwarm")
_THREADS = "TORCHINDUCTOR_COMPILE_THREADS"
_DISTURBED = "picked beside other processes"


class PeerError(SuperoptError):
    """A peer that does not compile or run."""


@dataclass(frozen=True, slots=True)
class CompileJob:
    """Compile one peer of a case, as a job of the pool; makes None."""

    name: str
    workload: str
    case: str
    dtype: str
    peer: str
    device: str
    threads: int = 1  # of compiling the kernels that max-autotune picks among

    def run(self, worker: Any, limit_seconds: float) -> None:
        """Ask the worker's server."""
        request = {name: getattr(self, name) for name in _FIELDS}
        try:
            answer = worker.server(COMMAND).ask(request, limit_seconds=limit_seconds)
        except LateError as error:
            raise PeerError(LATE) from error
        if answer.get("fault"):
            raise PeerError(str(answer["fault"]))


_FIELDS = ("workload", "case", "dtype", "peer", "device", "threads")


def compiled(function: Callable[..., Any], peer: str) -> Callable[..., Any]:
    """Return what torch.compile makes of a function for these very shapes, in the mode that a peer names."""
    import torch
    import torch._inductor.config

    torch._inductor.config.autotune_local_cache = False  # each process picks by its own times
    mode = peer.removeprefix("torch.compile").strip() or None
    return torch.compile(function, mode=mode, dynamic=False)


def serve() -> None:
    """Answer requests until there are no more; the first line says it is ready."""
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # what compilers print must not mix with the answers
    os.environ[_THREADS] = "1"  # no pool of processes in each of these
    import torch

    print(json.dumps({"ready": True}), file=answers, flush=True)
    for line in sys.stdin:
        answer: dict[str, Any] = {"fault": None}
        try:
            _warm(json.loads(line))
        except Exception as error:  # whatever stops Inductor is the answer
            first = next((one for one in str(error).splitlines() if one.strip()), "no message")
            answer = {"fault": f"{type(error).__name__}: {first}"}
        torch._dynamo.reset()
        if torch.cuda.is_available():
            torch.cuda.empty_cache()  # many processes share the device
        print(json.dumps(answer), file=answers, flush=True)


def _warm(request: dict[str, Any]) -> None:
    import torch
    import torch.compiler.config

    from superopt.bench.gpucases import case_named

    case = case_named(request["workload"], request["case"])
    assert case is not None
    os.environ[_THREADS] = str(request["threads"])
    inputs = case.inputs(request["dtype"], request["device"])
    # A graph that Inductor keeps names the kernels that were picked: under a tag, nobody else finds it.
    torch.compiler.config.cache_key_tag = _DISTURBED if "autotune" in request["peer"] else ""
    with torch.no_grad():
        compiled(case.function, request["peer"])(*inputs)


if __name__ == "__main__":
    serve()
