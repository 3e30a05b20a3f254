"""Found: the programs of regions that were taken, as graphs, and why each takes less time than its peers'."""

import json
from collections.abc import Iterator, Sequence
from math import prod
from typing import Any

from superopt.backend.decision import Decision
from superopt.dtypes import DTYPES
from superopt.ir import Call, Graph, MuGraph, parse_mugraph, value_axes
from superopt.ir.mugraph import walk

__all__ = ["found_programs", "reasons_of"]

_HEAVY = ("contract", "sum", "max")
_POOLS = ("sum", "max")
_FEWER = "taps and neighbours are summed first: 4 products for 2 results of 3 taps, not 6 (5 at stride 2)"


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
    yield from dict.fromkeys((*_separated(mugraph.graph), *_shifted(mugraph)))
    kept = _kept_bytes(mugraph)
    if kept:
        yield f"{kept / 1e6:.1f} MB of intermediate results stay on the chip, neither written nor read again"
    for config in configs:
        if config.get("filtered"):
            yield _FEWER
            break
    if any(port.strides is not None for port in mugraph.graph.inputs):
        yield "an image is read with channels last, as it lies"


def _separated(graph: Graph) -> Iterator[str]:
    """Yield where a window of several dimensions is reduced along one after the other."""
    made = _window_terms(graph)
    for step in graph.steps:
        windows = [graph.step_of(value) for value in step.inputs]
        for window in windows:
            if step.op not in _POOLS or window is None or window.op != "window":
                continue
            before = graph.step_of(window.inputs[0])
            if before is None or before.op != step.op or not {*step.axes, *before.axes} <= made:
                continue
            first, second = (prod(graph.sizes[axis] for axis in one.axes) for one in (before, step))
            yield (
                f"windows are reduced along one dimension after the other: {first} + {second} terms for each"
                f" result, not {first * second}"
            )


def _shifted(mugraph: MuGraph) -> Iterator[str]:
    """Yield where kernels of ours compute convolutions whose channels are apart."""
    graph, made = mugraph.graph, _window_terms(mugraph.graph)
    for kernel in mugraph.kernels:
        for tile, _ in () if isinstance(kernel, Call) else walk(kernel):
            step = graph.step_of(tile.value)
            if step is not None and step.op == "contract" and {*step.axes} <= made:
                taps = prod(graph.sizes[axis] for axis in step.axes)
                yield (
                    f"each result is a weighted sum of {taps} shifted reads, a vector of results"
                    " at a time: no layout is changed, and channels apart need no product of matrices"
                )


def _window_terms(graph: Graph) -> set[str]:
    """Return the axes that windows make."""
    return {axis for step in graph.steps for place in step.places for axis, _ in place.terms}


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
