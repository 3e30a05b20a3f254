"""Masks: values that are always 0 or 1. A product with a mask selects: a 0 hides even an infinity."""

from collections.abc import Sequence

from superopt.ir.graph import Graph, Step, kept_by_identity
from superopt.ops import OPS

__all__ = ["is_mask", "mask_values", "selects"]


def is_mask(step: Step, operands: Sequence[bool]) -> bool:
    """Return whether a step makes a mask, given which of its operands are masks."""
    if step.op == "const":
        return step.value in (0, 1)
    if step.op in ("rename", "select", "window", "max"):
        return operands[0]
    return step.op in OPS and OPS[step.op].makes_mask(operands)


@kept_by_identity
def mask_values(graph: Graph) -> tuple[bool, ...]:
    """Return for each value whether it is a mask."""
    masks = [port.dtype == "bool" for port in graph.inputs]
    for step in graph.steps:
        masks.append(is_mask(step, [masks[i] for i in step.inputs]))
    return tuple(masks)


def selects(graph: Graph, step: Step) -> bool:
    """Return whether a product, or each product of a contraction, is of a mask and another value."""
    masks = mask_values(graph)
    return step.op in ("mul", "contract") and masks[step.inputs[0]] != masks[step.inputs[1]]
