"""Extraction: the cheapest program in an e-graph, exactly, as an integer program that HiGHS solves.

A tensor is computed once, whoever uses it, and both parts of a split are one operator. So costs do not add
up along trees, and a greedy choice of the cheapest tree of each class misses programs that share. Each node
has a variable that says whether it is run; a class that is used has a node; and classes have an order, with
operands before results, so that no cycle makes itself.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from superopt.errors import InputError, SuperoptError
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
    nodes = _reachable(choices)
    classes = {made: at for at, made in enumerate(dict.fromkeys(node.made for node in nodes))}
    runs: dict[tuple[object, ...], int] = {}
    for node in nodes:
        runs.setdefault(_run_of(node), len(runs))
    model: Any = highspy.Highs()  # type: ignore[no-untyped-call]
    model.silent()
    model.setOptionValue("time_limit", seconds)
    model.setOptionValue("mip_rel_gap", 0.0)
    model.setOptionValue("mip_abs_gap", 1e-6)
    model.setOptionValue("threads", 1)
    # Variables: whether each node is chosen, whether each operator is run, and the place of each class.
    first_run, first_place = len(nodes), len(nodes) + len(runs)
    for at in range(first_place + len(classes)):
        model.addVar(0.0, 1.0)
        if at < first_run:
            model.changeColIntegrality(at, highspy.HighsVarType.kInteger)
    for node in nodes:
        model.changeColCost(first_run + runs[_run_of(node)], cost(node))
    by_class: dict[int, list[int]] = {}
    for at, node in enumerate(nodes):
        by_class.setdefault(node.made, []).append(at)
    step = 1.0 / (len(classes) + 1)

    def at_least(bound: float, terms: Mapping[int, float]) -> None:
        places = np.array(list(terms), dtype=np.int32)
        model.addRow(
            bound, highspy.kHighsInf, len(terms), places, np.array(list(terms.values()), dtype=float)
        )

    for made in dict.fromkeys(choices.outputs):
        at_least(1.0, dict.fromkeys(by_class[made], 1.0))
    for at, node in enumerate(nodes):
        at_least(0.0, {first_run + runs[_run_of(node)]: 1.0, at: -1.0})
        for operand in dict.fromkeys(node.operands):
            at_least(0.0, {**dict.fromkeys(by_class[operand], 1.0), at: -1.0})
            # place(made) - place(operand) >= step where the node is chosen
            here, there = first_place + classes[node.made], first_place + classes[operand]
            at_least(step - 2.0, {here: 1.0, there: -1.0, at: -2.0})
    model.run()
    solved = model.getModelStatus() == highspy.HighsModelStatus.kOptimal
    values = list(model.getSolution().col_value)
    if not values or not any(values[:first_run]):
        raise SuperoptError(
            f"HiGHS found no program in {seconds:g} s ({len(nodes)} nodes); give it more time"
        )
    chosen: dict[int, Node] = {}
    for at, node in enumerate(nodes):
        if values[at] > 0.5 and (node.made not in chosen or cost(node) < cost(chosen[node.made])):
            chosen[node.made] = node
    used = _used(choices, chosen)
    return Extraction(used, cost_of(used.values(), cost), solved)


def cheapest_trees(choices: Choices, cost: Cost) -> Extraction:
    """Return the program of the cheapest tree of each class, as if nothing were shared."""
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
    used = _used(choices, {made: node for made, (_, node) in best.items()})
    return Extraction(used, cost_of(used.values(), cost), exact=False)


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


def _reachable(choices: Choices) -> list[Node]:
    """Return the nodes that outputs may need, without those that need their own result at once."""
    by_class: dict[int, list[Node]] = {}
    for node in choices.nodes:
        if node.made not in node.operands:
            by_class.setdefault(node.made, []).append(node)
    found, waiting = dict[int, None](), list(choices.outputs)
    while waiting:
        made = waiting.pop()
        if made not in found:
            found[made] = None
            waiting += [operand for node in by_class.get(made, []) for operand in node.operands]
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
