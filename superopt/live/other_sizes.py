"""Other sizes: the kernels of a program at sizes other than those it was built for."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from time import perf_counter
from typing import Any

from superopt.candidates.candidate import Candidate, RegionCandidates
from superopt.candidates.proof import SizeProofs
from superopt.candidates.sizes import bucket, mugraph_for, resized
from superopt.errors import InputError
from superopt.funnel import RETUNING, Context, Limits, State, run
from superopt.funnel.assembly import as_kernel
from superopt.funnel.predict import predict_times
from superopt.ir import Graph, MuGraph
from superopt.options import OptimizeOptions
from superopt.targets import Kernel, Target
from superopt.trace.traced import Traced
from superopt.verify.floats.compare import compare_floats

__all__ = ["Call", "OtherSizes", "SizeKernels", "check_floats"]

_PROOFS_S = 2.0  # the most seconds that a call at new sizes spends on proofs, of all its regions


@dataclass(frozen=True, slots=True)
class Call:
    """A call at other sizes: its inputs, the program at these sizes, and what computes the same."""

    inputs: tuple[Any, ...]
    traced: Traced
    original: Callable[..., Any]
    options: OptimizeOptions


@dataclass(slots=True)
class SizeKernels:
    """The kernels of a program at some sizes."""

    kernels: dict[str, Kernel] = field(default_factory=dict)
    made: list[str] = field(default_factory=list)  # those made for these sizes, in words
    unsure: list[str] = field(default_factory=list)  # regions whose graphs were not proven here in time


class OtherSizes:
    """Proves that the graphs of a program hold at other sizes; makes kernels for each range of sizes once."""

    def __init__(
        self,
        regions: Sequence[RegionCandidates],
        kernels: Mapping[str, Kernel],
        target: Target,
        on_made: Callable[[Kernel], None],
    ) -> None:
        self._regions = regions
        self._kernels = kernels
        self._target = target
        self._on_made = on_made
        self._made: dict[object, Kernel] = {}
        self._proofs = SizeProofs()

    def serve(self, call: Call) -> SizeKernels:
        """Return the kernels for a call; InputError where a graph is another function at its sizes."""
        end = perf_counter() + _PROOFS_S
        found = SizeKernels()
        goals = {one.graph.name: one.graph for one in call.traced.program.regions}
        chosen = [(one.goal, one.chosen) for one in self._regions if one.chosen is not None]
        for built, candidate in chosen:  # all proofs come first: compilers take longer
            if not self._holds(built, candidate, goals[built.name], end):
                found.unsure.append(built.name)
        for built, candidate in chosen:
            found.kernels[built.name] = self._kernel(goals[built.name], candidate, call, found)
        return found

    def _holds(self, built: Graph, chosen: Candidate, goal: Graph, end: float) -> bool:
        """Return whether a graph is proven to compute a region of a call; InputError where it does not."""
        if goal.sizes == built.sizes:
            return True
        verdict = self._proofs.verdict(built, chosen, goal, end=end)
        if verdict.witness is not None:
            raise InputError(f"the graph of {goal.name} is equal only at the sizes it was built for")
        return verdict.equal

    def _kernel(self, goal: Graph, chosen: Candidate, call: Call, found: SizeKernels) -> Kernel:
        """Return the kernel of a region for the sizes of a call, made where there is none yet."""
        mugraph = mugraph_for(chosen.mugraph, resized(chosen.run, goal.sizes))
        place = bucket(mugraph)
        if place == bucket(chosen.mugraph):
            return self._kernels[goal.name]
        key = goal.name, place
        if key not in self._made:
            tuned = call.options.retune
            found.made.append(f"{goal.name} by {'tuned' if tuned else 'default'} configurations")
            kernel = self._retune(goal, chosen, mugraph, call) if tuned else None
            if kernel is None:
                made = self._target.make(mugraph, self._target.default_configs(mugraph))
                kernel = as_kernel(goal, chosen, made)
            self._made[key] = kernel
            self._on_made(kernel)
        return self._made[key]

    def _retune(self, goal: Graph, chosen: Candidate, mugraph: MuGraph, call: Call) -> Kernel | None:
        """Return the kernel of a candidate in the best of the configurations that are raced for its sizes.

        They round like the default ones or like those that were checked in floats, as no check follows here.
        """
        target, options = self._target, call.options
        configs = target.default_configs(mugraph)
        candidate = Candidate(goal.name, chosen.graph, mugraph, configs, once=chosen.once, wide=chosen.wide)
        limits = Limits(seconds=options.seconds / 2)
        options = replace(options, guarded=False)
        state = State(call.original, call.traced, call.inputs, target, options, limits)
        context = Context(state, goal, recalled=False, share=1.0)
        context.roundings = [
            {one.rounding for one in pair if one is not None}
            for pair in zip(configs, chosen.configs or configs, strict=True)
        ]
        with state.ready():
            tuned = run(RETUNING, [predict_times(candidate, target)], context)
        if state.interrupted and not state.lost:  # by Ctrl-C, which ends the call of the user, too
            raise KeyboardInterrupt
        return context.kernels.get(tuned[0].id)


def check_floats(
    original: Callable[..., Any], program: Callable[..., Any], inputs: tuple[Any, ...], seed: int
) -> None:
    """Raise InputError where kernels err more than PyTorch, at sizes for which nothing is proven."""
    # Comparisons were seen both ways where the kernels were made; here some may have one outcome only.
    report = compare_floats(original, program, inputs, distributions=("normal",), seed=seed)
    if not report.accurate:
        raise InputError(str(report))
