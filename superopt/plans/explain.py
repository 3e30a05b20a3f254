"""Explain: what was tried for each region, in lines that a reader understands."""

from collections.abc import Iterator
from typing import TYPE_CHECKING

from superopt.ir import describe_shifts
from superopt.plans.plan import Candidate, RegionPlan
from superopt.plans.sizes import fixed_places

if TYPE_CHECKING:
    from superopt.plans.optimized import Optimized

__all__ = ["explained"]

_MOST_DROPPED = 8
_NOTABLE_MS = 50


def explained(best: "Optimized") -> Iterator[str]:
    """Yield the lines of what was tried and why each candidate was or was not taken."""
    yield _headline(best)
    for name, one in sorted(best.measurements.items(), key=lambda item: item[1].median_us):
        yield f"  {name:13} {one.median_us:10.1f} µs  ({one.low_us:.1f} to {one.high_us:.1f})"
    if best.interrupted:
        yield "  interrupted: this is the best so far"
    if best.floor_us is not None:
        yield f"  the bytes and the arithmetic take {best.floor_us:.1f} µs at least"
    if best.floats is not None:
        yield f"  {best.floats}"
    for plan in best.regions:
        yield from _region(plan, planned=best.winner is None)
    if best.ranked_by is not None:
        yield str(best.ranked_by)
    if best.winner == "superopt" and (places := fixed_places(best.traced.program)):
        yield f"built for a length of 1 of {', '.join(places)}: at others the original computes"
    for inputs, reason in list(best.elsewhere.items())[:_MOST_DROPPED]:
        yield f"the original computes {inputs}: {reason}"
    for node in best.traced.program.opaque:
        yield f"not optimized: {node.target}: {node.reason}"
    phases = sorted(best.phases_ms.items(), key=lambda item: -item[1])
    if long := [f"{name} {ms / 1e3:.1f} s" for name, ms in phases if ms >= _NOTABLE_MS]:
        yield "time: " + ", ".join(long)


def _headline(best: "Optimized") -> str:
    name = best.traced.program.name
    if best.winner is None:
        us = f"{best.predicted_us:.1f} µs " if best.predicted_us is not None else ""
        return f"{name}: a plan for {best.target.name}: {us}predicted, not measured; calls run the original"
    against = "PyTorch's stand-in for the original" if best.stood_in else "the best of PyTorch's"
    return f"{name}: {best.winner}, {best.speedup:.2f} times {against}"


def _region(plan: RegionPlan, *, planned: bool) -> Iterator[str]:
    floor = f", at least {plan.floor_us:.1f} µs" if plan.floor_us is not None else ""
    yield f"region {plan.goal.name}{floor}"
    for line in describe_shifts(plan.goal):
        yield f"  exponential {line}"
    shown = plan.dropped[:_MOST_DROPPED]
    names = [*(one.name for one in plan.candidates), *(one.name for one in shown)]
    width = max(map(len, names), default=0)
    for candidate in plan.candidates:
        fate = _fate(plan, candidate, planned=planned)
        yield f"  {candidate.name:{width}} {_time(candidate)}  {fate}"
    for dropped in shown:
        yield f"  {dropped.name:{width}} {'dropped':34}  {dropped.reason}"
    if len(plan.dropped) > _MOST_DROPPED:
        yield f"  {len(plan.dropped) - _MOST_DROPPED} more were dropped"


def _time(candidate: Candidate) -> str:
    guess = "" if candidate.predicted_us is None else f"({candidate.predicted_us:.1f} predicted)"
    if candidate.measurement is not None:
        return f"{candidate.measurement.median_us:10.1f} µs {guess:20}"
    return f"{'':13} {guess:20}"


def _fate(plan: RegionPlan, candidate: Candidate, *, planned: bool) -> str:
    if candidate is plan.chosen:
        return "planned" if planned else "taken"
    if candidate.rejected:
        return candidate.rejected
    if candidate.measurement is None and not planned:
        return "not measured"
    return "slower"
