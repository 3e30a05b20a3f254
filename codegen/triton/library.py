"""Library: the steps of a library call on torch tensors whose dimensions are named axes."""

from collections.abc import Mapping, Sequence
from fractions import Fraction
from math import inf

import torch
from torch import Tensor

from superopt.codegen.triton.errors import UnsupportedError
from superopt.ir import Graph, Step
from superopt.ir.mugraph import Kernel, walk
from superopt.ops import OPS

__all__ = ["run_call", "spread"]

Named = tuple[Tensor, tuple[str, ...]]


def run_call(
    graph: Graph, kernel: Kernel, loaded: Mapping[int, Named], stored: Sequence[int]
) -> dict[int, Named]:
    """Return the values that a library call makes, computed by torch."""
    values = dict(loaded)
    for tile, _ in walk(kernel):
        step = graph.step_of(tile.value)
        assert step is not None
        values[tile.value] = _step(graph, step, [values[i] for i in step.inputs])
    return {value: values[value] for value in stored}


def spread(tensor: Tensor, axes: Sequence[str], wanted: Sequence[str]) -> Tensor:
    """Return a tensor with its dimensions in this order, 1 for each axis it lacks."""
    found = tensor.permute([axes.index(axis) for axis in wanted if axis in axes])
    for at, axis in enumerate(wanted):
        if axis not in axes:
            found = found.unsqueeze(at)
    return found


def _step(graph: Graph, step: Step, inputs: Sequence[Named]) -> Named:
    if step.op == "contract":
        return _contract(step, *inputs)
    if step.op in ("sum", "max"):
        tensor, axes = inputs[0]
        kept = tuple(axis for axis in axes if axis not in step.axes)
        dims = [axes.index(axis) for axis in step.axes]
        return (tensor.float().sum(dims) if step.op == "sum" else tensor.float().amax(dims)), kept
    if step.op == "rename":
        mapping = dict(step.mapping)
        return inputs[0][0], tuple(str(mapping.get(axis, axis)) for axis in inputs[0][1])
    if step.op == "select":
        tensor, axes = inputs[0]
        for axis, at in step.mapping:
            tensor = tensor.select(axes.index(axis), int(at))
            axes = tuple(one for one in axes if one != axis)
        return tensor, axes
    if step.op == "const":
        assert step.value is not None
        return torch.tensor(float(step.value)), ()
    if step.op == "infinity":
        return torch.tensor(inf), ()
    if step.op not in OPS:
        raise UnsupportedError(f"{graph.name}: no library call for {step.op}")
    union = tuple(dict.fromkeys(axis for _, axes in inputs for axis in axes))
    operands = [spread(tensor, axes, union).float() for tensor, axes in inputs]
    return OPS[step.op].scalar(_Torch(), *operands), union


def _contract(step: Step, a: Named, b: Named) -> Named:
    union = tuple(dict.fromkeys((*a[1], *b[1])))
    letter = {axis: i for i, axis in enumerate(union)}
    kept = tuple(axis for axis in union if axis not in step.axes)
    dtype = a[0].dtype if a[0].dtype == b[0].dtype else torch.float32
    product = torch.einsum(
        a[0].to(dtype),
        [letter[axis] for axis in a[1]],
        b[0].to(dtype),
        [letter[axis] for axis in b[1]],
        [letter[axis] for axis in kept],
    )
    return product, kept


class _Torch:
    """The arithmetic of `superopt.ops.Scalars` on fp32 tensors; masks are zeros and ones."""

    def const(self, value: Fraction) -> Tensor:
        return torch.tensor(float(value))

    def infinity(self) -> Tensor:
        return torch.tensor(inf)

    def add(self, a: Tensor, b: Tensor) -> Tensor:
        return a + b

    def mul(self, a: Tensor, b: Tensor) -> Tensor:
        return a * b

    def neg(self, a: Tensor) -> Tensor:
        return -a

    def inv(self, a: Tensor) -> Tensor:
        return 1 / a

    def exp(self, a: Tensor) -> Tensor:
        return a.exp()

    def sqrt(self, a: Tensor) -> Tensor:
        return a.sqrt()

    def maximum(self, a: Tensor, b: Tensor) -> Tensor:
        return torch.maximum(a, b)

    def less(self, a: Tensor, b: Tensor) -> Tensor:
        return (a < b).float()

    def equal(self, a: Tensor, b: Tensor) -> Tensor:
        return (a == b).float()

    def where(self, mask: Tensor, a: Tensor, b: Tensor) -> Tensor:
        return torch.where(mask != 0, a, b)

    def function(self, name: str, *args: Tensor) -> Tensor:
        found: Tensor = getattr(torch, name)(*args)
        return found
