"""Place: the position at which a window reads a tensor, as an affine form of other axes."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from math import prod

__all__ = ["Place", "ends_of", "parse_place", "print_place", "reads_outside"]

_TERM = re.compile(r"(?P<sign>[+-]?) *(?:(?P<factor>\d+)\*)?(?P<axis>[A-Za-z_][\w.]*)")
_NUMBER = re.compile(r"[+-]? *\d+")


@dataclass(frozen=True, slots=True)
class Place:
    """Where a window reads along some axes, which together are one index: a sum of other axes' positions."""

    axes: tuple[str, ...]  # the axes that are read, outermost first
    terms: tuple[tuple[str, int], ...]  # the axes of the window, each with the factor of its position
    offset: int = 0

    @property
    def named(self) -> tuple[str, ...]:
        """All axes, those that are read first."""
        return (*self.axes, *(axis for axis, _ in self.terms))

    def renamed(self, names: Mapping[str, str]) -> "Place":
        """Return the place with other names of axes."""
        return replace(
            self,
            axes=tuple(names.get(axis, axis) for axis in self.axes),
            terms=tuple((names.get(axis, axis), factor) for axis, factor in self.terms),
        )

    def refined(self, parts: Mapping[str, Sequence[tuple[str, int]]]) -> "Place":
        """Return the place with some axes as products of others, outermost first, each with its size."""
        terms: list[tuple[str, int]] = []
        for axis, factor in self.terms:
            for name, size in reversed(parts.get(axis, ((axis, 1),))):
                terms.append((name, factor))
                factor *= size
        read = (name for axis in self.axes for name, _ in parts.get(axis, ((axis, 1),)))
        return replace(self, axes=tuple(read), terms=tuple(terms))


def ends_of(place: Place, sizes: Mapping[str, int]) -> tuple[int, int]:
    """Return the first and the last position that is read."""
    ends = [factor * (sizes[axis] - 1) for axis, factor in place.terms]
    low, high = sum(min(end, 0) for end in ends), sum(max(end, 0) for end in ends)
    return place.offset + low, place.offset + high


def reads_outside(place: Place, sizes: Mapping[str, int]) -> bool:
    """Return whether some position that is read lies outside the tensor."""
    low, high = ends_of(place, sizes)
    return low < 0 or high >= prod(sizes[axis] for axis in place.axes)


def print_place(place: Place) -> str:
    """Return `h = 2*ho + r - 1`."""
    read = place.axes[0] if len(place.axes) == 1 else f"({' '.join(place.axes)})"
    terms = [axis if factor == 1 else f"{factor}*{axis}" for axis, factor in place.terms]
    terms += [str(place.offset)] if place.offset or not terms else []
    return f"{read} = {' + '.join(terms).replace('+ -', '- ')}"


def parse_place(text: str) -> Place | None:
    """Return the place that a text describes, or None where it describes none."""
    read, equals, form = text.partition("=")
    axes = tuple(read.strip().strip("()").split())
    terms: list[tuple[str, int]] = []
    offset = 0
    form = form.strip()
    parts = re.split(r" +(?=[+-] )", form) if form else []
    for part in parts:
        term, number = _TERM.fullmatch(part), _NUMBER.fullmatch(part)
        if term is not None:
            factor = int(term["factor"] or 1)
            terms.append((term["axis"], -factor if term["sign"] == "-" else factor))
        elif number is not None:
            offset += int(part.replace(" ", ""))
        else:
            return None
    return Place(axes, tuple(terms), offset) if equals and axes and parts else None
