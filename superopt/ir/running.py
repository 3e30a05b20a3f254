"""Running: how values depend on a shift, so that a loop may use it while it still moves.

Attention takes exp(s - c) with c the maximum of s, which is known only after all of s was seen. Inside
one loop c may be the maximum so far: what was added up under the old c is multiplied by
exp(d * (c_new - c_old)), d being its degree, and after the loop everything is as if the last c had been
used throughout. The degree follows the algebra, as in `shift`, with c a variable of its own:

    s - c            c once, negative      plus -1
    exp(s - c)       exp(c) ** -1          times -1
    sum(exp(s - c))  the same              times -1
    log(that) + c    -1 + 1                does not depend on c
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import Literal

from superopt.ir.graph import POWERS, Graph, Step, value_axes

__all__ = ["Growth", "growths", "rescaled_by"]

_ZERO = Fraction(0)


@dataclass(frozen=True, slots=True)
class Growth:
    """How a value depends on a shift c: base + degree * c, or base * exp(degree * c)."""

    kind: Literal["plus", "times"]
    degree: Fraction

    @property
    def constant(self) -> bool:
        """Whether it does not depend on the shift at all."""
        return not self.degree


_CONSTANT = Growth("plus", _ZERO)


def growths(graph: Graph, shift: int) -> Mapping[int, Growth | None]:
    """Return the growth of every value that is made from a shift; None where it has no degree."""
    axes = value_axes(graph)
    found: dict[int, Growth | None] = {shift: Growth("plus", Fraction(1))}
    for value, step in graph.numbered:
        if value != shift and any(i in found for i in step.inputs):
            touched = {*step.axes, *(str(axis) for pair in step.mapping for axis in pair)}
            growth = None if touched & axes[shift] else _growth(graph, step, found)
            if growth is None or not growth.constant:
                found[value] = growth
    return found


def rescaled_by(growth: Growth | None) -> Fraction | None:
    """Return the degree by which an accumulator is rescaled; None where it cannot be."""
    if growth is None or (growth.kind == "plus" and not growth.constant):
        return None
    return growth.degree


def _growth(graph: Graph, step: Step, found: Mapping[int, Growth | None]) -> Growth | None:
    """Return how a step depends on the shift, given how its inputs do."""
    args = [found.get(i, _CONSTANT) for i in step.inputs]
    known = [arg for arg in args if arg is not None]
    if len(known) < len(args):
        return None
    plus = [_degree(arg, "plus") for arg in known]
    times = [_degree(arg, "times") for arg in known]
    match step.op:
        case "add" | "sub":
            return _combined("plus", plus, (1, 1 if step.op == "add" else -1)) or _common(known)
        case "neg":
            return Growth(known[0].kind, -known[0].degree if plus[0] is not None else known[0].degree)
        case "mul" | "div":
            return _combined("times", times, POWERS[step.op]) or _scaled(graph, step, plus)
        case "exp":
            return None if plus[0] is None else Growth("times", plus[0])
        case "log":
            return None if times[0] is None else Growth("plus", times[0])
        case "max" | "rename" | "select":
            return known[0]
        case "maximum" | "minimum":
            return _common(known)
        case "where":
            if not known[0].constant:
                return None
            return _chosen(graph, step, known)
        case op:
            return _combined("times", times, POWERS[op]) if op in POWERS else None


def _degree(growth: Growth, kind: Literal["plus", "times"]) -> Fraction | None:
    return growth.degree if growth.kind == kind or growth.constant else None


def _combined(
    kind: Literal["plus", "times"], degrees: Sequence[Fraction | None], factors: Sequence[Fraction | int]
) -> Growth | None:
    """Return the growth whose degree is a weighted sum of degrees; None where one of them is not known."""
    known = [degree for degree in degrees if degree is not None]
    if len(known) < len(degrees):
        return None
    return Growth(kind, sum((d * factor for d, factor in zip(known, factors, strict=True)), _ZERO))


def _common(growths: Sequence[Growth]) -> Growth | None:
    """Return the growth that all have: c moves them alike."""
    first = growths[0] if growths else _CONSTANT
    alike = all(one == first or (one.constant and first.constant) for one in growths)
    return first if alike else None


def _scaled(graph: Graph, step: Step, plus: Sequence[Fraction | None]) -> Growth | None:
    """Return the growth of base + d * c times, or over, a number."""
    for at, other in ((0, 1), (1, 0)) if step.op == "mul" else ((0, 1),):
        number, degree = graph.constant(step.inputs[other]), plus[at]
        if number and degree is not None:
            return Growth("plus", degree * (number if step.op == "mul" else 1 / number))
    return None


def _chosen(graph: Graph, step: Step, growths: Sequence[Growth]) -> Growth | None:
    """Return the growth of a choice between two values; what no shift changes does not count."""
    moving = [one for one in growths[1:] if not one.constant]
    kept = []
    for at, growth in enumerate(growths[1:], 1):
        made = graph.step_of(step.inputs[at])
        if made is not None and made.op == "neg":
            made = graph.step_of(made.inputs[0])
        endless = made is not None and made.op == "infinity"
        zero = made is not None and made.value == 0
        if not (endless or (zero and moving and moving[0].kind == "times")):
            kept.append(growth)
    return _common(kept)
