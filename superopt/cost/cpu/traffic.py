"""Traffic: from which cache each operand of each loop comes.

A cache holds the bytes that were touched last. An operand is found in a cache if all bytes that the loops
touch between two of its uses fit there; else it comes from the next larger cache. Scratch memory is the same
in every turn of a loop; a tensor is another part of memory in each turn along one of its axes.
"""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass

__all__ = ["Loop", "Touch", "distinct", "missed"]


@dataclass(frozen=True, slots=True)
class Touch:
    """A tile that a loop reads or writes."""

    name: str  # touches of one name are of the same memory
    axes: frozenset[str]  # along which tiles of a tensor lie in different places; none for scratch memory
    bytes: float  # of one tile


@dataclass(frozen=True, slots=True)
class Loop:
    """A loop over tiles, or over programs, and what a turn touches: tiles, and by loops inside."""

    axis: str
    count: float
    body: "tuple[Loop | Touch, ...]"


def distinct(one: Loop | Touch) -> dict[str, float]:
    """Return the bytes of memory that all turns of a loop touch, by name."""
    if isinstance(one, Touch):
        return {one.name: one.bytes}
    turn = _merged(map(distinct, one.body), max)
    axes = _axes(one)
    return {name: size * (one.count if one.axis in axes[name] else 1) for name, size in turn.items()}


def missed(one: Loop | Touch, cache: float) -> dict[str, float]:
    """Return the bytes that a cache lacks in all turns of a loop, by name; at first it has none of them."""
    whole = distinct(one)
    if isinstance(one, Touch) or sum(whole.values()) <= cache:
        return whole
    fits = sum(_merged(map(distinct, one.body), max).values()) <= cache
    turn = _merged((missed(each, cache) for each in one.body), max if fits else _add)
    axes = _axes(one)
    return {
        name: size * (1 if fits and one.axis not in axes[name] else one.count) for name, size in turn.items()
    }


def _add(a: float, b: float) -> float:
    return a + b


def _merged(parts: Iterable[Mapping[str, float]], join: Callable[[float, float], float]) -> dict[str, float]:
    found: dict[str, float] = {}
    for part in parts:
        for name, size in part.items():
            found[name] = join(found[name], size) if name in found else size
    return found


def _axes(one: Loop | Touch) -> Mapping[str, frozenset[str]]:
    if isinstance(one, Touch):
        return {one.name: one.axes}
    found: dict[str, frozenset[str]] = {}
    for each in one.body:
        for name, axes in _axes(each).items():
            found[name] = found.get(name, frozenset()) | axes
    return found
