"""Judge: which of the differences that a trial shows could be differences of real numbers.

An element of an output rests on some comparisons. If they, as the trial has them, could not all be true of
real numbers (`evaluation/orders.py`), a difference there says nothing. Other comparisons of the trial do not
matter: the bound counts the outcomes that one element rests on, so no more than those may dismiss it. Of an
output with many elements only some are looked at, drawn at random for each trial, and the bound counts that.
"""

from math import inf, log2, prod

import numpy as np
from numpy.typing import NDArray

from superopt.ir import Output
from superopt.verify.evaluation.draws import elements
from superopt.verify.evaluation.interpret import interpret
from superopt.verify.evaluation.needs import MOST_NEEDED, needed_elements
from superopt.verify.evaluation.orders import RISING, Orders, nonnegative_values
from superopt.verify.evaluation.tiny import Tiny
from superopt.verify.field.arithmetic import Field
from superopt.verify.field.residues import Residues, fold, mix
from superopt.verify.graphs.facts import Facts

__all__ = ["Judge"]

_LOOKED_AT = 16  # elements of an output that are looked at in each trial
_AT_ONCE = 1 << 21  # elements that these may rest on, in all trials together
_Needs = dict[int, list[NDArray[np.bool_] | None] | None]


class Judge:
    """Decides for differences whether the comparisons that they rest on are possible for real numbers."""

    def __init__(self, facts: Facts, tiny: Tiny) -> None:
        self.graphs = facts.graphs
        self.tiny = tiny
        self.counts = [self._count(output) for output in self.graphs[0].outputs]
        self._largest = max(elements(graph, tiny.sizes) for graph in self.graphs)
        self._needs: list[_Needs] = []

    def _count(self, output: Output) -> int:
        real = self.graphs[0].sizes
        return prod(self.tiny.sizes[axis] for axis in output.port.axes if real[axis] != 1)

    @property
    def bits(self) -> float:
        """The bits of luck that it takes to look at an element that differs; infinite if it is too large."""
        if any(count * self._largest > MOST_NEEDED for count in self.counts):
            return inf
        return max((log2(max(count / _LOOKED_AT, 1)) for count in self.counts), default=0.0)

    @property
    def at_once(self) -> int:
        """The number of trials that surely can be judged together; mostly many more can."""
        return max(1, _AT_ONCE // (self._largest * sum(min(count, _LOOKED_AT) for count in self.counts) or 1))

    def possible(self, drawn: Field, differ: list[NDArray[np.bool_]]) -> list[NDArray[np.bool_]]:
        """Return which of the given differences are possible."""
        drawn.comparisons = []
        values = [
            interpret(graph, drawn, self.tiny.sizes, numbers=self.tiny.known_numbers(graph))
            for graph in self.graphs
        ]
        rising = [
            (step.op, _spread(made[step.inputs[0]], drawn), _spread(made[at], drawn))
            for graph, made in zip(self.graphs, values, strict=True)
            for at, step in graph.numbered
            if step.op in RISING
        ]
        needs_of = self.needs(values)
        found = []
        for at, where in enumerate(differ):
            flat = where.reshape(drawn.trials, -1) & self._looked_at(drawn, at, where[0].size)
            trials, among = np.nonzero(flat)
            orders = Orders(drawn, trials)
            needs = needs_of[at]
            for made in drawn.comparisons:
                assert made.site is not None
                parts = _parts(needs, *made.site, among)
                if parts is not None:
                    orders.compare(made, parts)
            orders.bound(self._nonnegative(values, drawn, needs, among))
            orders.add_constants()
            orders.rise(rising)
            flat[trials, among] = orders.possible()
            found.append(flat.reshape(where.shape))
        return found

    def _nonnegative(
        self, values: list[list[Residues]], drawn: Field, needs: _Needs, among: NDArray[np.intp]
    ) -> list[tuple[Residues, NDArray[np.bool_]]]:
        """Return the values that are never negative, with the parts of them that some elements rest on."""
        found = []
        for graph, made in zip(self.graphs, values, strict=True):
            for at, sure in enumerate(nonnegative_values(graph)):
                parts = _parts(needs, id(graph), at, among) if sure else None
                if parts is not None:
                    found.append((_spread(made[at], drawn), parts))
        return found

    def _looked_at(self, drawn: Field, output: int, count: int) -> NDArray[np.bool_]:
        """Return which elements of an output are looked at in each trial."""
        if count <= _LOOKED_AT:
            return np.ones((1, count), dtype=np.bool_)
        seeds = mix(drawn.source.seeds ^ fold(f"looked at {output}"))
        places: NDArray[np.uint64] = np.arange(count, dtype=np.uint64)
        words = mix(seeds[:, None] + places)
        return words <= np.partition(words, _LOOKED_AT - 1, axis=1)[:, _LOOKED_AT - 1 : _LOOKED_AT]

    def needs(self, values: list[list[Residues]]) -> list[_Needs]:
        """Return for each output, and each graph by its identity, what its elements rest on."""
        if not self._needs:
            self._needs = self._all_needs(values)
        return self._needs

    def _all_needs(self, values: list[list[Residues]]) -> list[_Needs]:
        found: list[_Needs] = [{} for _ in self.counts]
        for graph, made in zip(self.graphs, values, strict=True):
            shapes = [one.shape[2:] for one in made]
            for at, output in enumerate(graph.outputs):
                found[at][id(graph)] = needed_elements(graph, output, shapes, self.tiny)
        return found


def _parts(needs: _Needs, graph: int, value: int, among: NDArray[np.intp]) -> NDArray[np.bool_] | None:
    """Return what each of some elements rests on of a value; None stands for nothing."""
    needed = needs[graph]
    if needed is None:  # too large to follow: the output rests on all elements
        return np.ones(1, dtype=np.bool_)
    own = needed[value]
    return None if own is None else own[among]


def _spread(value: Residues, drawn: Field) -> Residues:
    return np.broadcast_to(value, (drawn.levels, drawn.trials, *value.shape[2:]))
