"""Evaluates a Graph over a Field on tiny axes."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from superopt.ir import Graph, Output, Port, Step, mask_values, tensorless_values
from superopt.ops import OPS
from superopt.verify.evaluation.tensorless import (
    Numbers,
    Pairs,
    moved_dims,
    selected_places,
    tensorless_numbers,
)
from superopt.verify.field.arithmetic import Field
from superopt.verify.field.residues import Residues

__all__ = ["interpret", "output_tensor"]


def interpret(
    graph: Graph,
    field: Field,
    sizes: Mapping[str, int],
    *,
    leaves: Mapping[str, Residues] | None = None,
    axes: tuple[str, ...] | None = None,
    only: frozenset[int] | None = None,
    numbers: Sequence[Numbers | None] | None = None,
) -> list[Residues]:
    """Return every value of the graph, each with one grid dimension for each of the axes.

    The axes are the graph's unless named (to compare two graphs, name them in one order); a value
    has extent 1 along those it lacks. `leaves` replaces inputs, given in the order of their ports'
    axes. With `only`, other values are left empty. `numbers` are those of values that read no tensor, where
    they have been worked out before.
    """
    return _Run(graph, field, sizes, leaves or {}, axes, numbers).values(only)


class _Run:
    """One evaluation: what is known of a graph, and where its axes are on the grid."""

    def __init__(
        self,
        graph: Graph,
        field: Field,
        sizes: Mapping[str, int],
        leaves: Mapping[str, Residues],
        axes: tuple[str, ...] | None,
        numbers: Sequence[Numbers | None] | None,
    ) -> None:
        self.graph, self.field, self.sizes, self.leaves = graph, field, sizes, leaves
        self.order = {axis: i for i, axis in enumerate(axes or tuple(axis.name for axis in graph.axes))}
        self.masks = mask_values(graph)
        self.tensorless = tensorless_values(graph)
        self.numbers = self._numbers(numbers)

    def _numbers(self, known: Sequence[Numbers | None] | None) -> Sequence[Numbers | None]:
        if not any(step.op in OPS and self.tensorless[at] for at, step in self._steps()):
            return [None] * len(self.tensorless)
        if known is not None:
            return known
        places = {
            axis: self.field.positions.get(axis, tuple(range(size))) for axis, size in self.sizes.items()
        }
        return tensorless_numbers(self.graph, self.order, places, self.field.extents)

    def _steps(self) -> list[tuple[int, Step]]:
        return list(self.graph.numbered)

    def values(self, only: frozenset[int] | None) -> list[Residues]:
        """Return all values, or only the named values."""
        field = self.field
        nothing = np.empty((field.levels, field.trials, *(0 for _ in self.order)), dtype=np.uint64)
        values: list[Residues] = []
        for port in self.graph.inputs:
            wanted = only is None or len(values) in only
            values.append(_place(self._leaf(port), port.axes, self.order) if wanted else nothing)
        for at, step in self._steps():
            if only is not None and at not in only:
                values.append(nothing)
                continue
            field.site = id(self.graph), at
            values.append(self._evaluate(at, step, [values[i] for i in step.inputs]))
            field.site = None
        return values

    def _leaf(self, port: Port) -> Residues:
        leaf = self.leaves.get(port.name)
        if leaf is not None:
            return leaf
        return self.field.leaf(port.name, tuple(self.sizes[axis] for axis in port.axes), port.dtype)

    def _evaluate(self, at: int, step: Step, args: list[Residues]) -> Residues:
        field, order = self.field, self.order
        if step.op in OPS:
            return self._elementwise(at, step, args)
        dims = tuple(2 + order[axis] for axis in step.axes)
        match step.op:
            case "const":
                assert step.value is not None
                return self._widened(field.const(step.value))
            case "infinity":
                return self._widened(field.infinity())
            case "size":
                return self._widened(field.size(step.axes[0], self.sizes[step.axes[0]]))
            case "index":
                return _place(field.index(self.sizes[step.axes[0]], step.axes[0]), step.axes, order)
            case "contract" if (found := self._picked(step, args)) is not None:
                return found
            case "sum" | "contract":
                product = args[0] if step.op == "sum" else self._product(step, args)
                for axis, dim in zip(step.axes, dims, strict=True):
                    size = self.sizes[axis]  # what has no such dimension is summed as often, too
                    if field.extents.get(axis) != size or product.shape[dim] != size:
                        weights = _place(field.weights(axis, size), (axis,), order)
                        product = field.mul(product, weights)
                return field.sum_mod(product, dims)
            case "max":
                return field.max_over(args[0], dims)
            case "rename":
                return args[0].transpose(moved_dims(args[0].ndim, step.mapping, order))
            case "select":
                return args[0][selected_places(args[0].ndim, step.mapping, order, field.positions)]
        raise AssertionError(step.op)

    def _elementwise(self, at: int, step: Step, args: list[Residues]) -> Residues:
        if self.tensorless[at]:
            pairs = [(arg, self.numbers[i]) for arg, i in zip(args, step.inputs, strict=True)]
            made: Residues = OPS[step.op].scalar(Pairs(self.field), *pairs)[0]
            return made
        if step.op == "mul":
            return self._product(step, args)
        if _is_required(step):
            self.field.raised |= (args[0][0] == 0).any(axis=tuple(range(1, args[0].ndim - 1)))
        result: Residues = OPS[step.op].scalar(self.field, *args)
        return result

    def _picked(self, step: Step, args: list[Residues]) -> Residues | None:
        """Return a contraction with a mask that leaves one place at most of the axes that are summed over."""
        if any(self.field.extents.get(axis) != self.sizes[axis] for axis in step.axes):
            return None
        dims = tuple(2 + self.order[axis] for axis in step.axes)
        for at, value in zip(step.inputs, args[::-1], strict=True):
            mask = self.numbers[at]
            if not isinstance(mask, np.ndarray) or not self.masks[at]:
                continue
            spread = [self.sizes[axis] for axis in step.axes]
            hot = _flat(mask, dims, spread) != 0
            if (hot.sum(axis=-1) > 1).any():
                continue
            places = hot.argmax(axis=-1)[..., None]
            found = np.take_along_axis(_flat(value, dims, spread), places, axis=-1)[..., 0]
            found = np.where(hot.any(axis=-1), found, np.uint64(0))
            return np.expand_dims(found, dims)
        return None

    def _product(self, step: Step, args: list[Residues]) -> Residues:
        """Return a product; one with a mask selects, whatever is left out. A constant is no mask."""
        left, right = (self.masks[i] and self.graph.constant(i) is None for i in step.inputs)
        if left != right and self.field.has_marks:
            return self.field.select(*(args if left else args[::-1]))
        return self.field.mul(*args)

    def _widened(self, a: Residues) -> Residues:
        return a.reshape(*a.shape[:2], *(1,) * len(self.order))


def output_tensor(graph: Graph, output: Output, value: Residues, sizes: Mapping[str, int]) -> Residues:
    """Return an output with one dimension for each axis of its port that is not of extent 1."""
    order = [axis.name for axis in graph.axes]
    real = graph.sizes
    axes = [axis for axis in output.port.axes if real[axis] != 1]
    dims = [2 + order.index(axis) for axis in axes]
    rest = [dim for dim in range(2, value.ndim) if dim not in dims]
    moved = value.transpose(0, 1, *dims, *rest)
    shape = moved.shape[: 2 + len(dims)]
    whole = (*shape[:2], *(sizes[axis] for axis in axes))
    return np.broadcast_to(moved.reshape(shape), whole)


def _flat(values: NDArray[Any], dims: tuple[int, ...], extents: Sequence[int]) -> NDArray[Any]:
    """Return values with some dimensions, widened to these extents, as one dimension at the end."""
    shape = list(values.shape)
    for dim, extent in zip(dims, extents, strict=True):
        shape[dim] = extent
    moved = np.moveaxis(np.broadcast_to(values, shape), dims, range(-len(dims), 0))
    return moved.reshape(*moved.shape[: -len(dims)], -1)


def _place(values: Residues, axes: tuple[str, ...], order: Mapping[str, int]) -> Residues:
    """Return values whose grid dimensions are `axes`, moved to their places in the common order."""
    ranked = sorted(range(len(axes)), key=lambda i: order[axes[i]])
    moved = values.transpose(0, 1, *(2 + i for i in ranked))
    shape = [1] * len(order)
    for i in ranked:
        shape[order[axes[i]]] = values.shape[2 + i]
    return moved.reshape(*values.shape[:2], *shape)


def _is_required(step: Step) -> bool:
    """Return whether a program raises where this step makes 0.

    A look-up by an index out of range raises in PyTorch, even where its result is masked or not used. Its
    proof lowering multiplies by guard(v, v), where v is 1 if the index is in range.
    """
    return step.op == "guard" and step.inputs[0] == step.inputs[1]
