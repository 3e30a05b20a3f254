"""The space of graphs: every graph of up to so many operators, once, in canonical order.

A row is a graph: the codes of its applications in ascending order, padded. A graph is made from exactly one
smaller graph, the one without its largest unused application, so no graph is made twice. So the graphs of the
most operators, nearly all of them, can be made in parts: from some of the smaller ones at a time.

**Which graphs are left out.** Graphs are equal if all their outputs are. A graph with several separate
outputs is therefore equal to another exactly if each output, a graph of its own and no larger, is. So only
graphs whose outputs the operators that are left can still join are made.
"""

from __future__ import annotations

from dataclasses import dataclass
from hashlib import sha256

import numpy as np
from numpy.typing import NDArray

from superopt.rules.discover.language.values import mixed
from superopt.rules.discover.search.terms import NOTHING, UNARY, Terms, pack, unpack

__all__ = ["Graphs", "Part", "graphs_of", "last_applications"]

Rows = NDArray[np.int64]
Keys = NDArray[np.uint64]
Index = NDArray[np.int64]

_PAD = np.int64((1 << 62) - 1)  # sorts after every code
_SALTS = (np.uint64(0x243F6A8885A308D3), np.uint64(0x13198A2E03707344))


@dataclass(frozen=True, slots=True)
class Part:
    """Some of the graphs of one operator less, from which others are made: their rows, and a number."""

    number: int
    rows: Rows


class Graphs:
    """All graphs of up to `size` operators, made of the terms of up to `size - 1` operators.

    They end with `until` operators where that is less, or begin with the graphs of a part.
    """

    name = "graphs"
    shared = False

    def __init__(
        self, terms: Terms, size: int, *, until: int | None = None, part: Part | None = None
    ) -> None:
        self.terms = terms
        self.size = size
        self.width = size
        self._until = size if until is None else until
        self._part = part

    @property
    def label(self) -> str:
        """The space as the name of a file."""
        if self._part is not None:
            return f"{self.size}-part-{self._part.number}"
        return f"{self.size}" if self._until == self.size else f"{self.size}-until-{self._until}"

    def fingerprint(self) -> str:
        """Return the space and all its parameters as text."""
        text = f"graphs of up to {self.size} operators of {self.terms.setting.text()}"
        if self._part is not None:
            return f"{text}, from {sha256(self._part.rows.tobytes()).hexdigest()}"
        return text if self._until == self.size else f"{text}, ended with {self._until}"

    def roots(self) -> Rows:
        """Return the graph without an operator, or the graphs of the part."""
        return np.full((1, self.width), _PAD) if self._part is None else self._part.rows

    def keys(self, rows: Rows) -> Keys:
        """Return 128 bits for the applications of each graph."""
        codes = rows.view(np.uint64)
        return np.stack([mixed(codes ^ salt).sum(axis=1, dtype=np.uint64) for salt in _SALTS], axis=1)

    def absorb(self, rows: Rows, keys: Keys) -> None:
        """Do nothing: a graph is expanded without a look at others."""

    def counts(self) -> dict[str, int]:
        """Return nothing: what is left out is never made."""
        return {}

    def expand(self, rows: Rows) -> Rows:
        """Return all graphs with one more operator that have one of these as their canonical parent."""
        lengths = (rows != _PAD).sum(axis=1)
        made = [
            self._expanded(np.ascontiguousarray(rows[lengths == length, :length]), int(length))
            for length in np.unique(lengths)
            if length < self._until
        ]
        return np.concatenate(made) if made else np.empty((0, self.width), dtype=np.int64)

    def _expanded(self, codes: Index, length: int) -> Rows:
        terms, count = self.terms, len(codes)
        inputs = np.arange(len(terms.setting.inputs))
        first, second = terms.results(codes)
        present = np.concatenate((np.broadcast_to(inputs, (count, len(inputs))), first, second), axis=1)
        _, left, right = unpack(codes)
        used = _uses(left, right, first, second)
        # So many applications must be joined by the operators that are left: each joins two at most.
        needed = (~used).sum(axis=1) + 1 - (self.size - length)
        found = [
            self._candidates(np.flatnonzero(needed.clip(0) == met), present, len(inputs), met)
            for met in range(3)
        ]
        line, code = (np.concatenate(some) for some in zip(*found, strict=True))
        _, new_left, new_right = unpack(code)
        by_new = _meets(new_left, new_right, first[line], second[line])
        unused = ~(used[line] | by_new)
        keep = (codes[line] != code[:, None]).all(axis=1)
        keep &= (~unused | (codes[line] < code[:, None])).all(axis=1)
        keep &= unused.sum(axis=1) + 1 <= self.size - length
        line, code = line[keep], code[keep]
        rows = np.full((len(line), self.width), _PAD)
        rows[:, : length + 1] = np.sort(np.concatenate((codes[line], code[:, None]), axis=1), axis=1)
        return rows

    def _candidates(self, lines: Index, present: Index, inputs: int, met: int) -> tuple[Index, Index]:
        """Return the applications to tensors of these graphs, of which so many operands are no inputs.

        They are returned as the graph and the code of each.
        """
        terms, operators = self.terms, self.terms.setting.operators
        tensors = present[lines]
        kinds = np.where(tensors == NOTHING, NOTHING, terms.shape_of[tensors])
        found, codes = [np.empty(0, dtype=np.int64)], [np.empty(0, dtype=np.int64)]
        places = np.arange(present.shape[1])
        if met < 2:
            places = places[inputs:] if met else places
            takes = terms.shapes.takers(kinds[:, places])
            for op in (op for op, operator in enumerate(operators) if operator.arity == 1):
                line, at = np.nonzero(takes >> np.uint64(op) & np.uint64(1))
                found.append(lines[line])
                codes.append(pack(op, tensors[line, places[at]], UNARY))
        one, two = np.indices((present.shape[1],) * 2).reshape(2, -1)
        enough = (one >= inputs).astype(int) + (two >= inputs) >= met
        one, two = one[enough], two[enough]
        takes = terms.shapes.takers(kinds[:, one], kinds[:, two])
        line, at = np.nonzero(takes)
        takes, left, right = takes[line, at], tensors[line, one[at]], tensors[line, two[at]]
        for op, operator in enumerate(operators):
            if operator.arity == 2:
                fits = (takes >> np.uint64(op) & np.uint64(1)).astype(bool)
                if operator.commutative:
                    fits &= left <= right
                found.append(lines[line[fits]])
                codes.append(pack(op, left[fits], right[fits]))
        return np.concatenate(found), np.concatenate(codes)


def _meets(left: Index, right: Index, first: Index, second: Index) -> NDArray[np.bool_]:
    """Return which applications of each graph an application takes an operand from."""
    left, right = left[:, None], right[:, None]
    two = second != NOTHING
    found: NDArray[np.bool_] = (
        (first == left) | (first == right) | (two & ((second == left) | (second == right)))
    )
    return found


def _uses(left: Index, right: Index, first: Index, second: Index) -> NDArray[np.bool_]:
    """Return which applications of each graph are used by others of it."""
    used = np.zeros(first.shape, dtype=bool)
    for at in range(first.shape[1]):
        used |= _meets(left[:, at], right[:, at], first, second)
    return used


def graphs_of(rows: Rows, length: int) -> Rows:
    """Return the graphs of so many operators."""
    found: Rows = rows[(rows != _PAD).sum(axis=1) == length]
    return found


def last_applications(terms: Terms, rows: Rows, length: int) -> Index:
    """Return the last application of each graph of so many operators that has one which all others feed."""
    size = rows.shape[1]
    codes = graphs_of(rows, length)[:, :length]
    assert 0 < length <= size
    first, second = terms.results(codes)
    _, left, right = unpack(codes)
    used = _uses(left, right, first, second) & (first != NOTHING)
    whole = (~used).sum(axis=1) == 1
    found: Index = codes[whole][~used[whole]]
    return found
