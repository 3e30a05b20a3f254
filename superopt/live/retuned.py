"""Retuned: a kernel in the configuration that wins at sizes other than those it was made for."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

from superopt.candidates.candidate import Candidate
from superopt.funnel import RETUNING, Context, Limits, State, run
from superopt.funnel.predict import predicted
from superopt.ir import Graph
from superopt.options import OptimizeOptions
from superopt.targets import Kernel, Target
from superopt.trace.traced import Traced

__all__ = ["retuned"]


def retuned(
    goal: Graph,
    candidate: Candidate,
    original: Callable[..., Any],
    traced: Traced,
    inputs: tuple[Any, ...],
    target: Target,
    options: OptimizeOptions,
) -> Kernel | None:
    """Return the kernel of a candidate in the best of the configurations that are raced for its sizes."""
    limits = Limits(seconds=options.seconds / 2)
    state = State(original, traced, inputs, target, replace(options, guarded=False), limits)
    context = Context(state, goal, recalled=False, share=1.0)
    with state.ready():
        found = run(RETUNING, [predicted(candidate, target)], context)
    return context.kernels.get(found[0].id)
