"""Run: a tiled graph, one turn after another: products by libraries, and Inductor's code between them."""

from collections.abc import Callable, Mapping, Sequence
from math import inf, prod
from typing import Any

import torch
from torch import Tensor
from torch.fx.experimental.proxy_tensor import make_fx

from superopt.backend.joint.stages import Between, Multiply, staged
from superopt.backend.joint.tiling import Tiling
from superopt.candidates.sizes import resized
from superopt.ir import Graph, Port, Step
from superopt.rivals.inductor import alone, compiled_by_inductor
from superopt.trace.run import TORCH_DTYPES, Evaluation, Value

__all__ = ["TiledKernel"]


class TiledKernel:
    """The results of a tiled graph by name, for tensors by name; `rows` positions of the axis at a turn."""

    def __init__(self, tiling: Tiling, rows: int, *, last: bool, patches: Mapping[str, Any]) -> None:
        self.tiling, self.rows = tiling, rows
        self.stages = staged(tiling, last=last)
        self._patches = patches
        self._compiled: dict[tuple[int, int], Callable[..., Any]] = {}

    def __call__(self, given: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Compute all results, each contiguous and in memory of its own."""
        tiling, goal = self.tiling, self.tiling.goal
        known = {**given, **_computed(tiling.before, given)}
        leaving = [one.port for one in goal.outputs if one.port.name in tiling.rows]
        whole = {port.name: _empty(goal, port, given) for port in leaving}
        for product in tiling.products:
            whole[product.port.name] = _empty(goal, product.port, given)
        for one in tiling.sums:
            neutral = -inf if one.op == "maximum" else 0.0
            whole[one.port.name] = _empty(goal, one.port, given).fill_(neutral)
        size = goal.sizes[tiling.axis]
        sizes = {**tiling.turn.sizes, tiling.axis: min(self.rows, size)}
        anything = next(iter(given.values()))
        shared = [anything.new_empty(count // 4, dtype=torch.float32) for count in self.stages.bytes_at(sizes)]
        for start in range(0, size, self.rows):
            self._turn(start, min(self.rows, size - start), known, whole, shared)
        del shared
        return {**_computed(tiling.after, {**known, **whole}), **{name: whole[name] for name in tiling.rows}}

    def _turn(
        self,
        start: int,
        rows: int,
        known: Mapping[str, Tensor],
        whole: Mapping[str, Tensor],
        shared: Sequence[Tensor],
    ) -> None:
        """Compute what is made of some positions, and put it where it belongs."""
        tiling, stages = self.tiling, self.stages
        sizes = {**tiling.turn.sizes, tiling.axis: rows}
        tensors = {port.name: self._part(port, known[port.name], start, rows) for port in tiling.turn.inputs}
        for one in tiling.turn.outputs:
            if one.port.name in whole and one.port.name in tiling.rows:
                tensors[one.port.name] = self._part(one.port, whole[one.port.name], start, rows)
        for product in tiling.products:
            tensors[product.port.name] = self._part(product.port, whole[product.port.name], start, rows)
        for name, place in stages.places.items():
            shape = [sizes[axis] for axis in stages.axes[name]]
            tensors[name] = shared[place][: prod(shape)].view(shape)
        sums = {one.port.name: one for one in tiling.sums}
        for number, step in enumerate(stages.steps):
            if isinstance(step, Multiply):
                _multiply(step, tensors, again=step.adds and start > 0)
                continue
            for name, made in self._between(number, step, rows, tensors).items():
                if name in tiling.rows:
                    tensors[name].copy_(made.reshape(tensors[name].shape))
                elif name in sums:
                    add = torch.add if sums[name].op == "add" else torch.maximum
                    add(whole[name], made, out=whole[name])
                else:
                    tensors[name] = made

    def _part(self, port: Port, tensor: Tensor, start: int, rows: int) -> Tensor:
        """Return the part of a tensor that one turn reads or writes, a dimension for each axis."""
        sizes, axis = self.tiling.goal.sizes, self.tiling.axis
        apart = tensor.reshape([sizes[one] for one in port.axes])
        return apart.narrow(port.axes.index(axis), start, rows) if axis in port.axes else apart

    def _between(
        self, number: int, step: Between, rows: int, tensors: Mapping[str, Tensor]
    ) -> dict[str, Tensor]:
        """Compute what lies between products; return what does not lie in shared memory."""
        graph = step.graph
        sizes = {**self.tiling.turn.sizes, self.tiling.axis: rows}
        entering = {port.name: port for port in graph.inputs}
        inputs = [tensors[name].reshape(_shape(port, sizes)) for name, port in entering.items()]
        # What is written where something is read is one tensor, so that the compiler knows of it.
        places = [self.stages.places.get(name) for name in entering]
        held = {name: self.stages.places[name] for name in step.kept}
        spare = [name for name, place in held.items() if place not in places]
        inputs += [tensors[name] for name in spare]
        at = {
            name: len(entering) + spare.index(name) if name in spare else places.index(place)
            for name, place in held.items()
        }
        if (number, rows) not in self._compiled:
            self._compiled[number, rows] = alone(lambda: self._compile(step, rows, inputs, at))
        made = self._compiled[number, rows](*inputs)
        names = [one.port.name for one in graph.outputs if one.port.name not in held]
        return dict(zip(names, made, strict=True))

    def _compile(
        self, step: Between, rows: int, inputs: list[Tensor], at: Mapping[str, int]
    ) -> Callable[..., Any]:
        """Return code for some rows that writes what is kept over the inputs at these numbers."""
        graph = resized(step.graph, {self.tiling.axis: rows})
        names = [port.name for port in graph.inputs]

        def run(*given: Tensor) -> tuple[Tensor, ...]:
            known = dict(zip(names, given, strict=False))
            made = _Fused(graph, torch.float32, given[0].device, finite=True).outputs(known)
            for name, place in at.items():
                given[place].copy_(made.pop(name))
            return tuple(made.values())

        traced = make_fx(run, tracing_mode="fake")(*inputs)  # nothing is computed
        return compiled_by_inductor(traced, inputs, self._patches)


def _multiply(step: Multiply, tensors: Mapping[str, Tensor], *, again: bool) -> None:
    """Compute a product of two matrices where its result belongs, or add it there."""
    summed = step.summed
    left_axes, right_axes = (
        [axis for axis in one.axes if axis not in summed] for one in (step.left, step.right)
    )
    left = _matrix(tensors[step.left.name], step.left.axes, left_axes, summed)
    right = _matrix(tensors[step.right.name], step.right.axes, summed, right_axes)
    target = tensors[step.made.name]
    made = _matrix(target, step.made.axes, left_axes, right_axes)
    if again:
        made.addmm_(left, right)
    else:
        torch.mm(left, right, out=made)
    if made.data_ptr() != target.data_ptr():  # its axes do not lie as those of a matrix
        shape = [target.shape[step.made.axes.index(axis)] for axis in (*left_axes, *right_axes)]
        _in_order(target, step.made.axes, (*left_axes, *right_axes)).copy_(made.view(shape))


def _matrix(tensor: Tensor, axes: Sequence[str], rows: Sequence[str], columns: Sequence[str]) -> Tensor:
    """Return a tensor as a matrix: the same memory if its axes allow it, else a copy."""
    count = prod(tensor.shape[axes.index(axis)] for axis in rows)
    return _in_order(tensor, axes, (*rows, *columns)).to(torch.float32).reshape(count, -1)


def _in_order(tensor: Tensor, axes: Sequence[str], order: Sequence[str]) -> Tensor:
    return tensor.permute([axes.index(axis) for axis in order])


class _Fused(Evaluation):
    """An evaluation that reads no number, so that it can be traced."""

    def contract(self, a: Value, b: Value, axes: tuple[str, ...]) -> Value:
        """Return the product of two values, summed over axes; a mask selects even from infinities."""
        if a.mask == b.mask:
            return super().contract(a, b, axes)
        return self._reduce(Step("sum", (0,), axes), self.elementwise("mul", [a, b]))


def _shape(port: Port, sizes: Mapping[str, int]) -> list[int]:
    return [prod(sizes[axis] for axis in dim) for dim in port.dims]


def _computed(graph: Graph, known: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Return what PyTorch computes of a graph, operator by operator: little, before the turns or after."""
    if not graph.outputs:
        return {}
    device = next(iter(known.values())).device
    made = _Fused(graph, torch.float32, device, finite=True).outputs(known)
    dtypes = {one.port.name: TORCH_DTYPES[one.port.dtype] for one in graph.outputs}
    return {
        name: tensor.to(torch.float32 if dtypes[name] == torch.bool else dtypes[name])
        for name, tensor in made.items()
    }


def _empty(graph: Graph, port: Port, given: Mapping[str, Tensor]) -> Tensor:
    one = next(iter(given.values()))
    dtype = torch.float32 if port.dtype == "bool" else TORCH_DTYPES[port.dtype]
    return one.new_empty(graph.shape(port), dtype=dtype)
