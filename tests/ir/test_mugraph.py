"""MuGraphs: every rule broken once, the default schedules of known programs, and what they compute."""

from collections.abc import Iterator
from itertools import product

import pytest
import torch
from torch import Tensor

from superopt.errors import GraphError
from superopt.ir import (
    Block,
    Call,
    Graph,
    Loop,
    MuGraph,
    Tile,
    check_mugraph,
    fuse,
    parse_graph,
    parse_mugraph,
    print_mugraph,
    value_axes,
)
from superopt.trace import trace
from superopt.trace.run import run_graph
from superopt.workloads import WORKLOADS

TEXT = """graph norm
axes m=4 k=2000 n=3000
in x: f32[m, k]
in w: f32[k, n]
kernel grid[m, n]
  loop[k]
    t2 = square(x)
    t3 += sum[k](t2)
    t4 += contract[k](x, w)
  t5 = sqrt(t3)
  t6 = const[2]()
  t7 = mul(t5, t6)
  t8 = div(t4, t7)
out y: f32[m, n] = t8
"""
GRAPH = parse_mugraph(TEXT).graph
T2, T3, T4, T5, T6, T7, T8 = map(Tile, range(2, 9))
WALK = Loop("k", (T2, T3, T4))
AFTER = (T5, T6, T7, T8)


def one(*body: Tile | Loop, grid: tuple[str, ...] = ("m", "n")) -> tuple[Block, ...]:
    return (Block(grid, body),)


BROKEN = {
    "kernel 0: the grid has the undeclared axis 'q'": one(WALK, *AFTER, grid=("m", "q")),
    "kernel 0: the grid has axis 'm' twice": one(WALK, *AFTER, grid=("m", "m")),
    "kernel 0: a loop walks along the undeclared axis 'q'": one(WALK, Loop("q", AFTER)),
    "kernel 0: axis 'n' is looped over and on the grid": one(WALK, Loop("n", AFTER)),
    "kernel 0: a loop over 'k' stands inside another one": one(Loop("k", (WALK,)), *AFTER),
    "kernel 0: the loop over 'k' does nothing": one(WALK, Loop("k", ()), *AFTER),
    "kernel 0: it computes value 1, which is no step": one(Tile(1), WALK, *AFTER),
    "kernel 0: it computes value 9, which is no step": one(Tile(9), WALK, *AFTER),
    "kernel 0: t5 is computed a second time; if that is meant, say 'again'": one(WALK, T5, *AFTER),
    "kernel 0: t5 is computed 'again', but never was before": one(WALK, Tile(5, again=True), *AFTER[1:]),
    "kernel 0: t5 reads t3 inside the loop that is still adding it up; it needs a second loop": one(
        Loop("k", (T2, T3, T4, T5)), *AFTER[1:]
    ),
    "kernel 0: t3 reads t2, a tile of a loop that has ended; compute it 'again' where used": one(
        Loop("k", (T2, T4)), Loop("k", (T3,)), *AFTER
    ),
    "kernel 0: t8 reads t7, which neither this kernel nor an earlier one has computed yet": one(
        WALK, T5, T6, T8, T7
    ),
    "kernel 0: t5 reads t3, which neither": (Block(("m",), (T5,)), *one(WALK, T6, T7, T8)),
    "kernel 1: t7 reads t6, which neither": (
        *one(Loop("k", (T2, T3)), T6, grid=("m",)), Block(("m",), (T5, T7)), *one(Loop("k", (T4,)), T8),
    ),
    "kernel 0: t3 reduces 'k', which is on the grid; split the axis and combine its parts": one(
        T2, T3, T4, *AFTER, grid=("m", "n", "k")
    ),
    "kernel 0: t4 adds up over 'k', with another part for each turn of the inner loop": one(
        Loop("k", (T2, T3, Loop("n", (T4,)))), T5, T6, T7, Loop("n", (T8,)), grid=("m",)
    ),
    "kernel 0: it stores t5 in every turn of the loop over 'n'; compute it outside": (
        *one(Loop("k", (T2, T3)), Loop("n", (T5, Loop("k", (T4,)))), grid=("m",)), *one(T6, T7, T8),
    ),
    "muGraph 'norm': no kernel computes t8": one(WALK, T5, T6, T7),
}  # fmt: skip


def test_the_text_is_the_types() -> None:
    mugraph = MuGraph(GRAPH, one(WALK, *AFTER))
    assert check_mugraph(mugraph) is mugraph
    assert print_mugraph(mugraph) == str(mugraph) == TEXT
    assert parse_mugraph(TEXT) == mugraph
    assert (mugraph.loads(mugraph.kernels[0]), mugraph.stores(mugraph.kernels[0])) == ((0, 1), (8,))


@pytest.mark.parametrize("message", BROKEN)
def test_broken_rules(message: str) -> None:
    with pytest.raises(GraphError) as caught:
        check_mugraph(MuGraph(GRAPH, BROKEN[message]))
    assert message in str(caught.value)


@pytest.mark.parametrize(
    "kernels",
    [
        one(Loop("k", (T2, T3)), Loop("k", (T4,)), *AFTER),  # two passes
        one(Loop("k", (T2, T3)), Loop("k", (Tile(2, again=True), T4)), *AFTER),
        (*one(Loop("k", (T2, T3)), T5, grid=("m",)), *one(Loop("k", (T4,)), T6, T7, T8)),
        (*one(Loop("k", (T2, T3)), T5, T6, T7, grid=("m",)), *one(Loop("k", (T4,)), T6, T8)),  # constants
        (*one(T2, T3, T5, grid=("m",)), Call((T4,)), *one(T6, T7, T8)),  # k whole in the first
        one(WALK, *AFTER, grid=()),  # one program
        one(Loop("k", (T2, T3)), Loop("n", (Loop("k", (T4,)), *AFTER)), grid=("m",)),
    ],
)  # fmt: skip
def test_other_schedules_of_the_same_graph(kernels: tuple[Block | Call, ...]) -> None:
    mugraph = check_mugraph(MuGraph(GRAPH, kernels))
    assert parse_mugraph(print_mugraph(mugraph)) == mugraph


def test_loads_and_stores_are_what_crosses() -> None:
    mugraph = MuGraph(GRAPH, (*one(Loop("k", (T2, T3)), T5, grid=("m",)), Call((T4,)), *one(T6, T7, T8)))
    assert [mugraph.loads(kernel) for kernel in mugraph.kernels] == [(0,), (0, 1), (4, 5)]
    assert [mugraph.stores(kernel) for kernel in mugraph.kernels] == [(5,), (4,), (8,)]


GRAM = """graph gram
axes i=4 j=4 k=2000
in x: f32[i, k]
{}
out y: f32[i, j] = t3
"""


@pytest.mark.parametrize(
    ("body", "ok"),
    [
        ("kernel grid[j]\n  loop[k]\n    t1 = exp(x)\n    t2 = rename[i->j](t1)\n"
         "    t3 += contract[k](t1, t2)", False),
        ("kernel grid[]\n  loop[k]\n    t1 = exp(x)\n    t2 = rename[i->j](t1)\n"
         "    t3 += contract[k](t1, t2)", True),
        ("kernel grid[i, k]\n  t1 = exp(x)\nkernel grid[i, j]\n  loop[k]\n    t2 = rename[i->j](t1)\n"
         "    t3 += contract[k](t1, t2)", True),
    ],
)  # fmt: skip
def test_a_program_does_not_see_the_tiles_of_others(body: str, ok: bool) -> None:
    if ok:
        assert print_mugraph(parse_mugraph(GRAM.format(body))) == GRAM.format(body)
        return
    with pytest.raises(GraphError, match="t2 reads other places of t1 along 'j', which other programs"):
        parse_mugraph(GRAM.format(body))


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("kernel grid[m, n]", "kernel [m, n]", "line 5: 'kernel [m, n]' is not 'kernel grid[axes]'"),
        ("    t2 =", "   t2 =", "line 7: indent by two spaces"),
        ("    t2 =", "      t2 =", "line 7: 't2 = square(x)' is neither 'loop[axis]' nor"),
        ("  loop[k]", "  loop k", "line 6: 'loop k' is neither 'loop[axis]' nor 'name = op(...)' at depth 1"),
        ("t3 += sum", "t3 = sum", "line 8: write t3 += sum[k](t2) here"),
        ("t5 = sqrt", "t5 += sqrt", "line 10: write t5 = sqrt(t3) here"),
        ("  t6 =", "  again t5 = exp(t3)\n  t6 =", "line 11: t5 was sqrt(t3) before"),
        ("kernel grid[m, n]", "kernel call", "line 5: a call of a library has no loops"),
    ],
)  # fmt: skip
def test_errors_of_the_text_name_the_line(old: str, new: str, message: str) -> None:
    assert old in TEXT
    with pytest.raises(GraphError) as caught:
        parse_mugraph(TEXT.replace(old, new))
    assert message in str(caught.value)


# -- the default schedule

HEADS = "graph g\naxes b=8 s=3000 d=64 e=64 so=16 si=300\n"
SCHEDULES = {
    "attention, division delayed": (
        """in q: f32[b, d]\nin k: f32[s, d]\nin v: f32[s, e]
t3 = contract[d](q, k)\nt4 = exp(t3)\nt5 = contract[s](t4, v)\nt6 = sum[s](t4)\nt7 = div(t5, t6)
out y: f32[b, e] = t7""",
        """
kernel grid[b]
  loop[s]
    t3 = contract[d](q, k)
    t4 = exp(t3)
    t5 += contract[s](t4, v)
    t6 += sum[s](t4)
  t7 = div(t5, t6)""",
    ),
    "attention, as written": (
        """in q: f32[b, d]\nin k: f32[s, d]\nin v: f32[s, e]
t3 = contract[d](q, k)\nt4 = exp(t3)\nt5 = sum[s](t4)\nt6 = div(t4, t5)\nt7 = contract[s](t6, v)
out y: f32[b, e] = t7""",
        """
kernel grid[b]
  loop[s]
    t3 = contract[d](q, k)
    t4 = exp(t3)
    t5 += sum[s](t4)
kernel grid[b, e]
  loop[s]
    t6 = div(t4, t5)
    t7 += contract[s](t6, v)""",
    ),
    "attention, keys split": (
        """in q: f32[b, d]\nin k: f32[(so si), d]\nin v: f32[(so si), e]
t3 = contract[d](q, k)\nt4 = exp(t3)\nt5 = contract[si](t4, v)\nt6 = sum[so](t5)\nt7 = sum[si](t4)
t8 = sum[so](t7)\nt9 = div(t6, t8)\nout y: f32[b, e] = t9""",
        """
kernel grid[b, so]
  loop[si]
    t3 = contract[d](q, k)
    t4 = exp(t3)
    t5 += contract[si](t4, v)
    t7 += sum[si](t4)
kernel grid[b, e]
  loop[so]
    t6 += sum[so](t5)
    t8 += sum[so](t7)
  t9 = div(t6, t8)""",
    ),
    "softmax, two passes": (
        """in x: f32[b, s]
t1 = exp(x)\nt2 = sum[s](t1)\nt3 = div(t1, t2)
out y: f32[b, s] = t3""",
        """
kernel grid[b]
  loop[s]
    t1 = exp(x)
    t2 += sum[s](t1)
  loop[s]
    again t1 = exp(x)
    t3 = div(t1, t2)""",
    ),
    "a maximum and a sum share a loop": (
        """in x: f32[b, s]
t1 = max[s](x)\nt2 = sum[s](x)\nt3 = div(t1, t2)
out y: f32[b] = t3""",
        """
kernel grid[b]
  loop[s]
    t1 max= max[s](x)
    t2 += sum[s](x)
  t3 = div(t1, t2)""",
    ),
    "nested reductions over different axes": (
        """in x: f32[b, d, s]
t1 = sum[s](x)\nt2 = exp(t1)\nt3 = sum[b, d](t2)
out y: f32[] = t3""",
        """
kernel grid[]
  loop[s]
    t1 += sum[s](x)
  t2 = exp(t1)
  t3 = sum[b, d](t2)""",
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", SCHEDULES)
def test_default_schedules(name: str) -> None:
    text, expected = SCHEDULES[name]
    lines = str(fuse(parse_graph(HEADS + text))).splitlines()
    kernels = [line for line in lines if line.startswith(("kernel", " "))]
    assert kernels == expected.strip("\n").splitlines()


def test_a_step_that_no_output_needs_is_left_out() -> None:
    graph = parse_graph("graph g\naxes k=4\nin x: f32[k]\nt1 = exp(x)\nt2 = neg(x)\nout y: f32[k] = t2")
    assert [step.op for step in fuse(graph).graph.steps] == ["neg"]


# -- what a muGraph computes: program by program, turn by turn, on tiles of one position


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
