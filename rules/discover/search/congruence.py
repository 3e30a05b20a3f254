"""Congruence: which terms are known to be equal, and what follows from a rule among all of them.

The terms are those of all small graphs. A rule makes every instance of its left side equal to the same
instance of its right side, where both are among the terms, and equal operands make equal results. Rules are
matched as joins of tables over classes of equal terms, so a rule also finds what other rules made equal.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from superopt.rules.discover.language.constants import constant_named
from superopt.rules.discover.language.expressions import Apply, Expression, Input, inputs_of
from superopt.rules.discover.search.generalize import original
from superopt.rules.discover.search.terms import NOTHING, Terms, unpack

__all__ = ["Congruence"]

Index = NDArray[np.int64]
Columns = dict[str, Index]

_MOST_MATCHES = 20_000_000  # matches of one side of a rule; more would not fit into memory
_SECOND_BITS = 29


class _Applications:
    """The applications of an operator (and part) to terms: their operands, results and classes."""

    def __init__(self, left: Index, right: Index, made: Index, *, binary: bool, commutes: bool) -> None:
        self.left, self.right, self.made = left, right, made
        self.binary, self.commutes = binary, commutes
        self._low = self._high = np.full(len(left), NOTHING)  # the classes of both operands
        self._keys = self._order = np.empty(0, dtype=np.int64)  # the applications sorted by their operands
        # One application to each pair of operands, sorted: the keys, the operands, and the result.
        self.keys = self.low = self.high = self.result = self._keys

    def update(self, classes: Index) -> bool:
        """Take the classes of terms that are operands; return whether any operand is of another class now."""
        low = classes[self.left]
        high = classes[self.right] if self.binary else np.zeros_like(low)
        if self.commutes:
            low, high = np.minimum(low, high), np.maximum(low, high)
        if (low == self._low).all() and (high == self._high).all():
            return False
        self._low, self._high = low, high
        keys = (low << _SECOND_BITS) | high
        self._order = np.argsort(keys, kind="stable")
        self._keys = keys[self._order]
        chosen = self._order[np.diff(self._keys, prepend=-1) != 0]
        self.keys, self.low, self.high, self.result = (
            keys[chosen],
            low[chosen],
            high[chosen],
            self.made[chosen],
        )
        return True

    def repeated(self) -> tuple[Index, Index]:
        """Return the results of applications to equal operands, which are equal."""
        again = np.flatnonzero(self._keys[1:] == self._keys[:-1])
        return self.made[self._order[again]], self.made[self._order[again + 1]]

    def both_orders(self, made: Index, chosen: Index) -> tuple[Index, Index, Index]:
        """Return operands and results of some, and those of an operator that commutes in both orders."""
        low, high, made = self.low[chosen], self.high[chosen], made[chosen]
        if not self.commutes:
            return low, high, made
        twice = np.flatnonzero(low != high)
        return (
            np.concatenate((low, high[twice])),
            np.concatenate((high, low[twice])),
            np.concatenate((made, made[twice])),
        )

    def found(self, left: Index, right: Index) -> Index:
        """Return the result for operands of these classes, NOTHING where there is none."""
        if not len(self.keys):
            return np.full(len(left), NOTHING)
        if self.commutes:
            left, right = np.minimum(left, right), np.maximum(left, right)
        keys = (left << _SECOND_BITS) | right
        at = np.searchsorted(self.keys, keys).clip(max=len(self.keys) - 1)
        return np.where(self.keys[at] == keys, self.result[at], NOTHING)


class Congruence:
    """Classes of terms of up to so many operators, closed under what was joined so far.

    A class is named by its smallest member. Terms of the most operators are no operands, so most joins leave
    the operands of all applications as they are, and those that nothing is asked of can be left out.
    """

    def __init__(
        self,
        terms: Terms,
        size: int | None = None,
        known: Congruence | None = None,
        asked: Index | None = None,
    ) -> None:
        """Begin with what is known of the terms of fewer operators.

        Where it is said which terms are asked for, terms of the most operators that equal none of them are
        left out.
        """
        self.terms = terms
        most = int(terms.size_of.max()) if size is None else size
        count = int((terms.size_of <= most).sum())
        self._operands = int((terms.size_of < most).sum())
        self._parent: Index = np.arange(count)
        if known is not None:
            self._parent[: len(known.classes)] = known.classes
        self._stale = True
        self._operators = terms.setting.operators
        self._number = {operator.name: at for at, operator in enumerate(self._operators)}
        self._inputs = {name: at for at, (name, _) in enumerate(terms.setting.inputs)}
        # A rule of matrices says nothing of images and scalars.
        self._rank = {name: len(sizes) for name, sizes in terms.setting.inputs}
        self._rank_of = np.array([len(sizes) for sizes in terms.shapes.sizes])[terms.shape_of]
        self._applications = self._by_symbol(self._needed(count, asked))
        self._by_result: dict[int, tuple[Index, Index, Index]] = {}
        self.close()

    def _needed(self, count: int, asked: Index | None) -> Index:
        """Return the terms of this many whose applications matter."""
        made = self.terms.code_of[:count] != NOTHING
        if asked is not None:
            prints = self.terms.fingerprint_of
            made[self._operands :] &= np.isin(prints[self._operands : count], prints[asked])
        return np.flatnonzero(made)

    def _by_symbol(self, made: Index) -> list[_Applications]:
        """Return the applications of each operator and part."""
        terms = self.terms
        ops, left, right = unpack(terms.code_of[made])
        symbols = ops * 2 + terms.part_of[made]
        order = np.argsort(symbols, kind="stable")
        starts = np.searchsorted(symbols[order], np.arange(2 * len(self._operators) + 1))
        return [
            _Applications(
                left[members],
                right[members],
                made[members],
                binary=self._operators[symbol // 2].arity == 2,
                commutes=self._operators[symbol // 2].commutative,
            )
            for symbol, members in enumerate(np.split(order, starts[1:-1]))
        ]

    @property
    def classes(self) -> Index:
        """The class of each term."""
        return self._found(np.arange(len(self._parent)))

    def _found(self, terms: Index) -> Index:
        """Return the classes of terms."""
        found = self._parent[terms]
        while True:
            after = self._parent[found]
            if (after == found).all():
                return found
            found = after

    def joined(self, one: int, other: int) -> bool:
        """Return whether two terms are known to be equal."""
        one, other = (int(self._found(np.array([term]))[0]) for term in (one, other))
        return one == other

    def join(self, ones: Index, others: Index) -> bool:
        """Make terms equal; return whether any were not so before."""
        ones, others = self._found(ones), self._found(others)
        differ = ones != others
        if not differ.any():
            return False
        ends = np.stack((ones[differ], others[differ]))
        members, local = np.unique(ends, return_inverse=True)
        one, other = local.reshape(ends.shape)
        parent = np.arange(len(members))
        while True:
            low, high = np.minimum(parent[one], parent[other]), np.maximum(parent[one], parent[other])
            if (low == high).all():
                break
            np.minimum.at(parent, high, low)
            while ((after := parent[parent]) != parent).any():
                parent = after
        moved = parent != np.arange(len(members))
        self._parent[members[moved]] = members[parent[moved]]
        self._stale |= bool((members[moved] < self._operands).any())
        self._by_result.clear()
        return True

    def close(self) -> None:
        """Make results of equal operands equal, and index what each operator makes of which classes."""
        while self._stale:
            self._stale = False
            self._parent[: self._operands] = classes = self._found(np.arange(self._operands))
            for applications in self._applications:
                if applications.update(classes):
                    self.join(*applications.repeated())

    def _results_of(self, symbol: int) -> tuple[Index, Index, Index]:
        """Return operands and results of applications whose results may be operands, by their results."""
        if symbol not in self._by_result:
            applications = self._applications[symbol]
            made = self._found(applications.result)
            left, right, made = applications.both_orders(made, np.flatnonzero(made < self._operands))
            order = np.argsort(made, kind="stable")
            self._by_result[symbol] = left[order], right[order], made[order]
        return self._by_result[symbol]

    def apply(self, left: Expression, right: Expression, *, close: bool = True) -> bool:
        """Join all instances of two sides, and close.

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
        if close:
            self.close()
        return changed

    def _effort(self, pattern: Expression) -> float:
        """Return about how many matches a pattern has on the way."""
        if isinstance(pattern, Input):
            return 0.0
        count = float(len(self._applications[self._symbol(pattern)].keys))
        return count + sum(self._effort(arg) for arg in pattern.args)

    def _instances(self, left: Expression, right: Expression) -> tuple[Index, Index]:
        """Return the classes of both sides for every match of the left one."""
        assert isinstance(left, Apply)
        columns = self._matched({}, left, "")
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
            good = self._rank_of[classes] == self._rank[original(pattern.name)]
            if constant_named(pattern.name) is not None:
                good = classes == self._class_of_input(pattern.name)
            return _taken({**rest, name: classes}, good)
        operands = [f"{column}{at}" for at in range(len(pattern.args))]
        if column == "":
            found: Columns | None = self._at_root(pattern)
        else:
            left, right, made = self._results_of(self._symbol(pattern))
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

    def _at_root(self, pattern: Apply) -> Columns:
        """Return the applications whose operands may be what a pattern asks for."""
        applications = self._applications[self._symbol(pattern)]
        low, high = applications.low, applications.high
        one, *others = (self._may_be(arg) for arg in pattern.args)
        other = others[0] if others else None
        good = self._fits(low, one) & self._fits(high, other)
        chosen = np.flatnonzero(good)
        left, right, made = low[chosen], high[chosen], applications.result[chosen]
        if applications.commutes:
            turned = np.flatnonzero(self._fits(high, one) & self._fits(low, other) & (low != high))
            left, right = np.append(left, high[turned]), np.append(right, low[turned])
            made = np.append(made, applications.result[turned])
        return {"": self._found(made), "0": left, "1": right}

    @staticmethod
    def _fits(classes: Index, allowed: NDArray[np.bool_] | None) -> NDArray[np.bool_]:
        return np.ones(len(classes), dtype=bool) if allowed is None else allowed[classes]

    def _may_be(self, pattern: Expression) -> NDArray[np.bool_] | None:
        """Return which operands may match a pattern, None where all may."""
        if isinstance(pattern, Apply):
            found = np.zeros(self._operands, dtype=bool)
            found[self._results_of(self._symbol(pattern))[2]] = True
            return found
        if constant_named(pattern.name) is not None:
            found = np.zeros(self._operands, dtype=bool)
            found[self._class_of_input(pattern.name)] = True
            return found
        return None

    def _evaluated(self, expression: Expression, columns: Columns) -> Index:
        """Return the class of an expression for each match, NOTHING where it is not among the terms."""
        if isinstance(expression, Input):
            if f"{expression.name}." not in columns:  # a constant that the matched side lacks
                return np.full(len(columns[""]), self._class_of_input(expression.name))
            return columns[f"{expression.name}."]
        args = [self._evaluated(arg, columns) for arg in expression.args]
        missing = np.any([arg == NOTHING for arg in args], axis=0)
        left = np.where(missing, 0, args[0])
        right = np.where(missing, 0, args[1]) if len(args) > 1 else np.zeros_like(left)
        applications = self._applications[self._symbol(expression)]
        found = applications.found(left, right)
        known = np.flatnonzero(~missing & (found != NOTHING))
        made = np.full(len(left), NOTHING)
        made[known] = self._found(found[known])
        return made

    def _class_of_input(self, name: str) -> int:
        return int(self._found(np.array([self._inputs[name]]))[0])


def _taken(columns: Columns, good: NDArray[np.bool_]) -> Columns:
    if good.all():
        return columns
    return {key: value[good] for key, value in columns.items()}
