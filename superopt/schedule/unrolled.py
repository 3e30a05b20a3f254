"""Unrolled: a graph with a short axis taken apart, so that what its positions choose is known.

    t3 = mul(eq(index[d](), 0), a)                        t3 = select[d=0](x)
    t4 = mul(eq(index[d](), 1), b)        becomes         t4 = select[d=1](x)
    t5 = contract[k, d](x, add(t3, t4))                   t5 = add(contract[k](t3, a), contract[k](t4, b))

So are tensors read that lie one within another, as the numbers of few bits that share a byte. Kernels of such
a graph serve no other size of the axis.
"""

from collections.abc import Sequence
from dataclasses import replace
from fractions import Fraction

from superopt.errors import GraphError
from superopt.ir import Graph, Step, StepWriter, check_graph, live_graph, value_axes

__all__ = ["unrolled"]

_SHORT = 4  # positions of an axis that is taken apart
_JOINING = {"sum": "add", "contract": "add", "max": "maximum"}


def unrolled(graph: Graph) -> Graph | None:
    """Return a graph without the short axes whose positions it asks for, or None where there are none."""
    found = None
    for axis in [one.name for one in graph.axes if 1 < one.size <= _SHORT]:
        current = found or graph
        if _can_go(current, axis):
            try:
                made = _Unrolled(current, axis).made()
            except GraphError:  # a part of it has no tensor left
                continue
            if _reads_whole(made, axis):
                found = made
    return found


def _can_go(graph: Graph, axis: str) -> bool:
    """Whether some step asks for the position along an axis, and nothing that leaves has the axis."""
    axes = value_axes(graph)
    asked = any(step.op == "index" and step.axes == (axis,) for step in graph.steps)
    named = any(axis in dict(step.mapping) or axis in dict(step.mapping).values() for step in graph.steps)
    placed = any(axis in place.named for step in graph.steps for place in step.places)
    leaves = any(axis in axes[one.value] or axis in one.port.axes for one in graph.outputs)
    return asked and not (named or placed or leaves)


def _reads_whole(graph: Graph, axis: str) -> bool:
    """Whether all positions of an axis are read of tensors that calls bring, which fixes its size."""
    brought = [at for at, port in enumerate(graph.inputs) if axis in port.axes and not port.constant]
    selects = [step for step in graph.steps if step.op == "select" and step.inputs[0] in brought]
    places = {dict(step.mapping).get(axis) for step in selects}
    return not brought or places.issuperset(range(graph.sizes[axis]))


class _Unrolled:
    """A graph that is written anew, each value once for each position of an axis that it depends on."""

    def __init__(self, graph: Graph, axis: str) -> None:
        self.graph, self.axis = graph, axis
        self.count = graph.sizes[axis]
        self.first = len(graph.inputs)
        self.written = StepWriter(value_axes(graph)[: self.first])

    def made(self) -> Graph:
        """Return the graph."""
        versions: list[list[int]] = []
        for value, port in enumerate(self.graph.inputs):
            apart = range(self.count) if self.axis in port.axes else ()
            picks = [self._emit(Step("select", (value,), mapping=((self.axis, at),))) for at in apart]
            versions.append(picks or [value])
        for step in self.graph.steps:
            versions.append(self._step(step, [versions[i] for i in step.inputs]))
        outputs = tuple(replace(one, value=versions[one.value][0]) for one in self.graph.outputs)
        return check_graph(live_graph(replace(self.graph, steps=tuple(self.written.steps), outputs=outputs)))

    def _step(self, step: Step, inputs: Sequence[Sequence[int]]) -> list[int]:
        """Emit a step at each position; one value stands for all where they are the same."""
        if step.op == "index" and step.axes == (self.axis,):
            return [self._constant(Fraction(at)) for at in range(self.count)]
        apart = any(len(one) > 1 for one in inputs)
        reduced = self.axis in step.axes and step.op in _JOINING
        if not apart and not reduced:
            return [self._emit(step.reading(one[0] for one in inputs))]
        rest = replace(step, axes=tuple(axis for axis in step.axes if axis != self.axis))
        parts = [self._part(rest, [one[at % len(one)] for one in inputs]) for at in range(self.count)]
        if not reduced:
            return parts
        whole = parts[0]
        for part in parts[1:]:
            whole = self._emit(Step(_JOINING[step.op], (whole, part)))
        return [whole]

    def _part(self, step: Step, inputs: Sequence[int]) -> int:
        if step.op in _JOINING and not step.axes:
            return self._emit(Step("mul", tuple(inputs))) if step.op == "contract" else inputs[0]
        return self._emit(step.reading(inputs))

    def _constant(self, number: Fraction) -> int:
        return self._emit(Step("const", value=number))

    def _number(self, value: int) -> Fraction | None:
        return None if value < self.first else self.written.steps[value - self.first].value

    def _emit(self, step: Step) -> int:
        """Add a step, or return what is equal to it where some operands are numbers."""
        numbers = [self._number(one) for one in step.inputs]
        if step.op == "eq" and None not in numbers:
            return self._constant(Fraction(numbers[0] == numbers[1]))
        if step.op in ("add", "mul", "and", "or"):
            neutral = Fraction(step.op in ("mul", "and"))
            for one, other in (step.inputs, step.inputs[::-1]):
                if self._number(one) == neutral:
                    return other
                if self._number(one) == 0 and step.op in ("mul", "and"):
                    return one
        return self.written.add(step)
