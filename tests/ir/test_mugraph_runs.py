"""What a muGraph computes: program by program, turn by turn, on tiles of one position."""

from collections.abc import Iterator
from itertools import product

import pytest
import torch
from torch import Tensor

from superopt.errors import GraphError
from superopt.ir import (
    Block,
    Graph,
    Loop,
    MuGraph,
    Tile,
    fuse,
    parse_mugraph,
    value_axes,
)
from superopt.trace import trace
from superopt.trace.run import run_graph
from superopt.workloads import WORKLOADS


def run_mugraph(mugraph: MuGraph, tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    """Return the outputs, with every program and every turn of a loop a single position of its axis.

    Memory holds tensors whose dimensions are all the graph's axes, NaN where nothing was stored.
    """
    graph = mugraph.graph
    names = [axis.name for axis in graph.axes]
    axes = value_axes(graph)
    memory: dict[int, Tensor] = {}

    def full(value: int) -> list[int]:
        return [axis.size if axis.name in axes[value] else 1 for axis in graph.axes]

    for i, port in enumerate(graph.inputs):
        flat = tensors[port.name].reshape([graph.sizes[axis] for axis in port.axes])
        order = sorted(range(len(port.axes)), key=lambda d: names.index(port.axes[d]))
        memory[i] = flat.permute(order).reshape(full(i))

    def cut(value: int, tensor: Tensor, place: dict[str, int]) -> Tensor:
        for axis, at in place.items():
            if axis in axes[value] and tensor.shape[names.index(axis)] > 1:
                tensor = tensor.narrow(names.index(axis), at, 1)
        return tensor

    def compute(value: int, place: dict[str, int], tiles: dict[int, Tensor]) -> Tensor:
        step = graph.step_of(value)
        assert step is not None
        if step.op in ("size", "index"):
            size = graph.sizes[step.axes[0]]
            shape = [size if axis == step.axes[0] else 1 for axis in names]
            if step.op == "size":
                return torch.full([1] * len(names), float(size), dtype=torch.float64)
            return cut(value, torch.arange(size, dtype=torch.float64).reshape(shape), place)
        if step.mapping:
            (source,) = step.inputs
            moved = tiles[source] if source in tiles else memory[source]
            for old, new in step.mapping:
                if isinstance(new, str):
                    moved = moved.transpose(names.index(old), names.index(new))
                else:
                    moved = moved.narrow(names.index(old), new, 1)
            return cut(value, moved, place)
        parts = [tiles[i] if i in tiles else cut(i, memory[i], place) for i in step.inputs]
        parts = [cut(i, part, place) for i, part in zip(step.inputs, parts, strict=True)]
        dims = [names.index(axis) for axis in step.axes]
        if step.op == "max":
            return parts[0].amax(dims, keepdim=True)
        if step.op in ("sum", "contract"):
            return (parts[0] * parts[1] if step.op == "contract" else parts[0]).sum(dims, keepdim=True)
        return elementwise(step, parts)

    def elementwise(step: object, parts: list[Tensor]) -> Tensor:
        from superopt.ops import OPS
        from superopt.trace.run import TorchScalars

        scalars = TorchScalars(torch.float64, torch.device("cpu"))
        op, constant = step.op, step.value  # type: ignore[attr-defined]
        if op == "const":
            return scalars.const(constant).reshape([1] * len(names))
        if op == "infinity":
            return scalars.infinity().reshape([1] * len(names))
        return OPS[op].scalar(scalars, *parts).to(torch.float64)

    def body(
        items: tuple[Tile | Loop, ...], place: dict[str, int], tiles: dict[int, Tensor], stored: set[int]
    ) -> None:
        for item in items:
            if isinstance(item, Loop):
                known = set(tiles)
                for at in range(graph.sizes[item.axis]):
                    turn = {i: tile for i, tile in tiles.items() if i in known or i in carried(item)}
                    body(item.body, {**place, item.axis: at}, turn, stored)
                    tiles.update({i: tile for i, tile in turn.items() if i in carried(item)})
                continue
            step = graph.step_of(item.value)
            assert step is not None
            made = compute(item.value, place, tiles)
            reduces = step.op in ("sum", "max", "contract") and set(step.axes) & set(place)
            if reduces and item.value in tiles:
                before = tiles[item.value]
                made = torch.maximum(before, made) if step.op == "max" else before + made
            tiles[item.value] = made
            if item.value in stored:
                target = memory.setdefault(
                    item.value, torch.full(full(item.value), torch.nan, dtype=torch.float64)
                )
                cut(item.value, target, place).copy_(made.expand_as(cut(item.value, target, place)))

    def carried(loop: Loop) -> set[int]:
        """Values that the loop adds up, at any depth."""
        found = set()
        for item in loop.body:
            inner = {item.value} if isinstance(item, Tile) else {*carried(item), *every(item)}
            found |= {
                v
                for v in inner
                if (step := graph.step_of(v))
                and step.op in ("sum", "max", "contract")
                and loop.axis in step.axes
            }
        return found

    def every(loop: Loop) -> Iterator[int]:
        for item in loop.body:
            if isinstance(item, Tile):
                yield item.value
            else:
                yield from every(item)

    for kernel in mugraph.kernels:
        assert isinstance(kernel, Block)
        for at in product(*(range(graph.sizes[axis]) for axis in kernel.grid)):
            body(kernel.body, dict(zip(kernel.grid, at, strict=True)), {}, set(mugraph.stores(kernel)))
    results = {}
    for output in graph.outputs:
        tensor = memory[output.value].expand(
            [axis.size if axis.name in output.port.axes else 1 for axis in graph.axes]
        )
        order = [names.index(axis) for axis in output.port.axes]
        rest = [i for i in range(len(names)) if i not in order]
        results[output.port.name] = tensor.permute(order + rest).reshape(graph.shape(output.port))
    return results


TINY = {
    "M": 2, "K": 4, "N": 3, "R": 2, "B": 1, "H": 2, "G": 1, "S": 3, "T": 4, "D": 2, "L": 3, "E": 4,
    "Q": 4, "P": 2, "V": 3,
}  # fmt: skip


@pytest.mark.parametrize("whole", [1024, 1], ids=["short axes whole", "every axis looped"])
@pytest.mark.parametrize("name", WORKLOADS)
def test_default_schedules_compute_the_graph(name: str, whole: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("superopt.ir.mugraph.blocks._WHOLE", whole)
    item = WORKLOADS[name]
    sizes = {size: value for size, value in TINY.items() if size in item.sizes}
    graph: Graph = trace(item.function, *item.inputs(**sizes), name="w").graph
    torch.manual_seed(0)
    tensors = {port.name: torch.rand(graph.shape(port), dtype=torch.float64) + 0.5 for port in graph.inputs}
    torch.testing.assert_close(run_mugraph(fuse(graph), tensors), run_graph(graph, tensors))


REPEATED = """graph parts
axes m=4 k_part=2 k_at=8 n=6 k=16
in x: f32[m, (k_part k_at)]
in w: f32[(k_part k_at), n]
split k into k_part k_at
kernel grid[m, k_part, n]
  loop[k_at]
    t2 += contract[k_at](x, w)
    t3 += contract[k_at](x, x)
kernel grid[m, n]
  t4 = sum[k_part](t2)
  t5 = sum[k_part](t3)
  t6 = div(t4, t5)
out out: f32[m, n] = t6
"""


def test_what_all_programs_compute_the_first_stores() -> None:
    mugraph = parse_mugraph(REPEATED)
    assert mugraph.stores(mugraph.kernels[0]) == (2, 3)


def test_an_output_is_not_repeated_along_the_grid() -> None:
    text = REPEATED.replace("out out: f32[m, n] = t6\n", "out out: f32[m, n] = t6\nout all: f32[m, n] = t5\n")
    with pytest.raises(
        GraphError, match="kernel 1: it stores t5, which has no axis 'n': an output repeats it"
    ):
        parse_mugraph(text)


def test_positions_in_parts_have_a_first_program_of_their_own() -> None:
    text = """graph parts
axes m=4 k_part=2 k_at=8 k=16
in x: f32[m, (k_part k_at)]
in y: f32[m]
split k into k_part k_at
kernel grid[m, k_part, k_at]
  t2 = exp(y)
  t3 = mul(x, t2)
kernel grid[m]
  t4 = sum[k_part, k_at](t3)
  t5 = mul(t4, t2)
out out: f32[m] = t5
"""
    with pytest.raises(GraphError, match="kernel 0: it stores t2, which has no axis 'k_at': the first"):
        parse_mugraph(text)
