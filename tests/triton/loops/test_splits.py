"""Axes in parts: extents that fit whatever size comes, and kernels that stop where the axis does."""

from dataclasses import replace

import pytest

from superopt.codegen.errors import UnsupportedError
from superopt.codegen.statements import lower_block, split_extents
from superopt.codegen.triton import TritonMuGraph, default_config, emit
from superopt.ir import Split, fuse, parse_graph, split_axis, stabilize

CAUSAL = """graph causal
axes s=2048 d=64 t=2048 e=64
in q: f16[s, d]
in k: f16[t, d]
in v: f16[t, e]
t3 = contract[d](q, k)
t4 = exp(t3)
t5 = index[s]()
t6 = index[t]()
t7 = ge(t5, t6)
t8 = mul(t7, t4)
t9 = contract[t](t8, v)
t10 = sum[t](t8)
t11 = div(t9, t10)
out o: f16[s, e] = t11
"""


def causal(parts):
    graph, split = split_axis(parse_graph(CAUSAL), "t", parts)
    return fuse(stabilize(graph, (split.outer,)), splits=(split,), online=True), split


SPLIT = Split("t", "part", "at")


@pytest.mark.parametrize(
    ("size", "parts", "multiple", "expected"),
    [
        (4096, 8, 64, (8, 512)),
        (4097, 8, 64, (8, 576)),
        (4097, 8, 1, (8, 513)),
        (130, 8, 64, (3, 64)),
        (9, 8, 1, (5, 2)),
        (1, 8, 16, (1, 16)),
        (0, 8, 16, (1, 16)),
        (5, 1, 1, (1, 5)),
    ],
)
def test_extents_of_parts(size, parts, multiple, expected):
    found = split_extents(SPLIT, {"t": size, "part": parts, "at": 7, "m": 3}, multiple)
    assert (found["part"], found["at"]) == expected
    assert found["t"] == size
    assert found["m"] == 3
    assert found["part"] * found["at"] >= size > (found["part"] - 1) * found["at"] or size == 0


def test_a_loop_with_a_running_shift_stops_at_the_diagonal():
    mugraph = fuse(stabilize(parse_graph(CAUSAL)), online=True)
    text = TritonMuGraph(mugraph).source(0, mugraph.graph.sizes).text
    assert "in range(t0_masked, tl.minimum(T, (pid_s + 1) * BLOCK_S), BLOCK_T):" in text


def test_parts_beyond_the_diagonal_take_no_turn():
    mugraph, _ = causal(4)
    text = TritonMuGraph(mugraph).source(0, mugraph.graph.sizes).text
    end = "tl.minimum(T_AT, (pid_s + 1) * BLOCK_S - pid_t_part * T_AT)"
    assert f"in range(t_at0_masked, {end}, BLOCK_T_AT):" in text


def test_a_shift_that_is_no_maximum_of_what_is_masked_hides_nothing():
    text = CAUSAL.replace("t8 = mul(t7, t4)", "t8 = mul(t4, t4)")
    mugraph = fuse(stabilize(parse_graph(text)), online=True)
    assert "tl.minimum" not in TritonMuGraph(mugraph).source(0, mugraph.graph.sizes).text


def test_a_part_that_may_be_short_ends_where_the_axis_does():
    mugraph, split = causal(4)
    built = TritonMuGraph(mugraph)
    sizes = {**mugraph.graph.sizes, "t": 2000}
    text = built.source(0, sizes).text
    assert "end_t_at = tl.minimum(T_AT, T - pid_t_part * T_AT)" in text
    assert "mask_t_at = offs_t_at < end_t_at" in text
    found = built.extents(sizes)
    assert (found[split.outer], found[split.inner]) == (4, 512)
    assert "end_t_at" not in built.source(0, {**sizes, "t": 1024}).text


def test_a_program_is_in_one_part():
    mugraph, split = causal(4)
    program = lower_block(mugraph, 0)
    config = default_config(program, mugraph.graph.sizes)
    tiles = tuple((axis, 2 if axis == split.outer else tile) for axis, tile in config.tiles)
    with pytest.raises(UnsupportedError, match="the tile of 't_part' is 2; a program is in one part"):
        emit(program, replace(config, tiles=tiles))
