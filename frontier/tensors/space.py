"""The space of tensors on the way to a goal, which the engine explores to find graphs.

A state is a tensor, made by one operator from earlier tensors; its identity is its value on tiny axes
over a finite field, so tensors that are equal for a reason that no axiom knows are still one state. The
saturated e-graph says which operators may be applied to which tensors, by a look-up of the operands'
classes. Where saturation was cut short a miss means "unknown", and then z3 is asked. Without pruning
every tensor is admitted; the ablation measures what that costs.
"""

import hashlib
from bisect import bisect_right
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Literal

import numpy as np

from superopt.cache import versions
from superopt.frontier.engine.interface import Keys, Rows
from superopt.frontier.tensors.grid import Grid
from superopt.rules.saturate import Table
from superopt.rules.smt import SubexpressionOracle
from superopt.rules.terms import COMMUTATIVE, OPERATORS, Goal, Node
from superopt.verify.field.residues import Residues, mix

__all__ = ["Prune", "TensorSpace"]

Prune = Literal["egraph", "z3", "none"]

_CODE = {op: code for code, op in enumerate(OPERATORS)}
_LEAF = _CODE["leaf"]
_UNARY = ("inv", "neg", "exp", "sqrt", "log")
_BINARY = ("mul", "add", "maximum")
_WIDTH = 5  # operator, attr, three operands (-1 for an operand that the operator lacks)
_NO_CLASS = -1


def _ranked(code: int, classes: tuple[int, ...]) -> tuple[int, ...]:
    """Return the classes of operands, which a commutative operator takes in any order.

    A table that is cut short may have one order only.
    """
    return tuple(sorted(classes)) if OPERATORS[code] in COMMUTATIVE else classes


def _never() -> bool:
    return False


class TensorSpace:
    """All tensors that the goal's e-graph admits, as a shared space of the engine."""

    name = "tensors"
    width = _WIDTH
    shared = True

    def __init__(
        self,
        goal: Goal,
        table: Table,
        grid: Grid,
        *,
        prune: Prune = "egraph",
        oracle: SubexpressionOracle | None = None,
        nested: Mapping[int, int] | None = None,
        stop: Callable[[], bool] = _never,
    ) -> None:
        self.stop = stop
        self.goal = goal
        self.table = table
        self.grid = grid
        self.prune = prune
        self.oracle = oracle
        self.nested = dict(nested or {})  # outer half of a split axis -> its inner half
        self.values: list[Residues] = []
        self.masks: list[int] = []
        self.classes: list[int] = []
        self.rows: list[tuple[int, ...]] = []
        self.before = 0  # tensors of all levels but the last
        self.of_class: dict[int, list[int]] = defaultdict(list)
        self.id_of: dict[tuple[int, ...], int] = {}
        self.reasons: Counter[str] = Counter()
        self._lookup = {(code, attr, _ranked(code, args)): found for code, attr, args, found in table.entries}
        self._unary: dict[int, list[tuple[int, int]]] = defaultdict(list)
        self._second: dict[int, list[tuple[int, int, int]]] = defaultdict(list)
        self._first: dict[int, list[tuple[int, int, int]]] = defaultdict(list)
        self._ternary: list[tuple[int, int, tuple[int, ...]]] = []
        for code, attr, args, _ in table.entries:
            if len(args) == 1:
                self._unary[args[0]].append((code, attr))
            elif len(args) == 2:
                self._first[args[0]].append((code, attr, args[1]))
                self._second[args[1]].append((code, attr, args[0]))
            elif len(args) == 3:
                self._ternary.append((code, attr, args))
        self._operators = sorted({(node.op, node.attr) for node in goal.nodes if node.op != "leaf"})

    def __getstate__(self) -> dict[str, Any]:
        """Leave out `stop`, which asks this process; another one is told to stop by its transport."""
        return {**self.__dict__, "stop": _never}

    def fingerprint(self) -> str:
        """Return a text that identifies this space: goal, e-graph, pruning, the seed of the field, and code.

        States have the numbers of their classes, so a checkpoint is of one e-graph, which depends on rules,
        on the policy for weights, and sometimes on the time that there was.
        """
        table = (self.table.entries, self.table.class_of_leaf, self.table.constants)
        digest = hashlib.sha256(repr(table).encode()).hexdigest()[:16]
        version = versions()["superopt"]
        return f"tensors/3 {self.prune} seed={self.grid.seed} e-graph={digest} {version}\n{self.goal.graph}"

    def roots(self) -> Rows:
        """Return the leaves: inputs, constants, extents and masks."""
        rows = [
            (_LEAF, leaf, -1, -1, -1)
            for leaf in range(len(self.goal.leaves))
            if self.prune != "egraph" or self.table.class_of_leaf[leaf] >= 0
        ]
        return np.array(rows, dtype=np.int64).reshape(-1, _WIDTH)

    def expand(self, rows: Rows) -> Rows:
        """Return every admitted operator application that involves one of the given tensors.

        An application of several new tensors is returned for one of them only, whatever the batches are.
        """
        found: list[tuple[int, ...]] = []
        fresh = [self.id_of[tuple(row)] for row in rows.tolist()]
        if self.prune == "egraph":
            found += self._joined(fresh)
        if self.prune != "egraph" or (self.table.truncated and self.oracle is not None):
            known = set(found)
            for row in self._all(fresh):
                if self.stop():  # z3 may take long for each row; the rows found so far are kept
                    break
                if row not in known and self._passes(row):
                    found.append(row)
        return np.array(found, dtype=np.int64).reshape(-1, _WIDTH)

    def keys(self, rows: Rows) -> Keys:
        """Return the fingerprint of each row's value, mixed with its axes and its class.

        Equal tensors of different classes are kept apart until the search is over, because each class admits
        operators that the other may not. Equal tensors with different axes are kept apart too: x + y - y,
        where y has more axes than x, is constant along them but is not x.
        """
        keys = np.empty((len(rows), 2), dtype=np.uint64)
        if not len(rows):
            return keys
        listed = rows.tolist()
        values = self.grid.evaluate(listed, self.values)
        keys[:] = self.grid.field.fingerprint(values)
        masks = np.array([self._mask(row) for row in listed], dtype=np.int64)
        keys[:, 0] ^= mix(masks.view(np.uint64))
        classes = np.array([self._class(row) for row in listed], dtype=np.int64)
        keys[:, 1] ^= mix(classes.view(np.uint64))
        return keys

    def absorb(self, rows: Rows, keys: Keys) -> None:
        """Note a level's new tensors; they come in the same order in every worker."""
        listed = rows.tolist()
        self.before = len(self.rows)
        values = self.grid.evaluate(listed, self.values)
        self.values += [values[:, :, i] for i in range(len(listed))]
        self.note(listed)

    def note(self, rows: Sequence[Sequence[int]]) -> None:
        """Note tensors without their values, which are not needed once the exploration is over."""
        for row in rows:
            number = len(self.rows)
            known = tuple(row)
            self.masks.append(self._mask(known))
            self.classes.append(self._class(known))
            self.rows.append(known)
            self.id_of[known] = number
            self.of_class[self.classes[-1]].append(number)

    def counts(self) -> dict[str, int]:
        """Return how many applications were not made, by reason."""
        return dict(self.reasons)

    def _class(self, row: Sequence[int]) -> int:
        if self.prune != "egraph":
            return _NO_CLASS
        code, attr, *args = row
        if code == _LEAF:
            return self.table.class_of_leaf[attr]
        classes = tuple(self.classes[arg] for arg in args if arg >= 0)
        return self._lookup.get((code, attr, _ranked(code, classes)), _NO_CLASS)

    def _mask(self, row: Sequence[int]) -> int:
        code, attr, *args = row
        if code == _LEAF:
            return self.goal.leaves[attr].mask
        mask = 0
        for arg in args:
            if arg >= 0:
                mask |= self.masks[arg]
        return self.goal.mask_after(OPERATORS[code], attr, mask)

    def _joined(self, fresh: list[int]) -> list[tuple[int, ...]]:
        """Return the applications that the table admits: new tensors joined with known tensors by class."""
        found: list[tuple[int, ...]] = []
        new = set(fresh)
        for a in fresh:
            found += [
                (code, attr, a, -1, -1)
                for code, attr in self._unary[self.classes[a]]
                if self._in_order(code, attr, a) and self._has_read(code, attr, a)
            ]
            for code, attr, partner in self._first[self.classes[a]]:
                if OPERATORS[code] not in COMMUTATIVE:
                    found += [(code, attr, a, b, -1) for b in self.of_class[partner]]
                else:
                    found += [(code, attr, b, a, -1) for b in self._until(a, partner)]
            for code, attr, partner in self._second[self.classes[a]]:
                last = a if OPERATORS[code] in COMMUTATIVE else self.before - 1
                found += [(code, attr, b, a, -1) for b in self._until(last, partner)]
        for code, attr, classes in self._ternary:
            pools = [self.of_class[number] for number in classes]
            found += [
                (code, attr, a, b, c)
                for a in pools[0]
                for b in pools[1]
                for c in pools[2]
                if max(a, b, c) in new
            ]
        found = list(dict.fromkeys(found))
        considered = len(fresh) * len(self._operators) * max(len(self.values), 1)
        self.reasons["not in the e-graph"] += max(considered - len(found), 0)
        return found

    def _until(self, last: int, class_: int) -> list[int]:
        """Return the tensors of a class up to the last given number."""
        members = self.of_class[class_]
        return members[: bisect_right(members, last)]

    def _in_order(self, code: int, attr: int, a: int) -> bool:
        """Return whether a reduction keeps the halves of split axes in order: the inner half goes first."""
        if OPERATORS[code] not in ("sum", "max"):
            return True
        inner = self.nested.get(attr)
        if inner is None or not self.masks[a] >> inner & 1:
            return True
        self.reasons["outer half of a split axis before its inner half"] += 1
        return False

    def _has_read(self, code: int, attr: int, a: int) -> bool:
        """Return whether a tensor has all axes that a window reads; other tensors have no such step."""
        return OPERATORS[code] != "window" or not self.goal.read_by(attr) & ~self.masks[a]

    def _all(self, fresh: list[int]) -> Iterator[tuple[int, ...]]:
        """Yield every application of the goal's operators that involves a new tensor."""
        new = set(fresh)
        for a in fresh:
            for op, attr in self._operators:
                code = _CODE[op]
                if op in _UNARY or op in ("call1", "access", "window"):
                    moved = op != "access" or self.goal.moves(attr)[0] & self.masks[a]
                    if moved and self._has_read(code, attr, a):
                        yield (code, attr, a, -1, -1)
                elif op in ("sum", "max"):
                    if self.masks[a] >> attr & 1 and self._in_order(code, attr, a):
                        yield (code, attr, a, -1, -1)
                elif op in _BINARY or op == "call2":
                    commutes = op in COMMUTATIVE
                    for b in range(a + 1 if commutes else self.before):
                        yield (code, attr, b, a, -1)
                    for b in range(0 if commutes else len(self.values)):
                        yield (code, attr, a, b, -1)
        for op, attr in self._operators:
            if op == "call3":
                everything = range(len(self.values))
                for a in everything:
                    for b in everything:
                        for c in everything:
                            if max(a, b, c) in new:
                                yield (_CODE[op], attr, a, b, c)

    def _passes(self, row: tuple[int, ...]) -> bool:
        """Return whether a miss is admitted: always, unless z3 refutes it."""
        if self.prune == "none" or self.oracle is None:
            return True
        if self.oracle.admits(self._term(row)).pruned:
            self.reasons["refuted: no part of the goal"] += 1
            return False
        return True

    def _term(self, row: tuple[int, ...]) -> tuple[Node, ...]:
        """Return the term of a row, with its parts before it."""
        nodes: list[Node] = []
        places: dict[int, int] = {}

        def place(number: int) -> int:
            if number not in places:
                build(self.rows[number])
                places[number] = len(nodes) - 1
            return places[number]

        def build(row: tuple[int, ...]) -> None:
            code, attr, *args = row
            parts = tuple(place(arg) for arg in args if arg >= 0)
            nodes.append(Node(OPERATORS[code], parts, attr))

        build(row)
        return tuple(nodes)
