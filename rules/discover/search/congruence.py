"""Congruence: which terms are known to be equal, and what follows from a rule among all of them.

The terms are those of all small graphs. A rule makes every instance of its left side equal to the same
instance of its right side, where both are among the terms, and equal operands make equal results. Rules are
matched as joins of tables over classes of equal terms, so a rule also finds what other rules made equal.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
from numpy.typing import NDArray

from superopt.rules.discover.language.constants import constant_named
from superopt.rules.discover.language.expressions import Apply, Expression, Input, inputs_of
from superopt.rules.discover.language.operators import OPERATORS
from superopt.rules.discover.search.terms import NOTHING, Terms, unpack

__all__ = ["Congruence"]

Index = NDArray[np.int64]
Columns = dict[str, Index]

_MOST_MATCHES = 20_000_000  # matches of one side of a rule; more would not fit into memory
_SECOND_BITS = 25


class Congruence:
    """Classes of terms, closed under what was joined so far."""

    def __init__(self, terms: Terms) -> None:
        self.terms = terms
        self.classes: Index = np.arange(len(terms))  # each is named by its smallest member
        made = np.flatnonzero(terms.code_of != NOTHING)
        ops, self._left, right = unpack(terms.code_of[made])
        self._made = made
        self._right = np.where(right == NOTHING, 0, right)
        self._binary = right != NOTHING
        self._symbols = ops * 2 + terms.part_of[made]
        self._number = {operator.name: at for at, operator in enumerate(terms.setting.operators)}
        commutes = np.array([operator.commutative for operator in terms.setting.operators])
        self._commutes = commutes[ops]
        self._inputs = {name: at for at, (name, _) in enumerate(terms.setting.inputs)}
        self._scalars = {name for name, sizes in terms.setting.inputs if not sizes}
        self._scalar = terms.shape_of == terms.shapes.number(())
        self.close()

    def joined(self, one: int, other: int) -> bool:
        """Return whether two terms are known to be equal."""
        return bool(self.classes[one] == self.classes[other])

    def join(self, ones: Index, others: Index) -> bool:
        """Make terms equal; return whether any were not so before."""
        parent = np.arange(len(self.classes))
        changed = False
        while True:
            one, other = parent[self.classes[ones]], parent[self.classes[others]]
            differ = one != other
            if not differ.any():
                break
            changed = True
            low, high = np.minimum(one, other)[differ], np.maximum(one, other)[differ]
            np.minimum.at(parent, high, low)
            while (after := parent[parent]) is not parent and (after != parent).any():
                parent = after
        if changed:
            self.classes = parent[self.classes]
        return changed

    def close(self) -> None:
        """Make results of equal operands equal, and index what each operator makes of which classes."""
        while True:
            left, right = self.classes[self._left], self.classes[self._right]
            right = np.where(self._binary, right, 0)
            low = np.where(self._commutes, np.minimum(left, right), left)
            high = np.where(self._commutes, np.maximum(left, right), right)
            keys = self._keys(self._symbols, low, high)
            order = np.argsort(keys, kind="stable")
            keys, made = keys[order], self.classes[self._made[order]]
            again = np.flatnonzero(keys[1:] == keys[:-1])
            if not self.join(made[again], made[again + 1]):
                break
        first = np.append(True, keys[1:] != keys[:-1]) if len(keys) else np.empty(0, dtype=bool)
        self._known = keys[first]
        self._known_made = made[first]
        chosen = order[first]
        self._tables = self._tabled(
            self._symbols[chosen], low[chosen], high[chosen], self._known_made, self._commutes[chosen]
        )

    def _keys(self, symbols: Index | int, left: Index, right: Index) -> Index:
        found: Index = (np.asarray(symbols) << (2 * _SECOND_BITS)) | (left << _SECOND_BITS) | right
        return found

    def _tabled(
        self, symbols: Index, left: Index, right: Index, made: Index, commutes: NDArray[np.bool_]
    ) -> Mapping[int, tuple[Index, Index, Index]]:
        """Return for each operator (and part) its operands and results, by the class of the result."""
        twice = np.flatnonzero(commutes & (left != right))
        symbols = np.concatenate((symbols, symbols[twice]))
        left, right = np.concatenate((left, right[twice])), np.concatenate((right, left[twice]))
        made = np.concatenate((made, made[twice]))
        order = np.lexsort((made, symbols))
        symbols, left, right, made = symbols[order], left[order], right[order], made[order]
        numbers = np.arange(2 * len(self.terms.setting.operators) + 1)
        starts = np.searchsorted(symbols, numbers)
        return {
            int(number): (left[start:end], right[start:end], made[start:end])
            for number, start, end in zip(numbers[:-1], starts[:-1], starts[1:], strict=True)
        }

    def apply(self, left: Expression, right: Expression) -> bool:
        """Join all instances of two sides; close if any is new.

        Both sides of an instance must be among the terms, so it is enough to match one that has all inputs.
        """
        known, other = (
            {name for name in inputs_of(side) if constant_named(name) is None} for side in (left, right)
        )
        sides = [(left, right)] if known >= other else []
        if other >= known and isinstance(right, Apply):
            sides.append((right, left))
        if not sides:
            return False
        changed = self.join(*self._instances(*min(sides, key=lambda pair: self._effort(pair[0]))))
        if changed:
            self.close()
        return changed

    def _effort(self, pattern: Expression) -> float:
        """Return about how many matches a pattern has on the way."""
        if isinstance(pattern, Input):
            return 0.0
        count = float(len(self._tables[self._symbol(pattern)][2]))
        return count + sum(self._effort(arg) for arg in pattern.args)

    def _instances(self, left: Expression, right: Expression) -> tuple[Index, Index]:
        """Return the classes of both sides for every match of the left one."""
        assert isinstance(left, Apply)
        _, _, made = self._tables[self._symbol(left)]
        columns = self._matched({"": made}, left, "")
        if columns is None:
            return np.empty(0, dtype=np.int64), np.empty(0, dtype=np.int64)
        found = self._evaluated(right, columns)
        ones = columns[""]
        sound = found != NOTHING
        ones, found = ones[sound], found[sound]
        # An instance of other sizes than the rule allows is none.
        prints = self.terms.fingerprint_of
        same = prints[ones] == prints[found]
        return ones[same], found[same]

    def _symbol(self, expression: Apply) -> int:
        return self._number[expression.op] * 2 + expression.part

    def _matched(self, columns: Columns, pattern: Expression, column: str) -> Columns | None:
        """Return the matches of a pattern with the classes in a column; inputs get columns of their own."""
        if isinstance(pattern, Input):
            name, classes = f"{pattern.name}.", columns[column]
            rest = {key: value for key, value in columns.items() if key != column}
            if name in rest:
                return _taken(rest, rest[name] == classes)
            good = self._scalar[classes] == (pattern.name in self._scalars)
            if constant_named(pattern.name) is not None:
                good = classes == self.classes[self._inputs[pattern.name]]
            return _taken({**rest, name: classes}, good)
        left, right, made = self._tables[self._symbol(pattern)]
        operands = [f"{column}{at}" for at in range(len(pattern.args))]
        if column == "":
            found: Columns | None = {"": made, "0": left, "1": right}
        else:
            start = np.searchsorted(made, columns[column], "left")
            counts = np.searchsorted(made, columns[column], "right") - start
            if counts.sum() > _MOST_MATCHES:
                return None
            lines = np.repeat(np.arange(len(counts)), counts)
            places = np.arange(len(lines)) - np.repeat(np.cumsum(counts) - counts - start, counts)
            found = {key: value[lines] for key, value in columns.items() if key != column}
            found |= dict(zip(operands, (left[places], right[places]), strict=False))
        for operand, arg in zip(operands, pattern.args, strict=True):
            if found is None:
                return None
            found = self._matched(found, arg, operand)
        return found

    def _evaluated(self, expression: Expression, columns: Columns) -> Index:
        """Return the class of an expression for each match, NOTHING where it is not among the terms."""
        if isinstance(expression, Input):
            if f"{expression.name}." not in columns:  # a constant that the matched side lacks
                constant = self.classes[self._inputs[expression.name]]
                return np.full(len(columns[""]), constant)
            return columns[f"{expression.name}."]
        args = [self._evaluated(arg, columns) for arg in expression.args]
        missing = np.any([arg == NOTHING for arg in args], axis=0)
        left = np.where(missing, 0, args[0])
        right = np.where(missing, 0, args[1]) if len(args) > 1 else np.zeros_like(left)
        if OPERATORS[expression.op].commutative:
            left, right = np.minimum(left, right), np.maximum(left, right)
        keys = self._keys(self._symbol(expression), left, right)
        at = np.searchsorted(self._known, keys).clip(max=len(self._known) - 1)
        return np.where(~missing & (self._known[at] == keys), self._known_made[at], NOTHING)


def _taken(columns: Columns, good: NDArray[np.bool_]) -> Columns:
    if good.all():
        return columns
    return {key: value[good] for key, value in columns.items()}
