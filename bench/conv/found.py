"""Found: the programs of regions that were taken, as graphs, and why each takes less time than its peers'."""

import json
from collections.abc import Iterator, Sequence
from math import prod
from typing import Any

from superopt.backend.decision import Decision
from superopt.dtypes import DTYPES
from superopt.ir import Call, MuGraph, parse_mugraph, value_axes
from superopt.ir.mugraph import walk

__all__ = ["found_programs", "reasons_of"]

_HEAVY = ("contract", "sum", "max")


def found_programs(decisions: Sequence[Decision]) -> list[dict[str, Any]]:
    """Return the program of each region that was taken, and the reasons for its gain, as plain data."""
    found = []
    for one in decisions:
        data = json.loads(one.plan) if one.taken and one.plan else {}
        for part in data.get("parts", ()):
            mugraph = parse_mugraph(part["mugraph"])
            configs = [config or {} for config in part["configs"]]
            found.append(
                {
                    "operators": one.operators,
                    "speed": one.why,
                    "program": part["mugraph"].splitlines(),
                    "reasons": list(reasons_of(mugraph, configs)),
                }
            )
    return found


def reasons_of(mugraph: MuGraph, configs: Sequence[dict[str, Any]]) -> Iterator[str]:
    """Yield why a program takes less time than the operators of PyTorch one after the other."""
    heavy = [step for step in mugraph.graph.steps if step.op in _HEAVY]
    called = sum(isinstance(kernel, Call) for kernel in mugraph.kernels)
    if called:
        own = _several(len(mugraph.kernels) - called, "kernel")
        yield f"{_several(called, 'call')} of a library, and all that is around in {own}"
    elif len(heavy) > 1 or len(mugraph.kernels) == 1:
        kernels = _several(len(mugraph.kernels), "kernel")
        yield f"{_several(len(heavy), 'sum')} and all that is around them in {kernels}"
    kept = _kept_bytes(mugraph)
    if kept:
        yield f"{kept / 1e6:.1f} MB of intermediate results stay on the chip, neither written nor read again"
    for config in configs:
        if config.get("filtered"):
            yield "16 products for four results of 3 by 3 taps, not 36, or 4 for two results of 3 taps, not 6"
            break
    if any(port.strides is not None for port in mugraph.graph.inputs):
        yield "an image is read with channels last, as it lies"


def _several(count: int, name: str) -> str:
    return f"{count} {name}" if count == 1 else f"{count} {name}s"


def _kept_bytes(mugraph: MuGraph) -> int:
    """Return how large the sums are that kernels read, and no memory holds."""
    graph, axes = mugraph.graph, value_axes(mugraph.graph)
    inside = {tile.value for kernel in mugraph.kernels for tile, _ in walk(kernel)}
    read = {value for kernel in mugraph.kernels for value in mugraph.loads(kernel)}
    out = {output.value for output in graph.outputs}
    size = DTYPES["f32"].bytes
    return sum(
        size * prod(graph.sizes[axis] for axis in axes[value])
        for value in inside - read - out
        if (step := graph.step_of(value)) is not None and step.op in _HEAVY
    )
