"""The cost of kernels on a processor: what each part adds, and orders that the clock has shown."""

from dataclasses import replace

import pytest

from superopt.codegen.cpp import CppConfig, default_config, lower_kernel
from superopt.cost import DEVICES, Device, estimate
from superopt.cost.cpu import KernelTime, kernel_time
from superopt.cost.cpu.contraction import Shape, contraction_time, filtered_time, gathered_time
from superopt.cost.cpu.layout import Layout
from superopt.cost.cpu.rates import PIECES, REST, SUM_LANES, Core, core_of, operation
from superopt.cost.cpu.traffic import Loop, Touch, distinct, missed
from superopt.ir import MuGraph, fuse, is_matmul, parse_graph, parse_mugraph

PROCESSOR = replace(
    DEVICES["L4"],
    name="processor", kind="cpu", capability="avx512", cores=2, memory_gbs=25, l2_gbs=100, l2_bytes=32 << 20,
    shared_bytes=32 << 10, shared_per_core=1 << 20, vector_flops=2e11, launch_us=5.0,
)  # fmt: skip
ALONE = replace(PROCESSOR, cores=1, vector_flops=1e11, l2_gbs=50)

MATMUL = (
    "graph g\naxes m={m} n={n} k={k}\nin x: f32[m, k]\nin w: f32[k, n]\nt = contract[k](x, w)\n"
    "out o: f32[m, n] = t\n"
)
SQUARES = "graph g\naxes m=1024 k=2048\nin x: f32[m, k]\nt = mul(x, x)\ns = sum[m, k](t)\nout o: f32[] = s\n"


def matmul(m: int, n: int, k: int) -> MuGraph:
    return fuse(parse_graph(MATMUL.format(m=m, n=n, k=k)))


def time(mugraph: MuGraph, device: Device = ALONE, number: int = 0, **tiles: int) -> KernelTime:
    program = lower_kernel(mugraph, number)
    config = default_config(program, mugraph.graph.sizes, cores=device.cores)
    lengths = {**dict(config.tiles), **tiles}
    return kernel_time(program, replace(config, tiles=tuple(lengths.items())), device)


# -- traffic


def test_a_tensor_that_fits_is_fetched_once_and_a_larger_one_in_every_turn() -> None:
    rows = Loop("m", 10, (Touch("x", frozenset({"m"}), 100.0), Touch("w", frozenset(), 1000.0)))
    assert distinct(rows) == {"x": 1000.0, "w": 1000.0}
    assert missed(rows, 5000.0) == {"x": 1000.0, "w": 1000.0}
    assert missed(rows, 1100.0) == {"x": 1000.0, "w": 1000.0}  # w stays from turn to turn
    assert missed(rows, 1099.0) == {"x": 1000.0, "w": 10_000.0}


def test_what_two_loops_of_a_turn_touch_is_fetched_twice_where_a_turn_does_not_fit() -> None:
    walk = Loop("k", 10, (Touch("x", frozenset({"m", "k"}), 100.0),))
    twice = Loop("m", 4, (walk, walk))
    assert missed(twice, 1000.0) == {"x": 4000.0}
    assert missed(twice, 999.0) == {"x": 8000.0}


# -- products of matrices

CORE = core_of(ALONE)
NARROW = core_of(replace(ALONE, capability="avx2"))
ROWS = {"a_along_k": True, "b_along_k": False, "b_along_n": True}
COLUMNS = {"a_along_k": True, "b_along_k": True, "b_along_n": False}


@pytest.mark.parametrize("lie", [ROWS, COLUMNS, {**ROWS, "a_along_k": False}, {**ROWS, "b_half": True}])
@pytest.mark.parametrize("m", [1, 2, 7, 16, 17, 200])
@pytest.mark.parametrize("core", [CORE, NARROW], ids=["wide", "narrow"])
def test_more_to_multiply_takes_longer(core: Core, lie: dict[str, bool], m: int) -> None:
    times = [contraction_time(Shape(m, n, k, **lie), core) for n, k in ((64, 64), (64, 256), (256, 256))]
    assert times == sorted(times)
    assert times[0] < times[-1]


@pytest.mark.parametrize("lie", [ROWS, COLUMNS])
@pytest.mark.parametrize("core", [CORE, NARROW], ids=["wide", "narrow"])
def test_more_rows_use_what_is_read_of_the_other_operand(core: Core, lie: dict[str, bool]) -> None:
    each = [contraction_time(Shape(m, 512, 512, **lie), core) / m for m in (1, 4, 12, 96)]
    peak = 512 * 512 / core.lanes  # multiply-adds of vectors for a row
    assert peak < each[-1] < 1.5 * peak
    assert each[1] < each[0]


def test_an_operand_along_nothing_that_is_read_takes_longest() -> None:
    apart = Shape(64, 256, 256, a_along_k=True, b_along_k=False, b_along_n=False)
    assert contraction_time(apart, CORE) > 1.2 * contraction_time(replace(apart, b_along_n=True), CORE)
    assert contraction_time(replace(apart, m=0), CORE) < contraction_time(replace(apart, m=1), CORE)


def test_every_operator_has_a_time() -> None:
    assert 0 < operation("add") < operation("exp") < operation("silu")
    assert operation("sum") < operation("max")
    assert operation("sin") > operation("tanh") > operation("mul")


@pytest.mark.parametrize(("step", "least"), [(1, 1.3), (2, 1.1)])
def test_fewer_products_of_many_channels_are_faster_and_of_few_are_not(step: int, least: float) -> None:
    core = core_of(ALONE)
    for channels, filters, faster in ((256, 256, True), (2, 16, False)):
        all_of_them = gathered_time(filters, 500, 3 * channels, core, b_step=step, a_along_k=True)
        fewer = filtered_time([(500, step)], filters, channels, core)
        assert (all_of_them > least * fewer) if faster else (all_of_them < fewer)


# -- kernels


def test_few_rows_of_bf16_read_the_other_operand_as_fast_as_memory_goes() -> None:
    """Before: a bf16 product of 8 rows was told to take three times as long as it did, and others won."""
    halves = fuse(parse_graph(MATMUL.replace("f32", "bf16").format(m=8, n=2048, k=2048)))
    by_pairs, by_floats = (
        replace(ALONE, matrix_flops={**ALONE.matrix_flops, "bf16": flops}) for flops in (2e11, 1e11)
    )
    weights_s = 2048 * 2048 * 2 * core_of(ALONE).memory_s
    assert time(halves, by_pairs).memory_s == pytest.approx(weights_s, rel=0.3)
    assert time(halves, by_floats).memory_s > 2 * weights_s


def test_threads_share_the_arithmetic_and_one_program_has_one_thread() -> None:
    large = matmul(256, 512, 256)
    assert time(large, PROCESSOR, m=64).compute_s == pytest.approx(time(large, m=64).compute_s / 2, rel=0.01)
    assert time(large, PROCESSOR, m=256, n=512).compute_s == time(large, m=256, n=512).compute_s
    assert time(large, PROCESSOR, m=64, n=512).us < time(large, PROCESSOR, m=256, n=512).us


def test_weights_that_are_met_by_fewer_rows_are_fetched_more_often() -> None:
    found = [time(matmul(8, 2048, 2048), m=rows) for rows in (8, 4, 2)]
    assert [one.last_s for one in found] == sorted(one.last_s for one in found)
    assert found[2].us > 1.2 * found[0].us


def test_whole_rows_come_from_memory_sooner_than_halves_of_them() -> None:
    mugraph = fuse(parse_graph(SQUARES))
    whole, halves = (time(mugraph, m=512, k=k) for k in (2048, 1024))
    assert 1.5 * whole.memory_s < halves.memory_s < 3 * whole.memory_s


def sums(axes: str) -> MuGraph:
    left = ", ".join(axis for axis in "bhsd" if axis not in axes)
    axes_of = "axes b=8 h=32 s=64 d=49\nin x: f32[b, h, s, d]"
    return fuse(parse_graph(f"graph g\n{axes_of}\nt = sum[{axes}](x)\nout o: f32[{left}] = t\n"))


def test_lanes_are_summed_once_for_each_result_and_not_for_each_row() -> None:
    """Before: a group norm's sums were told to take twice as long as they did, and worse schedules won."""
    once, each_row = time(sums("s, d")), time(sums("d"))
    lanes_s = SUM_LANES * CORE.cycle * CORE.fma_s
    assert each_row.compute_s - once.compute_s > 0.9 * 8 * 32 * 63 * lanes_s


def test_what_stands_around_vectors_takes_as_long_with_narrow_ones() -> None:
    narrow = replace(ALONE, capability="avx2")  # as many operations in a second, on vectors half as long
    cycle_s, narrow_s = (one.cycle * one.fma_s for one in (CORE, core_of(narrow)))
    assert narrow_s == pytest.approx(cycle_s)
    text = "graph g\naxes m=4096 n={n}\nin x: f32[m, n]\nt = mul(x, x)\nout o: f32[m, n] = t\n"
    odd, even = (time(fuse(parse_graph(text.format(n=n))), narrow).compute_s for n in (49, 56))
    assert odd - even > 0.9 * 4096 * (REST + PIECES) * cycle_s  # a last vector is stored in pieces


def test_a_copy_into_another_order_reads_numbers_one_by_one() -> None:
    text = (
        "graph g\naxes m=512 n=512 p=512\nin x: f32[{read}]\n"
        "kernel grid[m, n]\n  t = rename[p->n](x)\nout o: f32[m, n] = t\n"
    )
    turned, straight = (time(parse_mugraph(text.format(read=read))) for read in ("p, m", "m, p"))
    assert turned.compute_s > 2 * straight.compute_s


def test_short_rows_that_meet_columns_come_later_from_memory() -> None:
    """Keys of 128 numbers took 2 to 4 times as long: blocks of rows end before prefetching begins."""
    short, long = (time(matmul(m, 4, k), m=m, k=k) for m, k in ((8192, 128), (256, 4096)))
    assert short.memory_s > 1.9 * long.memory_s


def test_a_tensor_is_read_along_memory_only_in_the_order_of_its_loops() -> None:
    program = lower_kernel(sums("d"), 0)
    layout = Layout(program, CppConfig((("b", 1), ("h", 32), ("s", 64), ("d", 49))))
    whole = 32 * 64 * 49 * 4
    assert layout.run(0, [], ["d", "s", "h"]) == layout.run(0, []) >= whole
    assert layout.run(0, [], ["d", "h", "s"]) == 49 * 4
    assert layout.run(0, [], ["s", "d", "h"]) == 4


def test_a_walk_that_a_mask_stops_does_half_the_work() -> None:
    text = (
        "graph g\naxes s=1024 t=1024 d=64\nin q: f32[s, d]\nin k: f32[t, d]\nin v: f32[t, d]\n"
        "a = contract[d](q, k)\n{mask}\nb = mul(m, a)\no = contract[t](b, v)\nout out: f32[s, d] = o\n"
    )
    causal = fuse(parse_graph(text.format(mask="i = index[s]()\nj = index[t]()\nm = le(j, i)")))
    full = fuse(parse_graph(text.format(mask="m = const[1]()")))
    assert 0.45 < time(causal).compute_s / time(full).compute_s < 0.7


def test_a_shuffled_layout_changes_strides_and_not_the_work() -> None:
    program = lower_kernel(matmul(64, 128, 256), 0)
    config = CppConfig((("m", 16), ("n", 64), ("k", 128)))
    layout = Layout(program, config)
    assert layout.strides(1) == {"k": 128, "n": 1}
    assert (layout.count("n"), layout.extent("n")) == (2, 64)
    assert layout.run(1, ["k"]) == 64 * 4  # columns of a tile, and then another row
    assert (
        Layout(program, replace(config, tiles=(("m", 16), ("n", 128), ("k", 128)))).run(1, ["k"])
        == 256 * 128 * 4
    )


def test_nothing_to_do_takes_a_launch() -> None:
    assert time(matmul(0, 64, 64)).us == ALONE.launch_us


def test_an_estimate_is_the_time_of_the_default_tiles_and_of_library_calls() -> None:
    mugraph = matmul(64, 512, 512)
    assert estimate(mugraph, ALONE).us == time(mugraph).us
    graph = parse_graph(MATMUL.format(m=64, n=512, k=512))
    called = fuse(graph, library=is_matmul)
    peak_us = 2 * 64 * 512 * 512 / ALONE.vector_flops * 1e6
    assert peak_us < estimate(called, ALONE).us < 5 * peak_us
    assert estimate(called, PROCESSOR).us < estimate(called, ALONE).us


def test_two_kernels_take_longer_than_the_first_of_them() -> None:
    text = (
        "graph g\naxes m=64 k=4096\nin x: f32[m, k]\nkernel grid[m, k]\n  t0 = exp(x)\n"
        "kernel grid[m]\n  loop[k]\n    t1 += sum[k](t0)\nout o: f32[m] = t1\n"
    )
    found = estimate(parse_mugraph(text), ALONE)
    assert len(found.kernels) == 2
    assert found.us == pytest.approx(sum(one.us for one in found.kernels))


def test_windows_that_overlap_share_what_they_read() -> None:
    text = (
        "graph g\naxes c=128 x=56 y=56 i=56 j=56 r={taps} s={taps}\nin x: f32[c, x, y]\nin w: f32[c, r, s]\n"
        "t2 = window[x = i + r - {pad}, y = j + s - {pad}](x)\nt3 = contract[r, s](t2, w)\n"
        "out o: f32[c, i, j] = t3\n"
    )
    one, nine = (
        time(fuse(parse_graph(text.format(taps=taps, pad=taps // 2))), c=64, i=56, j=56) for taps in (1, 3)
    )
    assert one.memory_s <= nine.memory_s < 1.1 * one.memory_s
    assert one.compute_s < nine.compute_s < 9 * one.compute_s
