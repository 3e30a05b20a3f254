"""Rehearse: the algebra of candidates in floats, on the CPU and at small sizes, where no device runs them.

Equal algebra may round worse: a variance as the mean of squares less the square of the mean is equal to
one of differences, and has no digit left where the mean is large. What a device would show, torch shows
at small sizes in fp32, in which kernels accumulate. It says nothing of how a kernel is written.

Values that a candidate rounds to half precision are rounded here as well, and the result is compared with a
program that rounds every tensor. A candidate that fails because it rounds operands to fp16 unscaled gets
configurations that scale them.
"""

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import replace

import torch
from torch import Tensor

from superopt.candidates.candidate import Candidate
from superopt.candidates.order import as_predicted
from superopt.candidates.sizes import mugraph_for, resized
from superopt.errors import GraphError, InputError
from superopt.fate import Kind
from superopt.funnel.predict import predicted
from superopt.funnel.state import Context
from superopt.funnel.write import write
from superopt.ir import Graph, MuGraph, Step, operations_of, window_axes
from superopt.precision import OperandRounding, half_of, mixed_product, multiplied_in, wide_values
from superopt.schedule.recipe import prepared
from superopt.trace.run import TORCH_DTYPES, Evaluation, Value, blank_inputs, run_graph
from superopt.verify.floats.compare import compare_many
from superopt.verify.floats.focus import focus_of

__all__ = ["power_below", "rehearse", "rehearsed", "rounding_fault"]

_DISTRIBUTIONS = ("normal", "offset", "near-zero rows", "wide range", "large", "huge")
_MOST_OPERATIONS = 130_000  # operations that one run at small sizes may take
# Lengths that long axes are cut to, tried until a run is small enough.
_LENGTHS = (256, 128, 64, 32, 16, 8, 4)
_ROUNDED = 16  # candidates whose rounding is judged, the best first
_GRAPHS = 16  # graphs that are run, those of the best candidates first
_SAME = 1e-6  # a smaller error in fp64 comes from rounding alone
_SCALED_TO = 14  # the power of two below which no row of a scaled operand ends

Run = Callable[..., "tuple[Tensor, ...]"]


def rehearse(candidates: Sequence[Candidate], context: Context) -> list[Candidate]:
    """Refuse candidates whose graphs are less accurate than their region as written."""
    state = context.state
    if context.recalled:
        return list(candidates)
    entering = {*state.traced.input_names, *state.traced.constants}
    seed = state.options.seed
    with state.clock.phase("floats"):
        found = rehearsed(context.goal, candidates, entering, seed=seed)
        small = _small(context.goal)
        if small is None or any(port.name not in entering for port in context.goal.inputs):
            return found
        judged = 0
        for at, one in enumerate(found):
            if (
                one.is_kept
                and judged < _ROUNDED
                and (_rounding_kernels(one.mugraph) or wide_values(one.mugraph))
            ):
                judged += 1
                found[at] = _rounded(one, small, context)
        return found


def _rounding_kernels(mugraph: MuGraph) -> tuple[int, ...]:
    """Return the kernels some configuration of which may round, unscaled, operands that may not fit fp16."""
    numbers = range(len(mugraph.kernels))
    none = multiplied_in(mugraph, [False for _ in numbers])
    return tuple(one for one in numbers if multiplied_in(mugraph, [at == one for at in numbers]) != none)


def _rounded(candidate: Candidate, goal: Graph, context: Context) -> Candidate:
    """Return a candidate as it may round: as much as passes, between kernels and in products; or refused."""
    faults = []
    for mugraph in _less_rounded(candidate.mugraph):
        rounding = _rounding_kernels(mugraph)
        for wide in dict.fromkeys(((), *((one,) for one in rounding), rounding)):
            fault = rounding_fault(mugraph, goal, seed=context.state.options.seed, wide=wide)
            if not fault:
                return _limited(candidate, mugraph, context, wide)
            faults.append(fault)
    return candidate.ended("rehearse", Kind.REFUSED, faults[0])


def _less_rounded(mugraph: MuGraph) -> Iterator[MuGraph]:
    """Yield a muGraph, then with one value or all in fp32 between kernels that may not fit fp16."""
    yield mugraph
    unsure = [(value, dtype) for value, dtype in mugraph.rounded if value in wide_values(mugraph)]
    kept = [tuple(pair for pair in mugraph.rounded if pair != one) for one in unsure]
    kept.append(tuple(pair for pair in mugraph.rounded if pair not in unsure))
    for rounded in dict.fromkeys(kept if unsure else ()):
        less = replace(mugraph, rounded=rounded)
        if not mixed_product(less):
            yield less


def _limited(candidate: Candidate, mugraph: MuGraph, context: Context, wide: tuple[int, ...]) -> Candidate:
    """Return a candidate that rounds less, in the likeliest configurations that may do so."""
    limited = replace(candidate, mugraph=mugraph, wide=wide)
    rounds = any(
        number in wide and one.rounds_operands for number, one in enumerate(candidate.configs) if one
    )
    if mugraph == candidate.mugraph and not rounds:
        return limited
    target, order = context.state.target, context.state.order
    likeliest = as_predicted(replace(limited, kernels=(), sources=()), target, order)
    return write([predicted(likeliest, target)], context)[0]


def rounding_fault(mugraph: MuGraph, goal: Graph, *, seed: int, wide: Collection[int]) -> str:
    """Return how a muGraph errs more than a program that rounds every tensor; else nothing.

    Kernels in `wide` scale operands of products that may not fit fp16, the others round them as they are.
    """

    half = half_of(goal)
    assert half is not None
    multiplied = multiplied_in(mugraph, [at not in wide for at in range(len(mugraph.kernels))])
    written = prepared(goal, ()).graph
    try:
        small = mugraph_for(mugraph, goal).graph
        if any(small.shape(a) != goal.shape(b) for a, b in zip(small.inputs, goal.inputs, strict=True)):
            return ""
    except (InputError, GraphError):  # the parts of an axis do not divide the small sizes
        return ""
    everything = dict.fromkeys(range(len(written.inputs), len(written.inputs) + len(written.steps)), half)
    with _one_thread():
        [report] = compare_many(
            _run(goal, torch.float64),
            _run_rounded(written, everything, {}),
            [_run_rounded(small, dict(mugraph.rounded), multiplied)],
            blank_inputs(goal),
            distributions=_DISTRIBUTIONS,
            seed=seed,
        )
    return "" if all(one.ok for one in report.distributions) else f"its rounding at small sizes: {report}"


def _run_rounded(graph: Graph, values: Mapping[int, str], operands: Mapping[int, OperandRounding]) -> Run:
    """Return a graph as a function in fp32 that rounds some values, and the operands of some contractions."""

    rounded = {id(graph.step_at(i)): TORCH_DTYPES[dtype] for i, dtype in values.items()}
    multiplied = {id(graph.step_at(i)): rounding for i, rounding in operands.items()}
    names = [port.name for port in graph.inputs]
    dtypes = {one.port.name: TORCH_DTYPES[one.port.dtype] for one in graph.outputs}

    def as_half(value: Value, dtype: torch.dtype) -> Value:
        return replace(value, tensor=value.tensor.to(dtype).to(torch.float32))

    def as_operand(value: Value, rounding: OperandRounding, reduced: Sequence[str], *, scaled: bool) -> Value:
        dtype = TORCH_DTYPES[rounding.dtype]
        inner = [at for at, axis in enumerate(value.axes) if axis in reduced]
        if not scaled or not value.tensor.numel():
            return as_half(value, dtype)
        scale = power_below(value.tensor.abs().amax(inner, keepdim=True)) * 2.0**-_SCALED_TO
        return replace(value, tensor=(value.tensor / scale).to(dtype).to(torch.float32) * scale)

    class Rounded(Evaluation):
        """An evaluation that rounds."""

        def step(self, step: Step, fused: Mapping[int, Step]) -> Value:
            """Return the value of a step, rounded where it is to be."""
            if id(step) in multiplied:
                how = multiplied[id(step)]
                a, b = (
                    as_operand(self.values[i], how, step.axes, scaled=i in how.scaled) for i in step.inputs
                )
                made = self.contract(a, b, step.axes)
            else:
                made = super().step(step, fused)
            is_tensorless = not made.axes and step.op in ("const", "infinity", "size")
            return as_half(made, rounded[id(step)]) if id(step) in rounded and not is_tensorless else made

    def run(*inputs: Tensor) -> tuple[Tensor, ...]:
        evaluation = Rounded(graph, torch.float32, torch.device("cpu"), finite=False)
        made = evaluation.outputs(dict(zip(names, inputs, strict=True)))
        return tuple(made[name].to(dtype) for name, dtype in dtypes.items())

    return run


def power_below(sizes: Tensor) -> Tensor:
    """Return the largest powers of two that are not above some sizes, the smallest normal one at least."""
    least, most = torch.finfo(torch.float32).tiny * 2.0**_SCALED_TO, 2.0**127
    known = torch.where(sizes.isfinite(), sizes, most).clamp(least, most)
    return known / (2 * torch.frexp(known).mantissa)


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
    """Let torch compute in one thread: small tensors take longer to share than to compute."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def _faults(goal: Graph, graphs: Sequence[Graph], seed: int) -> dict[Graph, str]:
    """Return how graphs err more than a goal of small sizes; an accurate graph has no entry."""

    exact, inputs = _run(goal, torch.float64), blank_inputs(goal)
    small: dict[Graph, Graph] = {}
    for graph in graphs:
        with suppress(InputError):  # the parts of an axis do not divide the small sizes
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


def _run(graph: Graph, dtype: torch.dtype) -> Run:
    """Return a graph as a function: in fp64 for the truth, or in fp32 as kernels do, then rounded."""

    stable = prepared(graph, ()).graph
    names = [port.name for port in graph.inputs]
    dtypes = {one.port.name: TORCH_DTYPES[one.port.dtype] for one in stable.outputs}

    def run(*inputs: Tensor) -> tuple[Tensor, ...]:
        made = run_graph(stable, dict(zip(names, inputs, strict=True)), dtype)
        rounded = dtype != torch.float64
        return tuple(made[name].to(dtypes[name]) if rounded else made[name] for name in dtypes)

    return run


def _small(goal: Graph) -> Graph | None:
    """Return a goal with its long axes cut by halves until a run is cheap, or None where it cannot be."""
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
