"""The space of graphs: every graph of up to so many operators, once, in canonical order.

A row is a graph: the codes of its applications in ascending order, padded. A graph is made from exactly one
smaller graph, the one without its largest unused application, so no graph is made twice.

**Which graphs are left out.** Graphs are equal if all their outputs are. A graph with several separate
outputs is therefore equal to another exactly if each output, a graph of its own and no larger, is. So only
graphs whose outputs one more operator can still join are made; the others are counted.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from superopt.rules.discover.language.values import mixed
from superopt.rules.discover.search.terms import NOTHING, UNARY, Terms, pack, unpack

__all__ = ["Graphs", "last_applications"]

Rows = NDArray[np.int64]
Keys = NDArray[np.uint64]
Index = NDArray[np.int64]

_PAD = np.int64((1 << 62) - 1)  # sorts after every code
_SALTS = (np.uint64(0x243F6A8885A308D3), np.uint64(0x13198A2E03707344))


class Graphs:
    """All graphs of up to `size` operators, made of the terms of up to `size - 1` operators."""

    name = "graphs"
    shared = False

    def __init__(self, terms: Terms, size: int) -> None:
        self.terms = terms
        self.size = size
        self.width = size
        self._left_out = 0

    def fingerprint(self) -> str:
        """Return the space and all its parameters as text."""
        return f"graphs of up to {self.size} operators of {self.terms.setting.text()}"

    def roots(self) -> Rows:
        """Return the graph without an operator."""
        return np.full((1, self.width), _PAD)

    def keys(self, rows: Rows) -> Keys:
        """Return 128 bits for the applications of each graph."""
        codes = rows.view(np.uint64)
        return np.stack([mixed(codes ^ salt).sum(axis=1, dtype=np.uint64) for salt in _SALTS], axis=1)

    def absorb(self, rows: Rows, keys: Keys) -> None:
        """Do nothing: a graph is expanded without a look at others."""

    def counts(self) -> dict[str, int]:
        """Return how many graphs were not made because their outputs are graphs of their own."""
        return {"separate outputs": self._left_out}

    def expand(self, rows: Rows) -> Rows:
        """Return all graphs with one more operator that have one of these as their canonical parent."""
        lengths = (rows != _PAD).sum(axis=1)
        made = [
            self._expanded(np.ascontiguousarray(rows[lengths == length, :length]), int(length))
            for length in np.unique(lengths)
            if length < self.size
        ]
        return np.concatenate(made) if made else np.empty((0, self.width), dtype=np.int64)

    def _expanded(self, codes: Index, length: int) -> Rows:
        terms, count = self.terms, len(codes)
        inputs = np.arange(len(terms.setting.inputs))
        first, second = terms.results(codes)
        present = np.concatenate((np.broadcast_to(inputs, (count, len(inputs))), first, second), axis=1)
        _, left, right = unpack(codes)
        used = _uses(left, right, first, second)
        line, code = self._candidates(present)
        fresh = (codes[line] != code[:, None]).all(axis=1)
        line, code = line[fresh], code[fresh]
        _, new_left, new_right = unpack(code)
        by_new = _meets(new_left, new_right, first[line], second[line])
        unused = ~(used[line] | by_new)
        canonical = (~unused | (codes[line] < code[:, None])).all(axis=1)
        # So many applications must be joined by the operators that are left: each joins two at most.
        joinable = unused.sum(axis=1) + 1 <= self.size - length
        self._left_out += int((canonical & ~joinable).sum())
        keep = canonical & joinable
        line, code = line[keep], code[keep]
        rows = np.full((len(line), self.width), _PAD)
        rows[:, : length + 1] = np.sort(np.concatenate((codes[line], code[:, None]), axis=1), axis=1)
        return rows

    def _candidates(self, present: Index) -> tuple[Index, Index]:
        """Return the applications of every operator to the tensors of each graph: which graph, which code."""
        terms = self.terms
        shapes = terms.shape_of[present]
        count = terms.shape_count
        nowhere = present == NOTHING
        lines, codes = [], []
        for op, operator in enumerate(terms.setting.operators):
            table = np.zeros((count + 1,) * operator.arity, dtype=bool)
            table[(slice(count),) * operator.arity] = terms.shapes.taken(op, count)[
                (slice(count),) * operator.arity
            ]
            kinds = np.where(nowhere, count, shapes)
            if operator.arity == 1:
                line, at = np.nonzero(table[kinds])
                lines.append(line)
                codes.append(pack(op, present[line, at], UNARY))
                continue
            fits = table[kinds[:, :, None], kinds[:, None, :]]
            if operator.commutative:
                fits &= present[:, :, None] <= present[:, None, :]
            line, one, two = np.nonzero(fits)
            lines.append(line)
            codes.append(pack(op, present[line, one], present[line, two]))
        return np.concatenate(lines), np.concatenate(codes)


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


def last_applications(terms: Terms, rows: Rows, length: int) -> Index:
    """Return the last application of each graph of so many operators that has one which all others feed."""
    size = rows.shape[1]
    codes = rows[(rows != _PAD).sum(axis=1) == length, :length]
    assert 0 < length <= size
    first, second = terms.results(codes)
    _, left, right = unpack(codes)
    used = _uses(left, right, first, second) & (first != NOTHING)
    whole = (~used).sum(axis=1) == 1
    found: Index = codes[whole][~used[whole]]
    return found
