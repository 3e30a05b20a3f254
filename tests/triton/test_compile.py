"""Compiling ahead of time: no GPU needed, hardly a spill in the default configuration, clear errors."""

from dataclasses import replace
from pathlib import Path

import pytest
from compiling import compile_ahead

from superopt.codegen.children import Children
from superopt.codegen.errors import CompileError
from superopt.codegen.statements import lower_block
from superopt.codegen.triton import AheadCompiler, CompileReport, TritonMuGraph, configs, emit
from superopt.codegen.triton.choices import exact_axes
from superopt.codegen.triton.footprint import footprint
from superopt.codegen.triton.run.machine_code import read_machine_code
from superopt.driver import search
from superopt.errors import InputError
from superopt.ir import fuse, parse_graph, parse_mugraph, release_shifts, split_axis, stabilize
from superopt.ops import OPS
from superopt.optimizer import OptimizeOptions, optimize
from superopt.schedule import schedules
from superopt.targets import pick_target
from superopt.trace import trace
from superopt.workloads import WORKLOADS

GOLDEN = Path(__file__).with_name("golden")
PROGRAMS = sorted(path.stem for path in GOLDEN.glob("*.txt"))
QUICK = [("rmsnorm_linear", "cuda:80"), ("gqa_prefill", "cuda:90")]
FEW_BYTES = 16  # of each thread: four registers, which a kernel stores and loads once
CASES = [
    pytest.param(name, target, marks=[] if (name, target) in QUICK else pytest.mark.slow)
    for name in PROGRAMS
    for target in ("cuda:80", "cuda:90")
]


@pytest.fixture(scope="module")
def compiler():
    with Children() as children:
        running = AheadCompiler(children)
        yield running
        running.close()


@pytest.mark.parametrize(("name", "target"), CASES)
def test_golden_kernels_hardly_spill(name, target, sources_of):
    for source in sources_of(name):
        report = compile_ahead(source, target=target, aligned="odd" not in name)
        assert report.spill_bytes <= FEW_BYTES
        assert 0 < report.registers <= 255
        assert 0 < report.shared_bytes <= (163 << 10 if target == "cuda:80" else 227 << 10)
        assert report.registers > 0


@pytest.mark.slow
@pytest.mark.parametrize("target", ["cuda:80", "cuda:90"])
@pytest.mark.parametrize("dtype", ["f16", "f32"])
@pytest.mark.parametrize("name", WORKLOADS)
def test_what_is_chosen_does_not_spill(name, dtype, target, compiler):
    workload = WORKLOADS[name]
    options = OptimizeOptions(target=target, measure=False, cache=False)
    best = optimize(workload.function, *workload.inputs(dtype=dtype), name=name, options=options)
    shared = best.target.cost_device().shared_bytes
    for region in best.regions:
        chosen = region.chosen
        assert chosen is not None
        ours = [at for at, config in enumerate(chosen.configs) if config is not None]
        for at in ours:
            assert chosen.kernels[at].spill_bytes == 0
            assert chosen.kernels[at].shared_bytes <= shared
        # At other sizes it runs in its default configuration.
        defaults = best.target.default_configs(chosen.mugraph)
        for at in ours:
            program = lower_block(chosen.mugraph, at)
            exact = exact_axes(defaults[at], chosen.mugraph.graph.sizes, program.splits)
            report = compiler.compile(emit(program, replace(defaults[at], exact=exact)), target=target)
            assert report.spill_bytes == 0
            assert report.shared_bytes <= shared


@pytest.mark.slow
@pytest.mark.parametrize("target", ["cuda:80", "cuda:90"])
@pytest.mark.parametrize("dtype", ["f16", "f32"])
@pytest.mark.parametrize("name", WORKLOADS)
def test_the_default_schedule_of_what_was_written_does_not_spill(name, dtype, target, compiler):
    workload = WORKLOADS[name]
    graph = release_shifts(trace(workload.function, *workload.inputs(dtype=dtype)).graph)
    chosen = pick_target(target)
    kept = schedules(graph, chosen.cost_device(), library=False, misfit=chosen.misfit).kept
    mugraph = min(kept, key=lambda one: one.recipe.changes).mugraph
    built = TritonMuGraph(mugraph, chosen.default_configs(mugraph))
    for at in range(len(built.programs)):
        report = compiler.compile(built.source(at, mugraph.graph.sizes), target=target)
        assert report.spill_bytes == 0
        assert report.shared_bytes <= chosen.cost_device().shared_bytes


# The tensor and its dimension along which each is split.
PARTS = {
    "mha-decode": (1, -2),
    "gqa-decode": (1, -2),
    "mqa-decode": (1, -2),
    "qknorm-attention": (1, -2),
    "rmsnorm-linear": (0, -1),
    "gated-mlp": (0, -1),
}


@pytest.mark.slow
@pytest.mark.parametrize("target", ["cuda:80", "cuda:90"])
@pytest.mark.parametrize("dtype", ["f16", "f32"])
@pytest.mark.parametrize("name", PARTS)
def test_parts_of_workloads_do_not_spill(name, dtype, target, compiler):
    workload = WORKLOADS[name]
    goal = release_shifts(trace(workload.function, *workload.inputs(dtype=dtype)).graph)
    graph = search(goal).regions[0].found[0].graph
    tensor, dim = PARTS[name]
    graph, split = split_axis(graph, graph.inputs[tensor].dims[dim][0], 8)
    built = TritonMuGraph(fuse(stabilize(graph, (split.outer,)), splits=(split,), online=True))
    for at in range(len(built.programs)):
        assert compiler.compile(built.source(at, graph.sizes), target=target).spill_bytes == 0


def test_every_operator_compiles():
    lines = ["graph ops", "axes m=64 n=128", *(f"in {name}: f32[m, n]" for name in "xyz")]
    lines.append("zero = const[0]()")
    lines += [f"c_{name} = gt({name}, zero)" for name in "xyz"]
    for op in OPS.values():
        first = "c_" if op.mask and op.name in ("and", "or", "not") else ""
        names = [f"{first}{name}" for name in "xyz"[: op.arity]]
        if op.name == "where":
            names[0] = "c_x"
        lines.append(f"v_{op.name} = {op.name}({', '.join(names)})")
    lines += [f"out o_{op}: f32[m, n] = v_{op}" for op in OPS]
    mugraph = fuse(parse_graph("\n".join(lines)))
    report = compile_ahead(TritonMuGraph(mugraph).source(0, mugraph.graph.sizes))
    assert report.registers


def test_a_kernel_that_does_not_compile_says_why(source_of):
    source = source_of("gated_mlp")
    broken = replace(source, text=source.text.replace("tl.dot", "tl.dott"))
    with pytest.raises(CompileError, match=r"gated_mlp_0: for cuda:90: .*dott"):
        compile_ahead(broken)


def test_a_compiler_that_hangs_is_stopped(source_of):
    source = source_of("gated_mlp")
    hanging = replace(source, text="import time\ntime.sleep(60)\n")
    with pytest.raises(CompileError, match="not compiled within 1 s"):
        compile_ahead(hanging, limit_seconds=1.0)


@pytest.mark.parametrize(("device", "fits"), [("h200", True), ("a100", False)])
def test_what_takes_more_shared_memory_than_a_device_has_does_not_fit(device, fits):
    made = CompileReport(shared_bytes=200 << 10, registers=64, spill_bytes=0, seconds=1.0)
    reason = pick_target(device).unfit(made)
    assert (reason is None) == fits
    assert fits or "200 KiB of shared memory; a program on A100 has 163" in reason


def test_an_unknown_target_is_refused(source_of):
    with pytest.raises(InputError, match="give cuda:80"):
        compile_ahead(source_of("gated_mlp"), target="sm_90")


@pytest.mark.parametrize("name", PROGRAMS)
def test_configurations(name):
    mugraph = parse_mugraph((GOLDEN / f"{name}.txt").read_text())
    program = lower_block(mugraph, 0)
    found = configs(program, mugraph.graph.sizes)
    assert len(found) == len(set(found))
    assert 10 < len(found) < 2000
    assert all(footprint(program, config).fits(config) for config in found)
    for config in found[:: len(found) // 10]:
        compile(emit(program, config).text, name, "exec")


@pytest.mark.slow
@pytest.mark.parametrize("target", ["cuda:80", "cuda:90"])
@pytest.mark.parametrize("name", ["rmsnorm_linear", "gqa_decode"])
def test_persistent_programs_do_not_spill(name, target, compiler):
    mugraph = parse_mugraph((GOLDEN / f"{name}.txt").read_text())
    program = lower_block(mugraph, 0)
    default = TritonMuGraph(mugraph).source(0, mugraph.graph.sizes).config
    source = emit(program, replace(default, persistent=2, group=4))
    assert "for pid in range(tl.program_id(0), " in source.text
    assert compiler.compile(source, target=target).spill_bytes == 0


FP32 = "graph g\naxes m=256 k=512 n=256\nin x: f32[m, k]\nin w: f32[k, n]\nt2 = contract[k](x, w)\n"


@pytest.mark.parametrize(("rows", "counts"), [(256, {0}), (4096, {0, 1, 2})])
def test_large_grids_run_persistent_programs_too(rows, counts):
    text = f"{FP32}out o: f32[m, n] = t2\n".replace("m=256", f"m={rows}")
    mugraph = fuse(parse_graph(text))
    found = configs(lower_block(mugraph, 0), mugraph.graph.sizes)
    assert {one.persistent for one in found} == counts
    assert len(found) < 2000


@pytest.mark.parametrize("dtype", ["f32", "f16"])
@pytest.mark.parametrize("tf32", [False, True])
def test_precisions_of_products(dtype, tf32):
    mugraph = fuse(parse_graph(f"{FP32}out o: f32[m, n] = t2\n".replace("f32", dtype)))
    found = configs(lower_block(mugraph, 0), mugraph.graph.sizes, tf32=tf32)
    precisions = {one.precision for one in found}
    assert found[0].precision == "ieee"
    assert precisions == ({"ieee"} if dtype == "f16" else {"ieee", "tf32x3"} | ({"tf32"} if tf32 else set()))


@pytest.mark.slow
@pytest.mark.parametrize("precision", ["tf32x3", "tf32"])
def test_fp32_products_on_tensor_cores_compile(precision, compiler):
    mugraph = fuse(parse_graph(f"{FP32}out o: f32[m, n] = t2\n"))
    default = TritonMuGraph(mugraph).source(0, mugraph.graph.sizes).config
    source = emit(lower_block(mugraph, 0), replace(default, precision=precision))
    for target in ("cuda:80", "cuda:90"):
        assert compiler.compile(source, target=target).spill_bytes <= 8  # a register, at most


ONE_ROW = """graph one_row
axes h=32 d=128 s=4096 e=128
in q: f16[h, d]
in k: f16[h, s, d]
in v: f16[h, s, e]
kernel grid[h]
  loop[s]
    t3 = contract[d](q, k)
    t4 += contract[s](t3, v)
out o: f16[h, e] = t4
"""


def test_a_flat_tile_is_as_large_as_what_a_step_reads():
    mugraph = parse_mugraph(ONE_ROW)
    found = configs(lower_block(mugraph, 0), mugraph.graph.sizes)
    assert {one.tile("d") * one.tile("s") for one in found} > {1024, 4096}  # no step has both d and e
    assert max(one.tile("d") * one.tile("s") for one in found) <= 8192


@pytest.mark.parametrize("target", ["cuda:80", "cuda:90"])
def test_few_rows_are_the_columns_of_an_instruction(target, compiler):
    mugraph = parse_mugraph((GOLDEN / "rmsnorm_linear.txt").read_text().replace("m=16", "m=8"))
    program = lower_block(mugraph, 0)
    found = configs(program, mugraph.graph.sizes)
    few = next(one for one in found if one.blocks == {"m": 8, "k": 128, "n": 64} and one.num_warps == 4)
    made = compiler.compile(emit(program, few), target=target, texts=True)
    assert made.spill_bytes == 0
    assert read_machine_code(made.ptx, made.sass).matrix == {"mma.m16n8k16.f16": 8}


def test_many_rows_are_rows():
    mugraph = parse_mugraph((GOLDEN / "rmsnorm_linear.txt").read_text())
    found = configs(lower_block(mugraph, 0), mugraph.graph.sizes)
    assert min(one.tile("m") for one in found) == 16


@pytest.mark.parametrize(("rows", "group"), [(16, 1), (2048, 8)])
def test_programs_of_many_rows_run_in_groups(rows, group):
    text = (GOLDEN / "gated_mlp.txt").read_text().replace("m=16", f"m={rows}")
    mugraph = parse_mugraph(text)
    found = configs(lower_block(mugraph, 0), mugraph.graph.sizes)
    assert found[0].group == group
    assert {one.group for one in found} == {1, group}


CLIPPED = """graph clipped
axes m=64 k=64
in x: f32[m, k]
in y: f32[m]
t2 = relu(x)
t3 = max[k](t2)
t4 = minimum(t3, y)
out o: f32[m] = t4
"""


def test_extrema_keep_nan_on_the_device(compiler):
    mugraph = fuse(parse_graph(CLIPPED))
    source = TritonMuGraph(mugraph).source(0, mugraph.graph.sizes)
    made = compiler.compile(source, target="cuda:80", texts=True)
    for name in ("max", "min"):
        assert f"{name}.NaN.f32" in made.ptx
        assert f"{name}.f32" not in made.ptx
