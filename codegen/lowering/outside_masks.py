"""Outside masks: where the masks of a program do not hold, some values are 0, and some minus infinity.

    m = ge(index[s], index[t])
    a = mul(m, x)               0 where m is 0, whatever x is: a product with a mask selects
    b = mul(a, y)               0 where m is 0, but NaN where y is infinite
    c = where(m, x, -infinity)  minus infinity where m is 0
    d = exp(c)                  0 where m is 0

A sum over b may leave out where m is 0: if that makes a number of NaN, PyTorch's sum is NaN, and then nothing
is asked of a kernel. But b is not mul(m, b), which PyTorch makes 0 of NaN.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from superopt.ir import REDUCTIONS, Graph, Step, mask_values, value_axes
from superopt.ops import OPS

__all__ = ["Outside", "outside_masks"]

_NONE = frozenset[int]()


@dataclass(frozen=True, slots=True)
class Outside:
    """What a value is outside some masks, each of which compares numbers."""

    zero: frozenset[int] = _NONE  # masks outside which it is 0
    vanishing: frozenset[int] = _NONE  # masks outside which it is 0 of numbers, and perhaps NaN of others
    lowest: frozenset[int] = _NONE  # masks outside which it is minus infinity


def outside_masks(
    graph: Graph, steps: Sequence[tuple[int, Step]], *, partial: bool = False
) -> dict[int, Outside]:
    """Return what each value is outside the masks that these steps make.

    Of a reduction nothing is known outside a mask along the reduced axes, which it no longer has. With
    `partial`, a reduction is only what one place along these axes adds to it, of which that is known.
    """
    masks, axes, known = mask_values(graph), value_axes(graph), dict[int, Outside]()
    for value, step in steps:
        operands = [known.get(i, Outside()) for i in step.inputs]
        zero = _zero(graph, step, operands)
        vanishing = zero if masks[value] else zero | _vanishing(graph, step, operands)
        if step.op in ("ge", "gt", "le", "lt"):
            zero, vanishing = zero | {value}, vanishing | {value}
        found = zero, vanishing, _lowest(graph, step, operands)
        if step.op in REDUCTIONS and not partial:
            kept = (frozenset(mask for mask in one if axes[mask].isdisjoint(step.axes)) for one in found)
            known[value] = Outside(*kept)
        else:
            known[value] = Outside(*found)
    return known


def _zero(graph: Graph, step: Step, operands: Sequence[Outside]) -> frozenset[int]:
    """Return the masks outside which a step makes 0, of any numbers."""
    inputs, zeros = step.inputs, [one.zero for one in operands]
    if _multiplies(step.op):
        masks, found = mask_values(graph), zeros[0] & zeros[1]
        for own, other in ((0, 1), (1, 0)):
            if masks[inputs[own]] or masks[inputs[other]] or _is_finite(graph, inputs[other]):
                found |= zeros[own]
        return found
    if step.op == "sum" or (step.op == "div" and graph.constant(inputs[1])):
        return zeros[0]
    if step.op == "where" and graph.constant(inputs[2]) == 0:
        return zeros[0] | zeros[1]
    if step.op in ("exp", "exp2"):
        return operands[0].lowest
    return _where_all(step, zeros)


def _vanishing(graph: Graph, step: Step, operands: Sequence[Outside]) -> frozenset[int]:
    """Return the masks outside which a step makes 0 of numbers, and perhaps NaN of others."""
    found = [one.vanishing for one in operands]
    if _multiplies(step.op):
        return found[0] | found[1]
    if step.op in ("div", "sum"):
        return found[0]
    if step.op == "where" and graph.constant(step.inputs[2]) == 0:
        return found[0] | found[1]
    return _where_all(step, found)


def _lowest(graph: Graph, step: Step, operands: Sequence[Outside]) -> frozenset[int]:
    """Return the masks outside which a step makes minus infinity."""
    lowest = [one.lowest for one in operands]
    match step.op:
        case "where" if _is_minus_infinity(graph, step.inputs[2]):
            return operands[0].zero | lowest[1]
        case "max":
            return lowest[0]
        case "sub" if _is_bounded(graph, step.inputs[1]):
            return lowest[0]
        case "maximum":
            return lowest[0] & lowest[1]
        case "mul":
            return lowest[0] if (graph.constant(step.inputs[1]) or 0) > 0 else _NONE
        case _:
            return _NONE


def _multiplies(op: str) -> bool:
    return op == "contract" or (op in OPS and OPS[op].absorbs_zero)


def _where_all(step: Step, found: Sequence[frozenset[int]]) -> frozenset[int]:
    """Return the masks of all operands, where a step makes 0 of zeros."""
    keeps = step.op in OPS and OPS[step.op].keeps_zero
    return found[0].intersection(*found) if keeps else _NONE


def _is_finite(graph: Graph, value: int) -> bool:
    """Return whether a value is finite, as no data is in it."""
    step = graph.step_of(value)
    return step is not None and (step.value is not None or step.op in ("index", "size"))


def _is_minus_infinity(graph: Graph, value: int) -> bool:
    step = graph.step_of(value)
    inner = graph.step_of(step.inputs[0]) if step is not None and step.op == "neg" else None
    return inner is not None and inner.op == "infinity"


def _is_bounded(graph: Graph, value: int) -> bool:
    """Return whether a value is never minus infinity: a number, or at least one."""
    step = graph.step_of(value)
    if step is None or step.value is not None:
        return step is not None
    return step.op == "maximum" and any(_is_bounded(graph, i) for i in step.inputs)
