"""Through: a graph whose windows read what enters rather than what is computed from it, as far as they can.

    t2 = window[n = j - 4](w)                            t2 = contract[k](x, w)
    t3 = contract[k](x, t2)              becomes
    t4 = window[j = n + 4](t3)

A window passes each operator that makes 0 of zeros, position by position, and a window of a window is one.
A window that reads whole axes in their order is its tensor, and one that reads only the outside is 0.
Windows along several axes are one step in the end, those of each tensor in one order.
"""

from dataclasses import replace
from fractions import Fraction
from math import prod

from superopt.ir.check import check_graph
from superopt.ir.graph import Graph, Step, StepWriter, live_graph, step_axes, value_axes
from superopt.ir.windows.place import Place
from superopt.ir.windows.tables import composed
from superopt.ops import OPS

__all__ = ["windows_joined", "windows_through"]

_PRODUCTS = frozenset({"mul", "contract", "sum"})
"""Steps that windows pass if only one operand has what they read; they pass others if all operands do."""


def windows_through(graph: Graph) -> Graph:
    """Return the graph with each window as near to what enters as it can be."""
    written = _Through(graph)
    position = list(range(len(graph.inputs)))
    for step in graph.steps:
        own = step.reading(position[i] for i in step.inputs)
        found = None
        if own.op == "window":
            found = own.inputs[0]
            for place in own.places:
                found = written.window(found, place)
            if written.axes[found] != step_axes(own, (written.axes[own.inputs[0]],)):
                found = None  # a 0 has no axes
        position.append(written.add(own) if found is None else found)
    outputs = tuple(replace(one, value=position[one.value]) for one in graph.outputs)
    return check_graph(
        windows_joined(live_graph(replace(graph, steps=tuple(written.steps), outputs=outputs)))
    )


def windows_joined(graph: Graph) -> Graph:
    """Return the graph with a window of a window as one step, where they lie along different axes.

    The places of a step are in one order, which changes nothing.
    """
    written = StepWriter(value_axes(graph)[: len(graph.inputs)])
    position = list(range(len(graph.inputs)))
    for step in graph.steps:
        own = step.reading(position[i] for i in step.inputs)
        at = own.inputs[0] - len(graph.inputs) if own.op == "window" else -1
        inner = written.steps[at] if at >= 0 else None
        own = replace(own, places=tuple(sorted(own.places, key=lambda place: place.axes)))
        if inner is not None and inner.op == "window":
            places = tuple(sorted((*inner.places, *own.places), key=lambda place: place.axes))
            named = [axis for place in places for axis in place.named]
            if len(set(named)) == len(named):
                own = replace(own, inputs=inner.inputs, places=places)
        position.append(written.add(own))
    outputs = tuple(replace(one, value=position[one.value]) for one in graph.outputs)
    return live_graph(replace(graph, steps=tuple(written.steps), outputs=outputs))


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
                if self._leaves_zero("add", one) and self.axes[one] <= self.axes[other]:
                    return other
        return super().add(step)

    def window(self, value: int, place: Place) -> int:
        """Add a window of a value, or what is equal to it."""
        if self._is_whole(place) and self.axes[value].isdisjoint(
            {axis for axis, _ in place.terms} - {*place.axes}
        ):
            pairs = zip(place.axes, place.terms, strict=True)
            renamed = tuple((old, new) for old, (new, _) in pairs if old != new)
            return self.add(Step("rename", (value,), mapping=renamed)) if renamed else value
        step = None if value < self.first else self.steps[value - self.first]
        if step is not None and self._passes(step, place):
            read = frozenset(place.axes)
            return self.add(
                step.reading(self.window(i, place) if self.axes[i] & read else i for i in step.inputs)
            )
        if step is None or step.op != "window" or len(step.places) != 1:
            return self.add(Step("window", (value,), places=(place,)))
        [inner] = step.places
        both = composed(place, inner, self.sizes)
        if both is not None and self._is_outside(both):
            return self.add(Step("const", value=Fraction(0)))
        if both is not None and (self._is_whole(both) or len({*both.named}) == len(both.named)):
            return self.window(step.inputs[0], both)
        if self._are_apart(place, inner) and place.axes < inner.axes:
            return self.add(Step("window", (self.window(step.inputs[0], place),), places=(inner,)))
        return self.add(Step("window", (value,), places=(place,)))

    def _leaves_zero(self, op: str, value: int) -> bool:
        """Whether a value is a number with which an operator that keeps zero makes 0 of 0."""
        step = None if value < self.first else self.steps[value - self.first]
        if step is None or step.op != "const" or step.value is None:
            return False
        return step.value == 0 or (op == "maximum" and step.value < 0) or (op == "minimum" and step.value > 0)

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
        if step.op in _PRODUCTS:
            return whole and any(parts)
        moved = any(parts) and all(
            part or self._leaves_zero(step.op, i) for part, i in zip(parts, step.inputs, strict=True)
        )
        return whole and moved and step.op in OPS and OPS[step.op].keeps_zero

    @staticmethod
    def _are_apart(one: Place, other: Place) -> bool:
        """Whether two windows may be taken in either order: neither reads what the other makes or reads."""
        return not any(
            set(a.axes) & {*b.axes, *(axis for axis, _ in b.terms)} for a, b in ((one, other), (other, one))
        )
