"""Roots that steps divide by: where the reciprocal is taken of the root, and where it must not be."""

import math

import pytest
import torch

from superopt.codegen.cpp import CppMuGraph
from superopt.codegen.lowering.convert_sqrt_to_rsqrt import convert_sqrt_to_rsqrt
from superopt.codegen.statements import lower_block
from superopt.codegen.triton import TritonMuGraph
from superopt.ir import fuse, parse_graph, parse_mugraph
from superopt.trace import run_graph

NORM = """graph norm
axes m=7 k=33
in x: {dtype}[m, k]
in g: {dtype}[k]
t2 = mul(x, x)
t3 = sum[k](t2)
t4 = size[k]()
t5 = div(t3, t4)
t6 = sqrt(t5)
t7 = div(x, t6)
t8 = mul(t7, g)
{more}out o: {dtype}[m, k] = t8
"""


def norm(dtype="f32", more="", **changed):
    text = NORM.format(dtype=dtype, more=more)
    for old, new in changed.values():
        assert old in text
        text = text.replace(old, new)
    return parse_graph(text)


def is_converted(mugraph, *, shared=False):
    programs = [lower_block(mugraph, at) for at in range(len(mugraph.kernels))]
    found = [convert_sqrt_to_rsqrt(one, shared=shared) for one in programs]
    assert len({one.graph for one in found}) == 1  # all kernels see the same values
    return found[0] is not programs[0]


def test_a_norm_multiplies_by_the_reciprocal_of_the_root():
    mugraph = fuse(norm())
    assert is_converted(mugraph)
    text = TritonMuGraph(mugraph).source(0, mugraph.graph.sizes).text
    assert "tl.rsqrt(" in text
    assert "tl.sqrt(" not in text


NOT = {
    "the root is a result": norm(more="out r: f32[m] = t6\n"),
    "something else reads the root": norm(more="t9 = exp(t6)\nout r: f32[m] = t9\n"),
    "the root is divided": norm(more="t9 = div(t6, g)\nout r: f32[m, k] = t9\n"),
    "the root over itself": norm(more="t9 = div(t6, t6)\nout r: f32[m] = t9\n"),
    "the divisor is no root": norm(root=("t6 = sqrt(t5)", "t6 = exp(t5)")),
}


@pytest.mark.parametrize("graph", NOT.values(), ids=NOT.keys())
def test_other_divisions_stay(graph):
    assert not is_converted(fuse(graph))


def test_a_processor_divides_where_each_element_has_its_own_root():
    mugraph = fuse(norm(root=("t6 = sqrt(t5)", "t6 = sqrt(t2)")))
    assert is_converted(mugraph)
    assert not is_converted(mugraph, shared=True)
    assert is_converted(fuse(norm()), shared=True)


APART = """graph apart
axes m=7 k=33
in x: f32[m, k]
kernel grid[m]
  t1 = mul(x, x)
  t2 = sum[k](t1)
{first}  t3 = sqrt(t2)
{second}  t4 = div(x, t3)
out o: f32[m, k] = t4
"""


@pytest.mark.parametrize(("place", "converted"), [("first", True), ("second", False)])
def test_a_root_that_passes_between_kernels_stays(agrees, place, converted):
    parts = {"first": "", "second": ""} | {place: "kernel grid[m, k]\n"}
    text = APART.format(**parts)
    assert is_converted(parse_mugraph(text)) == converted
    agrees("text", text=text, domain=[0.5, 3.0])


@pytest.mark.parametrize("dtype", ["f32", "f16"])
@pytest.mark.parametrize("size", [1e-4, 1.0, 1e4])
def test_converted_kernels_agree(agrees, dtype, size):
    agrees("text", text=str(fuse(norm(dtype))), domain=[size / 2, size])


DIVIDED = """graph divided
axes m=9 k=33
in x: f32[m, k]
in v: f32[m]
t2 = sqrt(v)
t3 = div(x, t2)
out o: f32[m, k] = t3
"""


def test_quotients_of_any_numbers_are_those_of_pytorch():
    graph = parse_graph(DIVIDED)
    mugraph = fuse(graph)
    assert is_converted(mugraph)
    largest, normal, least = torch.finfo(torch.float32).max, 2.0**-126, 2.0**-149
    v = torch.tensor([0.0, -0.0, least, normal, 1.0, largest, math.inf, math.nan, -1.0])
    numbers = torch.tensor([0.0, -0.0, 1.0, -1.0, normal, 1e30, largest, -largest, math.inf, math.nan])
    x = numbers.repeat(9, 4)[:, :33].contiguous()
    made = CppMuGraph(mugraph, flags=("-O1",))(x=x, v=v)["o"]
    wanted = x / v.sqrt()[:, None]
    torch.testing.assert_close(made, wanted, rtol=1e-6, atol=normal, equal_nan=True)
    [by_steps] = run_graph(graph, {"x": x, "v": v}, torch.float32).values()
    torch.testing.assert_close(made, by_steps, rtol=1e-6, atol=normal, equal_nan=True)
