"""Library: the steps of a library call on torch tensors whose dimensions are named axes.

What can be known from the axes and sizes is worked out once: a call then goes straight to torch.
"""

from collections.abc import Callable, Mapping, Sequence
from fractions import Fraction
from math import inf, prod

import torch
from torch import Tensor

from superopt.codegen.triton.errors import UnsupportedError
from superopt.dtypes import torch_dtypes
from superopt.ir import Graph, Step
from superopt.ir.mugraph import Kernel, MuGraph, walk
from superopt.ops import OPS

__all__ = ["LibraryCall"]

_DTYPES = torch_dtypes()
_FP8 = (torch.float8_e4m3fn, torch.float8_e5m2)

Axes = tuple[str, ...]
Function = Callable[..., Tensor]


class LibraryCall:
    """A library call on tensors of known axes and sizes: `call(loaded)` returns what it stores."""

    def __init__(
        self,
        mugraph: MuGraph,
        kernel: Kernel,
        loaded: Mapping[int, Axes],
        stored: Sequence[int],
        sizes: Mapping[str, int],
    ) -> None:
        self._steps: list[tuple[int, Function, tuple[int, ...]]] = []
        graph, rounded = mugraph.graph, dict(mugraph.rounded)
        # Kernels read what crosses to them in the dtype that the muGraph states, whatever torch makes.
        read = {value for other in mugraph.kernels if other is not kernel for value in mugraph.loads(other)}
        self._stored = tuple(
            (value, _DTYPES[rounded.get(value, "f32")] if value in read else None) for value in stored
        )
        axes = dict(loaded)
        for tile, _ in walk(kernel):
            step = graph.step_of(tile.value)
            assert step is not None
            function, axes[tile.value] = _prepared(graph, step, [axes[i] for i in step.inputs], sizes)
            self._steps.append((tile.value, function, step.inputs))
        self.axes = {value: axes[value] for value in stored}

    def __call__(self, loaded: Mapping[int, Tensor]) -> list[Tensor]:
        """Return the stored values, contiguous, in order."""
        values = dict(loaded)
        for value, function, inputs in self._steps:
            values[value] = function(*(values[i] for i in inputs))
        return [
            (values[value] if dtype is None else values[value].to(dtype)).contiguous()
            for value, dtype in self._stored
        ]


def _spread(tensor: Tensor, axes: Sequence[str], wanted: Sequence[str]) -> Tensor:
    """Return a tensor with its dimensions in this order, 1 for each axis it lacks."""
    found = tensor.permute([axes.index(axis) for axis in wanted if axis in axes])
    for at, axis in enumerate(wanted):
        if axis not in axes:
            found = found.unsqueeze(at)
    return found


def _prepared(
    graph: Graph, step: Step, inputs: Sequence[Axes], sizes: Mapping[str, int]
) -> tuple[Function, Axes]:
    """Return a step as a function of tensors, and the axes of what it makes."""
    if step.op == "contract":
        return _contract(step, inputs[0], inputs[1], sizes)
    if step.op in ("sum", "max"):
        kept = tuple(axis for axis in inputs[0] if axis not in step.axes)
        dims = [inputs[0].index(axis) for axis in step.axes]
        if step.op == "sum":
            return lambda tensor: tensor.float().sum(dims), kept
        return lambda tensor: tensor.float().amax(dims), kept
    if step.op == "rename":
        mapping = dict(step.mapping)
        return lambda tensor: tensor, tuple(str(mapping.get(axis, axis)) for axis in inputs[0])
    if step.op == "select":
        return _select(step, inputs[0])
    if step.op in ("const", "infinity"):
        value = inf if step.value is None else float(step.value)
        return lambda: torch.tensor(value), ()
    if step.op not in OPS:
        raise UnsupportedError(f"{graph.name}: no library call for {step.op}")
    union = tuple(dict.fromkeys(axis for axes in inputs for axis in axes))
    scalar = OPS[step.op].scalar

    def elementwise(*tensors: Tensor) -> Tensor:
        operands = (_spread(one, axes, union).float() for one, axes in zip(tensors, inputs, strict=True))
        found: Tensor = scalar(_Torch(), *operands)
        return found

    return elementwise, union


def _select(step: Step, axes: Axes) -> tuple[Function, Axes]:
    places: list[tuple[int, int]] = []
    for axis, at in step.mapping:
        places.append((axes.index(axis), int(at)))
        axes = tuple(one for one in axes if one != axis)

    def select(tensor: Tensor) -> Tensor:
        for dim, at in places:
            tensor = tensor.select(dim, at)
        return tensor

    return select, axes


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
        x, y = _alike(x, y)
        product = torch.matmul(left(x), right(y))
        return product if whole else product.reshape(shape)

    return contract, made


def _alike(x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
    """Return the operands of a product in one dtype: fp8, which torch does not multiply, as the other one."""
    if x.dtype == y.dtype and x.dtype not in _FP8:
        return x, y
    if x.dtype in _FP8 and y.dtype not in _FP8:
        return x.to(y.dtype), y
    if y.dtype in _FP8 and x.dtype not in _FP8:
        return x, y.to(x.dtype)
    return x.float(), y.float()


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
        x, y = _alike(x, y)
        return torch.einsum(x, first, y, second, made)

    return einsum, kept


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
