"""Which configurations are worth measuring: those of many rows are fed, and registers may be limited."""

from dataclasses import replace
from math import prod

import pytest
from compiling import compile_ahead

from superopt.codegen.statements import lower_block
from superopt.codegen.triton import configs, emit
from superopt.codegen.triton.footprint import footprint
from superopt.codegen.triton.plan import read_once
from superopt.ir import fuse, parse_graph
from superopt.targets import config_json, pick_target

MATMUL = """
graph matmul
axes m={m} k={k} n=512
in x: {dtype}[m, k]
in w: {dtype}[k, n]
t2 = contract[k](x, w)
out o: {dtype}[m, n] = t2
"""


def found(m=512, k=512, dtype="f16", shared_bytes=227 << 10):
    mugraph = fuse(parse_graph(MATMUL.format(m=m, k=k, dtype=dtype)))
    program = lower_block(mugraph, 0)
    return program, configs(program, mugraph.graph.sizes, shared_bytes=shared_bytes)


def rows(config):
    return min(config.tile("m"), config.tile("n"))


@pytest.mark.parametrize("dtype", ["f16", "bf16"])
def test_a_product_of_many_rows_has_three_stages_and_four_warps(dtype):
    _, several = found(dtype=dtype)
    many = [one for one in several if rows(one) >= 64]
    assert {(one.num_stages, one.num_warps) for one in many} >= {(3, 4), (4, 8)}
    assert all(one.num_stages >= 3 and one.num_warps >= 4 for one in many)
    few = [one for one in several if rows(one) < 64]
    assert {2} < {one.num_stages for one in few}
    assert {2} < {one.num_warps for one in few}


def test_fp32_and_devices_with_little_memory_keep_what_fits():
    _, several = found(dtype="f32")
    assert any(rows(one) >= 64 and one.num_stages == 2 for one in several)
    program, several = found(shared_bytes=20 << 10)
    assert several
    assert all(prod((one.num_stages, one.num_warps)) for one in several)
    assert all(footprint(program, one).shared_bytes <= 20 << 10 for one in several[1:])


def test_registers_are_limited_where_tiles_leave_room():
    program, several = found()
    limited = [one for one in several if one.most_registers]
    assert {one.most_registers for one in limited} == {128}
    assert max(footprint(program, one).register_bytes / (one.num_warps * 128) for one in limited) <= 69
    made = compile_ahead(emit(program, limited[0]), target="cuda:90")
    assert made.registers <= 128
    data = config_json(limited[0])
    assert pick_target("cuda:90").config_from_json(data) == limited[0]


ROWS = """
graph rows
axes m=64 n=4096
in x: f32[m, n]
in g: f32[n]
{steps}
out o: f32[m, n] = t4
"""
ONCE = "t2 = exp(x)\nt3 = neg(g)\nt4 = mul(t2, t3)"
TWICE = "t2 = max[n](x)\nt3 = sub(x, t2)\nt4 = mul(t3, g)"


def test_what_is_read_once_may_leave_the_cache_first():
    mugraph = fuse(parse_graph(ROWS.format(steps=ONCE)))
    program = lower_block(mugraph, 0)
    hinted = [one for one in configs(program, mugraph.graph.sizes) if one.passing]
    assert {one.passing for one in hinted} == {frozenset({"x"})}  # other rows read g as well
    for config, has in ((hinted[0], True), (replace(hinted[0], passing=frozenset()), False)):
        made = compile_ahead(emit(program, config), target="cuda:90", texts=True)
        assert ("L1::evict_first" in made.ptx) == has
    assert pick_target("cuda:90").config_from_json(config_json(hinted[0])) == hinted[0]


@pytest.mark.parametrize("tile", [256, 4096])
def test_what_two_loops_or_all_programs_read_stays_in_the_cache(tile):
    mugraph = fuse(parse_graph(ROWS.format(steps=TWICE)))
    program = lower_block(mugraph, 0)
    assert read_once(program, {"m": 1, "n": tile}, mugraph.graph.sizes) == frozenset()


@pytest.mark.slow
def test_programs_that_do_several_tiles_read_them_by_descriptors():
    mugraph = fuse(parse_graph(MATMUL.format(m=16384, k=512, dtype="f16")))
    found = [one for one in pick_target("cuda:90").configs(mugraph, 0) if one.persistent and one.descriptors]
    large = next(one for one in found if rows(one) == 128 and one.num_warps == 8)
    made = compile_ahead(emit(lower_block(mugraph, 0), large), target="cuda:90", texts=True)
    assert made.tensor_copies >= 2
    assert made.spill_bytes == 0
    assert "wgmma" in made.ptx
