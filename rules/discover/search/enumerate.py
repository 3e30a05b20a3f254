"""Enumeration: all terms, operator by operator, with an engine that explores the space of graphs.

The graphs of the most operators are many times all others. Where they are too many for the memory, they are
made in parts, and of each only its last application is kept.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from superopt.clock import Clock
from superopt.errors import InputError
from superopt.rules.discover.search.graphs import Graphs, Part, graphs_of, last_applications
from superopt.rules.discover.search.terms import Setting, Terms, first_terms

__all__ = ["Explored", "Explorer", "all_terms"]

_MANY = 100_000  # terms of which graphs are made in parts
_PART = 40_000  # graphs from which others are made at once

Index = NDArray[np.int64]


class Explored(Protocol):
    """What an engine returns: the rows it found, counts of what was left out, and what stopped it."""

    @property
    def rows(self) -> NDArray[np.int64]:
        """All states."""

    @property
    def counts(self) -> dict[str, int]:
        """What was left out, by reason."""

    @property
    def stopped(self) -> str | None:
        """The limit that ended the search, or None."""


Explorer = Callable[[Graphs], Explored]
"""The engine: explores the whole space of graphs."""


def all_terms(
    setting: Setting,
    size: int,
    explore: Explorer,
    clock: Clock,
    tell: Callable[[str], None] = lambda text: None,
) -> tuple[Terms, int]:
    """Return the terms of up to `size` operators, and how many graphs were made."""
    terms, made = first_terms(setting), 0
    for length in range(1, size + 1):
        parts, made = list[Index](), 0
        with clock.phase("enumerate"):
            for rows in _rows(terms, length, explore):
                made += len(rows)
                parts.append(last_applications(terms, rows, length))
                tell(f"{made:,} graphs of up to {length} operators")
        with clock.phase("evaluate"):
            codes = np.concatenate(parts)
            parts.clear()
            terms = terms.extended(codes, length, valued=length < size)
    return terms, made


def _rows(terms: Terms, length: int, explore: Explorer) -> Iterator[NDArray[np.int64]]:
    """Yield all graphs of up to so many operators, each once; many of them in parts."""
    if len(terms) < _MANY:
        yield _explored(Graphs(terms, length), explore)
        return
    smaller = _explored(Graphs(terms, length, until=length - 1), explore)
    yield smaller
    begun = graphs_of(smaller, length - 1)
    for number, start in enumerate(range(0, len(begun), _PART)):
        part = Part(number, begun[start : start + _PART])
        yield _explored(Graphs(terms, length, part=part), explore)[len(part.rows) :]


def _explored(graphs: Graphs, explore: Explorer) -> NDArray[np.int64]:
    """Return all graphs of a space."""
    found = explore(graphs)
    if found.stopped == "interrupted":
        raise KeyboardInterrupt
    if found.stopped is not None:
        raise InputError(
            f"the search of graphs of up to {graphs.size} operators was stopped ({found.stopped}), and the "
            "rules of a part of them would miss others; take fewer operators or raise the limit"
        )
    return found.rows
