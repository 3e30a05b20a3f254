"""A lower bound on the cost of a graph, operator by operator; it ranks derivations and graphs.

It counts arithmetic at the rate of the unit that can do it, the bytes of the tensors that enter
and leave, and passes: a reduction that needs the finished result of another reduction over the
same axis has to run along that axis again. Everything else may stay on chip, so it costs nothing.
Schedules refine this; a search only needs the order of candidates to be sensible.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import prod

from superopt.dtypes import DTYPES
from superopt.ir import REDUCTIONS, Graph, Split, value_axes
from superopt.ops import OPS
from superopt.weights.division import Weights, run_part

__all__ = ["Bound", "Machine", "bound_of", "graph_bound", "operator_us"]


@dataclass(frozen=True, slots=True)
class Machine:
    """The few numbers the bound needs; the defaults are a data-centre GPU, rounded."""

    vector_flops_per_us: float = 30e6
    matrix_flops_per_us: float = 600e6
    bytes_per_us: float = 3.5e6
    pass_us: float = 2.0


@dataclass(frozen=True, slots=True)
class Bound:
    """The bound of one graph, and its parts."""

    us: float
    flops: int
    bytes: int
    passes: tuple[tuple[str, int], ...]  # axes that are walked along more than once


_PRIMITIVE_FLOPS = {"mul": 1, "add": 1, "neg": 1, "inv": 4, "exp": 8, "sqrt": 4, "maximum": 1}


def operator_us(op: str, volume: float, *, matrix: bool = False, machine: Machine | None = None) -> float:
    """Return the least time of one operator over a volume of points."""
    machine = machine or Machine()
    if op == "contract":
        rate = machine.matrix_flops_per_us if matrix else machine.vector_flops_per_us
        return 2 * volume / rate
    return _flops(op) * volume / machine.vector_flops_per_us


def _flops(op: str) -> int:
    if op in _PRIMITIVE_FLOPS:
        return _PRIMITIVE_FLOPS[op]
    if op in OPS:
        return OPS[op].flops
    return 1 if op in ("sum", "max", "less", "equal") else 0


def graph_bound(graph: Graph, machine: Machine | None = None) -> Bound:
    """Return the bound of a whole graph."""
    machine = machine or Machine()
    sizes = graph.sizes
    axes = value_axes(graph)
    first = len(graph.inputs)
    flops = 0
    total_us = 0.0
    passes: list[Mapping[str, int]] = [{} for _ in graph.inputs]
    for position, step in enumerate(graph.steps, first):
        union = frozenset[str]().union(axes[position], *(axes[i] for i in step.inputs))
        volume = prod(sizes[axis] for axis in union)
        matrix = step.op == "contract" and _is_matrix(axes[step.inputs[0]], axes[step.inputs[1]], sizes)
        total_us += operator_us(step.op, volume, matrix=matrix, machine=machine)
        flops += volume * (2 if step.op == "contract" else _flops(step.op))
        merged: dict[str, int] = {}
        for i in step.inputs:
            for axis, count in passes[i].items():
                merged[axis] = max(count, merged.get(axis, 0))
        if step.op in REDUCTIONS:
            for axis in step.axes:
                merged[axis] = merged.get(axis, 0) + 1
        passes.append(merged)
    walked: dict[str, int] = {}
    for output in graph.outputs:
        for axis, count in passes[output.value].items():
            walked[axis] = max(count, walked.get(axis, 0))
    moved = sum(
        prod(graph.shape(port)) * DTYPES[port.dtype].bytes
        for port in (*graph.inputs, *(output.port for output in graph.outputs))
    )
    total_us += moved / machine.bytes_per_us + machine.pass_us * sum(walked.values())
    again = tuple(sorted((axis, count) for axis, count in walked.items() if count > 1))
    return Bound(total_us, flops, moved, again)


def bound_of(graph: Graph, splits: Sequence[Split], weights: Weights) -> Bound:
    """Return the bound of a graph, without what is made of its weights once.

    A graph with split axes is one that no part is taken from.
    """
    return graph_bound(graph if splits else run_part(graph, weights))


def _is_matrix(a: frozenset[str], b: frozenset[str], sizes: Mapping[str, int]) -> bool:
    """Return whether both operands have an axis of their own, as matrix units need."""
    return any(sizes[axis] > 1 for axis in a - b) and any(sizes[axis] > 1 for axis in b - a)
