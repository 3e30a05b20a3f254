"""Library: contractions and convolutions that are left to torch, on tensors whose dimensions are named axes.

What can be known from the axes and sizes is worked out once: a call then goes straight to torch.
"""

from collections.abc import Callable, Mapping, Sequence
from math import prod

import torch
from torch import Tensor

from superopt.codegen.convolutions import convolve
from superopt.codegen.errors import UnsupportedError
from superopt.codegen.operands import alike
from superopt.ir import Graph, Step
from superopt.ir.mugraph import Kernel, convolution_of, walk

__all__ = ["LibraryCall", "as_result"]

Axes = tuple[str, ...]
Function = Callable[..., Tensor]


class LibraryCall:
    """A library call on tensors of known axes and sizes: `call(loaded)` returns what it stores.

    Stored values that are `rounded` come in that dtype, others in the one that torch makes.
    """

    def __init__(
        self,
        graph: Graph,
        kernel: Kernel,
        loaded: Mapping[int, Axes],
        stored: Sequence[int],
        sizes: Mapping[str, int],
        rounded: Mapping[int, torch.dtype] | None = None,
    ) -> None:
        self._steps: list[tuple[int, Function, tuple[int, ...]]] = []
        self._stored = tuple(stored)
        self._rounded = rounded or {}
        axes = dict(loaded)
        slid: set[int] = set()
        for tile, _ in walk(kernel):
            step = graph.step_of(tile.value)
            if step is not None and step.op == "window":
                slid.add(tile.value)
                continue
            if step is None or step.op != "contract":
                raise _unknown(graph, "an input" if step is None else step.op)
            convolution = convolution_of(graph, tile.value)
            read: tuple[int, ...]
            if convolution is not None and convolution.window in slid:
                read = (convolution.image, convolution.kernel)
                function = convolve(convolution, axes[read[0]], axes[read[1]], sizes)
                axes[tile.value] = convolution.order
            else:
                read = step.inputs
                if slid.intersection(read):
                    raise _unknown(graph, "a window that is no convolution's")
                first, second = (axes[i] for i in read)
                function, axes[tile.value] = _contract(step, first, second, sizes)
            self._steps.append((tile.value, function, read))
        if not axes.keys() >= {*stored}:
            raise _unknown(graph, "a window alone")
        self.axes = {value: axes[value] for value in stored}

    def __call__(self, loaded: Mapping[int, Tensor]) -> list[Tensor]:
        """Return the stored values, contiguous, in order."""
        values = dict(loaded)
        for value, function, inputs in self._steps:
            values[value] = function(*(values[i] for i in inputs))
        made = ((values[value], self._rounded.get(value)) for value in self._stored)
        return [(one if dtype is None else one.to(dtype)).contiguous() for one, dtype in made]


def as_result(tensor: Tensor, shape: Sequence[int], dtype: torch.dtype, *, copy: bool) -> Tensor:
    """Return what nobody else reads as a result of its own: contiguous, and to PyTorch no view.

    It has the same memory where that can be, unless it is to be a copy. What views made without gradients
    show cannot be changed in place later, where gradients are made.
    """
    made = tensor.reshape(shape).to(dtype, copy=copy, memory_format=torch.contiguous_format)
    own: Tensor = made.contiguous()
    return torch.ops.aten._unsafe_view.default(own, list(shape)) if own._is_view() else own


def _unknown(graph: Graph, what: str) -> UnsupportedError:
    return UnsupportedError(f"{graph.name}: a library call of {what}; known: contract, also of a window")


def _contract(step: Step, a: Axes, b: Axes, sizes: Mapping[str, int]) -> tuple[Function, Axes]:
    """Return a contraction as a product of two matrices, or of two batches of them."""
    inner = tuple(axis for axis in a if axis in step.axes)
    if set(inner) != set(step.axes) or not set(inner) <= set(b):
        return _einsum(step, a, b)
    batch = tuple(axis for axis in a if axis in b and axis not in inner)
    rows = tuple(axis for axis in a if axis not in b)
    columns = tuple(axis for axis in b if axis not in a)
    left = _arrangement(a, (batch, rows, inner), sizes)
    right = _arrangement(b, (batch, inner, columns), sizes)
    made = (*batch, *rows, *columns)
    shape = tuple(sizes[axis] for axis in made)
    whole = len(rows) == len(columns) == 1 and len(batch) < 2

    def contract(x: Tensor, y: Tensor) -> Tensor:
        x, y = alike(x, y)
        product = torch.matmul(left(x), right(y))
        return product if whole else product.reshape(shape)

    return contract, made


def _arrangement(axes: Axes, groups: tuple[Axes, ...], sizes: Mapping[str, int]) -> Function:
    """Return what makes a tensor a matrix, or a batch of them: each group of axes is one dimension."""
    batch, *sides = groups
    order = [axes.index(axis) for group in groups for axis in group]
    shape = tuple(prod(sizes[axis] for axis in group) for group in ([batch, *sides] if batch else sides))
    moved = order != sorted(order)
    grouped = any(len(group) != 1 for group in sides) or len(batch) > 1

    def arranged(tensor: Tensor) -> Tensor:
        if moved:
            tensor = tensor.permute(order)
        return tensor.reshape(shape) if grouped else tensor

    return arranged


def _einsum(step: Step, a: Axes, b: Axes) -> tuple[Function, Axes]:
    union = tuple(dict.fromkeys((*a, *b)))
    letter = {axis: i for i, axis in enumerate(union)}
    kept = tuple(axis for axis in union if axis not in step.axes)
    first, second, made = ([letter[axis] for axis in axes] for axes in (a, b, kept))

    def einsum(x: Tensor, y: Tensor) -> Tensor:
        x, y = alike(x, y)
        return torch.einsum(x, first, y, second, made)

    return einsum, kept
