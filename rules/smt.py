"""Asks whether a term can be a part of some expression equal to the goal, without an e-graph.

It is asked where saturation was cut short, so that a miss in the table means nothing, and alone
for the ablation. As in Mirage the terms are an uninterpreted sort, each operator is a function, and
the axioms stand beside "an operand of a part is a part". Three answers:

- *entailed*: z3 derives that the term is a part. It is admitted.
- *refuted*: there is a model of the axioms in which the term is no part. Quantified formulas seldom
  get a model from z3, so the measure of terms, which is such a model, is tried first; it refutes
  in microseconds. Only a refuted term is pruned.
- *unknown*: neither, within the limits. It is admitted. Where z3 has no instance of an axiom left
  to try it still says unknown, and rightly: its matching can miss some. `prune_exhausted` takes this
  for a refutation, as Mirage does with whatever z3 does not derive; it is for comparisons only.

A query is limited by z3's own count of steps, so that answers do not depend on how busy the machine
is; z3's clock only stops what it does not count.
"""

import json
import os
import time
from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum
from hashlib import blake2b
from itertools import product
from pathlib import Path
from typing import Any

from superopt.rules.axioms import AXIOMS, Axiom, Pattern, parse_pattern, variables
from superopt.rules.measure import Measure
from superopt.rules.terms import COMMUTATIVE, Goal, Node

__all__ = ["Answer", "OracleStatistics", "SubexpressionOracle"]

STEPS_PER_MS = 500
"""How many of its steps z3 makes in a millisecond, about; it turns a time limit into a count."""


PATIENCE = 10
"""How many times its time limit a query may take where z3 does not count what it is busy with."""


class Answer(Enum):
    """Whether a term can be a part of an expression equal to the goal."""

    ENTAILED = "entailed"
    REFUTED = "refuted"
    UNKNOWN = "unknown"

    @property
    def pruned(self) -> bool:
        """Whether the term is refuted; an unknown is not."""
        return self is Answer.REFUTED


@dataclass(slots=True)
class OracleStatistics:
    """What was asked and how it was answered."""

    asked: int = 0
    memo_hits: int = 0
    refuted_by_measure: int = 0
    refuted_by_z3: int = 0
    entailed: int = 0
    unknown: int = 0
    over_budget: int = 0  # of the unknown: z3 was not asked any more
    seconds: float = 0.0


class SubexpressionOracle:
    """Decides for terms of one goal; each process that asks makes its own z3 solver."""

    def __init__(
        self,
        goal: Goal,
        *,
        timeout_ms: int = 200,
        budget_s: float = 10.0,
        memo_path: str | Path | None = None,
        prune_exhausted: bool = False,
    ) -> None:
        self.statistics = OracleStatistics()
        self._goal = goal
        self._measure = Measure(goal)
        self._timeout_ms = timeout_ms
        self._budget_s = budget_s
        self._prune_exhausted = prune_exhausted
        self._z3_seconds = 0.0
        self._query: _Query | None = None
        self._owner = 0
        self._salt = _digest(goal, timeout_ms, prune_exhausted)
        self._memo: dict[str, Answer] = {}
        self._path = None if memo_path is None else Path(memo_path)
        if self._path is not None and self._path.exists():
            self._read_memo(self._path)

    def admits(self, term: Sequence[Node]) -> Answer:
        """Return the answer for a term's last node; the nodes stand in topological order."""
        start = time.perf_counter()
        self.statistics.asked += 1
        key = self.key(term)
        answer = self._memo.get(key)
        if answer is not None:
            self.statistics.memo_hits += 1
        else:
            answer = self._ask(term, key)
        self.statistics.seconds += time.perf_counter() - start
        return answer

    def key(self, term: Sequence[Node]) -> str:
        """Return the memo key: equal for terms equal up to the order of commuting operands."""
        digests: list[bytes] = []
        for node in term:
            parts = [digests[i] for i in node.args]
            if node.op in COMMUTATIVE:
                parts.sort()
            text = f"{node.op} {node.attr}".encode()
            digests.append(blake2b(b"|".join([text, *parts]), digest_size=16).digest())
        return blake2b(self._salt + digests[-1], digest_size=16).hexdigest()

    def _ask(self, term: Sequence[Node], key: str) -> Answer:
        if self._measure.refutes(term):
            self.statistics.refuted_by_measure += 1
            answer = Answer.REFUTED
        elif self._z3_seconds >= self._budget_s:
            self.statistics.unknown += 1
            self.statistics.over_budget += 1
            return Answer.UNKNOWN  # not noted: with more budget the answer may be another
        else:
            start = time.perf_counter()
            try:
                answer = self._solver().ask(term)
            finally:
                self._z3_seconds += time.perf_counter() - start
            self.statistics.refuted_by_z3 += answer is Answer.REFUTED
            self.statistics.entailed += answer is Answer.ENTAILED
            self.statistics.unknown += answer is Answer.UNKNOWN
        self._memo[key] = answer
        if self._path is not None:
            # One short write in append mode: lines of several processes do not mix.
            with self._path.open("a", encoding="ascii") as file:
                file.write(json.dumps([key, answer.value]) + "\n")
        return answer

    def _solver(self) -> "_Query":
        if self._query is None or self._owner != os.getpid():
            self._query = _Query(self._goal, self._timeout_ms, self._prune_exhausted)
            self._owner = os.getpid()
        return self._query

    def _read_memo(self, path: Path) -> None:
        for line in path.read_text(encoding="ascii", errors="replace").splitlines():
            try:
                key, value = json.loads(line)
                self._memo[key] = Answer(value)
            except (ValueError, TypeError):
                continue  # a line cut short by a killed process


class _Query:
    """The axioms and the goal in a z3 context of its own; one candidate at a time."""

    def __init__(self, goal: Goal, timeout_ms: int, prune_exhausted: bool) -> None:
        import z3

        self._z3: Any = z3
        self._prune_exhausted = prune_exhausted
        self._goal = goal
        self._context = z3.Context()
        self._sort = z3.DeclareSort("Term", self._context)
        self._bits = max(len(goal.groups), 1)
        mask = z3.BitVecSort(self._bits, self._context)
        self._axes = z3.Function("axes", self._sort, mask)
        self._part = z3.Function("part", self._sort, z3.BoolSort(self._context))
        self._functions: dict[tuple[str, int], Any] = {}
        self._stated: set[tuple[str, int]] = set()
        self._timeout_ms = timeout_ms
        self._facts: list[Any] = []
        terms = self._terms(goal.nodes)
        for axiom in AXIOMS:
            self._state_axiom(axiom)
        for root in goal.roots:
            self._facts.append(self._part(terms[root]))

    def _solver(self) -> Any:
        """Return a solver that knows all facts.

        Each query gets its own: in one that lives on, what was instantiated before is done again by
        every push, within no limit, and large programs would take minutes to be let go.
        """
        solver = self._z3.SimpleSolver(ctx=self._context)
        # z3's own handler would swallow Ctrl-C; Python's acts once the query is over.
        solver.set("ctrl_c", False)
        solver.set("rlimit", self._timeout_ms * STEPS_PER_MS)
        solver.set("timeout", self._timeout_ms * PATIENCE)
        solver.set("auto_config", False)
        solver.set("mbqi", False)
        solver.add(*self._facts)
        return solver

    def ask(self, term: Sequence[Node]) -> Answer:
        """Return whether the last node of a term is a part of the goal."""
        z3 = self._z3
        candidate = self._terms(term)[-1]
        solver = self._solver()
        solver.add(z3.Not(self._part(candidate)))
        result = solver.check()
        exhausted = result == z3.unknown and "incomplete" in solver.reason_unknown()
        if result == z3.unsat:
            return Answer.ENTAILED
        return Answer.REFUTED if result == z3.sat or (exhausted and self._prune_exhausted) else Answer.UNKNOWN

    def _terms(self, nodes: Sequence[Node]) -> list[Any]:
        built: list[Any] = []
        for node in nodes:
            function = self._function(node.op, node.attr, len(node.args))
            built.append(function(*(built[i] for i in node.args)) if node.args else function())
        return built

    def _function(self, op: str, attr: int, arity: int) -> Any:
        """Return the function of an operator; when first met, state its axes and that operands are parts."""
        z3 = self._z3
        key = (op, attr)
        if key not in self._functions:
            function = z3.Function(f"{op}.{attr}", *([self._sort] * (arity + 1)))
            self._functions[key] = function
            if arity == 0:
                self._facts.append(self._axes(function()) == self._goal.leaves[attr].mask)
                return function
            args = [z3.Const(f"x{i}", self._sort) for i in range(arity)]
            whole = function(*args)
            parts = z3.And(*(self._part(arg) for arg in args), self._context)
            axes = self._axes(whole) == self._axes_of(op, attr, [self._axes(arg) for arg in args])
            self._forall(args, z3.Implies(self._part(whole), parts), whole)
            self._forall(args, axes, whole)
        return self._functions[key]

    def _axes_of(self, op: str, attr: int, args: list[Any]) -> Any:
        z3 = self._z3
        union = args[0]
        for arg in args[1:]:
            union = union | arg
        if op in ("sum", "max"):
            return union & ~z3.BitVecVal(1 << attr, self._bits, self._context)
        if op == "access":
            mapping = self._goal.accesses[attr][1]
            kept = union
            for old, _ in mapping:
                kept = kept & ~z3.BitVecVal(1 << self._goal.bit(old), self._bits, self._context)
            for old, new in mapping:
                if isinstance(new, str):
                    old_bit, new_bit = self._goal.bit(old), self._goal.bit(new)
                    kept = kept | ((z3.LShR(union, old_bit) & 1) << new_bit)
            return kept
        return union

    def _state_axiom(self, axiom: Axiom) -> None:
        """State an axiom once for each choice of axes, with each side that rewrites as a trigger."""
        z3 = self._z3
        left, right = parse_pattern(axiom.left), parse_pattern(axiom.right)
        terms, axes = variables(left)
        of_term = {name: z3.Const(name, self._sort) for name in terms}
        for numbers in product(range(len(self._goal.groups)), repeat=len(axes)):
            of_axis = dict(zip(axes, numbers, strict=True))
            sides = {
                text: self._instance(side, of_term, of_axis)
                for text, side in ((axiom.left, left), (axiom.right, right))
            }
            body = sides[axiom.left] == sides[axiom.right]
            if axiom.lacks:
                factor, axis = axiom.lacks
                bit = 1 << of_axis[axis]
                body = z3.Implies(self._axes(of_term[factor]) & bit == 0, body)
            for trigger, _ in axiom.directions():
                self._forall(list(of_term.values()), body, sides[trigger])

    def _instance(self, pattern: Pattern, terms: dict[str, Any], axes: dict[str, int]) -> Any:
        if isinstance(pattern, str):
            return terms[pattern]
        name, *rest = pattern
        assert isinstance(name, str)
        attr = 0
        if name in ("Sum", "Max"):
            axis, *rest = rest
            assert isinstance(axis, str)
            attr = axes[axis]
        args = [self._instance(part, terms, axes) for part in rest]
        return self._function(name.lower(), attr, len(args))(*args)

    def _forall(self, variables: list[Any], body: Any, trigger: Any) -> None:
        self._facts.append(self._z3.ForAll(variables, body, patterns=[trigger]))


def _digest(goal: Goal, *settings: object) -> bytes:
    """Return what a memo depends on besides the term: the goal, the axioms, the settings."""
    leaves = [(leaf.position, str(leaf.constant), leaf.mask) for leaf in goal.leaves]
    shape = (goal.nodes, leaves, goal.groups, goal.functions, goal.accesses, goal.roots)
    return blake2b(repr((shape, AXIOMS, settings)).encode(), digest_size=16).digest()
