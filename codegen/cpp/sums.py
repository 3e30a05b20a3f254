"""Sums: from how many terms on they are added up in blocks, so that little is rounded away.

How a sum is printed depends on how many terms it has. A kernel that is called at larger sizes, as one of
dynamic sizes is, is printed anew once a sum has become too long for the way in which it was printed.
"""

from collections.abc import Iterable, Mapping
from math import prod

__all__ = ["BLOCKED", "LONG", "SumLimit", "are_too_long", "most_without_rest"]

BLOCKED = 128
"""Terms beyond which sums that lie in memory are added up in blocks."""

LONG = BLOCKED * BLOCKED
"""Terms beyond which sums in registers are, too."""

_ALONE = 32  # terms of a tile up to which each is added to its sum alone; `short_sum` in the runtime

SumLimit = tuple[tuple[str, ...], int]
"""The axes of a sum, and how many terms decide about how it is printed."""


def most_without_rest(at_once: int) -> int:
    """Return how many terms a sum has at most, so many of which meet at a time, whose roundings are lost.

    What rounding takes from longer sums is kept beside them: they have more than `BLOCKED` parts.
    """
    return BLOCKED * (1 if at_once <= _ALONE else min(at_once, BLOCKED))


def are_too_long(sums: Iterable[SumLimit], sizes: Mapping[str, int], lengths: Mapping[str, int]) -> bool:
    """Whether sums are printed in another way for some sizes than for the lengths that axes have had."""

    def terms(axes: tuple[str, ...], of: Mapping[str, int]) -> int:
        return prod(of[axis] for axis in axes)

    return any(terms(axes, lengths) <= most < terms(axes, sizes) for axes, most in sums)
