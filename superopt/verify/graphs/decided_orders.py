"""Decided: comparisons and maxima that the order of real numbers decides before any number is drawn.

A field has no order. Where the ranges of two values decide a comparison or a maximum, as for a square and 0,
or where both sides differ by a constant, the outcome replaces it. A comparison of one rising function of two
values becomes a comparison of the values, and a comparison with a constant is solved for the value that is
compared. The new graph computes the same wherever the old graph is defined.
"""

from collections.abc import Sequence
from dataclasses import replace
from fractions import Fraction
from math import isqrt

from superopt.ir import (
    COMPARISONS,
    STRUCTURAL,
    Graph,
    Step,
    StepWriter,
    check_graph,
    live_graph,
    tensorless_values,
    value_axes,
)
from superopt.verify.evaluation.forms import constant_difference, linear_forms
from superopt.verify.evaluation.orders import RISING
from superopt.verify.evaluation.tensorless import constants_of
from superopt.verify.graphs.ranges import ranges_of
from superopt.verify.ranges import Range

__all__ = ["decide_orders"]

_RISING = frozenset(RISING) - {"sqrt"}  # functions that rise and take any number
_SWAPPED = {"lt": "gt", "gt": "lt", "le": "ge", "ge": "le", "eq": "eq", "ne": "ne"}


def decide_orders(graph: Graph, *, narrow: bool) -> Graph | None:
    """Return the graph with decided comparisons replaced, or None where nothing is decided."""
    rewriter = _Rewriter(graph, narrow=narrow)
    for value in range(len(graph.inputs), len(graph.inputs) + len(graph.steps)):
        rewriter.take(value)
    if not rewriter.changed:
        return None
    if not rewriter.fits:
        return None
    outputs = tuple(replace(one, value=rewriter.moved[one.value]) for one in graph.outputs)
    return check_graph(live_graph(replace(graph, steps=tuple(rewriter.written.steps), outputs=outputs)))


class _Rewriter:
    """Makes the steps of the new graph; `moved` maps old values to new values."""

    def __init__(self, graph: Graph, *, narrow: bool) -> None:
        self.graph = graph
        self.first = len(graph.inputs)
        self.tensorless = tensorless_values(graph)
        self.known = constants_of(graph, narrow)[2]
        self.ranges = ranges_of(graph, self.known)
        self.forms = linear_forms(graph, exact=True)
        self.axes = value_axes(graph)
        self.written = StepWriter(self.axes[: self.first])
        self.moved = list(range(self.first))
        self.changed = False
        self.widths_kept = True  # whether no reduction or view reads a value that lacks an axis now

    @property
    def fits(self) -> bool:
        """Whether every value that an output, a reduction or a view reads still has its axes."""
        kept = [
            self.written.axes[self.moved[one.value]] == self.axes[one.value] for one in self.graph.outputs
        ]
        return self.widths_kept and all(kept)

    def take(self, value: int) -> None:
        """Add the new form of an old value."""
        step = self.graph.step_at(value)
        made = None if self.tensorless[value] else self._decided(step)
        if made is None:
            if step.op in STRUCTURAL:
                before = frozenset[str]().union(*(self.axes[i] for i in step.inputs))
                after = frozenset[str]().union(*(self.written.axes[self.moved[i]] for i in step.inputs))
                self.widths_kept &= before == after
            made = self.written.add(step.reading(self.moved[i] for i in step.inputs))
        else:
            self.changed = True
        self.moved.append(made)

    def _decided(self, step: Step) -> int | None:
        """Return the new value of a step whose outcome the order of numbers decides, or None."""
        if step.op in COMPARISONS:
            outcome = self._outcome(step.op, *step.inputs)
            return self._compared(step.op, *step.inputs) if outcome is None else self._const(int(outcome))
        if step.op in ("maximum", "minimum"):
            return self._extremum(step)
        if step.op in ("relu", "abs"):
            sign = self.ranges[step.inputs[0]]
            if sign.not_negative:
                return self.moved[step.inputs[0]]
        return None

    def _extremum(self, step: Step) -> int | None:
        """Return the operand that is always the maximum or minimum; the other one has to be a number."""
        for one, other in (step.inputs, step.inputs[::-1]):
            outcome = self._outcome("ge" if step.op == "maximum" else "le", one, other)
            if outcome and self.ranges[other].total:
                return self.moved[one]
        return None

    def _outcome(self, op: str, one: int, other: int) -> bool | None:
        """Return the outcome that a comparison always has, or None where it depends on the inputs."""
        constant = constant_difference(self.forms[one], self.forms[other])
        if constant is not None:
            difference = Range(constant, constant)
        else:
            difference = self.ranges[one] + -self.ranges[other]
        if not difference.total:
            return None
        positive, negative = difference.positive, (-difference).positive
        zero = difference.low == difference.high == 0
        outcomes = {
            "gt": (positive, difference.high <= 0),
            "ge": (difference.low >= 0, negative),
            "lt": (negative, difference.low >= 0),
            "le": (difference.high <= 0, positive),
            "eq": (zero, positive or negative),
            "ne": (positive or negative, zero),
        }
        yes, no = outcomes[op]
        return True if yes else False if no else None

    def _compared(self, op: str, one: int, other: int) -> int | None:
        """Return a comparison of simpler values that has the same outcome, or None."""
        if one in self.known:
            op, one, other = _SWAPPED[op], other, one
        left, right = self.graph.step_of(one), self.graph.step_of(other)
        if left is None:
            return None
        if right is not None and left.op == right.op and left.op in _RISING:
            return self.written.add(Step(op, (self.moved[left.inputs[0]], self.moved[right.inputs[0]])))
        return self._solved(op, one, self.known[other]) if other in self.known else None

    def _solved(self, op: str, value: int, number: Fraction) -> int | None:
        """Return a comparison of a value with a number as a comparison of the value's operand."""
        step = self.graph.step_of(value)
        if step is None:
            return None
        operands = step.inputs
        if step.op in _RISING and RISING[step.op][1] == number:
            return self._with(op, operands[0], RISING[step.op][0])
        if step.op in ("add", "sub") and operands[1] in self.known:
            shift = self.known[operands[1]]
            return self._with(op, operands[0], number - shift if step.op == "add" else number + shift)
        if step.op == "add" and operands[0] in self.known:
            return self._with(op, operands[1], number - self.known[operands[0]])
        if step.op == "sub" and operands[0] in self.known:
            return self._with(_SWAPPED[op], operands[1], self.known[operands[0]] - number)
        if step.op == "neg":
            return self._with(_SWAPPED[op], operands[0], -number)
        squares = step.op == "square" or (step.op == "mul" and operands[0] == operands[1])
        root = _root(number) if squares and number > 0 else None
        if root is not None:
            return self._beside(op, operands[0], root)
        return self._beside(op, operands[0], number) if step.op == "abs" and number > 0 else None

    def _with(self, op: str, value: int, number: Fraction) -> int:
        """Return the comparison of an old value with a number, solved as far as possible."""
        solved = self._solved(op, value, number)
        return (
            self.written.add(Step(op, (self.moved[value], self._const(number)))) if solved is None else solved
        )

    def _beside(self, op: str, value: int, number: Fraction) -> int:
        """Return a comparison of an absolute value with a positive number as two comparisons of the value."""
        sides = self._with(op, value, number), self._with(_SWAPPED[op], value, -number)
        return self.written.add(Step("or" if op in ("gt", "ge", "eq") else "and", sides))

    def _const(self, value: Fraction | int) -> int:
        return self.written.add(Step("const", (), value=Fraction(value)))


def _root(number: Fraction) -> Fraction | None:
    """Return the square root of a positive number where it is rational."""
    parts: Sequence[int] = (isqrt(number.numerator), isqrt(number.denominator))
    found = Fraction(parts[0], parts[1])
    return found if found * found == number else None
