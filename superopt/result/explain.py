"""Explain: what was tried for each region, in lines that a reader understands."""

from collections.abc import Iterator, Mapping

from superopt.candidates.candidate import Candidate, RegionCandidates
from superopt.fate import Kind
from superopt.ir import Graph, Program, describe_shifts
from superopt.result.result import Result
from superopt.result.why import headline
from superopt.weights.division import Divided, weight_bytes

__all__ = ["explained"]

_MOST_DROPPED = 8
_NOTABLE_MS = 50


def explained(result: Result, elsewhere: Mapping[str, str]) -> Iterator[str]:
    """Yield the lines of what was tried and why each candidate was or was not taken.

    `elsewhere` are inputs for which the original function runs since, and why.
    """
    yield headline(result)
    width = max(map(len, result.measurements), default=0)
    for name, one in sorted(result.measurements.items(), key=lambda item: item[1].median_us):
        yield f"  {name:{width}} {one.median_us:10.1f} µs  ({one.low_us:.1f} to {one.high_us:.1f})"
    if result.unsettled:
        yield f"  {result.unsettled}"
    if result.doubt:
        yield f"  error: {result.doubt}"
    if result.interrupted:
        yield "  interrupted: this is the best so far"
    if result.floor_us is not None:
        yield f"  the bytes and the arithmetic take {result.floor_us:.1f} µs at least"
    if result.floats is not None:
        yield f"  {result.floats}"
    for region in result.regions:
        yield from _region(region, planned=result.winner is None)
    if result.ranked_by is not None:
        yield str(result.ranked_by)
    if result.winner == "superopt" and (places := _fixed_places(result.program)):
        yield f"built for a length of 1 of {', '.join(places)}: at others the original function runs"
    for inputs, reason in list(elsewhere.items())[:_MOST_DROPPED]:
        yield f"the original function runs for {inputs}: {reason}"
    for node in result.program.opaque:
        yield f"not optimized: {node.target}: {node.reason}"
    phases = sorted(result.phases_ms.items(), key=lambda item: -item[1])
    if long := [f"{name} {ms / 1e3:.1f} s" for name, ms in phases if ms >= _NOTABLE_MS]:
        yield "time: " + ", ".join(long)


def _region(region: RegionCandidates, *, planned: bool) -> Iterator[str]:
    floor = f", at least {region.floor_us:.1f} µs" if region.floor_us is not None else ""
    recalled = ", candidates from the cache" if region.recalled else ""
    yield f"region {region.goal.name}{floor}{recalled}"
    for line in describe_shifts(region.goal):
        yield f"  exponential {line}"
    if region.chosen is not None and (parts := region.chosen.parts) is not None:
        yield f"  {_weights(region.goal, parts)}"
    shown = region.dropped[:_MOST_DROPPED]
    names = [*(one.name for one in region.candidates), *(one.name for one in shown)]
    width = max(map(len, names), default=0)
    for one in region.candidates:
        taken = one.fate.kind is Kind.CHOSEN
        outcome = ("planned" if planned else "taken") if taken else str(one.fate)
        yield f"  {one.name:{width}} {_time(one)}  {outcome}"
    for dropped in shown:
        yield f"  {dropped.name:{width}} {'dropped':34}  {dropped.fate}"
    if len(region.dropped) > _MOST_DROPPED:
        yield f"  {len(region.dropped) - _MOST_DROPPED} more were dropped"


def _weights(goal: Graph, parts: Divided) -> str:
    """Return in words what is made of weights once, and how much of them a call reads."""
    count, kept = len(parts.once.outputs), parts.kept_bytes
    before, after = weight_bytes(goal), weight_bytes(parts.run)
    made = f"{count} tensor{'s' if count > 1 else ''} of {_size(kept)}"
    away = f"; weights of {_size(parts.unread_bytes)} go to a file" if parts.unread else ""
    return (
        f"made of weights once: {made}; a call reads {_size(after)} of weights, before {_size(before)}{away}"
    )


def _size(count: int) -> str:
    return f"{count:,} bytes" if count < 10_000 else f"{count / 1024:,.0f} KiB"


def _time(candidate: Candidate) -> str:
    guess = "" if candidate.predicted_us is None else f"({candidate.predicted_us:.1f} predicted)"
    if candidate.measurement is not None:
        return f"{candidate.measurement.median_us:10.1f} µs {guess:20}"
    return f"{'':13} {guess:20}"


def _fixed_places(program: Program) -> list[str]:
    """Return in words where tensors are 1 long: there no axis is, and other lengths are another program."""
    return [
        f"{port.name!r} in dimension {at}"
        for port in program.inputs
        for at, dim in enumerate(port.dims)
        if not dim
    ]
