"""Layout: the order of axes in tiles and between kernels, by which contractions become long ones."""

import re

import pytest
import torch

from superopt.codegen.cpp import CppMuGraph, configs, default_config, emit, has_unit_strides, lower_kernel
from superopt.codegen.cpp.plan import make_plan
from superopt.ir import MuGraph, fuse, parse_graph, parse_mugraph
from superopt.trace import run_graph, trace

HEADS = """
graph heads
axes m=24 k=40 h=3 g=2 d=16
in x: f32[m, k]
in w: f32[(h g d), k]
in s: f32[1, m, 1]
t3 = contract[k](x, w)
t4 = mul(t3, s)
out y: f32[1, m, h, (g d)] = t4
"""

ATTENTION = """
graph attention
axes s=12 t=20 h=3 g=2 e=8 a=8 n=24
in q: f32[1, (h g), s, e]
in k: f32[1, h, t, e]
in v: f32[1, h, t, a]
in w: f32[n, (h g a)]
kernel grid[s, t]
  t4 = contract[e](q, k)
  t5 = exp(t4)
kernel grid[s, h]
  t6 = contract[t](t5, v)
kernel grid[s, n]
  t7 = contract[h, g, a](t6, w)
out y: f32[1, s, n] = t7
"""


def heads() -> MuGraph:
    return fuse(parse_graph(HEADS))


def test_columns_that_are_one_in_memory_are_one_in_a_tile() -> None:
    program = lower_kernel(heads(), 0)
    order = make_plan(program, frozenset()).order
    assert order.index("m") < order.index("h") < order.index("g") < order.index("d")
    code = emit(program, default_config(program, program.graph.sizes)).code
    [columns] = re.findall(r"contract\(m_count, (.*?), k_(?:count|size),", code)
    assert columns.count("joins") == 2  # h and g, where all d are in a tile


def test_the_order_of_tiles_changes_no_result() -> None:
    x, w, s = torch.randn(24, 40), torch.randn(96, 40), torch.randn(1, 24, 1)
    graph = parse_graph(HEADS)
    found = CppMuGraph(heads(), flags=("-O1",))(x=x, w=w, s=s)["y"]
    expected = run_graph(graph, {"x": x, "w": w, "s": s}, torch.float64)["y"]
    torch.testing.assert_close(found, expected.float(), rtol=1e-4, atol=1e-4)


def test_between_kernels_what_is_contracted_together_comes_last_and_what_is_repeated_first() -> None:
    mugraph = parse_mugraph(ATTENTION)
    stored = {tensor.name: tensor.axes for at in (0, 1) for tensor in lower_kernel(mugraph, at).stores}
    assert stored == {"t5": ("h", "s", "g", "t"), "t6": ("s", "h", "g", "a")}


def test_attention_in_three_kernels_is_right() -> None:
    mugraph = parse_mugraph(ATTENTION)
    shapes = {"q": (1, 6, 12, 8), "k": (1, 3, 20, 8), "v": (1, 3, 20, 8), "w": (24, 48)}
    inputs = {name: torch.randn(shape) for name, shape in shapes.items()}
    found = CppMuGraph(mugraph, flags=("-O1",))(**inputs)["y"]
    expected = run_graph(mugraph.graph, inputs, torch.float64)["y"]
    torch.testing.assert_close(found, expected.float(), rtol=1e-3, atol=1e-2)


@pytest.mark.parametrize("cores", [1, 2, 4])
def test_every_core_has_a_program(cores: int) -> None:
    text = HEADS.replace("m=24", "m=120").replace("k=40", "k=512")
    program = lower_kernel(fuse(parse_graph(text)), 0)
    sizes = program.graph.sizes
    config = default_config(program, sizes, cores=cores)
    programs = 1
    for axis in program.grid:
        programs *= -(-sizes[axis] // config.tile(axis))
    assert programs >= cores


@pytest.mark.parametrize("rows", [64, 128, 512, 1200])
def test_many_rows_lie_in_one_tile_where_registers_are_few(rows: int) -> None:
    text = f"graph g\naxes m={rows} n=1024 k=2048\nin x: f32[m, k]\nin w: f32[n, k]\nt2 = contract[k](x, w)\n"
    program = lower_kernel(fuse(parse_graph(f"{text}out y: f32[m, n] = t2\n")), 0)
    sizes = program.graph.sizes
    few, many = (default_config(program, sizes, vectors=one) for one in ("avx2", "avx512"))
    if rows < 96:
        assert few == many
    else:
        assert dict(few.tiles) == {"m": {1200: 400}.get(rows, rows), "n": 512, "k": 512}
        assert many.tile("m") == 64
    for cores in (1, 3, 8, 16, 64):  # none of them waits for the others
        tiles = default_config(program, sizes, cores=cores, vectors="avx2")
        programs = -(-rows // tiles.tile("m")) * -(-1024 // tiles.tile("n"))
        assert programs % cores == 0 or programs >= min(4 * cores, rows * 1024 // 64**2)
    listed = list(configs(program, sizes, vectors="avx2"))
    assert listed[0] == few
    assert len(set(listed)) == len(listed) > 10


@pytest.mark.parametrize(("strides", "unit_strides"), [("", True), (" strides(1, 24)", False)])
def test_code_is_compiled_first_for_the_strides_that_tensors_have(strides: str, unit_strides: bool) -> None:
    text = """
graph plus
axes m=24 n=40
in x: f32[m, n]STRIDES
in y: f32[m, n]
t2 = add(x, y)
out z: f32[m, n] = t2
"""
    program = lower_kernel(fuse(parse_graph(text.replace("STRIDES", strides))), 0)
    source = emit(program, default_config(program, program.graph.sizes))
    assert source.unit_strides
    assert has_unit_strides(program, source) is unit_strides


def test_scratch_memory_that_is_read_across_lines_asks_nothing_of_tensors() -> None:
    text = """
graph turned
axes h=2 n=24 k=8 m=24
in x: f32[h, k]
in y: f32[h, n]
in z: f32[h, m]
t3 = contract[h](x, y)
t4 = exp(z)
t5 = contract[h](x, t4)
t6 = rename[m->n](t5)
t7 = add(t3, t6)
out a: f32[n, k] = t7
out b: f32[h, m] = t4
out c: f32[k, m] = t5
"""
    mugraph = fuse(parse_graph(text))
    program = lower_kernel(mugraph, 0)
    source = emit(program, default_config(program, program.graph.sizes))
    assert "load(t5_tile + n + k * m_size, m_size, k_lanes)" in source.code
    assert {one.kind for one in source.unit_strides} == {"stride"}
    x, y, z = torch.randn(2, 8), torch.randn(2, 24), torch.randn(2, 24)
    made = CppMuGraph(mugraph)(x=x, y=y, z=z)
    torch.testing.assert_close(made["a"], (x.T @ (y + z.exp())).T)


MOVED = {
    "its transpose": lambda x: (y := torch.sigmoid(x)) + y.mT,
    "its last column": lambda x: (y := torch.sigmoid(x)) - y[:, :, -1:],
}


@pytest.mark.parametrize("name", MOVED)
def test_what_is_read_at_other_places_too_is_whole_before(name: str) -> None:
    """Before: it was read in the loop that was still making it."""
    x = torch.randn(6, 32, 32)
    [region] = trace(MOVED[name], x).program.regions
    [port] = region.graph.inputs
    [made] = CppMuGraph(fuse(region.graph), flags=("-O1",))(**{port.name: x}).values()
    torch.testing.assert_close(made, MOVED[name](x))
