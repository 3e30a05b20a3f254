"""API: what users call. Reductions over the placements of parallel axes, and shardings of a function."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from torch import Tensor, nn

from superopt.errors import InputError
from superopt.ir import Graph
from superopt.shard.calls import Whole, whole_of
from superopt.shard.machine import Machine, parse_machine
from superopt.shard.output.dtensor import (
    Style,
    dtensor_placements,
    linear_modules,
    parallel_styles,
    watched,
)
from superopt.shard.output.local import TracedModule, check_parts
from superopt.shard.output.page import shard_html
from superopt.shard.output.written import tightened, write_module
from superopt.shard.placements import Placement as AxisPlacement
from superopt.shard.placements import grid_of, placements
from superopt.shard.plans import Plans
from superopt.shard.proof import ShardVerdict, prove_sharded
from superopt.shard.reductions import Program, summed
from superopt.shard.search import plan_shardings
from superopt.shard.sharded import Placement
from superopt.shard.simulate import Reduction, all_reduce, ranked_programs
from superopt.trace import trace
from superopt.trace.capture.tape import Ref, leaves

__all__ = ["PlacedReduction", "ShardResult", "parse_pins", "place_reduction", "shard_program"]

_MOST_RUN = 512  # devices up to which a program is also run on random numbers


@dataclass(frozen=True, slots=True)
class PlacedReduction:
    """The best reduction program of an axis in one placement, against one all-reduce."""

    placement: AxisPlacement
    names: tuple[str, ...]  # of the levels that the axis has, outermost first
    program: Program
    seconds: float
    all_reduce_s: float
    checked: bool  # whether it was also run on random numbers

    @property
    def text(self) -> str:
        """The program in words."""
        return ", ".join(step.text(self.names) for step in self.program) or "nothing to do"


def place_reduction(
    machine: Machine | str, axes: Mapping[str, int], reduced: str, size: float
) -> tuple[PlacedReduction, ...]:
    """Return all placements of parallel axes with the best program to reduce along one axis, fastest first.

    `size` is the bytes of the tensor on each device.
    """
    machine = parse_machine(machine) if isinstance(machine, str) else machine
    if reduced not in axes:
        raise InputError(f"there is no axis {reduced!r} to reduce along; the axes are {', '.join(axes)}")
    found = []
    for placement in placements(dict(axes), machine):
        grid = grid_of(machine, placement)
        own = grid.own[reduced]
        best = ranked_programs(grid, own, size)[0]
        row = placement.factors[placement.axes.index(reduced)]
        names = tuple(level.name for level, factor in zip(machine.levels, row, strict=True) if factor > 1)
        alone = Reduction(grid, own).seconds(all_reduce(len(own)), size) if own else 0.0
        counts = tuple(grid.counts[at] for at in own)
        checked = bool(own) and axes[reduced] <= _MOST_RUN
        assert not checked or summed(best.program, counts), (best.program, counts)
        found.append(PlacedReduction(placement, names, best.program, best.seconds, alone, checked))
    return tuple(sorted(found, key=lambda one: one.seconds))


@dataclass(frozen=True, slots=True)
class ShardResult:
    """The plans of a program, the fastest first, and the verdict on the fastest."""

    plans: Plans
    verdict: ShardVerdict
    traced: TracedModule | None  # where the program is a module
    moved: tuple[str, ...] = ()  # results that are not computed: inputs, and tensors that are results already
    returned: tuple[object, ...] = ()  # what the function returns, in order: Refs stand for tensors

    @property
    def source(self) -> str:
        """The fastest plan as a Python module that needs only torch; a plan without a proof has none."""
        if not self.verdict:
            raise InputError("the fastest plan is not proven, so no program is written; see the verdict")
        if self.moved:
            raise InputError(
                "a written program returns what it computes, each tensor once;"
                f" leave {self.moved[0]} out of the function's results"
            )
        return write_module(self.plans, returned=self.returned)

    @property
    def page(self) -> str:
        """The plans as one HTML page."""
        return shard_html(self)

    @property
    def placements(self) -> dict[str, tuple[str, ...]]:
        """The placements of DTensor for each tensor that enters or leaves."""
        return dtensor_placements(self.plans.best.sharded)

    def styles(self, level: str) -> dict[str, Style]:
        """Return the styles of the program's linear modules along one level of the machine.

        `{name: style.made() for name, style in ...}` is the plan that `parallelize_module` takes.
        """
        if self.traced is None:
            raise InputError("parallelize_module: the program is no module; shard the module itself")
        dim, sharded = self.plans.machine.level_named(level), self.plans.best.sharded
        found = parallel_styles(sharded, dim, self.traced.linears)
        check_parts(self.traced, found, sharded, dim)
        return found


def shard_program(
    function: Callable[..., Any] | Graph,
    *inputs: Any,
    machine: Machine | str,
    pins: Mapping[str, Placement] | str = "",
    memory: float | None = None,
    seed: int | None = None,
) -> ShardResult:
    """Return the fastest proven ways to run a function on all devices of a machine.

    `pins` fixes how tensors that enter or leave lie, `memory` limits the bytes on each device.
    """
    machine = parse_machine(machine) if isinstance(machine, str) else machine
    traced: TracedModule | None = None
    moved, returned = tuple[str, ...](), tuple[object, ...]()
    if isinstance(function, Graph):
        program: Graph | Whole = function
    else:
        program, traced, moved, returned = _traced(function, inputs)
    fixed = parse_pins(pins, machine) if isinstance(pins, str) else pins
    plans = plan_shardings(program, machine, pins=fixed, memory=memory)
    # The proof is of the same tightened program that the module is written from.
    verdict = prove_sharded(tightened(plans.best.sharded), original=plans.graph, seed=seed)
    return ShardResult(plans, verdict, traced, moved, returned)


def _traced(
    function: Callable[..., Any], inputs: tuple[Any, ...]
) -> tuple[Whole, TracedModule | None, tuple[str, ...], tuple[object, ...]]:
    """Return a function as one graph, as a module if it is one, results that it does not compute, and all."""
    with watched(function) as shapes:
        traced = trace(function, *inputs)
    tensors = [leaf for leaf in leaves(inputs) if isinstance(leaf, Tensor)]
    given = {**dict(zip(traced.input_names, tensors, strict=True)), **traced.constants}
    whole = whole_of(traced, {name: tuple(tensor.shape) for name, tensor in given.items()})
    returned = tuple(leaves(traced.result))
    results = [traced.names[leaf.index] for leaf in returned if isinstance(leaf, Ref)]
    moved = tuple(name for at, name in enumerate(results) if name in given or name in results[:at])
    if not isinstance(function, nn.Module):
        return whole, None, moved, returned
    names = dict(zip(map(id, tensors), traced.input_names, strict=True))
    linears = linear_modules(function, shapes, traced.constants)
    return whole, TracedModule(function, inputs, names, linears), moved, returned


def parse_pins(text: str, machine: Machine) -> dict[str, Placement]:
    """Return the placements that a text such as `x=whole, w=n:gpu+k:node` fixes."""
    found: dict[str, Placement] = {}
    for part in filter(None, (part.strip() for part in text.split(","))):
        name, sign, places = (word.strip() for word in part.partition("="))
        if not sign or not places:
            raise InputError(f"pins: cannot read {part!r}; write for example 'x=whole, w=n:gpu'")
        if name in found:
            raise InputError(f"pins: {name} is given twice; write for example 'w=n:gpu+k:node'")
        placement: list[str | None] = [None] * len(machine.levels)
        for place in places.split("+") if places != "whole" else ():
            axis, colon, level = (word.strip() for word in place.partition(":"))
            if not colon or not axis:
                raise InputError(f"pins: cannot read {place!r}; write for example 'w=n:gpu'")
            dim = machine.level_named(level)
            if placement[dim] is not None:
                raise InputError(f"pins: {part!r} has {level} twice; a level splits one axis of a tensor")
            placement[dim] = axis
        found[name] = tuple(placement)
    return found
