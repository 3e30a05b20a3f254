"""Inputs: a region's inputs at any sizes, and whether a plan computes the same from them."""

import logging
from math import ceil
from typing import Any

from torch import Tensor

from superopt.backend.region import Region, at_other_sizes, trace_algebra
from superopt.backend.region_plan import RegionPlan
from superopt.backend.subgraph import Subgraph
from superopt.cost.memory import check_memory
from superopt.errors import SuperoptError, first_line
from superopt.funnel.domain import positive_domain
from superopt.live.sizes import same_program
from superopt.rivals.rivals import Function
from superopt.rivals.wide.choice import widened
from superopt.targets import Target
from superopt.tune.measure import bytes_of, shortest_call_us
from superopt.verify.floats.compare import compare_floats, tensors_of, typical
from superopt.verify.floats.focus import Focus, focus_of
from superopt.verify.floats.memory import laid_out
from superopt.verify.floats.report import FloatReport

__all__ = ["RegionInputs", "scaled"]

log = logging.getLogger("superopt")

_CALLED_WITH = ("normal",)  # distributions for calls of the whole plan; its kernels met all of them
_COPIES_BYTES = 96 << 20
_MOST_COPIES = 8
_LOOKED_AT = 64 << 20  # the most bytes that are drawn to find out whether a function is slow
_LOOKING_CALLS = 3
_SLOW_US = 5000.0  # a call this long may pay for a search for which there is no budget
_LONG_FLOPS = 500_000_000  # with more operations in matmuls, memory does not decide the time


class RegionInputs:
    """Random inputs of a region, within its domain, and comparisons on them."""

    def __init__(self, region: Region, target: Target, flops: int) -> None:
        self.region = region
        self.target = target
        self.flops = flops

    def copies(self, example: tuple[Tensor, ...] | None = None) -> list[tuple[Tensor, ...]]:
        """Return random inputs, several times over, so that no cache holds them all, where that matters.

        Together they are no larger than what the model computes with: where the caches hold a small model,
        or layers share their weights, kernels meet numbers that are near. Where memory has no room for them,
        InputError is raised: a CPU's system would end the process.
        """
        if self.target.torch_device == "cpu":
            check_memory(self.region.traced.program)
        drawn = self.drawn(example or self.region.subgraph.example())
        own, around = max(bytes_of(drawn), 1), self.region.subgraph.weight_bytes
        most = 2 if self.flops > _LONG_FLOPS else _MOST_COPIES
        most = most if around is None else min(most, ceil(around / own))
        count = max(2, min(most, _COPIES_BYTES // own))
        return [drawn] + [tuple(laid_out(one.clone(), one) for one in drawn) for _ in range(count - 1)]

    def drawn(self, example: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
        """Return random inputs like an example."""
        drawn = tensors_of(typical(example))
        domain = positive_domain(self.region.traced, example)
        kept = drawn if domain is None else domain.keep(drawn)
        placed = (tensor.to(self.target.torch_device) for tensor in kept)
        return tuple(laid_out(tensor, like) for tensor, like in zip(placed, example, strict=True))

    def are_slow_for(self, function: Function) -> bool:
        """Whether a function takes long for what may be small: the shortest of a few calls tells."""
        example = self.region.subgraph.example()
        if bytes_of(example) > _LOOKED_AT:
            return False
        try:
            us = shortest_call_us(function, self.drawn(example), _LOOKING_CALLS, self.target.synchronize)
        except Exception as error:  # PyTorch may raise anything; whoever needs the region will say it again
            log.info("a region is not looked at: %s", first_line(error))
            return False
        return us > _SLOW_US

    def known(self, plan: RegionPlan, tensors: Any) -> dict[str, Tensor]:
        """Return inputs of the region by the names that a plan has for them."""
        return dict(zip(plan.inputs, self.region.in_order(plan.inputs, tensors), strict=True))

    def compared(self, ours: Function, given: tuple[Tensor, ...], focus: Focus | None = None) -> FloatReport:
        """Return how a call of ours compares with the region's module in floats."""
        domain = positive_domain(self.region.traced, given)
        keep = domain.keeping if domain is not None else lambda function: function
        module = self.region.subgraph.module
        return compare_floats(
            keep(module),
            keep(ours),
            given,
            eager=keep(widened(module, given)),
            seed=1,
            distributions=_CALLED_WITH,
            focus=focus or focus_of(self.region.traced),
        )

    def fault_of(
        self, plan: RegionPlan, ours: Function, given: tuple[Tensor, ...], *, floats: bool, covered: bool
    ) -> str:
        """Return why a plan, called by `ours`, is refused; nothing where it is not.

        `floats` are compared on request; `covered` asks that each comparison of the region is seen both ways.
        """
        if self.region.subgraph.symbols and (why := self.other_sizes(plan)):
            return why
        report = self.compared(ours, given) if floats else None
        if report is None or (report.ok if covered else report.accurate):
            return ""
        return f"not as accurate as PyTorch: {report}"

    def other_sizes(self, plan: RegionPlan) -> str | None:
        """Return why a plan does not serve other sizes, or None where it does."""
        found = at_other_sizes(self.region.subgraph)
        if found is None:
            return "no other sizes fit together"
        example, traced = found
        if not same_program(traced.program, self.region.traced.program):
            return "another program at other sizes"

        def ours(*tensors: Tensor) -> Any:
            made = dict(zip(plan.outputs, plan.by_kernels(self.known(plan, tensors)), strict=True))
            return [made[name] for name in self.region.names]

        try:
            report = self.compared(ours, self.drawn(example), focus_of(traced))
        except SuperoptError as error:
            return f"its kernels do not take other sizes: {first_line(error)}"
        return None if report.accurate else "wrong at other sizes"


def scaled(subgraph: Subgraph, factor: float) -> tuple[Tensor, ...] | None:
    """Return inputs with all symbols so many times as large, or None where there are none such."""
    hints = subgraph.hints()
    sizes = {symbol: max(int(size * factor), 2) for symbol, size in hints.items()}
    example = subgraph.example(sizes)
    if sizes == hints or bytes_of(example) > _COPIES_BYTES:
        return None
    try:
        trace_algebra(subgraph, example)
    except (SuperoptError, RuntimeError):  # ours, or PyTorch's of shapes that do not match
        return None
    return example
