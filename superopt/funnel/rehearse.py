"""Rehearse: the algebra of candidates in floats, on the CPU and at small sizes, where no device runs them.

Equal algebra may round worse: a variance as the mean of squares less the square of the mean is equal to
one of differences, and has no digit left where the mean is large. What a device would show, torch shows
at small sizes in fp32, in which kernels accumulate. It says nothing of how a kernel is written.
"""

from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager, suppress
from math import prod
from typing import TYPE_CHECKING

from superopt.candidates.candidate import Candidate
from superopt.candidates.sizes import mugraph_for, resized
from superopt.errors import InputError
from superopt.fate import Kind
from superopt.funnel.state import Context
from superopt.ir import Graph, MuGraph, value_axes
from superopt.schedule.recipe import prepared

if TYPE_CHECKING:
    import torch
    from torch import Tensor

__all__ = ["rehearse", "rehearsed"]

_DISTRIBUTIONS = ("normal", "offset", "near-zero rows", "wide range", "large", "huge")
_MOST_OPERATIONS = 130_000  # of one run
_LENGTHS = (256, 128, 64, 32, 16, 8, 4)  # that axes are cut to, until a run is small enough
_GRAPHS = 16  # that are run, the best candidates' first
_SAME = 1e-6  # error in fp64 that only rounding makes

Run = Callable[..., "tuple[Tensor, ...]"]


def rehearse(candidates: Sequence[Candidate], context: Context) -> list[Candidate]:
    """Refuse candidates whose graphs are less accurate than their region as written."""
    state = context.state
    if context.recalled:
        return list(candidates)
    entering = {*state.traced.input_names, *state.traced.constants}
    with state.clock.phase("floats"):
        return rehearsed(context.goal, candidates, entering, seed=state.options.seed)


def rehearsed(
    goal: Graph, candidates: Sequence[Candidate], entering: Collection[str], *, seed: int
) -> list[Candidate]:
    """Return the candidates for a goal, those refused that are less accurate, given what enters the program.

    A region that reads what another one makes is not judged: nobody knows how such tensors are drawn.
    """
    small = _small(goal)
    if small is None or any(port.name not in entering for port in goal.inputs):
        return list(candidates)
    graphs = list(dict.fromkeys(one.graph for one in candidates if one.is_kept))[:_GRAPHS]
    with _one_thread():
        reasons = _faults(small, graphs, seed)
    return [
        one.ended("rehearse", Kind.REFUSED, reasons[one.graph])
        if one.is_kept and one.graph in reasons
        else one
        for one in candidates
    ]


@contextmanager
def _one_thread() -> Iterator[None]:
    """Let torch compute in one thread: what is small waits longer for others than it computes."""
    import torch

    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def _faults(goal: Graph, graphs: Sequence[Graph], seed: int) -> dict[Graph, str]:
    """Return how graphs err more than a goal of small sizes; those that do not have no entry."""
    import torch

    from superopt.verify.floats.compare import compare_many
    from superopt.verify.floats.focus import focus_of

    exact, inputs = _run(goal, torch.float64), _inputs(goal)
    small: dict[Graph, Graph] = {}
    for graph in graphs:
        with suppress(InputError):  # axes in parts that do not divide the small sizes
            small[graph] = mugraph_for(MuGraph(graph, ()), goal).graph
    # Numbers may stand for sizes: a graph that is another function at these sizes is not judged by them.
    wide = [_run(one, torch.float64) for one in small.values()]
    same = compare_many(exact, exact, wide, inputs, distributions=("normal",), seed=seed)
    judged = [
        graph for graph, report in zip(small, same, strict=True) if report.worst.candidate_error <= _SAME
    ]
    narrow = [_run(small[graph], torch.float32) for graph in judged]
    own = _run(goal, torch.float32)
    reports = compare_many(
        exact, own, narrow, inputs, distributions=_DISTRIBUTIONS, seed=seed, focus=focus_of(goal)
    )
    return {
        graph: f"its algebra at small sizes: {report}"
        for graph, report in zip(judged, reports, strict=True)
        if not all(one.ok for one in report.distributions)
    }


def _run(graph: Graph, dtype: "torch.dtype") -> Run:
    """Return a graph as a function: in fp64 for the truth, or in fp32 as kernels do, then rounded."""
    import torch

    from superopt.trace.run import TORCH_DTYPES, run_graph

    stable = prepared(graph, ()).graph
    names = [port.name for port in graph.inputs]
    dtypes = {one.port.name: TORCH_DTYPES[one.port.dtype] for one in stable.outputs}

    def run(*inputs: "Tensor") -> "tuple[Tensor, ...]":
        made = run_graph(stable, dict(zip(names, inputs, strict=True)), dtype)
        rounded = dtype != torch.float64
        return tuple(made[name].to(dtypes[name]) if rounded else made[name] for name in dtypes)

    return run


def _inputs(goal: Graph) -> "list[Tensor]":
    import torch

    from superopt.trace.run import TORCH_DTYPES

    return [
        torch.empty(goal.shape(port), dtype=TORCH_DTYPES[port.dtype], device="meta") for port in goal.inputs
    ]


def _small(goal: Graph) -> Graph | None:
    """Return a goal with its long axes cut by halves until a run is cheap, or None where it cannot be."""
    kept = {old for step in goal.steps for old, new in step.mapping if isinstance(new, int)}
    for most in _LENGTHS:
        small = resized(
            goal,
            {axis: _cut(size, most) for axis, size in goal.sizes.items() if axis not in kept},
        )
        if _operations(small) <= _MOST_OPERATIONS:
            return small
    return None


def _cut(size: int, most: int) -> int:
    while size > most and size % 2 == 0:
        size //= 2
    return min(size, most)


def _operations(graph: Graph) -> int:
    sizes, axes = graph.sizes, value_axes(graph)
    return sum(
        prod(sizes[axis] for axis in axes[value].union(*(axes[i] for i in step.inputs)))
        for value, step in enumerate(graph.steps, len(graph.inputs))
    )
