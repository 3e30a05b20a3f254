"""The e-graph of one goal in egglog: its terms, the rules that they need, and the graph read back."""

import logging
import sys
from collections.abc import Iterable
from fractions import Fraction
from functools import cache
from importlib import import_module
from importlib.machinery import PathFinder
from importlib.util import find_spec, module_from_spec
from typing import TYPE_CHECKING, Any

from superopt.ir.windows.place import Place
from superopt.ops import OPS
from superopt.rules.axioms import Axiom
from superopt.rules.program import ANALYSIS, LANGUAGE, commands, constant_text
from superopt.rules.smallest import Row, made_by, smaller_goal
from superopt.rules.terms import OPERATORS, Goal, Node, WindowRule, constant_leaf

if TYPE_CHECKING:
    from egglog.bindings import EGraph

__all__ = ["Running", "Snapshot", "bindings"]

_SHRINKINGS = 16
"""Shrinking ends after a few steps, except in a goal that divides by zero."""

_LARGEST_SHRINKING = 2_000
"""An e-graph of more nodes is not shrunk any more: terms cancel early or never, and to look for them, as
for the smallest form of the goal, takes long."""

_CONSTRUCTORS = {op: op.capitalize() for op in OPERATORS}
ATTRIBUTED = frozenset({"leaf", "call1", "call2", "call3", "sum", "max", "access", "window"})
"""Operators whose term carries a number: which leaf, function, axis group, access or window."""


class Running:
    """The e-graph of a goal under saturation, with the rules for the operators that it has so far."""

    def __init__(
        self, goal: Goal, *, plain: bool = False, more: tuple[Axiom, ...] = (), weights: bool = False
    ) -> None:
        _quiet()
        self.goal = goal
        self.egraph: EGraph = bindings().EGraph()
        self.waiting = list(commands(plain=plain, more=more, weights=weights))
        self.nodes = 0
        self.run(LANGUAGE + _access_rules(goal) + _goal_text(goal) + "\n" + _window_facts(goal))
        self.load_rules()

    def run(self, text: str) -> bool:
        """Run a program; return whether its last command changed the e-graph."""
        outputs = self.egraph.run_program(*self.egraph.parse_program(text))
        last = outputs[-1] if outputs else None
        return isinstance(last, bindings().RunScheduleOutput) and last.report.updated

    def shrink(self) -> bool:
        """Analyse and shrink terms, as before every round of axioms; return whether some term vanished."""
        self.run(ANALYSIS)
        vanished = False
        for _ in range(_SHRINKINGS if self.nodes <= _LARGEST_SHRINKING else 0):
            gone = self.run("(run vanishing 1)")
            vanished |= gone
            if not self.run("(run folding 1)") and not gone:
                break
            self.run(ANALYSIS)
        return vanished

    def load_rules(self) -> bool:
        """Count the e-nodes, and load rules whose operators have appeared; return whether there were any."""
        functions = self.egraph.freeze().functions
        names = (*_CONSTRUCTORS.values(), "Const", "Size")
        counts = {name: len(functions[name].rows) for name in names if name in functions}
        self.nodes = sum(counts.values())
        met = {name for name, count in counts.items() if count}
        rules = [rule for needs, rule in self.waiting if needs <= met]
        if rules:
            self.waiting = [(needs, rule) for needs, rule in self.waiting if not needs <= met]
            self.run("\n".join(rules))
        return bool(rules)

    def smaller_goal(self) -> Goal | None:
        """Return the goal in its smallest known form, None where it has that form already."""
        snapshot = Snapshot(self)
        class_of = {i: snapshot.class_of(i) for i in range(len(self.goal.nodes))}
        return smaller_goal(self.goal, snapshot.rows(), class_of)


class Snapshot:
    """What an e-graph contains at one moment."""

    def __init__(self, running: Running) -> None:
        self.goal = running.goal
        self._egraph = running.egraph
        self._functions = running.egraph.freeze().functions
        self.constants: dict[object, Fraction] = {
            row.output: self._egraph.value_to_bigrat(row.inputs[0]) for row in self._rows_of("Const")
        }

    def _rows_of(self, name: str) -> Iterable[Any]:
        return self._functions[name].rows if name in self._functions else ()

    def class_of(self, node: int) -> object:
        """Return the class of one of the goal's own terms."""
        return self._functions[f"$t{node}"].rows[0].output

    def rows(self) -> list[Row]:
        """Return every e-node, without the e-nodes that were given up for smaller ones.

        Two e-nodes may each have been given up for the other, as exp(log(exp a)) and its exp(a), which are
        one e-node once log(exp a) is a. An e-node without which some class could not be made stays.
        """
        alive, gone = list(self._leaf_rows()), list[Row]()
        integers: dict[object, int] = {}
        for op in OPERATORS[1:]:
            attributed = op in ATTRIBUTED
            for row in self._rows_of(_CONSTRUCTORS[op]):
                inputs = row.inputs
                attr = 0
                if attributed:
                    number = inputs[0]
                    if number not in integers:
                        integers[number] = self._egraph.value_to_i64(number)
                    attr = integers[number]
                    inputs = inputs[1:]
                found = Row(op, attr, tuple(inputs), row.output)
                (gone if row.subsumed else alive).append(found)
        if gone:
            made = made_by(alive)
            while needed := [row for row in gone if row.found not in made and made.issuperset(row.args)]:
                alive += needed
                made = made_by(alive)
        return alive

    def _leaf_rows(self) -> Iterable[Row]:
        leaves = self.goal.leaves
        for found, value in self.constants.items():
            yield Row("leaf", 0, (), found, constant_leaf(value))
        for number, node in enumerate(self.goal.nodes):
            if node.op == "leaf" and leaves[node.attr].constant is None:
                yield Row("leaf", node.attr, (), self.class_of(number), leaves[node.attr])


@cache
def bindings() -> Any:
    """Return the compiled part of egglog, by itself.

    The package around it is a language in Python, which takes half a second to import and is not used here.
    Whoever imports it later gets the same compiled module.
    """
    name = "egglog.bindings"
    package = None if name in sys.modules else find_spec("egglog")
    spec = PathFinder.find_spec(name, package.submodule_search_locations) if package else None
    if spec is None or spec.loader is None:
        return import_module(name)
    module = module_from_spec(spec)
    spec.loader.exec_module(module)
    sys.modules.pop(name, None)  # the package enters it when it is imported itself
    return module


def _quiet() -> None:
    """Keep egglog from logging each command, thousands of lines, unless somebody has set its level."""
    logger = logging.getLogger("egglog")
    if logger.level == logging.NOTSET:
        logger.setLevel(logging.WARNING)


def _goal_text(goal: Goal) -> str:
    lines = [f"(let $t{i} {_constructor(goal, node)})" for i, node in enumerate(goal.nodes)]
    for i, node in enumerate(goal.nodes):
        if node.op == "leaf":
            leaf = goal.leaves[node.attr]
            lines.append(f"(set (axes $t{i}) {leaf.mask})")
            if leaf.nonnegative:
                lines.append(f"(nonnegative $t{i})")
            if leaf.once:
                lines.append(f"(once $t{i})")
    return "\n".join(lines)


def _constructor(goal: Goal, node: Node) -> str:
    if node.op == "leaf":
        leaf = goal.leaves[node.attr]
        if leaf.constant is not None:
            return f"(Const {constant_text(leaf.constant)})"
        if leaf.extent is not None:
            return f"(Size {leaf.extent})"
    number = [str(node.attr)] if node.op in ATTRIBUTED else []
    return f"({' '.join([_CONSTRUCTORS[node.op], *number, *(f'$t{i}' for i in node.args)])})"


def _access_rules(goal: Goal) -> str:
    """Return how each rename or selection changes the axes of a term."""
    rules = []
    for number in range(len(goal.accesses)):
        removed, renamed = goal.moves(number)
        text = f"(- x (& x {removed}))"
        for old, new in renamed:
            text = f"(| {text} (* {1 << new} (/ (& x {1 << old}) {1 << old})))"
        rules.append(
            f"(rule ((= e (Access {number} a)) (= x (axes a))) ((set (axes e) {text})) :ruleset analysis)"
        )
    return "\n".join(rules)


def _window_facts(goal: Goal) -> str:
    """Return which axes each window reads and makes, which functions keep zero, and what holds of windows."""
    taps = {node.attr for node in goal.nodes if node.op in ("sum", "max")}
    for rule in goal.derivations:
        taps |= {goal.bit(axis) for axis, _ in rule.right[0].terms} if rule.summed else set()
    kept = ~sum(1 << bit for bit in taps)
    lines = []
    for number in range(len(goal.windows)):
        lines.append(f"(set (reads {number}) {goal.read_by(number)})")
        lines.append(f"(set (makes {number}) {goal.made_by(number)})")
        lines.append(f"(set (keeps {number}) {goal.made_by(number) & kept})")
    for number, name in enumerate(goal.functions):
        if name in OPS and OPS[name].keeps_zero:
            lines.append(f"(keeps-zero {number})")
    lines += [_window_rule(goal, rule) for rule in goal.derivations]
    return "\n".join(lines) + "\n"


def _window_rule(goal: Goal, rule: WindowRule) -> str:
    """Return a rule of some windows of the goal as rewrites."""

    def bits(axes: Iterable[str]) -> int:
        return sum(1 << goal.bit(axis) for axis in axes)

    def chain(places: Iterable[Place], inner: str) -> str:
        for place in reversed(tuple(places)):
            inner = f"(Window {goal.windows.index(place)} {inner})"
        return inner

    left, right = chain(rule.left, "a"), chain(rule.right, "a")
    guard = f":when ((= mask (axes a)) (= 0 (& mask {bits(rule.between)})))"
    if rule.summed:
        for axis, _ in rule.right[0].terms:
            right = f"(Sum {goal.bit(axis)} {right})"
        return f"(rewrite (Sum {goal.bit(rule.summed)} {left}) {right} {guard} :ruleset axioms)"
    if rule.beside:
        factor = chain([rule.beside], "b")
        left, right = f"(Mul {left} {factor})", f"(Mul {right} {factor})"
    both = [(left, right), (right, left)]
    return "\n".join(f"(rewrite {one} {other} {guard} :ruleset axioms)" for one, other in both)
