"""Traffic: from which cache each operand of each loop comes.

A cache holds the bytes that were touched last. An operand is found in a cache if all bytes that the loops
touch between two of its uses fit there; else it comes from the next larger cache. Scratch memory is the same
in every turn of a loop; a tensor is another part of memory in each turn along one of its axes.
"""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property

__all__ = ["Loop", "Touch", "distinct", "missed"]


@dataclass(frozen=True, slots=True)
class Touch:
    """A tile that a loop reads or writes."""

    name: str  # touches of one name are of the same memory
    axes: frozenset[str]  # along which tiles of a tensor lie in different places; none for scratch memory
    bytes: float  # of one tile


@dataclass(frozen=True)  # without slots, for what is computed once
class Loop:
    """A loop over tiles, or over programs, and what a turn touches: tiles, and by loops inside."""

    axis: str
    count: float
    body: "tuple[Loop | Touch, ...]"

    @cached_property
    def axes(self) -> Mapping[str, frozenset[str]]:
        """The axes along which the tiles of each name lie in different places."""
        found: dict[str, frozenset[str]] = {}
        for each in self.body:
            several = {each.name: each.axes} if isinstance(each, Touch) else each.axes
            for name, axes in several.items():
                found[name] = found.get(name, frozenset()) | axes
        return found

    @cached_property
    def turn(self) -> Mapping[str, float]:
        """The bytes of memory that one turn touches, by name."""
        return _merged(map(distinct, self.body), max)

    @cached_property
    def whole(self) -> Mapping[str, float]:
        """The bytes of memory that all turns touch, by name."""
        return {
            name: size * (self.count if self.axis in self.axes[name] else 1)
            for name, size in self.turn.items()
        }


def distinct(one: Loop | Touch) -> Mapping[str, float]:
    """Return the bytes of memory that all turns of a loop touch, by name."""
    return {one.name: one.bytes} if isinstance(one, Touch) else one.whole


def missed(one: Loop | Touch, cache: float) -> dict[str, float]:
    """Return the bytes that a cache lacks in all turns of a loop, by name; at first it has none of them."""
    whole = distinct(one)
    if isinstance(one, Touch) or sum(whole.values()) <= cache:
        return dict(whole)
    fits = sum(one.turn.values()) <= cache
    turn = _merged((missed(each, cache) for each in one.body), max if fits else _add)
    return {
        name: size * (1 if fits and one.axis not in one.axes[name] else one.count)
        for name, size in turn.items()
    }


def _add(a: float, b: float) -> float:
    return a + b


def _merged(parts: Iterable[Mapping[str, float]], join: Callable[[float, float], float]) -> dict[str, float]:
    found: dict[str, float] = {}
    for part in parts:
        for name, size in part.items():
            found[name] = join(found[name], size) if name in found else size
    return found
