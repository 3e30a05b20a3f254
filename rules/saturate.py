"""Saturation: a goal's e-graph under the axioms, exported once as a flat table.

After saturation "can this tensor lie on the way to the goal?" is one look-up: (operator, classes
of the operands) -> class. The table holds plain integers, so that search workers never load
egglog. When a limit stopped saturation the table says so, and a miss means "unknown".
"""

import logging
import os
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING

from superopt.errors import InputError
from superopt.rules.axioms import program_text
from superopt.rules.terms import OPERATORS, Goal, Node

__all__ = ["NO_TABLE", "Entry", "SaturationLimits", "Table", "saturate"]

if TYPE_CHECKING:
    from egglog.bindings import EGraph

Entry = tuple[int, int, tuple[int, ...], int]
"""(operator, attr, classes of the operands, class)"""


@dataclass(frozen=True, slots=True)
class SaturationLimits:
    """When to stop saturating: e-nodes, seconds, rounds."""

    nodes: int = 30_000
    seconds: float = 5.0
    rounds: int = 64


@dataclass(frozen=True, slots=True)
class Table:
    """The flat saturated e-graph of a goal."""

    entries: tuple[Entry, ...]  # sorted
    classes: int
    class_of_leaf: tuple[int, ...]
    roots: tuple[int, ...]
    rounds: int
    seconds: float
    truncated: str | None  # the limit that stopped saturation, None where it is complete

    @property
    def nodes(self) -> int:
        """The number of e-nodes."""
        return len(self.entries)


NO_TABLE = Table((), 0, (), (), 0, 0.0, None)
"""What stands for a table where the search does without one."""


@cache
def _first_process() -> int:
    """Return the process that saturated first; those forked from it know it."""
    return os.getpid()


def saturate(
    goal: Goal,
    limits: SaturationLimits | None = None,
    stop: Callable[[], bool] | None = None,
) -> Table:
    """Saturate a goal under the axioms and export the classes that its roots contain.

    In a process forked from one that did so egglog would wait forever: that is an InputError.
    """
    if _first_process() != os.getpid():
        raise InputError(
            "a search cannot begin in a process forked from one that searched;"
            ' start it by multiprocessing.get_context("spawn"), or search before the fork'
        )
    from egglog.bindings import EGraph, RunScheduleOutput

    _quiet()
    limits = limits or SaturationLimits()
    start = time.perf_counter()
    egraph = EGraph()

    def run(text: str) -> bool:
        """Run a program; return whether its last command changed the e-graph."""
        outputs = egraph.run_program(*egraph.parse_program(text))
        last = outputs[-1] if outputs else None
        return isinstance(last, RunScheduleOutput) and last.report.updated

    run(program_text() + _access_rules(goal) + _goal_text(goal))
    truncated: str | None = None
    rounds = 0
    while truncated is None:
        # Analysis runs to its own fixpoint first: a guard reads the axes of every term.
        run("(run-schedule (saturate (run analysis)))")
        if not run("(run axioms 1)"):
            break
        rounds += 1
        if _count(egraph) > limits.nodes:
            truncated = f"limit of {limits.nodes} e-nodes"
        elif time.perf_counter() - start > limits.seconds:
            truncated = f"limit of {limits.seconds:g} s"
        elif rounds >= limits.rounds:
            truncated = f"limit of {limits.rounds} rounds"
        elif stop is not None and stop():
            truncated = "interrupted"
    return _export(egraph, goal, rounds, start, truncated)


_CONSTRUCTORS = {
    "leaf": "Leaf",
    "mul": "Mul",
    "add": "Add",
    "inv": "Inv",
    "neg": "Neg",
    "exp": "Exp",
    "sqrt": "Sqrt",
    "maximum": "Maximum",
    "call1": "Call1",
    "call2": "Call2",
    "call3": "Call3",
    "sum": "Sum",
    "max": "Max",
    "access": "Access",
}
ATTRIBUTED = frozenset({"leaf", "call1", "call2", "call3", "sum", "max", "access"})
"""Operators whose term carries a number: which leaf, function, axis group or access."""


def _quiet() -> None:
    """Keep egglog from telling each command, thousands of lines, unless somebody wants to hear them."""
    logger = logging.getLogger("egglog")
    if logger.level == logging.NOTSET:
        logger.setLevel(logging.WARNING)


def _goal_text(goal: Goal) -> str:
    lines = [f"(let $t{i} {_constructor(node)})" for i, node in enumerate(goal.nodes)]
    lines += [
        f"(set (axes $t{i}) {goal.leaves[node.attr].mask})"
        for i, node in enumerate(goal.nodes)
        if node.op == "leaf"
    ]
    lines += [
        f"(nonnegative $t{i})"
        for i, node in enumerate(goal.nodes)
        if node.op == "leaf" and goal.leaves[node.attr].nonnegative
    ]
    return "\n".join(lines)


def _constructor(node: Node) -> str:
    number = [str(node.attr)] if node.op in ATTRIBUTED else []
    return f"({' '.join([_CONSTRUCTORS[node.op], *number, *(f'$t{i}' for i in node.args)])})"


def _access_rules(goal: Goal) -> str:
    """Return how each rename or selection changes the axes of a term."""
    rules = []
    for number, (_, mapping) in enumerate(goal.accesses):
        removed = sum(1 << goal.bit(old) for old, _ in mapping)
        text = f"(- x (& x {removed}))"
        for old, new in mapping:
            if isinstance(new, str):
                moved = f"(* {1 << goal.bit(new)} (/ (& x {1 << goal.bit(old)}) {1 << goal.bit(old)}))"
                text = f"(| {text} {moved})"
        rules.append(
            f"(rule ((= e (Access {number} a)) (= x (axes a))) ((set (axes e) {text})) :ruleset analysis)"
        )
    return "\n".join(rules)


def _count(egraph: "EGraph") -> int:
    """Return the number of e-nodes."""
    functions = egraph.freeze().functions
    return sum(len(functions[name].rows) for name in _CONSTRUCTORS.values() if name in functions)


def _export(egraph: "EGraph", goal: Goal, rounds: int, start: float, truncated: str | None) -> Table:
    """Return the part of the e-graph that the roots contain, classes numbered as they are met."""
    functions = egraph.freeze().functions
    of_class: dict[object, list[tuple[int, int, tuple[object, ...]]]] = {}
    integers: dict[object, int] = {}
    for code, op in enumerate(OPERATORS):
        name = _CONSTRUCTORS[op]
        attributed = op in ATTRIBUTED
        for row in functions[name].rows if name in functions else ():
            inputs = row.inputs
            attr = 0
            if attributed:
                number = inputs[0]
                if number not in integers:
                    integers[number] = egraph.value_to_i64(number)
                attr = integers[number]
                inputs = inputs[1:]
            of_class.setdefault(row.output, []).append((code, attr, tuple(inputs)))

    def class_of(node: int) -> object:
        return functions[f"$t{node}"].rows[0].output

    numbers: dict[object, int] = {}
    pending: list[object] = []

    def number_of(value: object) -> int:
        if value not in numbers:
            numbers[value] = len(numbers)
            pending.append(value)
        return numbers[value]

    roots = tuple(number_of(class_of(root)) for root in goal.roots)
    entries: list[Entry] = []
    while pending:
        value = pending.pop()
        for code, attr, args in of_class[value]:
            entries.append((code, attr, tuple(number_of(arg) for arg in args), numbers[value]))
    leaves = [-1] * len(goal.leaves)
    for i, node in enumerate(goal.nodes):
        if node.op == "leaf":
            leaves[node.attr] = numbers.get(class_of(i), -1)
    return Table(
        entries=tuple(sorted(entries)),
        classes=len(numbers),
        class_of_leaf=tuple(leaves),
        roots=roots,
        rounds=rounds,
        seconds=time.perf_counter() - start,
        truncated=truncated,
    )
