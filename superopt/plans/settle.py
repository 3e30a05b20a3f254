"""Settle: from candidates to the program that is used, measured where the device is, planned where not."""

import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from superopt.clock import Clock
from superopt.errors import InputError
from superopt.plans.assembly import assemble, in_parts
from superopt.plans.contest import Contest
from superopt.plans.course import Course
from superopt.plans.forecast import forecast
from superopt.plans.optimized import Optimized
from superopt.plans.plan import OptimizeOptions, RegionPlan, Within, Work
from superopt.targets import Target

if TYPE_CHECKING:
    from superopt.driver import Search
    from superopt.trace.traced import Traced

__all__ = ["settle", "without_data"]

log = logging.getLogger("superopt")

Tell = Callable[[str], None]


def settle(
    function: Callable[..., Any] | None,
    whole: "Traced",
    work: Sequence[Work],
    *,
    target: Target,
    options: OptimizeOptions,
    inputs: tuple[Any, ...],
    clock: Clock,
    tell: Tell,
    source: Mapping[str, Any] | None = None,
    search: "Search | None" = None,
    open_axes: frozenset[str] | None = None,
    within: Within | None = None,
) -> Optimized:
    """Return the program that comes of candidates for each region of a traced function."""
    traced = in_parts(whole, [one.goal for one in work])
    common: dict[str, Any] = {
        "traced": traced,
        "target": target,
        "options": options,
        "inputs": without_data(inputs),
        "source": source,
        "search": search,
        "open_axes": open_axes,
    }
    if not (target.available and options.measure):
        entering = {*traced.input_names, *traced.constants}
        plans = forecast(work, target, options, clock, tell, entering)
        regions = [_with_floor(plan, target) for plan in plans]
        return Optimized(function, regions=regions, winner=None, kernels={}, phases_ms=clock.ms, **common)
    placed = _placed(inputs, target)
    original = function or assemble(traced, {})
    stopped = search is not None and search.interrupted
    if stopped:
        log.warning("interrupted: nothing was compiled yet, so PyTorch's own program is what comes back")
    known = function is not None
    course = Course(target, options, clock, tell, within, interrupted=stopped)
    outcome = Contest(course, original, traced, placed, known=known).run(work)
    return Optimized(
        function,
        regions=[_with_floor(plan, target) for plan in outcome.regions],
        winner=outcome.winner,
        kernels=outcome.kernels,
        compiled=outcome.contenders.get(outcome.winner) if known else None,
        measurements=outcome.measurements,
        floats=outcome.floats,
        phases_ms=clock.ms,
        device=target.device_name,
        ranked_by=outcome.ranked_by,
        interrupted=outcome.interrupted,
        stood_in=not known,
        **common,
    )


def _with_floor(plan: RegionPlan, target: Target) -> RegionPlan:
    return replace(plan, floor_us=target.floor_us(plan.goal))


def without_data(inputs: tuple[Any, ...]) -> tuple[Any, ...]:
    """Return inputs with their tensors on the meta device."""
    import torch
    from torch.utils._pytree import tree_map

    def bare(value: Any) -> Any:
        if not isinstance(value, torch.Tensor):
            return value
        return torch.empty_strided(value.shape, value.stride(), dtype=value.dtype, device="meta")

    return tuple(tree_map(bare, inputs))


def _placed(inputs: tuple[Any, ...], target: Target) -> tuple[Any, ...]:
    """Return inputs where the target computes: those without data are made there."""
    import torch
    from torch.utils._pytree import tree_map

    def put(value: Any) -> Any:
        if not isinstance(value, torch.Tensor):
            return value
        if value.is_meta:
            empty = torch.empty_strided(
                value.shape, value.stride(), dtype=value.dtype, device=target.torch_device
            )
            return empty if value.dtype.is_floating_point else empty.zero_()
        if value.device.type != target.torch_device:
            raise InputError(
                f"an input of shape {list(value.shape)} is on {value.device}, the target is {target.name};"
                f' move it there, or choose target="auto"'
            )
        return value

    return tuple(tree_map(put, inputs))
