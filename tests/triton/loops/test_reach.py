"""Loops that a mask bounds: where it holds everywhere it is left out, and where nowhere the loop ends."""

import re

import pytest
from masks import MASKS, masked_mugraph, masked_text
from quick import few

from superopt.codegen.triton import TritonMuGraph
from superopt.ir import fuse, is_matmul, parse_graph, release_shifts, stabilize
from superopt.trace import trace
from superopt.workloads import WORKLOADS

BOUNDED = {"causal", "before", "window", "backwards"}  # the last position that a program may need is known
FREE = BOUNDED - {"window"}  # there each tile has both masks as one


@pytest.mark.parametrize("configs", few(["default", "grouped", "persistent"], "default", "persistent"))
@pytest.mark.parametrize("name", MASKS)
def test_masks_agree(agrees, name, configs):
    agrees("text", text=str(masked_mugraph(name, 0)), domain=[-3.0, 3.0], configs=configs)


@pytest.mark.parametrize("parts", [0, 4])
@pytest.mark.parametrize("name", MASKS)
def test_loops_go_on_where_the_mask_begins_to_hide(name, parts):
    mugraph = masked_mugraph(name, parts)
    text = TritonMuGraph(mugraph).source(0, mugraph.graph.sizes).text
    assert ("holds nowhere" in text) == (name in BOUNDED | {"after"})
    assert ("holds everywhere" in text) == (name in FREE)
    loops = re.findall(r"\n    for (\w+) in range\((.*), BLOCK_\w+\):\n((?: {8}.*\n)+)", text)
    assert len(loops) == (2 if name in FREE else 1)
    assert "tl.where" in loops[-1][2]
    if name in FREE:
        assert "tl.where" not in loops[0][2].replace("tl.where(mask_", "")
        assert loops[0][1].split(", ")[-1] == loops[1][1].split(", ")[0]


@pytest.mark.parametrize("name", MASKS)
def test_programs_with_the_longest_loops_start_first(name):
    mugraph = masked_mugraph(name, 0)
    text = TritonMuGraph(mugraph).source(0, mugraph.graph.sizes).text
    turned = re.search(r"\n    pid_s = tl\.cdiv\(S, BLOCK_S\) - 1 - pid", text) is not None
    assert turned == (name in {"causal", "before"})  # a window is as long everywhere


def test_a_program_ahead_of_its_part_starts_at_its_first_position():
    mugraph = masked_mugraph("causal", 4)
    text = TritonMuGraph(mugraph).source(0, mugraph.graph.sizes).text
    assert re.search(r"t_at0_masked = tl\.maximum\(0, tl\.minimum\(.*pid_t_part \* T_AT.*\)", text)


def test_a_mask_that_is_added_is_needed_everywhere():
    text = masked_text("causal").replace("t23 = div(t21, t22)", "t24 = sum[t](t19)\nt23 = div(t21, t24)")
    mugraph = fuse(stabilize(parse_graph(text.replace("t22 = sum[t](t20)\n", ""))), online=True)
    assert "holds everywhere" not in TritonMuGraph(mugraph).source(0, mugraph.graph.sizes).text


@pytest.mark.parametrize("name", MASKS)
def test_products_that_another_kernel_made_are_read_as_they_are(agrees, name):
    graph = stabilize(parse_graph(masked_text(name)))
    mugraph = fuse(graph, library=is_matmul, online=True)
    agrees("text", text=str(mugraph), domain=[-3.0, 3.0])


_MASKED_TWICE = """graph masked
axes s=40 t=130 e=9
in p: f32[s, t]
in v: f32[t, e]
kernel grid[s, t]
  t2 = index[s]()
  t3 = index[t]()
  t4 = ge(t2, t3)
  t5 = gt(t2, t3)
  t6 = infinity[]()
  t7 = neg(t6)
  t8 = where(t4, p, t7)
  t9 = where(t5, t8, t7)
  t10 = exp(t9)
  t11 = mul(t4, t10)
kernel grid[s, e]
  t2 = index[s]()
  loop[t]
    t3 = index[t]()
    t5 = gt(t2, t3)
    t12 = mul(t5, t11)
    t13 += contract[t](t12, v)
out o1: f32[s, e] = t13
"""


def test_one_of_two_masks_is_that_of_another_kernel(agrees):
    agrees("text", text=_MASKED_TWICE, domain=[-3.0, 3.0])


def test_a_mask_that_an_earlier_kernel_applied_still_ends_the_loop():
    attention = WORKLOADS["gqa"]
    graph = release_shifts(trace(attention.function, *attention.inputs()).graph)
    mugraph = fuse(stabilize(graph), online=True)
    *_, last = range(len(mugraph.kernels))
    assert "holds nowhere" in TritonMuGraph(mugraph).source(last, graph.sizes).text
