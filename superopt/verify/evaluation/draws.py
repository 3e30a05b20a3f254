"""Draws: finds trials in which every root and every logarithm that matters is of a square.

Half of all numbers are no squares, so r roots leave one trial in 2^r. A trial is cheap while only the
operands of roots are computed, and the first roots of a program rule out most trials before later roots
are computed.

Where a condition leaves a root out, so that a program goes on without it, these trials show less than all: of
`where(x < 0, 5, sqrt(x))` they show the root alone. So what they leave unseen is looked for, and nothing is
proven then.
"""

from collections.abc import Mapping, Sequence
from math import prod

import numpy as np
from numpy.typing import NDArray

from superopt.ir import Graph, tensorless_values, value_axes
from superopt.ops import OPS
from superopt.verify.evaluation.counts import CHOICES, chooses
from superopt.verify.evaluation.interpret import interpret
from superopt.verify.evaluation.levels import LOGARITHMS, demanded_levels
from superopt.verify.field.arithmetic import Field
from superopt.verify.field.residues import UNDEFINED

__all__ = ["Roots", "elements"]

_ROOTS = frozenset({"sqrt", "rsqrt"}) | LOGARITHMS
_LOOKED_AT = 512  # trials for outcomes that the good ones do not show
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
        self._choices = (
            {graph: _choices_of(graph) for graph in graphs} if any(map(_leaves_out, graphs)) else {}
        )
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

    def outcomes(self, field: Field, trials: NDArray[np.int64]) -> set[tuple[int, int, bool]]:
        """Return how choices turn out in some trials, where a condition may leave a root out."""
        if not trials.size:
            return set()
        return {
            (at, *outcome)
            for at, (graph, choices) in enumerate(self._choices.items())
            for outcome in self._outcomes_of(graph, choices, field, trials)
        }

    def _outcomes_of(
        self, graph: Graph, choices: Sequence[int], field: Field, trials: NDArray[np.int64]
    ) -> set[tuple[int, bool]]:
        found = set[tuple[int, bool]]()
        batch = min(_LOOKED_AT, batch_size(elements(graph, self.sizes), field.levels))
        cone = _cone(graph, choices)
        values = interpret(graph, field.take(trials[:batch]), self.sizes, only=cone)
        for place in choices:
            step = graph.step_at(place)
            made, first = values[place][0], values[step.inputs[0]][0]
            turned = made == first if step.op in CHOICES else made != 0
            defined = (made < UNDEFINED) & np.broadcast_to(first < UNDEFINED, made.shape)
            found |= {(place, bool(one)) for one in np.unique(np.broadcast_to(turned, made.shape)[defined])}
        return found


def _choices_of(graph: Graph) -> list[int]:
    """Return the comparisons and choices of what tensors hold."""
    tensorless = tensorless_values(graph)
    return [place for place, step in graph.numbered if not tensorless[place] and chooses(step)]


def _leaves_out(graph: Graph) -> bool:
    """Whether a condition may leave a root or a logarithm out."""
    roots = {place for place, step in graph.numbered if step.op in _ROOTS}
    made = {place for place, step in graph.numbered if step.op in OPS and OPS[step.op].mask}
    made |= {place for place, port in enumerate(graph.inputs) if port.dtype == "bool"}
    for place, step in graph.numbered:  # what is moved or cut out of a mask is one
        if step.op in ("rename", "select") and step.inputs[0] in made:
            made.add(place)
    return any(
        (step.op in ("where", "guard") or (step.op in ("mul", "contract") and made & set(step.inputs)))
        and roots & _cone(graph, step.inputs)
        for _, step in graph.numbered
    )


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
        cones.append((root, _cone(graph, [root])))
    return cones


def _cone(graph: Graph, values: Sequence[int]) -> frozenset[int]:
    """Return some values with all that they are made from."""
    cone = set(values)
    for value in range(max(cone, default=0), len(graph.inputs) - 1, -1):
        if value in cone:
            cone.update(graph.step_at(value).inputs)
    return frozenset(cone)
