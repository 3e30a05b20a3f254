"""The model of one kernel under one choice of tiles: it gets no better where it obviously can't."""

from collections.abc import Callable
from dataclasses import replace
from math import inf

import pytest

from superopt.candidates.sizes import resized
from superopt.codegen.statements import KernelProgram, lower_block
from superopt.cost import DEVICES, TileConfig, config_us, estimate
from superopt.ir import MuGraph, fuse, parse_graph, stabilize

H200 = DEVICES["H200"]
Fused = Callable[..., MuGraph]


def matmul(fused: Fused, m: int = 4096) -> KernelProgram:
    return lower_block(fused("matmul", M=m), 0)


def tiles(m: int, n: int, k: int, **options: int) -> TileConfig:
    stages = options.get("stages", 3)
    shared = 2 * k * (m + n) * stages
    made = TileConfig({"m": m, "n": n, "k": k}, stages=stages, shared_bytes=shared, register_bytes=4 * m * n)
    return replace(made, **options)


def sized(program: KernelProgram, **sizes: int) -> KernelProgram:
    """Return a kernel at other sizes of some axes."""
    return replace(program, graph=resized(program.graph, sizes))


def test_never_below_the_estimate_of_a_full_grid(fused: Fused) -> None:
    mugraph = fused("matmul", M=4096)
    least = estimate(mugraph, H200).us
    for m in (16, 64, 128):
        for n in (16, 64, 128):
            assert config_us(lower_block(mugraph, 0), tiles(m, n, 64), H200) >= least


def test_larger_tiles_read_operands_less_often(fused: Fused) -> None:
    times = [config_us(matmul(fused), tiles(side, side, 64), H200) for side in (16, 32, 64, 128)]
    assert times == sorted(times, reverse=True)
    assert times[0] > 4 * times[-1]


def test_padding_is_paid_for(fused: Fused) -> None:
    one_row = matmul(fused, 16)
    device = replace(H200, memory_gbs=1e6, l2_gbs=1e6)
    for rows in ((16, 32), (64, 128)):  # from 64 rows on, four warps multiply by fewer instructions
        first, second = (config_us(sized(one_row, m=1), tiles(m, 64, 64), device) for m in rows)
        assert first < second


def test_few_programs_leave_cores_idle(fused: Fused) -> None:
    decode = matmul(fused, 16)
    filled, idle = (config_us(decode, tiles(16, n, 64), H200) for n in (32, 256))
    assert filled < idle


def test_the_last_wave_is_paid_in_full(fused: Fused) -> None:
    program = matmul(fused)
    compute = replace(H200, memory_gbs=1e6, l2_gbs=1e6)
    config = tiles(128, 128, 64, warps=8, stages=8, shared_bytes=100_000)
    even, over, twice = (
        config_us(sized(program, m=128 * count, n=128), config, compute) for count in (132, 133, 264)
    )
    assert over > 1.5 * even
    assert over == pytest.approx(twice, rel=0.01)


@pytest.mark.parametrize("field", ["memory_gbs", "l2_gbs", "exp_per_s", "vector_flops", "registers_per_core"])
@pytest.mark.parametrize("name", ["matmul", "mha", "softmax", "gqa-decode"])
def test_a_better_device_is_no_slower(fused: Fused, name: str, field: str) -> None:
    mugraph = fused(name)
    better = replace(H200, **{field: getattr(H200, field) * 2})
    for number in range(len(mugraph.kernels)):
        program = lower_block(mugraph, number)
        kept = {"n", "s", "k", "m", "t", "h", "b", "g"}
        config = TileConfig({axis: 16 for axis in program.axes if axis in kept}, register_bytes=20_000)
        assert config_us(program, config, better) <= config_us(program, config, H200) < inf


@pytest.mark.parametrize("name", ["matmul", "mha", "softmax", "gqa-decode", "rmsnorm-mlp"])
def test_larger_sizes_take_no_less(fused: Fused, name: str) -> None:
    mugraph = fused(name)
    for number in range(len(mugraph.kernels)):
        program = lower_block(mugraph, number)
        config = TileConfig(dict.fromkeys(program.axes, 32))
        base = config_us(program, config, H200)
        for axis in program.axes:
            larger = sized(program, **{axis: mugraph.graph.sizes[axis] * 2})
            assert config_us(larger, config, H200) >= base


def test_stages_hide_latency_while_they_fit(fused: Fused) -> None:
    decode = matmul(fused, 16)
    times = [
        config_us(decode, tiles(16, 32, 64, stages=stages, shared_bytes=20_000), H200)
        for stages in (1, 2, 3, 4)
    ]
    assert times == sorted(times, reverse=True)
    assert times[0] > times[-1]


def test_what_does_not_fit_is_infinite_and_spilling_costs(fused: Fused) -> None:
    program = matmul(fused)
    assert config_us(program, tiles(128, 128, 64, shared_bytes=228 << 10), H200) == inf
    assert config_us(program, tiles(128, 128, 64, shared_bytes=227 << 10), H200) < inf
    assert config_us(program, tiles(128, 128, 64, warps=128), H200) == inf
    fits, spills = (
        config_us(program, tiles(128, 128, 64, register_bytes=size), H200) for size in (64 << 10, 512 << 10)
    )
    assert spills > 2 * fits


def test_occupancy_by_shared_memory(fused: Fused) -> None:
    program = matmul(fused)
    several, one = (
        config_us(program, tiles(64, 64, 32, shared_bytes=size), H200) for size in (40_000, 200_000)
    )
    assert several < one


def test_rows_of_a_few_bytes_waste_sectors(fused: Fused) -> None:
    program = lower_block(fused("softmax", M=4096), 0)
    wide, narrow = (config_us(program, TileConfig({"m": 16, "k": k}, stages=2), H200) for k in (64, 2))
    assert narrow > 2 * wide


def test_what_the_compiler_counted_takes_the_place_of_estimates(fused: Fused) -> None:
    decode = matmul(fused, 16)
    config = tiles(16, 64, 64, warps=4, stages=4, shared_bytes=20_000, register_bytes=20_000)
    guess = config_us(decode, config, H200)
    lean, fat = (config_us(decode, replace(config, loop_instructions=count), H200) for count in (1, 2000))
    assert lean <= guess < fat
    assert fat > 1.5 * config_us(decode, replace(config, loop_instructions=1000), H200)
    several, one = (config_us(matmul(fused), tiles(64, 64, 32, registers=count), H200) for count in (64, 255))
    assert several < one


def test_no_programs_take_a_launch(fused: Fused) -> None:
    assert config_us(sized(matmul(fused), m=0), tiles(64, 64, 64), H200) == H200.launch_us


def test_rescaling_an_accumulator_costs_more_with_shorter_tiles() -> None:
    graph = parse_graph(
        "graph g\naxes s=4096 t=4096 d=64\nin x: f16[s, t]\nin v: f16[t, d]\nt0 = exp(x)\n"
        "t1 = sum[t](t0)\nt2 = contract[t](t0, v)\nt3 = div(t2, t1)\nout o: f16[s, d] = t3\n"
    )
    program = lower_block(fuse(stabilize(graph), online=True), 0)
    fast = replace(H200, memory_gbs=1e6, l2_gbs=1e6)
    times = [
        config_us(program, TileConfig({"s": 128, "t": t, "d": 64}, stages=8), fast) for t in (128, 32, 16)
    ]
    assert times == sorted(times)
    assert times[0] < times[-1]
