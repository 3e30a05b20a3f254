"""Through: a graph whose windows read what enters rather than what is computed from it, as far as they can.

    t2 = window[n = j - 4](w)                            t2 = contract[k](x, w)
    t3 = contract[k](x, t2)              becomes
    t4 = window[j = n + 4](t3)

A window passes each operator that makes 0 of zeros, position by position, and a window of a window is one.
A window that reads whole axes in their order is its tensor, and one that reads only the outside is 0.
"""

from dataclasses import replace
from fractions import Fraction
from math import prod

from superopt.ir.check import check_graph
from superopt.ir.graph import Graph, Step, StepWriter, live_graph, step_axes, value_axes
from superopt.ir.windows.place import Place, reads_outside

__all__ = ["windows_through"]

_SUMS = frozenset({"add", "sub"})
_PASSED = _SUMS | {"mul", "neg", "contract", "sum"}


def windows_through(graph: Graph) -> Graph:
    """Return the graph with each window as near to what enters as it can be."""
    written = _Through(graph)
    position = list(range(len(graph.inputs)))
    for step in graph.steps:
        own = step.reading(position[i] for i in step.inputs)
        found = None
        if own.op == "window" and len(own.places) == 1:
            found = written.window(own.inputs[0], own.places[0])
            if written.axes[found] != step_axes(own, (written.axes[own.inputs[0]],)):
                found = None  # a 0 has no axes
        position.append(written.add(own) if found is None else found)
    outputs = tuple(replace(one, value=position[one.value]) for one in graph.outputs)
    return check_graph(live_graph(replace(graph, steps=tuple(written.steps), outputs=outputs)))


class _Through(StepWriter):
    """Writes windows as near to what enters as they can be."""

    def __init__(self, graph: Graph) -> None:
        self.sizes = graph.sizes
        self.first = len(graph.inputs)
        super().__init__(value_axes(graph)[: self.first])

    def add(self, step: Step) -> int:
        """Add a step, unless it is known, or adds 0 to what has all of its axes."""
        if step.op == "add":
            for one, other in (step.inputs, step.inputs[::-1]):
                if self._is_zero(one) and self.axes[one] <= self.axes[other]:
                    return other
        return super().add(step)

    def window(self, value: int, place: Place) -> int:
        """Add a window of a value, or what is equal to it."""
        if self._is_whole(place):
            pairs = zip(place.axes, place.terms, strict=True)
            renamed = tuple((old, new) for old, (new, _) in pairs if old != new)
            return self.add(Step("rename", (value,), mapping=renamed)) if renamed else value
        step = None if value < self.first else self.steps[value - self.first]
        if step is not None and step.op in _PASSED and self._passes(step, place):
            read = frozenset(place.axes)
            return self.add(
                step.reading(self.window(i, place) if self.axes[i] & read else i for i in step.inputs)
            )
        both = None if step is None or step.op != "window" else self._composed(step, place)
        if step is None or both is None:
            return self.add(Step("window", (value,), places=(place,)))
        if self._is_outside(both):
            return self.add(Step("const", value=Fraction(0)))
        return self.window(step.inputs[0], both)

    def _is_zero(self, value: int) -> bool:
        return value >= self.first and self.steps[value - self.first].value == 0

    def _is_whole(self, place: Place) -> bool:
        """Whether a window reads each position of its axes once, in their order."""
        inner = [prod(self.sizes[axis] for axis in place.axes[at + 1 :]) for at in range(len(place.axes))]
        return (
            not place.offset
            and [factor for _, factor in place.terms] == inner
            and [self.sizes[axis] for axis, _ in place.terms] == [self.sizes[axis] for axis in place.axes]
        )

    def _is_outside(self, place: Place) -> bool:
        """Whether a window reads nothing but the outside."""
        ends = [factor * (self.sizes[axis] - 1) for axis, factor in place.terms]
        low, high = (place.offset + sum(pick(end, 0) for end in ends) for pick in (min, max))
        return high < 0 or low >= prod(self.sizes[axis] for axis in place.axes)

    def _passes(self, step: Step, place: Place) -> bool:
        """Whether a window of a step's value is the step of windows: its value is 0 where they are."""
        read, made = frozenset(place.axes), frozenset(axis for axis, _ in place.terms)
        parts = [self.axes[i] & read for i in step.inputs]
        whole = all(part in (read, frozenset()) for part in parts) and made.isdisjoint(step.axes)
        return whole and (step.op not in _SUMS or all(parts))

    def _composed(self, step: Step, place: Place) -> Place | None:
        """Return a window of a window as one, or None where it is not one."""
        if len(step.places) != 1 or len(place.axes) != 1 or reads_outside(place, self.sizes):
            return None
        [inner], [axis] = step.places, place.axes
        factors = dict(inner.terms)
        if axis not in factors:
            return None
        factor = factors.pop(axis)
        terms = (*factors.items(), *((name, factor * by) for name, by in place.terms))
        both = Place(inner.axes, terms, inner.offset + factor * place.offset)
        distinct = len({name for name, _ in terms}) == len(terms)
        others = self.axes[step.inputs[0]] - frozenset(inner.axes)
        apart = (
            self._is_whole(both)
            or self._is_outside(both)
            or others.union(inner.axes).isdisjoint(name for name, _ in terms)
        )
        return both if distinct and apart else None
