"""A process that compiles peers with torch.compile, so that the racing one finds them in Inductor's cache.

It reads one request as JSON from each line, {"workload", "case", "dtype", "peer", "device"}, and answers
one line each; many of them run beside one another before anything is timed. What Inductor picks by
timing is not kept, as other processes disturb it: the racing process picks anew.
"""

import json
import os
import sys
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from superopt.errors import SuperoptError

__all__ = ["COMMAND", "CompileJob", "compiled", "serve"]

COMMAND = (sys.executable, "-P", "-m", "superopt.bench.gpuwarm")
_ALONE = {"TORCHINDUCTOR_COMPILE_THREADS": "1", "TORCHINDUCTOR_AUTOTUNE_LOCAL_CACHE": "0"}


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

    def run(self, worker: Any, limit_seconds: float) -> None:
        """Ask the worker's server."""
        request = {name: getattr(self, name) for name in ("workload", "case", "dtype", "peer", "device")}
        answer = worker.server(COMMAND).ask(request, limit_seconds=limit_seconds)
        if answer.get("fault"):
            raise PeerError(str(answer["fault"]))


def compiled(function: Callable[..., Any], peer: str) -> Callable[..., Any]:
    """Return what torch.compile makes of a function for these very shapes, in the mode that a peer names."""
    import torch

    mode = peer.removeprefix("torch.compile").strip() or None
    return torch.compile(function, mode=mode, dynamic=False)


def serve() -> None:
    """Answer requests until there are no more; the first line says it is ready."""
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # what compilers print must not mix with the answers
    os.environ |= _ALONE
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
        print(json.dumps(answer), file=answers, flush=True)


def _warm(request: dict[str, str]) -> None:
    import torch

    from superopt.bench.gpucases import case_named

    case = case_named(request["workload"], request["case"])
    assert case is not None
    inputs = case.inputs(request["dtype"], request["device"])
    with torch.no_grad():
        compiled(case.function, request["peer"])(*inputs)


if __name__ == "__main__":
    serve()
