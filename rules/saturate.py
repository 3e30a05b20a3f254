"""Saturation: a goal's e-graph under the axioms, exported once as a flat table.

After saturation "can this tensor lie on the way to the goal?" is one look-up: (operator, classes
of the operands) -> class. The table holds plain integers, so that search workers never load
egglog. When a limit stopped saturation the table says so, and a miss means "unknown".
"""

import os
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from fractions import Fraction
from functools import cache
from math import inf

from superopt.errors import InputError
from superopt.rules.axioms import Axiom
from superopt.rules.egraph import Running, Snapshot
from superopt.rules.program import ANALYSIS
from superopt.rules.terms import OPERATORS, Goal

__all__ = ["NO_TABLE", "Entry", "SaturationLimits", "Table", "saturate"]

Entry = tuple[int, int, tuple[int, ...], int]
"""(operator, attr, classes of the operands, class)"""


@dataclass(frozen=True, slots=True)
class SaturationLimits:
    """When to stop saturating: e-nodes, seconds, rounds, and the seconds that the search has left.

    A round that would end after the last of these is not begun. The other limits stop what has gone astray.
    """

    nodes: int = 30_000
    seconds: float = 5.0
    rounds: int = 64
    seconds_left: float = inf


@dataclass(frozen=True, slots=True)
class Table:
    """The flat saturated e-graph of a goal."""

    entries: tuple[Entry, ...]  # sorted
    classes: int
    class_of_leaf: tuple[int, ...]  # the classes of the goal's leaves, and then of the constants
    roots: tuple[int, ...]
    rounds: int
    truncated: str | None  # the limit that stopped saturation, None where it is complete
    constants: tuple[Fraction, ...] = ()  # constants that saturation made; they become leaves of the goal
    late: bool = False  # whether it would have gone further with more time, or without an interrupt

    @property
    def nodes(self) -> int:
        """The number of e-nodes."""
        return len(self.entries)


_READING_S = 8e-6  # seconds to read one e-node of a large e-graph, measured
_SHORT_S = 0.5  # An e-graph that is read in so many seconds is read even when the search has fewer left.
_TOLD_S = 0.05  # Rounds of fewer seconds do not tell how long the next one takes.

NO_TABLE = Table((), 0, (), (), 0, None)
"""The table of a search that does without an e-graph, or for which there was no time to read it."""


@cache
def _first_process() -> int:
    """Return the process that saturated first; a process forked from it gets the same answer."""
    return os.getpid()


def saturate(
    goal: Goal,
    limits: SaturationLimits | None = None,
    stop: Callable[[], bool] | None = None,
    more: tuple[Axiom, ...] = (),
    *,
    weights: bool = False,
) -> Table:
    """Saturate a goal under the axioms, and more if given; export the classes that its roots contain.

    With `weights` products are taken apart where a part is made of weights alone.
    In a process forked from one that did so egglog would wait forever: that is an InputError.
    """
    if _first_process() != os.getpid():
        raise InputError(
            "a search cannot begin in a process forked from one that searched;"
            ' start it by multiprocessing.get_context("spawn"), or search before the fork'
        )
    limits = limits or SaturationLimits()
    end = time.perf_counter() + limits.seconds_left
    table = _saturated(goal, limits, stop, more, plain=False, weights=weights, end=end)
    if table.truncated is None or (stop is not None and stop()):
        return table
    # Constants and logarithms may swell the e-graph beyond the limits; without them it may be complete.
    again = _saturated(goal, limits, stop, more, plain=True, weights=weights, end=end)
    return table if again.truncated and table.roots else replace(again, late=again.late or table.late)


def _saturated(
    goal: Goal,
    limits: SaturationLimits,
    stop: Callable[[], bool] | None,
    more: tuple[Axiom, ...],
    *,
    plain: bool,
    weights: bool = False,
    end: float = inf,
) -> Table:
    start = time.perf_counter()
    running = Running(goal, plain=plain, more=more, weights=weights)
    truncated: str | None = None
    late = False
    rounds = 0
    pace = _Pace(start)
    while truncated is None:
        if plain:
            running.run(ANALYSIS)
        elif running.shrink() and (smaller := running.smaller_goal()) is not None:
            running = Running(smaller, more=more, weights=weights)
            continue
        changed = running.run("(run axioms 1)")
        rules_came = running.load_rules()
        if not changed and not rules_came:
            break
        rounds += 1
        if running.nodes > limits.nodes:
            truncated = f"limit of {limits.nodes} e-nodes"
        elif time.perf_counter() - start > limits.seconds:
            truncated, late = f"limit of {limits.seconds:g} s", True
        elif pace.next_end() > end:
            truncated, late = f"limit of {limits.seconds_left:.3g} s", True
        elif rounds >= limits.rounds:
            truncated = f"limit of {limits.rounds} rounds"
        elif stop is not None and stop():
            truncated, late = "interrupted", True
    if truncated is not None:
        left_s = max(end - time.perf_counter(), _SHORT_S)
        if (stop is not None and stop()) or _READING_S * running.nodes > left_s:
            return replace(NO_TABLE, truncated=truncated, late=True)
    return replace(_Export(running, len(goal.leaves)).table(rounds, truncated), late=late)


class _Pace:
    """Predicts when the next round ends: a round takes longer than the one before by about a fixed factor."""

    def __init__(self, start: float) -> None:
        self._at = start
        self._took = 0.0

    def next_end(self) -> float:
        """Return about when the next round ends; call this at the end of every round."""
        before, now = self._took, time.perf_counter()
        self._took, self._at = now - self._at, now
        return now + (self._took * max(self._took / before, 1.0) if before > _TOLD_S else 0.0)


_CODE = {op: code for code, op in enumerate(OPERATORS)}


class _Export:
    """The part of a saturated e-graph that the roots contain; classes are numbered as they are met."""

    def __init__(self, running: Running, own_leaves: int) -> None:
        self.own_leaves = own_leaves
        self.snapshot = Snapshot(running)
        self.goal = running.goal
        self.of_class: dict[object, list[tuple[int, int, tuple[object, ...]]]] = {}
        for row in self.snapshot.rows():
            # A class that holds a constant need not be computed.
            if row.args and row.found not in self.snapshot.constants:
                self.of_class.setdefault(row.found, []).append((_CODE[row.op], row.attr, row.args))
        self._keep_arithmetic()
        self.numbers: dict[object, int] = {}
        self.pending: list[object] = []

    def _keep_arithmetic(self) -> None:
        """Keep the goal's own arithmetic on constants: the field may give its result another value."""
        constants = self.snapshot.constants
        for i, node in enumerate(self.goal.nodes):
            value = self.snapshot.class_of(i)
            args = tuple(self.snapshot.class_of(arg) for arg in node.args)
            if args and value in constants and all(arg in constants for arg in args):
                self.of_class.setdefault(value, []).append((_CODE[node.op], node.attr, args))

    def number_of(self, value: object) -> int:
        """Return the number of a class, which is visited if it is new."""
        if value not in self.numbers:
            self.numbers[value] = len(self.numbers)
            self.pending.append(value)
        return self.numbers[value]

    def table(self, rounds: int, truncated: str | None) -> Table:
        """Return the table."""
        roots = tuple(self.number_of(self.snapshot.class_of(root)) for root in self.goal.roots)
        entries: list[Entry] = []
        while self.pending:
            value = self.pending.pop()
            for code, attr, args in self.of_class.get(value, ()):
                found = tuple(self.number_of(arg) for arg in args)
                entries.append((code, attr, found, self.numbers[value]))
        leaves, constants = self._leaves()
        entries += [(_CODE["leaf"], leaf, (), number) for leaf, number in enumerate(leaves) if number >= 0]
        return Table(
            entries=tuple(sorted(entries)),
            classes=len(self.numbers),
            class_of_leaf=leaves,
            roots=roots,
            rounds=rounds,
            truncated=truncated,
            constants=constants,
        )

    def _leaves(self) -> tuple[tuple[int, ...], tuple[Fraction, ...]]:
        """Return the class of every leaf, -1 where it is not met, and the constants that are more leaves."""
        of_constant = {
            value: self.numbers[found]
            for found, value in self.snapshot.constants.items()
            if found in self.numbers
        }
        leaves = self.goal.leaves[: self.own_leaves]
        classes = [-1 if leaf.constant is None else of_constant.pop(leaf.constant, -1) for leaf in leaves]
        for i, node in enumerate(self.goal.nodes):
            if node.op == "leaf" and self.goal.leaves[node.attr].constant is None:
                classes[node.attr] = self.numbers.get(self.snapshot.class_of(i), -1)
        constants = tuple(sorted(of_constant))
        return (*classes, *(of_constant[value] for value in constants)), constants
