"""Skipped: the positions of the chunks' axis that no result depends on, as those of labels that are ignored.

keep   = label != -100                     [m]      a mask that a chunk makes of what enters along its axis
loss   = sum[m](keep * ...)                []
grad   = softmax(logits) * sum(keep * ...) [m, n]   where it is 0, so is all that leaves

Such positions need no chunk: their part of each sum is 0, and so are their rows of what leaves. In a batch of
sentences m is one axis that stands for sentences and words (`joined.py`).
"""

from collections.abc import Sequence
from math import prod

import torch

from superopt.backend.joint.chunks.tiling import Tiling, part_of
from superopt.ir import REDUCTIONS, Graph, Output, Port, Step, mask_values, value_axes
from superopt.ops import OPS
from superopt.trace.run import Evaluation, Value

__all__ = ["counted_positions"]

_COUNTED = "counted"
"""The name of the mask of positions that count."""

_ELEMENTS = 1 << 20  # the most of a value that is worked out here

_ZERO = Value(torch.zeros((), dtype=torch.float64), (), mask=True)
_ONE = Value(torch.ones((), dtype=torch.float64), (), mask=True)

_Known = Value | None
"""The value at positions that a mask leaves out, where it is the same at all of them; zeros have no axes."""


def counted_positions(tiling: Tiling) -> Graph | None:
    """Return the graph that makes the mask of the positions that count; None where all of them may."""
    graph, axis = tiling.chunk, tiling.axis
    axes, masks = value_axes(graph), mask_values(graph)
    along = [set(one) <= {axis} for one in axes[: len(graph.inputs)]]  # made of what enters along the axis
    for step in graph.steps:
        value = len(along)
        along.append(axes[value] <= {axis} and all(along[one] for one in step.inputs))
        if along[value] and masks[value] and axes[value] == {axis} and _leaves_out(tiling, value):
            mask = Output(Port(_COUNTED, "bool", ((axis,),)), value)
            return part_of(graph, f"{graph.name}_{_COUNTED}", {}, [mask])
    return None


def _leaves_out(tiling: Tiling, mask: int) -> bool:
    """Whether nothing that leaves a chunk depends on positions where a mask is 0, but for rows of zeros."""
    graph = tiling.chunk
    evaluation = Evaluation(graph, torch.float64, torch.device("cpu"), finite=True)
    known: list[_Known] = [None] * len(graph.inputs)
    for value, step in graph.numbered:
        read = [known[one] for one in step.inputs]
        known.append(_compared(graph, mask, value) or _known(tiling, evaluation, step, read))
    values = {one.port.name: known[one.value] for one in graph.outputs}
    added = [{one.port.name} for one in tiling.sums if one.op == "add"]
    needed = [{name} for name in tiling.rows] + added
    needed += [{one.left.name, one.right.name} for one in tiling.products]
    return len(added) == len(tiling.sums) and all(
        any(_is_zero(values[name]) for name in names) for names in needed
    )


def _compared(graph: Graph, mask: int, value: int) -> _Known:
    """Return what a value is where a mask is 0, if the comparison that makes the mask says so."""
    if value == mask:
        return _ZERO
    one, other = graph.step_at(mask), graph.step_at(value)
    is_opposite = {one.op, other.op} == {"eq", "ne"} and sorted(one.inputs) == sorted(other.inputs)
    return _ONE if is_opposite else None


def _known(tiling: Tiling, evaluation: Evaluation, step: Step, read: Sequence[_Known]) -> _Known:
    """Return what a step makes at these positions."""
    zeros = [_is_zero(one) for one in read]
    if step.op == "where" and (chosen := read[0]) is not None and chosen.tensor.numel() == 1:
        return read[1] if bool(chosen.tensor) else read[2]
    if any(zeros) and (step.op == "contract" or (step.op in OPS and OPS[step.op].absorbs_zero)):
        return _ZERO
    if zeros[:1] == [True] and step.op in ("div", "rename", "select", "window", *REDUCTIONS):
        return _ZERO
    axes = {*step.axes, *(axis for one in read if one is not None for axis in one.axes)}
    if step.op in ("rename", "select", "window") or tiling.axis in axes or None in read:
        return None
    if step.op in REDUCTIONS and not all(set(step.axes) <= set(one.axes) for one in read if one is not None):
        return None
    if prod(tiling.chunk.sizes[axis] for axis in axes) > _ELEMENTS:
        return None
    evaluation.values = {at: one for at, one in zip(step.inputs, read, strict=True) if one is not None}
    made = evaluation.step(step, {})
    return _ZERO if _is_zero(made) else made


def _is_zero(value: _Known) -> bool:
    return value is not None and not bool(value.tensor.any())
