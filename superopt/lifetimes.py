"""Lifetimes: how long values of a program are needed that is run step by step."""

from collections.abc import Collection, Iterable
from typing import TypeVar

__all__ = ["last_reads"]

T = TypeVar("T")


def last_reads(reads: Iterable[Iterable[T]], staying: Collection[T]) -> list[list[T]]:
    """Return for each step what it is the last to read, so that it may be let go; what is staying may not."""
    found: list[list[T]] = []
    last = dict[T, int]()
    for at, values in enumerate(reads):
        found.append([])
        last.update(dict.fromkeys(values, at))
    for value, at in last.items():
        if value not in staying:
            found[at].append(value)
    return found
