"""Runner: compiles the programs for a target, in a process of its own, and says how they compare.

    python runner.py cpp|triton f32|f16|bf16 program... | odd | even

Prints one line of JSON for each case. Triton's interpreter has to be switched on before it is imported.
"""

import json
import sys
import warnings
from collections.abc import Iterator
from typing import Any

import torch
from programs import KINDS, PROGRAMS, inputs

from superopt.driver import search
from superopt.ir import Graph, MuGraph, fuse, release_shifts, split_axis, stabilize
from superopt.trace import trace

DTYPES = {"f32": torch.float32, "f16": torch.float16, "bf16": torch.bfloat16}
PARTS = 4


def mugraphs(name: str, dtype: str) -> Iterator[tuple[str, MuGraph]]:
    """Yield a program as written and as found, whole and in parts."""
    program = PROGRAMS[name]
    goal = release_shifts(trace(program.function, *inputs(name, "usual", DTYPES[dtype])).graph)
    found = search(goal).regions[0].found[0].graph
    for kind, graph in (("written", goal), ("found", found)):
        yield kind, fuse(stabilize(graph), online=True)
        if program.split and kind == "found":
            yield f"{kind}, in parts", in_parts(graph, program.split)


def in_parts(graph: Graph, where: str) -> MuGraph:
    """Return a graph with the axis of an input's dimension shared out over programs."""
    name, dim = where.split()
    port = next(port for port in graph.inputs if port.name == name)
    graph, split = split_axis(graph, port.dims[int(dim)][0], PARTS)
    return fuse(stabilize(graph, (split.outer,)), splits=(split,), online=True)


def run(target: str, mugraph: MuGraph, tensors: dict[str, torch.Tensor]) -> torch.Tensor:
    """Return the result of a muGraph's kernels."""
    if target == "cpp":
        from superopt.codegen.cpp import CppMuGraph

        return next(iter(CppMuGraph(mugraph)(**tensors).values()))
    from superopt.codegen.triton import TritonMuGraph

    return next(iter(TritonMuGraph(mugraph)(**tensors).values()))


def compared(found: torch.Tensor, eager: torch.Tensor, exact: torch.Tensor) -> dict[str, Any]:
    """Return how far both are from the truth, and whether one is finite where the other is not."""
    sure = exact.isfinite() & eager.isfinite()
    wrong = ~found.isfinite() & eager.isfinite() | (found.isnan() != eager.isnan()) & sure
    scale = exact[sure].abs().max().item() if sure.any() else 0.0
    error = (found.double() - exact)[sure & found.isfinite()].abs()
    own = (eager.double() - exact)[sure].abs()
    return {
        "shape": found.shape == eager.shape,
        "wrong": int(wrong.sum()),
        "error": error.max().item() if error.numel() else 0.0,
        "eager": own.max().item() if own.numel() else 0.0,
        "rounding": torch.finfo(eager.dtype).eps * scale,
    }


def main() -> None:
    target, dtype, *chosen = sys.argv[1:]
    torch.set_num_threads(1)
    warnings.filterwarnings("ignore", category=RuntimeWarning)
    halves = {"even": list(PROGRAMS)[::2], "odd": list(PROGRAMS)[1::2]}
    for name in halves.get(chosen[0], chosen):
        program = PROGRAMS[name]
        for kind, mugraph in mugraphs(name, dtype):
            for draw in KINDS:
                if draw == "hidden" and name not in ("additive-mask", "padded"):
                    continue
                tensors = inputs(name, draw, DTYPES[dtype])
                named = {port.name: one for port, one in zip(mugraph.graph.inputs, tensors, strict=True)}
                exact = program.function(
                    *(one.double() if one.is_floating_point() else one for one in tensors)
                )
                answer = compared(run(target, mugraph, named), program.function(*tensors), exact)
                shown = {
                    "shifted": program.shifted,
                    "running": " running " in str(mugraph),
                    "kernels": len(mugraph.kernels),
                }
                print(json.dumps({"name": name, "case": f"{kind}, {draw}"} | answer | shown), flush=True)


if __name__ == "__main__":
    main()
