"""Draws: finds trials in which every root and every logarithm that matters is of a square.

Half of all numbers are no squares, so r roots leave one trial in 2^r. A trial is cheap while only the
operands of roots are computed, and the first roots of a program rule out most trials before later roots
are computed.
"""

from collections.abc import Mapping, Sequence
from math import prod

import numpy as np
from numpy.typing import NDArray

from superopt.ir import Graph, tensorless_values, value_axes
from superopt.verify.evaluation.interpret import interpret
from superopt.verify.evaluation.levels import LOGARITHMS, demanded_levels
from superopt.verify.field.arithmetic import Field
from superopt.verify.field.residues import UNDEFINED

__all__ = ["Roots", "elements"]

_ROOTS = frozenset({"sqrt", "rsqrt"}) | LOGARITHMS
_BATCH_ELEMENTS = 1 << 20  # field elements of the largest value of one batch


def elements(graph: Graph, sizes: Mapping[str, int], values: frozenset[int] | None = None) -> int:
    """Return the size of the largest of some values, products inside contractions included.

    A contraction with a mask of one place makes no product.
    """
    axes, tensorless = value_axes(graph), tensorless_values(graph)
    largest = 1
    for value in range(len(axes)) if values is None else values:
        step = graph.step_of(value)
        union = axes[value].union(*(axes[i] for i in step.inputs)) if step else axes[value]
        if step is not None and step.op == "contract":
            made = [graph.step_of(i) for i in step.inputs if tensorless[i]]
            if any(one is not None and one.op == "eq" for one in made):
                union -= set(step.axes)
        largest = max(largest, prod(sizes[axis] for axis in union))
    return largest


class Roots:
    """The roots and logarithms of some graphs; those that take the least work come first."""

    def __init__(self, graphs: Sequence[Graph], sizes: Mapping[str, int], levels: int) -> None:
        self.sizes = sizes
        self.demanded = {graph: demanded_levels(graph, levels) for graph in graphs}
        stages = {(graph, root, cone) for graph in graphs for root, cone in _cones(graph)}
        work = {stage: elements(stage[0], sizes, stage[2]) for stage in stages}
        self.stages = sorted(stages, key=lambda stage: (work[stage] * len(stage[2]), stage[1]))
        self.work = work
        self.least_work = min(work.values(), default=1)

    def good(self, field: Field) -> NDArray[np.int64]:
        """Return the trials in which all roots are of squares, at every level that matters."""
        alive: NDArray[np.int64] = np.arange(field.trials)
        for stage in self.stages:
            graph, root, cone = stage
            batch = batch_size(self.work[stage], field.levels)
            kept = []
            for start in range(0, alive.size, batch):
                trials = alive[start : start + batch]
                made = interpret(graph, field.take(trials), self.sizes, only=cone)[root]
                bad = np.zeros(len(trials), dtype=np.bool_)
                for level in self.demanded[graph][root]:
                    undefined = made[level] >= UNDEFINED
                    bad |= undefined.any(axis=tuple(range(1, undefined.ndim)))
                kept.append(trials[~bad])
            alive = np.concatenate(kept) if kept else alive
        return alive


def batch_size(largest: int, levels: int) -> int:
    """Return how many trials to evaluate at once."""
    return max(1, min(4096, _BATCH_ELEMENTS // (largest * levels)))


def _cones(graph: Graph) -> list[tuple[int, frozenset[int]]]:
    """Return each root and logarithm with the values it is made from, itself included."""
    first = len(graph.inputs)
    cones = []
    for root in range(first, first + len(graph.steps)):
        if graph.step_at(root).op not in _ROOTS:
            continue
        cone = {root}
        for value in range(root, first - 1, -1):
            if value in cone:
                cone.update(graph.step_at(value).inputs)
        cones.append((root, frozenset(cone)))
    return cones
