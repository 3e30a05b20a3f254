"""Run: a tiled graph, one turn after another, each as Inductor's code with products by libraries."""

from collections.abc import Callable, Mapping
from math import inf, prod
from typing import Any

import torch
from torch import Tensor
from torch.fx.experimental.proxy_tensor import make_fx

from superopt.backend.joint.tiling import Tiling
from superopt.candidates.sizes import resized
from superopt.ir import Graph, Port, Step
from superopt.rivals.inductor import alone, compiled_by_inductor
from superopt.trace.run import TORCH_DTYPES, Evaluation, Value

__all__ = ["TiledKernel"]


class TiledKernel:
    """The results of a tiled graph by name, for tensors by name; `rows` positions of the axis at a turn."""

    def __init__(self, tiling: Tiling, rows: int, patches: Mapping[str, Any]) -> None:
        self.tiling, self.rows = tiling, rows
        self._patches = patches
        self._turns: dict[int, Callable[..., Any]] = {}

    def __call__(self, given: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Compute all results, each contiguous and in memory of its own."""
        tiling, goal = self.tiling, self.tiling.goal
        known = {**given, **_computed(tiling.before, given)}
        leaving = [one.port for one in goal.outputs if one.port.name in tiling.rows]
        whole = {port.name: _empty(goal, port, given) for port in leaving}
        for product in tiling.products:
            whole[product.port.name] = _empty(goal, product.port, given).zero_()
        for one in tiling.sums:
            neutral = -inf if one.op == "maximum" else 0.0
            whole[one.port.name] = _empty(goal, one.port, given).fill_(neutral)
        size = goal.sizes[tiling.axis]
        for start in range(0, size, self.rows):
            self._turn(start, min(self.rows, size - start), known, whole)
        return {**_computed(tiling.after, {**known, **whole}), **{name: whole[name] for name in tiling.rows}}

    def _turn(self, start: int, rows: int, known: Mapping[str, Tensor], whole: Mapping[str, Tensor]) -> None:
        """Compute what is made of some positions, and put it where it belongs."""
        turn = self.tiling.turn
        sizes = {**turn.sizes, self.tiling.axis: rows}
        inputs = [
            self._part(port, known[port.name], start, rows).reshape(_shape(port, sizes))
            for port in turn.inputs
        ]
        if rows not in self._turns:
            self._turns[rows] = alone(lambda: self._compiled(rows, inputs))
        made = dict(zip((one.port.name for one in turn.outputs), self._turns[rows](*inputs), strict=True))
        for one in turn.outputs:
            if one.port.name in self.tiling.rows:
                part = self._part(one.port, whole[one.port.name], start, rows)
                part.copy_(made[one.port.name].reshape(part.shape))
        for product in self.tiling.products:
            left, right = made[product.left.name].flatten(1), made[product.right.name].flatten(1)
            whole[product.port.name].view(left.shape[1], right.shape[1]).addmm_(left.t(), right)
        for total in self.tiling.sums:
            name = total.port.name
            add = torch.add if total.op == "add" else torch.maximum
            add(whole[name], made[name], out=whole[name])

    def _part(self, port: Port, tensor: Tensor, start: int, rows: int) -> Tensor:
        """Return the part of a tensor that one turn reads or writes, a dimension for each axis."""
        sizes, axis = self.tiling.goal.sizes, self.tiling.axis
        apart = tensor.reshape([sizes[one] for one in port.axes])
        return apart.narrow(port.axes.index(axis), start, rows) if axis in port.axes else apart

    def _compiled(self, rows: int, inputs: list[Tensor]) -> Callable[..., Any]:
        graph = resized(self.tiling.turn, {self.tiling.axis: rows})
        names = [port.name for port in graph.inputs]

        def run(*given: Tensor) -> tuple[Tensor, ...]:
            known = dict(zip(names, given, strict=True))
            made = _Fused(graph, torch.float32, given[0].device, finite=True).outputs(known)
            return tuple(made[one.port.name] for one in graph.outputs)

        return compiled_by_inductor(make_fx(run)(*inputs), inputs, self._patches)


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
