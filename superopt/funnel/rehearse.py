"""Rehearse: the algebra of candidates in floats, on the CPU and at small sizes, where no device runs them.

Graphs that round worse than their region as written are refused, judged as in `steady` but on more kinds of
inputs.

Values that a candidate rounds to half precision are rounded here as well, and the result is compared with a
program that rounds every tensor. A candidate that fails because it rounds operands to fp16 unscaled gets
configurations that scale them.
"""

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import replace

import torch
from torch import Tensor

from superopt.candidates.candidate import Candidate
from superopt.candidates.order import in_likeliest_configurations
from superopt.candidates.sizes import mugraph_for
from superopt.candidates.steady import DISTRIBUTIONS, Run, as_function, faults, one_thread, small_goal
from superopt.errors import GraphError, InputError
from superopt.fate import Kind
from superopt.funnel.predict import predict_times
from superopt.funnel.state import Context
from superopt.funnel.write import write
from superopt.ir import Graph, MuGraph, Step
from superopt.precision import OperandRounding, half_of, mixed_product, multiplied_in, wide_values
from superopt.schedule.recipe import prepared
from superopt.trace.run import TORCH_DTYPES, Evaluation, Value, blank_inputs
from superopt.verify.floats.compare import compare_many

__all__ = ["power_below", "refuse_inaccurate", "rehearse", "rounding_fault"]

_ROUNDED = 16  # candidates whose rounding is judged, the best first
_GRAPHS = 16  # graphs that are run, those of the best candidates first
_SCALED_TO = 14  # the power of two below which no row of a scaled operand ends


def rehearse(candidates: Sequence[Candidate], context: Context) -> list[Candidate]:
    """Refuse candidates whose graphs are less accurate than their region as written."""
    state = context.state
    if context.recalled:
        return list(candidates)
    entering = {*state.traced.input_names, *state.traced.constants}
    seed = state.options.seed
    with state.clock.phase("floats"):
        found = refuse_inaccurate(context.goal, candidates, entering, seed=seed)
        small = small_goal(context.goal, entering)
        if small is None:
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
    likeliest = in_likeliest_configurations(replace(limited, kernels=(), sources=()), target, order)
    return write([predict_times(likeliest, target)], context)[0]


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
    with one_thread():
        [report] = compare_many(
            as_function(goal, torch.float64),
            _run_rounded(written, everything, {}),
            [_run_rounded(small, dict(mugraph.rounded), multiplied)],
            blank_inputs(goal),
            distributions=DISTRIBUTIONS,
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


def refuse_inaccurate(
    goal: Graph, candidates: Sequence[Candidate], entering: Collection[str], *, seed: int
) -> list[Candidate]:
    """Return the candidates for a goal, those refused that are less accurate than it."""
    graphs = list(dict.fromkeys(one.graph for one in candidates if one.is_kept))[:_GRAPHS]
    reasons = faults(goal, graphs, entering, seed=seed)
    return [
        one.ended("rehearse", Kind.REFUSED, reasons[one.graph])
        if one.is_kept and one.graph in reasons
        else one
        for one in candidates
    ]
