"""Runner: compiles the programs for a target, in a process of its own, and says how they compare.

    python runner.py cpp|triton f32|f16|bf16 -|DEVICE program...|odd|even

With a device, the programs are traced at real sizes and scheduled for it, else fused as they are small.

Prints one line of JSON for each case. Triton's interpreter has to be switched on before it is imported.
"""

import json
import sys
import warnings
from collections.abc import Iterator
from typing import Any

import torch
from programs import CLASSES, HEADS, KEYS, KINDS, PROGRAMS, QUERIES, inputs

from superopt.cost import device_of
from superopt.driver import search
from superopt.ir import Graph, MuGraph, fuse, release_shifts, split_axis, stabilize, value_axes
from superopt.schedule import rank
from superopt.trace import trace

DTYPES = {"f32": torch.float32, "f16": torch.float16, "bf16": torch.bfloat16}
PARTS = 4
REAL = {QUERIES: 64, KEYS: 4096, HEADS: 16, CLASSES: 32000}  # the width is part of a program: its scale


def mugraphs(name: str, dtype: str) -> Iterator[tuple[str, MuGraph]]:
    """Yield a program as written and as found, whole and in parts."""
    program = PROGRAMS[name]
    goal = release_shifts(trace(program.function, *inputs(name, "usual", DTYPES[dtype])).graph)
    found = search(goal).regions[0].found[0].graph
    for kind, graph in (("written", goal), ("found", found)):
        yield kind, fuse(stabilize(graph), online=True)
        if program.split and kind == "found":
            yield f"{kind}, in parts", in_parts(graph, program.split)


def scheduled(name: str, dtype: str, device: str) -> Iterator[tuple[str, MuGraph]]:
    """Yield the best schedules of a program traced at real sizes; they run at any."""
    program = PROGRAMS[name]
    shapes = [tuple(REAL.get(size, size) for size in shape) for shape in program.shapes]
    meta = [torch.empty(shape, dtype=DTYPES[dtype], device="meta") for shape in shapes]
    if name == "cross-entropy":
        meta[2] = meta[2].long()
    found = search(trace(program.function, *meta).program).regions[0].found
    split = [one for one in found[4:] if one.split_axes]
    for one in rank([*found[:4], *split[:1]], device_of(device), keep=6).kept:
        if not one.library:
            yield one.name, one.mugraph


def in_parts(graph: Graph, where: str) -> MuGraph:
    """Return a graph with the axis of an input's dimension shared out over programs."""
    name, dim = where.split()
    port = next(port for port in graph.inputs if port.name == name)
    graph, split = split_axis(graph, port.dims[int(dim)][0], PARTS)
    return fuse(stabilize(graph, (split.outer,)), splits=(split,), online=True)


def keeps_scores(mugraph: MuGraph) -> bool:
    """Whether a kernel stores what is as long as the longest axis: scores, or logits."""
    sizes, axes = mugraph.graph.sizes, value_axes(mugraph.graph)
    splits = {split.inner for split in mugraph.splits}
    longest = {axis for axis in sizes if sizes[axis] >= max(sizes.values())} | splits
    stored = [value for kernel in mugraph.kernels for value in mugraph.stores(kernel)]
    return any(axes[value] & longest for value in stored)


Results = torch.Tensor | tuple[torch.Tensor, ...]


def run(target: str, mugraph: MuGraph, tensors: dict[str, torch.Tensor]) -> tuple[torch.Tensor, ...]:
    """Return the results of a muGraph's kernels."""
    if target == "cpp":
        from superopt.codegen.cpp import CppMuGraph

        return tuple(CppMuGraph(mugraph)(**tensors).values())
    from superopt.codegen.triton import TritonMuGraph

    return tuple(TritonMuGraph(mugraph)(**tensors).values())


def all_compared(found: tuple[torch.Tensor, ...], eager: Results, exact: Results) -> list[dict[str, Any]]:
    """Return how each result compares."""
    eager = eager if isinstance(eager, tuple) else (eager,)
    exact = exact if isinstance(exact, tuple) else (exact,)
    return [compared(*results) for results in zip(found, eager, exact, strict=True)]


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
    target, dtype, device, *chosen = sys.argv[1:]
    torch.set_num_threads(1)
    warnings.filterwarnings("ignore", category=RuntimeWarning)
    halves = {"even": list(PROGRAMS)[::2], "odd": list(PROGRAMS)[1::2]}
    for name in halves.get(chosen[0], chosen):
        program = PROGRAMS[name]
        given = mugraphs(name, dtype) if device == "-" else scheduled(name, dtype, device)
        for kind, mugraph in given:
            for draw in KINDS:
                if draw == "hidden" and name not in ("additive-mask", "padded"):
                    continue
                tensors = inputs(name, draw, DTYPES[dtype])
                named = {port.name: one for port, one in zip(mugraph.graph.inputs, tensors, strict=True)}
                exact = program.function(
                    *(one.double() if one.is_floating_point() else one for one in tensors)
                )
                answers = all_compared(run(target, mugraph, named), program.function(*tensors), exact)
                shown = {
                    "shifted": program.shifted,
                    "running": " running " in str(mugraph),
                    "kernels": len(mugraph.kernels),
                    "scores": keeps_scores(mugraph),
                }
                for answer in answers:
                    case = {"name": name, "case": f"{kind}, {draw}"}
                    print(json.dumps(case | answer | shown), flush=True)


if __name__ == "__main__":
    main()
