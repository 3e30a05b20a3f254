"""Probe: the first run of a kernel, in a process that may die of it.

The process makes the kernel anew from the muGraph's text and the configurations, runs it once on random
inputs, and answers that all is well, or the fault. A kernel that crashes or hangs takes down that process
and nothing else; the next request starts another. As a script it serves one JSON request a line.
"""

import json
import os
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from math import prod
from typing import IO, Any, Literal

import torch

from superopt.codegen.children import LateError, LostError
from superopt.codegen.configjson import config_from_json, config_json
from superopt.codegen.cpp import CppConfig, CppMuGraph
from superopt.codegen.triton import TritonConfig, TritonMuGraph
from superopt.errors import first_line, kind_and_line
from superopt.ir import MuGraph, parse_mugraph
from superopt.trace.run import TORCH_DTYPES, run_graph
from superopt.tune.checks import run_guarded
from superopt.tune.errors import DeviceLostError, KernelFaultError
from superopt.tune.pool import Worker

__all__ = ["PROBE", "ProbeJob", "make_kernel", "probe", "request_of", "serve"]

Device = Literal["cpu", "cuda"]
Kernel = Callable[..., Any]

PROBE = (sys.executable, "-P", "-m", "superopt.tune.probe")
"""The command of a process that serves probes."""


@dataclass(frozen=True, slots=True)
class ProbeJob:
    """A first run as a job of the pool; makes None."""

    name: str
    mugraph: MuGraph
    configs: tuple[Any, ...]
    device: Device = "cpu"
    command: tuple[str, ...] = PROBE

    def run(self, worker: Worker, limit_seconds: float) -> None:
        """Ask the worker's server to run it once; raise its fault."""
        server, name = worker.server(self.command), self.mugraph.graph.name
        try:
            answer = server.ask(
                request_of(self.mugraph, self.configs, self.device), limit_seconds=limit_seconds
            )
        except LateError as error:
            raise KernelFaultError(
                f"{name}: its first run was not done within {limit_seconds:.3g} s"
            ) from error
        except LostError as error:
            raise KernelFaultError(f"{name}: its first run ended the process: {error}") from error
        if answer.get("lost"):
            server.stop()
        if answer.get("fault"):
            raise KernelFaultError(f"{name}: {answer['fault']}")


def request_of(mugraph: MuGraph, configs: Sequence[Any], device: Device) -> dict[str, Any]:
    """Return a request, as JSON data: all that `make_kernel` needs."""
    plain = [None if one is None else config_json(one) for one in configs]
    return {"mugraph": str(mugraph), "configs": plain, "device": device}


def _config(kind: type[Any], data: Mapping[str, Any] | None) -> Any:
    """Return the configuration that JSON data describe."""
    return None if data is None else config_from_json(kind, data)


def make_kernel(request: Mapping[str, Any]) -> tuple[MuGraph, Kernel]:
    """Return the muGraph and the kernel that a request describes."""
    mugraph = parse_mugraph(request["mugraph"])
    if request["device"] == "cpu":
        made = {at: _config(CppConfig, one) for at, one in enumerate(request["configs"]) if one is not None}
        return mugraph, CppMuGraph(mugraph, made)
    configs = [_config(TritonConfig, one) for one in request["configs"]]
    return mugraph, TritonMuGraph(mugraph, configs or None)


def probe(mugraph: MuGraph, kernel: Kernel, device: Device) -> None:
    """Run a kernel once, here, on random inputs; raise its fault."""

    graph = mugraph.graph
    random = torch.Generator(device).manual_seed(0)

    def shape(dims: Sequence[Sequence[str]]) -> tuple[int, ...]:
        return tuple(prod(graph.sizes[axis] for axis in dim) for dim in dims)

    inputs = {
        port.name: torch.randn(shape(port.dims), generator=random, device=device).to(TORCH_DTYPES[port.dtype])
        for port in graph.inputs
    }
    run_guarded(
        kernel,
        inputs,
        {output.port.name: shape(output.port.dims) for output in graph.outputs},
        expected_finite=lambda: run_graph(graph, inputs, torch.float32),
    )


def serve(
    requests: IO[str],
    answers: IO[str],
    make: Callable[[Mapping[str, Any]], tuple[MuGraph, Kernel]] = make_kernel,
) -> None:
    """Answer requests until there are no more, or the device is lost; the first line says it is ready."""
    print(json.dumps({"ready": True}), file=answers, flush=True)
    for line in requests:
        request = json.loads(line)
        answer: dict[str, Any] = {"fault": None}
        try:
            mugraph, kernel = make(request)
            probe(mugraph, kernel, request["device"])
        except DeviceLostError as error:
            answer = {"fault": str(error), "lost": True}
        except Exception as error:  # a code generator or compiler may raise anything: it is the answer
            is_told = isinstance(error, KernelFaultError)
            answer = {"fault": first_line(error) if is_told else kind_and_line(error)}
        if request["device"] == "cuda" and not answer.get("lost"):
            _give_memory_back()
        print(json.dumps(answer), file=answers, flush=True)
        if answer.get("lost"):
            return


def _give_memory_back() -> None:
    """Leave the memory of the last run to the process that races, and to others like this one."""
    torch.cuda.empty_cache()


def main() -> None:
    """Serve on standard input and output; what kernels print goes to standard error."""
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    serve(sys.stdin, answers)


if __name__ == "__main__":
    main()
