"""Steady: whether graphs round no worse than a goal, seen at small sizes before anything is compiled.

Equal algebra may round worse: a variance as the mean of squares less the square of the mean is equal to
one of differences, and has no digit left where the mean is large. What kernels would show, torch shows at
small sizes in fp32, in which kernels accumulate. It says nothing of how a kernel is written.
"""

from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager, suppress

import torch
from torch import Tensor

from superopt.candidates.sizes import mugraph_for, resized
from superopt.errors import InputError
from superopt.ir import Graph, MuGraph, operations_of, window_axes
from superopt.schedule.recipe import prepared
from superopt.trace.run import TORCH_DTYPES, blank_inputs, run_graph
from superopt.verify.floats.compare import compare_many
from superopt.verify.floats.focus import focus_of

__all__ = [
    "DISTRIBUTIONS",
    "SAME",
    "Run",
    "as_function",
    "at_sizes_of",
    "cancelling",
    "faults",
    "one_thread",
    "small_goal",
]

DISTRIBUTIONS = ("normal", "offset", "near-zero rows", "wide range", "large", "huge")
"""How the inputs of graphs are drawn, that are judged by their rounding."""

# One draw where sums of large numbers cancel tells most graphs that round worse, and one where they cancel to
# nothing tells those that make NaN of it; of graphs that are a little worse some pass at full size.
_CANCELLING, _SURELY = ("offset", "constant rows"), 4.0
_MOST_OPERATIONS = 130_000  # operations that one run at small sizes may take
# Lengths that long axes are cut to, tried until a run is small enough.
_LENGTHS = (256, 128, 64, 32, 16, 8, 4)
SAME = 1e-6  # a smaller error in fp64 comes from rounding alone

Run = Callable[..., "tuple[Tensor, ...]"]


def cancelling(
    goal: Graph, graphs: Sequence[Graph], entering: Collection[str], *, seed: int
) -> dict[Graph, str]:
    """Return why graphs need not be tried, since sums cancel in them that do not in their goal."""
    return faults(goal, graphs, entering, seed=seed, distributions=_CANCELLING, draws=1, most=_SURELY)


@contextmanager
def one_thread() -> Iterator[None]:
    """Let torch compute in one thread: small tensors take longer to share than to compute."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def faults(
    goal: Graph,
    graphs: Sequence[Graph],
    entering: Collection[str],
    *,
    seed: int,
    distributions: Sequence[str] = DISTRIBUTIONS,
    draws: int | None = None,
    most: float = 1.0,
) -> dict[Graph, str]:
    """Return how graphs err at small sizes by over `most` times what is allowed for a goal, if they do."""
    small = small_goal(goal, entering)
    if small is None:
        return {}
    with one_thread():
        return _faults(small, graphs, seed, distributions, draws, most)


def _faults(
    goal: Graph,
    graphs: Sequence[Graph],
    seed: int,
    distributions: Sequence[str],
    draws: int | None,
    most: float,
) -> dict[Graph, str]:
    exact, inputs = as_function(goal, torch.float64), blank_inputs(goal)
    small = at_sizes_of(goal, graphs)
    # Numbers may stand for sizes: a graph that is another function at these sizes is not judged by them.
    wide = [as_function(one, torch.float64) for one in small.values()]
    same = compare_many(exact, exact, wide, inputs, distributions=("normal",), seed=seed, draws=1)
    judged = [
        graph for graph, report in zip(small, same, strict=True) if report.worst.candidate_error <= SAME
    ]
    narrow = [as_function(small[graph], torch.float32) for graph in judged]
    own = as_function(goal, torch.float32)
    reports = compare_many(
        exact, own, narrow, inputs, distributions=distributions, seed=seed, focus=focus_of(goal), draws=draws
    )
    return {
        graph: f"its algebra at small sizes: {report}"
        for graph, report in zip(judged, reports, strict=True)
        if any(not one.ok and (one.ratio > most or one.nonfinite) for one in report.distributions)
    }


def at_sizes_of(goal: Graph, graphs: Sequence[Graph]) -> dict[Graph, Graph]:
    """Return graphs at the sizes of a goal, without those whose parts of an axis do not divide its size."""
    small: dict[Graph, Graph] = {}
    for graph in graphs:
        with suppress(InputError):
            small[graph] = mugraph_for(MuGraph(graph, ()), goal).graph
    return small


def as_function(graph: Graph, dtype: torch.dtype) -> Run:
    """Return a graph as a function: in fp64 for the truth, or in fp32 as kernels do, then rounded."""

    stable = prepared(graph, ()).graph
    names = [port.name for port in graph.inputs]
    dtypes = {one.port.name: TORCH_DTYPES[one.port.dtype] for one in stable.outputs}

    def run(*inputs: Tensor) -> tuple[Tensor, ...]:
        made = run_graph(stable, dict(zip(names, inputs, strict=True)), dtype)
        rounded = dtype != torch.float64
        return tuple(made[name].to(dtypes[name]) if rounded else made[name] for name in dtypes)

    return run


def small_goal(goal: Graph, entering: Collection[str]) -> Graph | None:
    """Return a goal with its long axes cut by halves until a run is cheap, or None where it is not judged.

    A region that reads what another one makes is not, since nobody knows how such tensors are drawn; nor is
    one whose axes cannot be cut.
    """
    if any(port.name not in entering for port in goal.inputs):
        return None
    kept = {old for step in goal.steps for old, new in step.mapping if isinstance(new, int)}
    kept |= window_axes(goal)
    for most in _LENGTHS:
        small = resized(
            goal,
            {axis: _cut(size, most) for axis, size in goal.sizes.items() if axis not in kept},
        )
        if operations_of(small) <= _MOST_OPERATIONS:
            return small
    return None


def _cut(size: int, most: int) -> int:
    while size > most and size % 2 == 0:
        size //= 2
    return min(size, most)
