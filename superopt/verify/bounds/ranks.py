"""Ranks: how likely maxima under a random order of all numbers show that two graphs differ.

The signs of differences are random bits, so a maximum of many numbers mostly meets an order that no real
numbers have. Under random ranks, drawn for the numbers themselves, every trial is an order: maxima commute,
associate and absorb as they should, though nothing is known of shifts and factors. What agrees for all orders
agrees for the order of the real numbers.

**The bound.** Take real inputs for which two graphs differ, and the order W of the numbers that are compared
on the way. Of several maxima of maxima only the last counts: it takes the largest of all their numbers. Let
one element of an output rest on k such choices among n numbers. A random order in which what W chooses comes
first, in the order of W, leads to the same choices, whatever the rest is like; that happens to at least one
in n^k orders. Where both outputs are such maxima themselves, the lower one of their two last choices need not
come first: the other graph then takes something else than the higher one.
"""

from dataclasses import dataclass, replace
from fractions import Fraction
from math import inf, log2, prod

import numpy as np

from superopt.dtypes import FLOATS
from superopt.ir import Graph, Step, mask_values, tensorless_values
from superopt.ops import OPS
from superopt.verify.evaluation.tiny import Tiny

__all__ = ["Choices", "rank_bits", "ranks_only"]


@dataclass(frozen=True, slots=True)
class Choices:
    """What one element rests on: finished choices, the numbers among them, and those of an unfinished one."""

    count: int = 0
    numbers: int = 0
    open: int = 0  # the numbers of a maximum that a later maximum may absorb
    negative: bool = False  # the open maximum has the other sign: it is a minimum

    def finished(self) -> "Choices":
        """Return the same with no open maximum."""
        return Choices(self.count + 1, self.numbers + self.open) if self.open else self

    def times(self, count: int) -> "Choices":
        """Return what so many elements rest on together."""
        return Choices(self.count * count, self.numbers * count, self.open * count, self.negative)


_NONE = Choices()


class _Scalars:
    """Scalars[Choices]."""

    def const(self, value: Fraction) -> Choices:
        return _NONE

    def infinity(self) -> Choices:
        return _NONE

    def neg(self, a: Choices) -> Choices:
        return replace(a, negative=not a.negative) if a.open else a

    def maximum(self, a: Choices, b: Choices) -> Choices:
        sides = [one.finished() if one.negative else one for one in (a, b)]
        numbers = sum(max(one.open, 1) for one in sides)
        return Choices(sum(one.count for one in sides), sum(one.numbers for one in sides), numbers)

    def add(self, *args: Choices) -> Choices:
        ends = [one.finished() for one in args]
        return Choices(sum(one.count for one in ends), sum(one.numbers for one in ends))

    mul = inv = exp = sqrt = less = equal = add

    def where(self, mask: Choices, a: Choices, b: Choices) -> Choices:
        """Return what the choice between two numbers rests on, where the mask is known at each place."""
        if a.open and b.open and a.negative != b.negative:
            a, b = a.finished(), b.finished()
        one = a if a.open else b
        return Choices(
            max(a.count, b.count), max(a.numbers, b.numbers), max(a.open, b.open), negative=one.negative
        )

    def function(self, name: str, *args: Choices) -> Choices:
        return self.add(*args)


def ranks_only(*graphs: Graph) -> bool:
    """Return whether graphs have maxima, and nothing else that looks at numbers which are not known."""
    compares = False
    for graph in graphs:
        tensorless = tensorless_values(graph)
        for at, step in graph.numbered:
            if step.op in OPS and OPS[step.op].mask and not tensorless[at]:
                return False
            compares |= step.op == "max" or (step.op in OPS and _maxima(step) > 0)
    return compares and all(port.dtype in FLOATS for graph in graphs for port in graph.inputs)


def rank_bits(a: Graph, b: Graph, tiny: Tiny) -> tuple[float, int]:
    """Return the most bits of luck that one trial needs to show a difference, and among how many numbers."""
    bits, most = 0.0, 1
    if any(_compares(graph, tiny) for graph in (a, b)):
        return inf, most
    for one, other in zip(_Choices(a, tiny).outputs(), _Choices(b, tiny).outputs(), strict=True):
        ends = one.finished(), other.finished()
        count, numbers = (sum(getattr(end, name) for end in ends) for name in ("count", "numbers"))
        if one.open and other.open and one.negative == other.negative:
            count -= 1
        bits = max(bits, count * log2(max(numbers, 1)))
        most = max(most, numbers)
    return bits, most


def _compares(graph: Graph, tiny: Tiny) -> bool:
    """Return whether a comparison is made whose outcome is not known."""
    numbers = tiny.known_numbers(graph)
    steps = graph.numbered
    return any(step.op in OPS and OPS[step.op].mask and numbers[at] is None for at, step in steps)


class _Choices:
    """What one element of each value of a graph rests on."""

    def __init__(self, graph: Graph, tiny: Tiny) -> None:
        self.graph, self.tiny = graph, tiny
        self.masks, self.numbers = mask_values(graph), tiny.known_numbers(graph)
        self.order = {axis.name: at for at, axis in enumerate(graph.axes)}

    def outputs(self) -> list[Choices]:
        values = [_NONE] * len(self.graph.inputs)
        for step in self.graph.steps:
            known = self.numbers[len(values)] is not None
            values.append(_NONE if known else self._step(step, [values[i] for i in step.inputs]))
        return [values[output.value] for output in self.graph.outputs]

    def _step(self, step: Step, args: list[Choices]) -> Choices:
        scalars = _Scalars()
        if step.op in OPS:
            made: Choices = OPS[step.op].scalar(scalars, *args)
            return made
        extent = prod(self.tiny.sizes[axis] for axis in step.axes)
        match step.op:
            case "contract" if self._picks(step):
                return scalars.where(_NONE, *args)
            case "sum" | "contract":
                return scalars.add(*args).times(extent)
            case "max":
                arg = args[0].finished() if args[0].negative else args[0]
                return replace(arg, open=max(arg.open, 1)).times(extent)
            case "rename" | "select":
                return args[0]
        return _NONE

    def _picks(self, step: Step) -> bool:
        """Return whether a contraction takes one place at most of what it sums over, by a known mask."""
        if any(self.tiny.extents.get(axis) != self.tiny.sizes[axis] for axis in step.axes):
            return False
        dims = tuple(2 + self.order[axis] for axis in step.axes)
        return any(
            isinstance(mask, np.ndarray)
            and self.masks[at]
            and all(
                mask.shape[dim] == self.tiny.sizes[axis] for dim, axis in zip(dims, step.axes, strict=True)
            )
            and bool(((mask != 0).sum(axis=dims) <= 1).all())
            for at, mask in ((at, self.numbers[at]) for at in step.inputs)
        )


def _maxima(step: Step) -> int:
    """Return among how many numbers a step chooses."""
    made: Choices = OPS[step.op].scalar(_Scalars(), *[_NONE] * OPS[step.op].arity)
    return made.finished().count
