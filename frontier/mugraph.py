"""The space of tensors on the way to a goal: what `explore` walks through to find muGraphs.

A state is a tensor, made by one operator from earlier ones; its identity is its value on tiny
axes over a finite field, so tensors that are equal for a reason no axiom knows are still one. The
saturated e-graph says which operators may be applied to which tensors: a look-up of the operands'
classes, no solver. Where saturation was cut short a miss means "unknown", and then z3 is asked;
with pruning off everything is admitted, which is what the ablation measures.
"""

from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Literal, Protocol

import numpy as np

from superopt.frontier.leaves import Grid
from superopt.frontier.states import Keys, Rows
from superopt.rules.saturate import Table
from superopt.rules.terms import COMMUTATIVE, OPERATORS, Goal, Node
from superopt.verify.residues import Residues, mix

__all__ = ["MuGraphSpace", "Oracle", "Prune"]

Prune = Literal["egraph", "z3", "none"]

_CODE = {op: code for code, op in enumerate(OPERATORS)}
_LEAF = _CODE["leaf"]
_UNARY = ("inv", "neg", "exp", "sqrt")
_BINARY = ("mul", "add", "maximum")
_WIDTH = 5  # operator, attr, three operands (-1 where there is none)
_NO_CLASS = -1


class Oracle(Protocol):
    """What is asked whether a term can be a part of the goal: the z3 fallback."""

    def admits(self, term: Sequence[Node]) -> "OracleAnswer":
        """Return an answer whose `pruned` is true only for a refutation."""


class OracleAnswer(Protocol):
    """The part of an answer that the space looks at."""

    @property
    def pruned(self) -> bool:
        """Whether the term is refuted; an unknown is not."""


class MuGraphSpace:
    """All tensors that the goal's e-graph admits, as a shared space of the engine."""

    name = "muGraphs"
    width = _WIDTH
    shared = True

    def __init__(
        self,
        goal: Goal,
        table: Table,
        grid: Grid,
        *,
        prune: Prune = "egraph",
        oracle: Oracle | None = None,
        nested: Mapping[int, int] | None = None,
        stop: Callable[[], bool] = lambda: False,
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
        self.of_class: dict[int, list[int]] = defaultdict(list)
        self.id_of: dict[tuple[int, ...], int] = {}
        self.reasons: Counter[str] = Counter()
        self._lookup = {(code, attr, args): found for code, attr, args, found in table.entries}
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

    def fingerprint(self) -> str:
        """Return what this space is: the goal, how it is pruned, and the draw of the field."""
        return f"muGraphs/1 {self.prune} seed={self.grid.seed}\n{self.table.truncated}\n{self.goal.graph}"

    def roots(self) -> Rows:
        """Return the leaves: inputs, constants, extents and masks."""
        rows = [
            (_LEAF, leaf, -1, -1, -1)
            for leaf in range(len(self.goal.leaves))
            if self.prune != "egraph" or self.table.class_of_leaf[leaf] >= 0
        ]
        return np.array(rows, dtype=np.int64).reshape(-1, _WIDTH)

    def expand(self, rows: Rows) -> Rows:
        """Return every admitted operator application that involves one of the given tensors."""
        found: list[tuple[int, ...]] = []
        fresh = [self._id(row) for row in rows.tolist()]
        if self.prune == "egraph":
            found += self._joined(fresh)
        if self.prune != "egraph" or self.table.truncated:
            known = set(found)
            for row in self._all(fresh):
                if self.stop():  # a question may take z3 long; what is found so far is kept
                    break
                if row not in known and self._passes(row):
                    found.append(row)
        return np.array(found, dtype=np.int64).reshape(-1, _WIDTH)

    def keys(self, rows: Rows) -> Keys:
        """Return the fingerprint of each row's value, mixed with its class where it has one.

        Equal tensors of different classes are kept apart until the search is over: each class
        admits operators that the other may not.
        """
        keys = np.empty((len(rows), 2), dtype=np.uint64)
        if not len(rows):
            return keys
        listed = rows.tolist()
        values = self.grid.evaluate(listed, self.values)
        keys[:] = self.grid.field.fingerprint(values)
        classes = np.array([self._class(row) for row in listed], dtype=np.int64)
        keys[:, 1] ^= mix(classes.view(np.uint64))
        return keys

    def absorb(self, rows: Rows, keys: Keys) -> None:
        """Note a level's new tensors; they come in the same order in every worker."""
        listed = rows.tolist()
        values = self.grid.evaluate(listed, self.values)
        self.values += [values[:, :, i] for i in range(len(listed))]
        self.note(listed)

    def note(self, rows: Sequence[Sequence[int]]) -> None:
        """Note tensors without their values: what is left to do once exploration is over."""
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

    # How it is done.

    def _id(self, row: Sequence[int]) -> int:
        return self.id_of[tuple(row)]

    def _class(self, row: Sequence[int]) -> int:
        if self.prune != "egraph":
            return _NO_CLASS
        code, attr, *args = row
        if code == _LEAF:
            return self.table.class_of_leaf[attr]
        classes = tuple(self.classes[arg] for arg in args if arg >= 0)
        return self._lookup.get((code, attr, classes), _NO_CLASS)

    def _mask(self, row: Sequence[int]) -> int:
        code, attr, *args = row
        if code == _LEAF:
            return self.goal.leaves[attr].mask
        mask = 0
        for arg in args:
            if arg >= 0:
                mask |= self.masks[arg]
        return self.grid.mask_after(OPERATORS[code], attr, mask)

    def _joined(self, fresh: list[int]) -> list[tuple[int, ...]]:
        """Return what the table admits: a join of the new tensors with all known ones by class."""
        found: list[tuple[int, ...]] = []
        new = set(fresh)
        for a in fresh:
            found += [
                (code, attr, a, -1, -1)
                for code, attr in self._unary[self.classes[a]]
                if self._in_order(code, attr, a)
            ]
            for code, attr, partner in self._first[self.classes[a]]:
                commutes = OPERATORS[code] in COMMUTATIVE
                for b in self.of_class[partner]:
                    found.append((code, attr, *((a, b) if a <= b or not commutes else (b, a)), -1))
            for code, attr, partner in self._second[self.classes[a]]:
                if OPERATORS[code] not in COMMUTATIVE:  # those were met from the other side
                    found += [(code, attr, b, a, -1) for b in self.of_class[partner]]
        for code, attr, classes in self._ternary:
            pools = [self.of_class[number] for number in classes]
            found += [
                (code, attr, a, b, c)
                for a in pools[0]
                for b in pools[1]
                for c in pools[2]
                if a in new or b in new or c in new
            ]
        considered = len(fresh) * len(self._operators) * max(len(self.values), 1)
        self.reasons["not in the e-graph"] += max(considered - len(found), 0)
        return list(dict.fromkeys(found))

    def _in_order(self, code: int, attr: int, a: int) -> bool:
        """Whether a reduction keeps the halves of split axes in order: the inner half goes first."""
        if OPERATORS[code] not in ("sum", "max"):
            return True
        inner = self.nested.get(attr)
        if inner is None or not self.masks[a] >> inner & 1:
            return True
        self.reasons["outer half of a split axis before its inner half"] += 1
        return False

    def _all(self, fresh: list[int]) -> Iterator[tuple[int, ...]]:
        """Yield every application of the goal's operators that involves a new tensor."""
        new = set(fresh)
        for a in fresh:
            for op, attr in self._operators:
                code = _CODE[op]
                if op in _UNARY or op in ("call1", "access"):
                    if op != "access" or self.grid.access_applies(attr, self.masks[a]):
                        yield (code, attr, a, -1, -1)
                elif op in ("sum", "max"):
                    if self.masks[a] >> attr & 1 and self._in_order(code, attr, a):
                        yield (code, attr, a, -1, -1)
                elif op in _BINARY or op == "call2":
                    for b in range(len(self.values)):
                        if op in COMMUTATIVE:
                            if b <= a or b not in new:
                                yield (code, attr, *sorted((a, b)), -1)
                        else:
                            yield (code, attr, a, b, -1)
                            if b not in new:
                                yield (code, attr, b, a, -1)
        for op, attr in self._operators:
            if op == "call3":
                everything = range(len(self.values))
                for a in everything:
                    for b in everything:
                        for c in everything:
                            if a in new or b in new or c in new:
                                yield (_CODE[op], attr, a, b, c)

    def _passes(self, row: tuple[int, ...]) -> bool:
        """Whether a miss is admitted: always, unless z3 refutes it."""
        if self.prune == "none" or self.oracle is None:
            return True
        if self.oracle.admits(self._term(row)).pruned:
            self.reasons["refuted: no part of the goal"] += 1
            return False
        return True

    def _term(self, row: tuple[int, ...]) -> tuple[Node, ...]:
        """Return the abstract term of a row, its parts before it."""
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
