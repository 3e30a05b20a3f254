"""Draws: finds trials in which every root that matters is of a square.

Half of all numbers are no squares, so r roots leave one trial in 2^r. Trials are cheap as long as
only what a root is taken of is computed, and roots early in a program thin out the trials before
later ones are looked at.
"""

from collections.abc import Mapping, Sequence
from math import prod

import numpy as np
from numpy.typing import NDArray

from superopt.ir import Graph, value_axes
from superopt.verify.field import Field
from superopt.verify.interpret import interpret

__all__ = ["Roots", "elements"]

_BATCH_ELEMENTS = 1 << 20  # field elements of the largest value of one batch


def elements(graph: Graph, sizes: Mapping[str, int], values: frozenset[int] | None = None) -> int:
    """Return the size of the largest of some values, products inside contractions included."""
    axes = value_axes(graph)
    largest = 1
    for value in range(len(axes)) if values is None else values:
        step = graph.step_of(value)
        union = axes[value].union(*(axes[i] for i in step.inputs)) if step else axes[value]
        largest = max(largest, prod(sizes[axis] for axis in union))
    return largest


class Roots:
    """The roots of some graphs, those with the least work first."""

    def __init__(self, graphs: Sequence[Graph], sizes: Mapping[str, int]) -> None:
        self.sizes = sizes
        stages = {(graph, cone) for graph in graphs for cone in _cones(graph)}
        work = {(graph, cone): elements(graph, sizes, cone) for graph, cone in stages}
        self.stages = sorted(stages, key=lambda stage: (work[stage] * len(stage[1]), sorted(stage[1])))
        self.work = work
        self.least_work = min(work.values(), default=1)

    def good(self, field: Field) -> NDArray[np.int64]:
        """Return the trials in which all roots are of squares, at every level that matters."""
        alive: NDArray[np.int64] = np.arange(field.trials)
        for graph, cone in self.stages:
            batch = batch_size(self.work[graph, cone], field.levels)
            kept = []
            for start in range(0, alive.size, batch):
                trials = alive[start : start + batch]
                probe = field.take(trials)
                interpret(graph, probe, self.sizes, only=cone)
                kept.append(trials[probe.nonresidues == 0])
            alive = np.concatenate(kept) if kept else alive
        return alive


def batch_size(largest: int, levels: int) -> int:
    """Return how many trials to evaluate at once."""
    return max(1, min(4096, _BATCH_ELEMENTS // (largest * levels)))


def _cones(graph: Graph) -> list[frozenset[int]]:
    """Return for each root the values it is made from, itself included."""
    first = len(graph.inputs)
    cones = []
    for root in range(first, first + len(graph.steps)):
        if graph.steps[root - first].op not in ("sqrt", "rsqrt"):
            continue
        cone = {root}
        for value in range(root, first - 1, -1):
            if value in cone:
                cone.update(graph.steps[value - first].inputs)
        cones.append(frozenset(cone))
    return cones
