"""Estimates of muGraphs: what is read how often, what work is done where, and what never is less."""

from collections.abc import Callable
from dataclasses import replace

import pytest

from superopt.candidates.sizes import resized
from superopt.cost import DEVICES, estimate, floor_us
from superopt.cost.work import scalar_work
from superopt.ir import MuGraph, fuse, is_matmul, parse_mugraph
from superopt.ops import OPS
from superopt.workloads import WORKLOADS

H200 = DEVICES["H200"]
Fused = Callable[..., MuGraph]

WHOLE = """
graph matvec
axes ko=32 ki=256 n=1024
in x: f16[(ko ki)]
in w: f16[(ko ki), n]
kernel grid[n]
  loop[ko]
    loop[ki]
      t0 += contract[ko, ki](x, w)
out out: f16[n] = t0
"""

SPLIT = """
graph matvec
axes ko=32 ki=256 n=1024
in x: f16[(ko ki)]
in w: f16[(ko ki), n]
kernel grid[ko, n]
  loop[ki]
    t0 += contract[ki](x, w)
kernel grid[n]
  loop[ko]
    t1 += sum[ko](t0)
out out: f16[n] = t1
"""

# Attention of one new token on few heads, its scores given: one program per head, or parts of the keys.
DECODE = """
graph decode
axes h=8 to=16 ti=2048 d=128
in s: f16[h, (to ti)]
in v: f16[h, (to ti), d]
kernel grid[h]
  loop[to]
    loop[ti]
      t0 = exp(s)
      t1 += sum[to, ti](t0)
      t2 += contract[to, ti](t0, v)
  t3 = div(t2, t1)
out out: f16[h, d] = t3
"""

TWO_PASSES = """
graph attention
axes h={h} s={s} t={t} d=128 e=128
in q: f16[h, s, d]
in k: f16[h, t, d]
in v: f16[h, t, e]
kernel grid[h, s]
  loop[t]
    t0 = contract[d](q, k)
    t1 max= max[t](t0)
  loop[t]
    again t0 = contract[d](q, k)
    t2 = sub(t0, t1)
    t3 = exp(t2)
    t4 += sum[t](t3)
    t5 += contract[t](t3, v)
  t6 = div(t5, t4)
out out: f16[h, s, e] = t6
"""

ONLINE = """
graph attention
axes h={h} s={s} t={t} d=128 e=128
in q: f16[h, s, d]
in k: f16[h, t, d]
in v: f16[h, t, e]
kernel grid[h, s]
  t0 = const[-1000]()
  loop[t] running t3
    t1 = contract[d](q, k)
    t2 max= max[t](t1)
    t3 = maximum(t2, t0)
    t4 = sub(t1, t3)
    t5 = exp(t4)
    t6 += sum[t](t5)
    t7 += contract[t](t5, v)
  t8 = div(t7, t6)
out out: f16[h, s, e] = t8
"""

FLASH_DECODING = """
graph attention
axes h={h} s={s} t={t} t_part=32 t_at={at} d=128 e=128
in q: f16[h, s, d]
in k: f16[h, (t_part t_at), d]
in v: f16[h, (t_part t_at), e]
split t into t_part t_at
kernel grid[h, s, t_part]
  t0 = const[-1000]()
  loop[t_at] running t3
    t1 = contract[d](q, k)
    t2 max= max[t_at](t1)
    t3 = maximum(t2, t0)
    t4 = sub(t1, t3)
    t5 = exp(t4)
    t6 += sum[t_at](t5)
    t7 += contract[t_at](t5, v)
kernel grid[h, s, e]
  t0 = const[-1000]()
  loop[t_part] running t9
    t8 max= max[t_part](t3)
    t9 = maximum(t8, t0)
    t10 = sub(t3, t9)
    t11 = exp(t10)
    t12 = mul(t6, t11)
    t13 += sum[t_part](t12)
    t14 = mul(t7, t11)
    t15 += sum[t_part](t14)
  t16 = div(t15, t13)
out out: f16[h, s, e] = t16
"""

DECODE_SPLIT = """
graph decode
axes h=8 to=16 ti=2048 d=128
in s: f16[h, (to ti)]
in v: f16[h, (to ti), d]
kernel grid[h, to]
  loop[ti]
    t0 = exp(s)
    t1 += sum[ti](t0)
    t2 += contract[ti](t0, v)
kernel grid[h]
  loop[to]
    t3 += sum[to](t1)
    t4 += sum[to](t2)
  t5 = div(t4, t3)
out out: f16[h, d] = t5
"""


def at(text: str, **sizes: int) -> MuGraph:
    """Return a muGraph at other sizes of some axes."""
    mugraph = parse_mugraph(text)
    return replace(mugraph, graph=resized(mugraph.graph, sizes))


def test_rmsnorm_linear_reads_its_weights_once(fused: Fused) -> None:
    found = estimate(fused("rmsnorm-linear"), H200)
    [kernel] = found.kernels
    m, k, n = 16, 4096, 6144
    assert kernel.bytes_read == 2 * (m * k + k + k * n)
    assert kernel.bytes_written == 2 * m * n
    assert kernel.flops_matrix == 2 * m * k * n
    assert kernel.limit == "memory"
    moved = kernel.bytes_read + kernel.bytes_written
    assert found.us == pytest.approx(H200.launch_us + moved / 4.8e6)


def test_work_is_repeated_along_grid_axes_that_a_step_lacks(fused: Fused) -> None:
    [narrow] = estimate(fused("rmsnorm-linear", N=128), H200).kernels
    [wide] = estimate(fused("rmsnorm-linear", N=8192), H200).kernels
    assert wide.exps + wide.flops_vector > narrow.exps + narrow.flops_vector
    assert wide.flops_vector == pytest.approx(narrow.flops_vector * 8192 / 256, rel=0.01)


def test_again_counts_again(fused: Fused) -> None:
    [kernel] = estimate(fused("softmax"), H200).kernels
    assert kernel.exps == 16 * 4096 * 2 + 16  # the exponential twice, and the reciprocal of each sum
    assert kernel.bytes_read == 16 * 4096 * 2


def test_split_reductions_fill_the_device() -> None:
    whole, split = (estimate(parse_mugraph(text), H200) for text in (WHOLE, SPLIT))
    assert whole.kernels[0].programs == 64 < H200.cores <= split.kernels[0].programs
    small = replace(H200, cores=64)  # no core of it is idle, so splitting only costs
    assert estimate(parse_mugraph(WHOLE), small).us < estimate(parse_mugraph(SPLIT), small).us
    many = replace(H200, cores=512)
    tall = [at(text, ko=512) for text in (SPLIT, WHOLE)]
    assert estimate(tall[0], many).us < estimate(tall[1], many).us


def test_one_program_per_head_is_slower_than_a_split_over_the_keys() -> None:
    whole, split = (estimate(parse_mugraph(text), H200) for text in (DECODE, DECODE_SPLIT))
    assert whole.kernels[0].programs == 8
    assert split.us * 2 < whole.us
    assert estimate(at(DECODE, h=512), H200).us < estimate(at(DECODE_SPLIT, h=512), H200).us


def attention(text: str, h: int, s: int, t: int) -> MuGraph:
    return parse_mugraph(text.format(h=h, s=s, t=t, at=t // 32))


def test_a_running_shift_saves_a_pass_and_pays_for_rescaling() -> None:
    [one] = estimate(attention(ONLINE, 32, 2048, 2048), H200).kernels
    [two] = estimate(attention(TWO_PASSES, 32, 2048, 2048), H200).kernels
    assert two.us > 1.3 * one.us
    assert two.flops_matrix == 1.5 * one.flops_matrix
    rows, tiles = 32 * 2048, 2048 // 256
    assert one.exps - two.exps == rows * tiles  # how far the shift moved, once for a long tile
    assert one.flops_vector - two.flops_vector == pytest.approx(rows * tiles * 130, rel=0.01)


def test_flash_decoding_fills_the_device() -> None:
    whole, flash = (estimate(attention(text, 8, 1, 32000), H200) for text in (ONLINE, FLASH_DECODING))
    assert whole.kernels[0].programs == 8
    assert flash.kernels[0].programs == 256
    assert flash.us < whole.us / 3
    whole, flash = (estimate(attention(text, 1024, 1, 32000), H200) for text in (ONLINE, FLASH_DECODING))
    assert whole.us < flash.us


def test_two_kernels_pay_launches_and_what_lies_between() -> None:
    one, two = (estimate(parse_mugraph(text), H200) for text in (WHOLE, SPLIT))
    assert len(two.kernels) == 2
    assert all(kernel.us >= H200.launch_us for kernel in (*one.kernels, *two.kernels))
    partial = 32 * 1024 * 4  # fp32
    assert two.kernels[0].bytes_written == two.kernels[1].bytes_read == partial
    slow = replace(H200, launch_us=50.0)
    assert estimate(parse_mugraph(SPLIT), slow).us - two.us == pytest.approx(96)
    assert estimate(parse_mugraph(WHOLE), slow).us - one.us == pytest.approx(48)


def test_what_lies_between_costs_more_where_no_cache_holds_it() -> None:
    mugraph = parse_mugraph(SPLIT.replace("n=1024", f"n={1 << 20}"))
    without = replace(H200, l2_bytes=1 << 20)
    held = replace(H200, l2_bytes=1 << 30)
    assert estimate(mugraph, held).us < estimate(mugraph, without).us


def test_a_mask_spares_half_of_causal_attention(fused: Fused) -> None:
    found = estimate(fused("mha"), H200)
    matrix = sum(kernel.flops_matrix for kernel in found.kernels)
    assert matrix == pytest.approx(2 * 2 * 32 * 2048 * 2048 * 128 / 2, rel=0.02)


def test_library_calls_are_spread_at_will(fused: Fused) -> None:
    graph = fused("matmul", M=1).graph
    called = fuse(graph, library=is_matmul)
    [kernel] = estimate(fuse(fused("matmul").graph, library=is_matmul), H200).kernels
    assert kernel.programs >= H200.cores
    assert estimate(called, H200).us <= estimate(fuse(graph), H200).us


def test_dtypes_choose_the_unit(fused: Fused) -> None:
    half, single = (estimate(fused("matmul", dtype, M=4096), H200) for dtype in ("bf16", "f32"))
    assert half.kernels[0].limit == "matrix"
    assert single.kernels[0].limit == "vector"
    assert single.us > 5 * half.us


@pytest.mark.parametrize("name", WORKLOADS)
def test_the_floor_is_below_every_estimate(fused: Fused, name: str) -> None:
    mugraph = fused(name)
    for device in DEVICES.values():
        found = estimate(mugraph, device)
        assert 0 < floor_us(mugraph.graph, device) < found.us
        assert found.us == pytest.approx(sum(kernel.us for kernel in found.kernels))


def test_the_floor_counts_bytes_and_arithmetic(fused: Fused) -> None:
    few, many = fused("matmul", M=1).graph, fused("matmul", M=8192).graph
    assert floor_us(few, H200) == pytest.approx(2 * (4096 + 4096 * 4096 + 4096) / 4.8e6)
    assert floor_us(many, H200) == pytest.approx(2 * 8192 * 4096 * 4096 / 989.5e6)
    assert floor_us(resized(many, {"m": 1}), H200) == pytest.approx(floor_us(few, H200), rel=0.01)


def test_the_floor_is_lower_where_a_cache_holds_the_inputs(fused: Fused) -> None:
    small, large = (fused("matmul", M=1, N=n).graph for n in (128, 65536))
    assert floor_us(small, H200, cold=False) == pytest.approx(floor_us(small, H200) * 4800 / H200.l2_gbs)
    saved = H200.l2_bytes * (1 / 4.8e6 - 1 / (H200.l2_gbs * 1e3))
    assert floor_us(large, H200) - floor_us(large, H200, cold=False) == pytest.approx(saved)


@pytest.mark.parametrize("rows", [1, 1000, 100_000])
def test_the_floor_is_lower_where_a_cache_keeps_the_outputs(rows: int) -> None:
    graph = parse_mugraph(
        f"graph e\naxes s={rows} k=1024\nin x: f16[s, k]\nkernel grid[s]\n  t1 = exp(x)\n"
        "out out: f16[s, k] = t1\n"
    ).graph
    one_way = 2 * rows * 1024
    left = max(one_way - H200.l2_bytes, 0)
    assert floor_us(graph, H200) == pytest.approx(2 * one_way / 4.8e6)
    assert floor_us(graph, H200, kept=True) == pytest.approx((one_way + left) / 4.8e6)


def test_the_floor_of_causal_attention_leaves_out_what_may_be_spared(fused: Fused) -> None:
    causal = floor_us(fused("mha").graph, H200)
    whole = 2 * 2 * 32 * 2048 * 2048 * 128 / 989.5e6
    assert 0.45 * whole < causal <= 0.5 * whole


def test_selected_positions_are_all_that_is_read() -> None:
    mugraph = parse_mugraph(
        "graph last\naxes s=1000 k=64\nin x: f16[s, k]\nkernel grid[k]\n  t0 = select[s=999](x)\n"
        "  t1 = exp(t0)\nout out: f16[k] = t1\n"
    )
    assert estimate(mugraph, H200).kernels[0].bytes_read == 128
    assert floor_us(mugraph.graph, H200) == pytest.approx(256 / 4.8e6)


@pytest.mark.parametrize("sizes", [{"m": 0}, {"k": 0}, {"m": 1, "k": 1, "n": 1}])
def test_degenerate_sizes(fused: Fused, sizes: dict[str, int]) -> None:
    mugraph = fused("rmsnorm-linear")
    graph = resized(mugraph.graph, mugraph.graph.sizes | sizes)
    assert estimate(replace(mugraph, graph=graph), H200).us >= H200.launch_us
    assert floor_us(graph, H200) >= 0


@pytest.mark.parametrize("op", OPS)
def test_every_operator_has_a_cost(op: str) -> None:
    work = scalar_work(op)
    assert work.flops + work.exps > 0 or op == "neg"


def test_operators_cost_what_their_definition_does() -> None:
    assert (scalar_work("add").flops, scalar_work("add").exps) == (1, 0)
    assert scalar_work("silu").exps == scalar_work("div").exps + scalar_work("exp").exps
    assert scalar_work("rsqrt").exps == 2
