"""What is read from the machine code of kernels, of small texts and of what the compiler makes."""

from dataclasses import replace

import pytest

from superopt.codegen.statements import lower_block
from superopt.codegen.triton import default_config
from superopt.codegen.triton.run.machine_code import MachineCode, read_machine_code
from superopt.ir import parse_mugraph
from superopt.targets import pick_target
from superopt.tune.pool import compile_all

PTX = """
wgmma.mma_async.sync.aligned.m64n256k16.f32.f16.f16 {%r1}, %rd1, %rd2, 1;
wgmma.mma_async.sync.aligned.m64n256k16.f32.f16.f16 {%r1}, %rd1, %rd2, 1;
mma.sync.aligned.m16n8k8.row.col.f32.tf32.tf32.f32 { %r1 }, { %r2 }, { %r3 }, { %r1 };
"""

# A loop that waits for a barrier, inside one that loads and multiplies; then one that only counts.
SASS = """
        /*0000*/                   MOV R1, c[0x0][0x28] ;        /* 0x00000a0000017a02 */
        /*0010*/                   LDGSTS.E.BYPASS.128 [R2], desc[UR4][R4.64] ;
        /*0020*/                   LDG.E.64 R6, desc[UR4][R8.64] ;
        /*0030*/                   SYNCS.PHASECHK.TRANS64.TRYWAIT P0, [UR4], R3 ;
        /*0040*/              @!P0 BRA 0x30 ;
        /*0050*/                   HGMMA.64x256x16.F32 R24, gdesc[UR8], R24 ;
        /*0060*/               @P1 BRA 0x10 ;
        /*0070*/                   IADD3 R1, R1, 0x1, RZ ;
        /*0080*/               @P2 BRA 0x70 ;
        /*0090*/                   EXIT ;
        /*00a0*/                   BRA 0xa0;
"""

MATMUL = """graph matmul
axes m={m} k=4096 n=4096
in x: {dtype}[m, k]
in w: {dtype}[k, n]
kernel grid[m, n]
  loop[k]
    t2 += contract[k](x, w)
out o: {dtype}[m, n] = t2
"""

ROW = """graph row
axes k=4096 n=4096
in x: f16[1, k]
in w: f16[k, n]
kernel grid[n]
  loop[k]
    t2 += contract[k](x, w)
out o: f16[1, n] = t2
"""


def test_the_hot_loop_is_the_one_that_works():
    found = read_machine_code(PTX, SASS)
    assert found.matrix == {"mma.m16n8k8.tf32": 1, "wgmma.m64n256k16.f16": 2}
    assert found.types == {"tf32", "f16"}
    assert (found.loop, found.loop_matrix, found.loop_copies, found.loop_loads) == (6, 1, 1, 1)


INNER = SASS.replace("/*0070*/                   IADD3", "/*0070*/                   LDG.E.64")
NESTED = INNER.replace("0x70 ;", "0x0 ;")  # the last loop begins at the first line, and loads


@pytest.mark.parametrize(("turns", "count", "products"), [(0, 6, 1), (1, 9, 1), (3, 21, 3)])
def test_a_loop_within_a_loop_counts_with_its_turns(turns, count, products):
    found = read_machine_code(PTX, NESTED, inner_turns=turns)
    assert (found.loop, found.loop_matrix, found.loop_copies) == (count, products, products)
    assert found.loop_loads == (1 if not turns else turns + 1)


def test_what_has_no_loop():
    assert read_machine_code("", SASS.splitlines()[1]) == MachineCode()


def compiled(text, **changes):
    target = pick_target("h200")
    mugraph = parse_mugraph(text)
    config = default_config(lower_block(mugraph, 0), mugraph.graph.sizes)
    job = target.job("job", mugraph, 0, replace(config, **changes), texts=True)
    [result] = compile_all([job], workers=1, limit_seconds=120.0)
    assert result.failure is None
    return result.made, read_machine_code(result.made.ptx, result.made.sass)


@pytest.mark.parametrize("dtype", ["f16", pytest.param("bf16", marks=pytest.mark.slow)])
def test_many_rows_are_multiplied_by_warp_groups_from_copied_tiles(dtype):
    tiles = (("m", 128), ("k", 64), ("n", 256))
    text = MATMUL.format(m=2048, dtype=dtype)
    made, found = compiled(text, tiles=tiles, num_warps=8, num_stages=3, descriptors=True)
    assert list(found.matrix) == [f"wgmma.m64n256k16.{dtype}"]
    assert found.loop_tensor_copies == 2
    assert made.spill_bytes == 0


def test_a_loop_without_a_product_asks_for_its_tiles_ahead():
    _, found = compiled(ROW, tiles=(("k", 128), ("n", 64)), num_warps=4, num_stages=4)
    assert found.loop_copies
    assert not found.loop_shuffles  # lanes are added up after the loop
    assert found.loop * 4 / 16 < 60  # instructions of warps for each KB of the matrix


def test_a_call_with_one_row_is_compiled_as_such():
    target = pick_target("h200")
    mugraph = parse_mugraph(MATMUL.format(m=1, dtype="f16").replace("[m, n] = t2", "[m, n] = t2"))
    job = target.job("job", mugraph, 0, target.default_configs(mugraph)[0])
    assert job.numbers is not None
    assert job.numbers["K"] == 4096
    assert {number for name, number in job.numbers.items() if name.endswith(("x_k", "w_n", "o_n"))} == {1}
