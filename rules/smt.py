"""Asks whether a term can be a part of some expression equal to the goal, without an e-graph.

The search asks where saturation was cut short, so that a miss in the table means nothing, and the
ablation asks z3 alone. As in Mirage the terms are an uninterpreted sort, each operator is a function, and
the axioms stand beside "an operand of a part is a part"; axioms that shrink terms, or speak of constants
or logarithms, are left out. There are three answers:

- *entailed*: z3 derives that the term is a part. The term is admitted.
- *refuted*: there is a model of the axioms in which the term is no part. z3 seldom finds a model of
  quantified formulas, so the invariant of terms (see `refute`), which is such a model, is tried first; it
  refutes in microseconds. Only a refuted term is pruned.
- *unknown*: neither, within the limits. The term is admitted. Where z3 has no instance of an axiom left
  to try it still says unknown, and rightly: its matching can miss some.

A query is limited by z3's own count of steps, so that answers do not depend on how busy the machine
is; z3's clock only stops what it does not count.
"""

import os
import time
from collections.abc import Sequence
from enum import Enum
from hashlib import blake2b
from itertools import product
from typing import Any

from superopt.rules.axioms import Axiom, axioms_between_terms
from superopt.rules.patterns import Pattern, parse_pattern, variables
from superopt.rules.refute import Refuter
from superopt.rules.terms import COMMUTATIVE, Goal, Node

__all__ = ["Answer", "SubexpressionOracle"]

STEPS_PER_MS = 500
"""About how many steps z3 makes in a millisecond; it turns a time limit into a count of steps."""

PATIENCE = 10
"""How many times its time limit a query may take while z3 does something that it does not count."""


class Answer(Enum):
    """Whether a term can be a part of an expression equal to the goal."""

    ENTAILED = "entailed"
    REFUTED = "refuted"
    UNKNOWN = "unknown"

    @property
    def pruned(self) -> bool:
        """Whether the term is refuted; an unknown is not."""
        return self is Answer.REFUTED


class SubexpressionOracle:
    """Decides for terms of one goal; each process that asks makes its own z3 solver."""

    def __init__(self, goal: Goal, *, timeout_ms: int = 200, budget_s: float = 10.0) -> None:
        self._goal = goal
        self._refuter = Refuter(goal)
        self._timeout_ms = timeout_ms
        self._budget_s = budget_s
        self._query: _Query | None = None
        self._owner = 0
        self._known: dict[bytes, Answer] = {}

    def __getstate__(self) -> dict[str, Any]:
        """Leave out the solver, which each process makes for itself."""
        return {**self.__dict__, "_query": None}

    def admits(self, term: Sequence[Node]) -> Answer:
        """Return the answer for a term's last node; the nodes stand in topological order."""
        key = _digest(term)
        if key not in self._known:
            if self._refuter.refutes(term):
                self._known[key] = Answer.REFUTED
            elif self._budget_s <= 0:
                return Answer.UNKNOWN
            else:
                self._known[key] = self._ask(term)
        return self._known[key]

    def _ask(self, term: Sequence[Node]) -> Answer:
        start = time.perf_counter()
        try:
            if self._query is None or self._owner != os.getpid():
                self._query, self._owner = _Query(self._goal, self._timeout_ms), os.getpid()
            return self._query.ask(term)
        finally:
            self._budget_s -= time.perf_counter() - start


def _digest(term: Sequence[Node]) -> bytes:
    """Return a digest of a term that the order of commuting operands does not change."""
    digests: list[bytes] = []
    for node in term:
        parts = [digests[i] for i in node.args]
        if node.op in COMMUTATIVE:
            parts.sort()
        text = f"{node.op} {node.attr}".encode()
        digests.append(blake2b(b"|".join([text, *parts]), digest_size=16).digest())
    return digests[-1]


class _Query:
    """The axioms and the goal in a z3 context of its own; one candidate at a time."""

    def __init__(self, goal: Goal, timeout_ms: int) -> None:
        import z3

        self._z3: Any = z3
        self._goal = goal
        self._context = z3.Context()
        self._sort = z3.DeclareSort("Term", self._context)
        self._bits = max(len(goal.groups), 1)
        mask = z3.BitVecSort(self._bits, self._context)
        self._axes = z3.Function("axes", self._sort, mask)
        self._part = z3.Function("part", self._sort, z3.BoolSort(self._context))
        self._functions: dict[tuple[str, int], Any] = {}
        self._timeout_ms = timeout_ms
        self._facts: list[Any] = []
        terms = self._terms(goal.nodes)
        for axiom in axioms_between_terms():  # no oracle is asked about goals with windows
            self._state_axiom(axiom)
        for root in goal.roots:
            self._facts.append(self._part(terms[root]))

    def _solver(self) -> Any:
        """Return a solver that knows all facts.

        Each query gets a solver of its own. One solver for all of them would do its earlier instantiations
        again at every push, within no limit, and would take minutes to be freed for large programs.
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
        if result == z3.unsat:
            return Answer.ENTAILED
        return Answer.REFUTED if result == z3.sat else Answer.UNKNOWN

    def _terms(self, nodes: Sequence[Node]) -> list[Any]:
        built: list[Any] = []
        for node in nodes:
            function = self._function(node.op, node.attr, len(node.args))
            built.append(function(*(built[i] for i in node.args)) if node.args else function())
        return built

    def _function(self, op: str, attr: int, arity: int) -> Any:
        """Return the function of an operator; a new one comes with its facts about axes and parts."""
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
            removed, renamed = self._goal.moves(attr)
            kept = union & ~z3.BitVecVal(removed, self._bits, self._context)
            for old, new in renamed:
                kept = kept | ((z3.LShR(union, old) & 1) << new)
            return kept
        return union

    def _state_axiom(self, axiom: Axiom) -> None:
        """State an axiom once for each choice of axes; each side that it rewrites is a trigger."""
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
