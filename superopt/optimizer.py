"""Optimize: search, compile, check and race; the fastest correct program is what comes back.

Every region of a function is searched; the best graphs become kernels, are raced against one
another, and the whole is checked in floats and raced against PyTorch. What is slower than PyTorch,
or less accurate, or not finite where PyTorch is, is never returned: then PyTorch is. For a device
that is not here, what comes back is a plan: kernels compiled ahead of time, by predicted times.
"""

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from superopt.clock import Clock
from superopt.driver import Search, search
from superopt.errors import InputError
from superopt.plans.optimized import Optimized
from superopt.plans.plan import PRESETS, Candidate, OptimizeOptions, RegionPlan, Within, Work
from superopt.plans.schedules import schedules
from superopt.plans.searched import keep_search, recall_search
from superopt.plans.settle import settle
from superopt.plans.shelf import Shelf
from superopt.targets import Target, pick_target

if TYPE_CHECKING:
    from superopt.trace.traced import Traced

__all__ = ["Candidate", "OptimizeOptions", "Optimized", "RegionPlan", "optimize"]


def optimize(
    function: Callable[..., Any],
    *inputs: Any,
    name: str | None = None,
    options: OptimizeOptions | None = None,
    on_progress: Callable[[str], None] | None = None,
    source: Mapping[str, Any] | None = None,
    within: Within | None = None,
) -> Optimized:
    """Return the fastest correct program for a function on inputs like these.

    Tensors on the meta device stand for normal random data of their shape. `source` says where the
    function comes from, for the result file. With `within`, the caller races the result against PyTorch.
    """
    from superopt.trace import trace

    options = options or OptimizeOptions()
    check_options(options)
    target = target_for(options, inputs)
    tell = on_progress or (lambda message: None)
    clock = Clock()
    tell("tracing and searching")
    with clock.phase("trace"):
        traced = trace(function, *inputs, name=name)
    shelf = Shelf(options, target, measured=target.available and options.measure)
    found, work = _work(traced, None if within else shelf, target, options, clock)
    best = settle(
        function,
        traced,
        work,
        target=target,
        options=options,
        inputs=inputs,
        clock=clock,
        tell=tell,
        source=source,
        search=found,
        within=within,
    )
    best.interrupted |= found is not None and found.interrupted
    if not best.interrupted and within is None:
        for region in traced.program.regions:
            parts = [plan for plan in best.regions if plan.goal.name.partition(".")[0] == region.graph.name]
            shelf.keep(region.graph, parts)
    return best


def _work(
    traced: "Traced", shelf: Shelf | None, target: Target, options: OptimizeOptions, clock: Clock
) -> tuple[Search | None, list[Work]]:
    """Return the candidates for each region: those of earlier runs where all have some, else of a search.

    The search itself may be an earlier one, for another target or with other options.
    """
    cache = shelf.cache if shelf else None
    with clock.phase("recall"):
        recalled = [shelf.recall(region.graph) for region in traced.program.regions] if shelf else []
    if shelf and all(recalled):
        return None, [work for parts in recalled if parts for work in parts]
    found = None
    with clock.phase("recall"):
        parts = recall_search(cache, traced.program, options.search) if cache else None
    if parts is None:
        with clock.phase("search"):
            found = search(traced.program, options=options.search)
            parts = [(one.goal, one.found) for one in found.regions]
        if cache:
            keep_search(cache, found, options.search)
    with clock.phase("schedule"):
        work = [schedules(goal, graphs, target, graphs=options.graphs) for goal, graphs in parts]
    return found, work


def check_options(options: OptimizeOptions) -> None:
    """Refuse settings that make no sense."""
    if not options.seconds > 0:
        raise InputError(f"seconds is {options.seconds!r}; give a time above 0")
    if not options.limit_seconds > 0:
        raise InputError(f"limit_seconds is {options.limit_seconds!r}; give a time above 0")
    if options.graphs < 1:
        raise InputError(f"graphs is {options.graphs!r}; give at least 1")
    if options.preset not in PRESETS:
        raise InputError(f"preset is {options.preset!r}; choose {' or '.join(PRESETS)}")


def target_for(options: OptimizeOptions, inputs: tuple[Any, ...]) -> Target:
    """Return the target that options name; "auto" is where the inputs are."""
    if options.target == "auto":
        from superopt.verify.floats import tensors_of

        places = {tensor.device.type for tensor in tensors_of(inputs)} - {"meta"}
        if places == {"cpu"}:
            return pick_target("cpu")
    return pick_target(options.target)
