"""Which configurations are worth measuring: those of many rows are fed, and registers may be limited."""

from math import prod

import pytest
from compiling import compile_ahead

from superopt.codegen.statements import lower_block
from superopt.codegen.triton import configs, emit
from superopt.codegen.triton.footprint import footprint
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


@pytest.mark.slow
def test_programs_that_do_several_tiles_read_them_by_descriptors():
    mugraph = fuse(parse_graph(MATMUL.format(m=16384, k=512, dtype="f16")))
    found = [one for one in pick_target("cuda:90").configs(mugraph, 0) if one.persistent and one.descriptors]
    large = next(one for one in found if rows(one) == 128 and one.num_warps == 8)
    made = compile_ahead(emit(lower_block(mugraph, 0), large), target="cuda:90", texts=True)
    assert made.tensor_copies >= 2
    assert made.spill_bytes == 0
    assert "wgmma" in made.ptx
