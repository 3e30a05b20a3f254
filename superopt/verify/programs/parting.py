"""Parting: where two programs stop having anything in common, in words."""

from collections.abc import Container, Mapping, Sequence

from superopt.verify.programs.matching import CallPair, CutPair, Matching
from superopt.verify.programs.pieces import Ordered

__all__ = ["parting", "unmatched_calls"]

_SHOWN = 6  # parameters that are named


def unmatched_calls(sides: tuple[Ordered, Ordered], matching: Matching) -> list[str]:
    """Return the operators of opaque calls that were found in one program only."""
    paired = _paired(matching)
    return sorted(
        {
            call.target
            for number, side in enumerate(sides)
            for at, call in enumerate(side.calls)
            if (number, at) not in paired
        }
    )


def _paired(matching: Matching) -> frozenset[tuple[int, int]]:
    """Return the calls that have a twin, each by its side and its number."""
    calls = (pair for pair in matching.pairs if isinstance(pair, CallPair))
    return frozenset(call for pair in calls for call in (pair.one, pair.other))


def parting(sides: tuple[Ordered, Ordered], matching: Matching, titles: Mapping[str, str]) -> str:
    """Return where the programs part, if they do so behind something that both have."""
    left, right = sides
    cuts = [pair for pair in matching.pairs if isinstance(pair, CutPair)]
    pairs = zip(left.results, right.results, strict=True)
    parted = [one.value for one, other in pairs if (one.value, other.value) not in matching.results]
    if not cuts or not parted:
        return ""
    ours, theirs = matching.next_left, matching.next_right
    ends = parted if ours is None else [ours]
    seconds = [] if theirs is None else [theirs]
    paired = _paired(matching)
    stops = [
        {*cut_values, *(value for value, call in side.made_by.items() if (number, call) in paired)}
        for number, (side, cut_values) in enumerate(
            ((left, [pair.left for pair in cuts]), (right, [pair.right for pair in cuts]))
        )
    ]
    read = dict.fromkeys([*_entering(left, ends, stops[0]), *_entering(right, seconds, stops[1])])
    place = {event: number for number, event in enumerate(left.order, 1)}
    begin = max(place.get(pair.left, 0) for pair in cuts) + 1
    return _in_words(
        left,
        begin,
        max(place.get(value, 0) for value in ends),
        ends[0],
        [titles[name] for name in read if name in titles],
    )


def _in_words(side: Ordered, begin: int, end: int, value: int, parameters: Sequence[str]) -> str:
    """Return which steps of the first program the second program lacks."""
    step = side.graph.step_of(value)
    shape = [side.sizes[axis] for axis in sorted(side.axes[value])]
    made = f"the tensor {shape} that {step.op} makes" if step is not None else "the result"
    text = f"{made} in steps {begin} to {end} of {len(side.order)}"
    if not parameters:
        return text
    shown = ", ".join(parameters[:_SHOWN]) + (", ..." if len(parameters) > _SHOWN else "")
    return f"{text}, which read {shown}"


def _entering(side: Ordered, targets: Sequence[int], stops: Container[int]) -> list[str]:
    """Return the inputs of the program that some values are made from behind the stops, by calls too."""
    found: list[str] = []
    seen: set[int] = set()
    pending = [*reversed(targets)]
    while pending:
        value = pending.pop()
        if value in seen or (value in stops and value not in targets):
            continue
        seen.add(value)
        if value >= side.first:
            pending.extend(reversed(side.reads(value)))
        elif value in side.made_by:
            pending.extend(reversed(side.reads(-1 - side.made_by[value])))
        else:
            found.append(side.graph.inputs[value].name)
    return found
