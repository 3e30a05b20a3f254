"""Extraction: the cheapest program in an e-graph, exactly, as an integer program that HiGHS solves.

A tensor is computed once, whoever uses it, and both parts of a split are one operator. So costs do not add
up along trees, and a greedy choice of the cheapest tree of each class misses programs that share. Each node
has a variable that says whether it is run; a class that is used has a node; and classes have an order, with
operands before results, so that no cycle makes itself.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from superopt.errors import InputError
from superopt.rules.discover.language.constants import constant_named
from superopt.rules.discover.language.operators import OPERATORS
from superopt.rules.discover.programs.saturate import Choices, Node

__all__ = ["Extraction", "cheapest", "cheapest_trees", "cost_of", "made_of"]

Cost = Callable[[Node], float]
"""What it costs to run a node once."""


@dataclass(frozen=True, slots=True)
class Extraction:
    """A node for each class that is used, what they cost together, and whether nothing is cheaper."""

    chosen: Mapping[int, Node]
    cost: float
    exact: bool


def cheapest(choices: Choices, cost: Cost, *, seconds: float = 60.0) -> Extraction:
    """Return the cheapest program in an e-graph, or the best that was found in time."""
    try:
        import highspy
    except ImportError as error:
        raise InputError(
            "an exact extraction needs HiGHS; install it with `pip install superopt[rules]`"
        ) from error
    trees = _trees(choices, cost)
    # What costs nothing by the cheapest tree is there without a question, as all that weights alone make.
    free = {made for made, (total, _) in trees.items() if total == 0.0}
    nodes = _reachable(choices, free)
    first = _used(choices, {made: node for made, (_, node) in trees.items()})
    model = _Model(highspy, nodes, free, cost)
    values = model.solved(choices.outputs, first, seconds)
    chosen = {made: trees[made][1] for made in free}
    for at, node in enumerate(nodes):
        if values[at] > 0.5:
            chosen[node.made] = node
    used = _used(choices, chosen)
    found = Extraction(used, cost_of(used.values(), cost), model.optimal)
    greedy = cost_of(first.values(), cost)
    return found if found.cost <= greedy else Extraction(first, greedy, exact=False)


class _Model:
    """The integer program: which nodes are chosen, which operators are run, and a place of each class."""

    def __init__(self, highspy: Any, nodes: Sequence[Node], free: set[int], cost: Cost) -> None:
        self._highspy = highspy
        self._nodes = nodes
        self._free = free
        self._classes = {made: at for at, made in enumerate(dict.fromkeys(node.made for node in nodes))}
        self._runs: dict[tuple[object, ...], int] = {}
        for node in nodes:
            self._runs.setdefault(_run_of(node), len(self._runs))
        self._by_class: dict[int, list[int]] = {}
        for at, node in enumerate(nodes):
            self._by_class.setdefault(node.made, []).append(at)
        self._first_run = len(nodes)
        self._first_place = len(nodes) + len(self._runs)
        self._step = 1.0 / (len(self._classes) + 1)
        self._model = _silent_solver(highspy)
        for at in range(self._first_place + len(self._classes)):
            self._model.addVar(0.0, 1.0)
            if at < self._first_run:
                self._model.changeColIntegrality(at, highspy.HighsVarType.kInteger)
        for node in nodes:
            self._model.changeColCost(self._first_run + self._runs[_run_of(node)], cost(node))
        self.optimal = False

    def _at_least(self, bound: float, terms: Mapping[int, float]) -> None:
        places = np.array(list(terms), dtype=np.int32)
        factors = np.array(list(terms.values()), dtype=float)
        self._model.addRow(bound, self._highspy.kHighsInf, len(terms), places, factors)

    def solved(self, outputs: Sequence[int], first: Mapping[int, Node], seconds: float) -> list[float]:
        """Return a value for each node, beginning from a program that is known."""
        for made in dict.fromkeys(outputs):
            if made not in self._free:
                self._at_least(1.0, dict.fromkeys(self._by_class[made], 1.0))
        circles = _circles(self._nodes)
        for at, node in enumerate(self._nodes):
            self._at_least(0.0, {self._first_run + self._runs[_run_of(node)]: 1.0, at: -1.0})
            for operand in dict.fromkeys(node.operands):
                if operand in self._free:
                    continue
                self._at_least(0.0, {**dict.fromkeys(self._by_class.get(operand, ()), 1.0), at: -1.0})
                if circles[node.made] == circles[operand]:
                    # place(made) - place(operand) >= step where the node is chosen
                    here, there = (self._first_place + self._classes[one] for one in (node.made, operand))
                    self._at_least(self._step - 2.0, {here: 1.0, there: -1.0, at: -2.0})
        model = self._model
        for name, value in (("time_limit", seconds), ("mip_rel_gap", 0.0), ("mip_abs_gap", 1e-6)):
            model.setOptionValue(name, value)
        model.setOptionValue("threads", 1)
        begin = self._highspy.HighsSolution()
        begin.col_value = self._beginning(first)
        model.setSolution(begin)
        model.run()
        self.optimal = model.getModelStatus() == self._highspy.HighsModelStatus.kOptimal
        values = list(model.getSolution().col_value)
        return values if any(values[: self._first_run]) or not self._nodes else begin.col_value

    def _beginning(self, first: Mapping[int, Node]) -> list[float]:
        """Return a program as values of all variables."""
        values = [0.0] * (self._first_place + len(self._classes))
        places: dict[int, int] = {}

        def place(made: int) -> int:
            if made not in places:
                operands = [place(one) for one in first[made].operands if one not in self._free]
                places[made] = 1 + max(operands, default=0)
            return places[made]

        for at, node in enumerate(self._nodes):
            if first.get(node.made) == node:
                values[at] = values[self._first_run + self._runs[_run_of(node)]] = 1.0
                values[self._first_place + self._classes[node.made]] = place(node.made) * self._step
        return values


def _silent_solver(highspy: Any) -> Any:
    """Return a solver that prints nothing; one that is told to be silent has printed its version before."""

    class Silent(highspy.Highs):  # type: ignore[misc]
        def enableCallbacks(self) -> None:  # noqa: N802, the first thing that a new solver does
            self.silent()
            super().enableCallbacks()

    return Silent()


def _circles(nodes: Sequence[Node]) -> dict[int, int]:
    """Return for each class the circle of classes that it lies on: each of them needs all others of it."""
    needs: dict[int, list[int]] = {}
    for node in nodes:
        needs.setdefault(node.made, []).extend(node.operands)
    order: dict[int, int] = {}
    lowest: dict[int, int] = {}
    circles: dict[int, int] = {}
    open_classes: list[int] = []
    for root in needs:
        work = [(root, iter(needs[root]))] if root not in order else []
        if work:
            order[root] = lowest[root] = len(order)
            open_classes.append(root)
        while work:
            made, operands = work[-1]
            following = next(operands, None)
            if following is None:
                work.pop()
                if work:
                    lowest[work[-1][0]] = min(lowest[work[-1][0]], lowest[made])
                if lowest[made] == order[made]:
                    while True:
                        member = open_classes.pop()
                        circles[member] = made
                        if member == made:
                            break
            elif following not in order:
                order[following] = lowest[following] = len(order)
                open_classes.append(following)
                work.append((following, iter(needs.get(following, ()))))
            elif following not in circles:
                lowest[made] = min(lowest[made], order[following])
    return circles


def cheapest_trees(choices: Choices, cost: Cost) -> Extraction:
    """Return the program of the cheapest tree of each class, as if nothing were shared."""
    best = _trees(choices, cost)
    used = _used(choices, {made: node for made, (_, node) in best.items()})
    return Extraction(used, cost_of(used.values(), cost), exact=False)


def _trees(choices: Choices, cost: Cost) -> dict[int, tuple[float, Node]]:
    """Return the cost of the cheapest tree of each class, and its first node."""
    best: dict[int, tuple[float, Node]] = {}
    changed = True
    while changed:
        changed = False
        for node in choices.nodes:
            if all(operand in best for operand in node.operands):
                total = cost(node) + sum(best[operand][0] for operand in node.operands)
                if node.made not in best or total < best[node.made][0] - 1e-12:
                    best[node.made] = total, node
                    changed = True
    return best


def cost_of(nodes: Iterable[Node], cost: Cost) -> float:
    """Return what nodes cost together; both parts of a split are one operator."""
    runs: dict[tuple[object, ...], float] = {}
    for node in nodes:
        runs[_run_of(node)] = cost(node)
    return sum(runs.values())


def made_of(choices: Choices, names: Iterable[str]) -> set[int]:
    """Return the classes that can be made of these inputs and of constants alone."""
    kept = set(names)
    inputs = (node for node in choices.nodes if node.is_input)
    found = {node.made for node in inputs if node.name in kept or constant_named(node.name) is not None}
    changed = True
    while changed:
        more = {
            node.made
            for node in choices.nodes
            if node.operands and node.made not in found and found.issuperset(node.operands)
        }
        found |= more
        changed = bool(more)
    return found


def _run_of(node: Node) -> tuple[object, ...]:
    """Return what is run for a node: the same for all parts of a result."""
    if not node.is_input and OPERATORS[node.name].results > 1:
        return node.name, node.operands, node.words
    return node.name, node.operands, node.words, node.made


def _reachable(choices: Choices, free: set[int]) -> list[Node]:
    """Return the nodes that outputs may need beside what is free; none needs its own result."""
    by_class: dict[int, list[Node]] = {}
    for node in choices.nodes:
        if node.made not in node.operands and node.made not in free:
            by_class.setdefault(node.made, []).append(node)
    found, waiting = dict[int, None](), [made for made in choices.outputs if made not in free]
    while waiting:
        made = waiting.pop()
        if made not in found:
            found[made] = None
            operands = (operand for node in by_class.get(made, []) for operand in node.operands)
            waiting += [operand for operand in operands if operand not in free]
    return [node for made in found for node in by_class.get(made, [])]


def _used(choices: Choices, chosen: Mapping[int, Node]) -> dict[int, Node]:
    """Return the chosen nodes that the outputs need."""
    found, waiting = dict[int, Node](), list(choices.outputs)
    while waiting:
        made = waiting.pop()
        if made not in found:
            found[made] = chosen[made]
            waiting += chosen[made].operands
    return found
