"""Small programs drawn at random: C++ agrees with float64."""

from collections.abc import Mapping
from dataclasses import replace
from random import Random

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from quick import few

from superopt.codegen.cpp import CppConfig, CppMuGraph, configs, default_config
from superopt.codegen.cpp.emit import emit
from superopt.codegen.statements import KernelProgram, lower_block
from superopt.ir import (
    Axis,
    Graph,
    MuGraph,
    Output,
    Port,
    Step,
    fuse,
    parse_graph,
    split_axis,
    stabilize,
    tensorless_values,
    value_axes,
)
from superopt.trace import run_graph

UNARY = ("neg", "square", "sigmoid", "tanh", "relu", "abs", "exp", "gelu")
DTYPES = {"f32": torch.float32, "bf16": torch.bfloat16, "f16": torch.float16}
BINARY = ("add", "sub", "mul", "maximum", "minimum", "lt", "ge")


@st.composite
def graphs(draw: st.DrawFn) -> Graph:
    names = ("a", "b", "c")
    sizes = draw(st.tuples(*(st.sampled_from((1, 2, 7, 8, 17, 33)) for _ in names)))
    dtype = draw(st.sampled_from(("f32", "f32", "f32", "bf16", "f16")))
    inputs = tuple(
        Port(
            f"x{i}", dtype, tuple((axis,) for axis in draw(st.permutations(names))[: draw(st.integers(1, 3))])
        )
        for i in range(draw(st.integers(1, 3)))
    )
    steps: list[Step] = []

    def graph() -> Graph:
        made = [Output(Port("y", "f32", ()), 0)]
        axes = tuple(Axis(name, size) for name, size in zip(names, sizes, strict=True))
        return Graph("drawn", axes, inputs, tuple(steps), tuple(made))

    for _ in range(draw(st.integers(1, 7))):
        axes = value_axes(graph())
        one, two = (draw(st.integers(0, len(axes) - 1)) for _ in range(2))
        kind = draw(st.sampled_from(("unary", "binary", "reduce", "reduce", "contract", "index")))
        union = sorted(axes[one] | axes[two] if kind == "contract" else axes[one])
        summed = tuple(axis for axis in union if draw(st.booleans()))
        if kind == "unary":
            op = draw(st.sampled_from(UNARY))
            steps.append(Step(op, (one,)))
        elif kind == "binary":
            steps.append(Step(draw(st.sampled_from(BINARY)), (one, two)))
        elif kind == "index":
            steps.append(Step("index", axes=(draw(st.sampled_from(names)),)))
        elif kind == "contract" and summed:
            steps.append(Step("contract", (one, two), axes=summed))
        elif kind == "reduce" and summed:
            steps.append(Step(draw(st.sampled_from(("sum", "max"))), (one,), axes=summed))
    steps = steps or [Step("neg", (0,))]
    axes = value_axes(graph())
    found = len(axes) - 1
    dims = tuple((axis,) for axis in draw(st.permutations(sorted(axes[found]))))
    return Graph("drawn", graph().axes, inputs, tuple(steps), (Output(Port("y", dtype, dims), found),))


def scheduled(graph: Graph, number: int) -> MuGraph:
    """Return kernels for a graph: plain ones, ones whose shifts run, or ones that share out an axis."""
    if number % 3 == 1:
        return fuse(stabilize(graph), online=True)
    kept = {axis for output in graph.outputs for axis in output.port.axes}
    tensorless = tensorless_values(graph)[len(graph.inputs) :]
    for step, reads_none in zip(graph.steps, tensorless, strict=True):
        kept |= set(step.axes) if reads_none else set()  # a sum that reads no tensor is not shared out
    summed = [axis for step in graph.steps for axis in step.axes if axis not in kept]
    if number % 3 == 2 and summed:
        parts, split = split_axis(graph, summed[number % len(summed)], 3)
        return fuse(stabilize(parts, (split.outer,)), splits=(split,), online=True)
    return fuse(graph)


def chosen(mugraph: MuGraph, number: int) -> dict[int, CppConfig]:
    """Return one of the configurations of each kernel."""
    found: dict[int, CppConfig] = {}
    for kernel in range(len(mugraph.kernels)):
        options = list(configs(lower_block(mugraph, kernel), mugraph.graph.sizes))
        found[kernel] = options[number % len(options)]
    return found


def check(graph: Graph, number: int, flags: tuple[str, ...]) -> None:
    torch.manual_seed(0)
    tensors = {
        port.name: (torch.randn(graph.shape(port)) / 2).to(DTYPES[port.dtype]) for port in graph.inputs
    }
    mugraph = scheduled(graph, number)
    tensors = {port.name: tensors[port.name] for port in mugraph.graph.inputs}
    wanted = run_graph(graph, tensors)["y"]
    eager = run_graph(graph, tensors, torch.float32)["y"]
    got = CppMuGraph(mugraph, chosen(mugraph, number // 3), flags=flags)(**tensors)["y"].double()
    out = graph.outputs[0].port.dtype
    rounded = wanted.to(DTYPES[out]).double()
    size = wanted.abs().nan_to_num(posinf=0.0).max() if wanted.numel() else 0.0
    bound = 4 * (eager.double() - wanted).abs().nan_to_num(posinf=0.0) + (rounded - wanted).abs().nan_to_num()
    off = (got - rounded).abs() > 2 * bound + 1e-4 * size + 1e-30
    assert not off[wanted.isfinite() & rounded.isfinite() & eager.isfinite()].any()


@settings(max_examples=8, deadline=None, derandomize=True, suppress_health_check=list(HealthCheck))
@given(graphs(), st.integers(0, 71))
def test_drawn_programs(graph: Graph, number: int) -> None:
    check(graph, number, ("-O0",))


@pytest.mark.slow
@settings(max_examples=300, deadline=None, suppress_health_check=list(HealthCheck))
@given(graphs(), st.integers(0, 71))
def test_many_drawn_programs(graph: Graph, number: int) -> None:
    check(graph, number, ("-O1",))


# -- what programs along the innermost axis of the grid have in common

NORMED = """graph normed
axes m=40 k=300 n=50
in x: f32[m, k]
in v: f32[k]
in w: f32[n, k]
in u: f32[n, k]
one = const[1]()
t1 = contract[k](x, x)
t2 = add(t1, one)
t3 = rsqrt(t2)
t4 = mul(x, t3)
t5 = mul(t4, v)
t6 = contract[k](t5, w)
t7 = contract[k](t5, u)
t8 = tanh(t7)
t9 = mul(t6, t8)
t10 = sum[k](t5)
t11 = add(t9, t10)
out y: f32[m, n] = t11
"""
LINEAR = """graph linear
axes m=40 k=300 n=50
in x: f32[m, k]
in w: f32[n, k]
in v: f32[n]
t1 = contract[k](x, w)
t2 = add(t1, v)
out y: f32[m, n] = t2
"""


TURNED = LINEAR.replace("x: f32[m, k]", "x: f32[k, m]").replace("w: f32[n, k]", "w: f32[k, n]")


@pytest.mark.parametrize("schedule", few(["static", "dynamic"], "dynamic"))
@pytest.mark.parametrize("order", [(), ("n", "m")])
@pytest.mark.parametrize("whole", [True, False])
@pytest.mark.parametrize("text", [NORMED, LINEAR, TURNED])
def test_what_programs_have_in_common(text: str, whole: bool, order: tuple[str, ...], schedule: str) -> None:
    mugraph = fuse(parse_graph(text))
    (program,) = (lower_block(mugraph, number) for number in range(len(mugraph.kernels)))
    tiles = tuple(
        {"m": 20, "n": 16, "k": 32}[axis] for axis, _ in default_config(program, mugraph.graph.sizes).tiles
    )
    found = default_config(program, mugraph.graph.sizes).tiles
    named = tuple((axis, tile) for (axis, _), tile in zip(found, tiles, strict=True))
    config = CppConfig(named, schedule, program.looped if whole else (), order)
    code = emit(program, config).code
    # What comes in several pieces is not kept.
    assert ("#pragma omp for nowait" in code) == (whole or (not order and text == NORMED))
    assert ("(monotonic: dynamic)" in code) == ("nowait" in code and schedule == "dynamic")
    assert ("if (m_base != m_before)" in code) == (not order and text == NORMED)
    assert (", true};" in code) == bool(whole and order)
    kernels = CppMuGraph(mugraph, {0: config}, flags=("-O1",))
    torch.manual_seed(0)
    for m, k, n in ((40, 70, 50), (1, 70, 50), (65, 33, 17), (65, 300, 50), (0, 70, 50), (41, 31, 129)):
        resized = parse_graph(text.replace("m=40 k=300 n=50", f"m={m} k={k} n={n}"))
        tensors = {port.name: torch.randn(resized.shape(port)) for port in resized.inputs}
        for name, wanted in run_graph(resized, tensors).items():
            got = kernels(**tensors)[name].double()
            torch.testing.assert_close(got, wanted, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("text", [LINEAR, TURNED])
def test_no_thread_packs_long_sums_at_once(text: str) -> None:
    mugraph = fuse(parse_graph(text.replace("m=40 k=300 n=50", "m=512 k=100000 n=1024")))
    program = lower_block(mugraph, 0)
    config = default_config(program, mugraph.graph.sizes)
    for one in (config, replace(config, whole=program.looped), replace(config, order=("n", "m"))):
        assert "#pragma omp for nowait" not in emit(program, one).code


@pytest.mark.parametrize("threads", [1, 2])
def test_rows_that_stay_are_packed_anew_for_the_programs_that_follow(threads: int) -> None:
    """Before: rows made at a place were taken for those made there before, where two products read them."""
    text = NORMED.replace("axes m=40 k=300 n=50", "axes m=144 k=512 n=96 p=32").replace(
        "u: f32[n, k]", "u: f32[p, k]"
    )
    text = text.replace("in one", "").replace(
        "t7 = contract[k](t5, u)", "t70 = contract[k](t5, u)\nt7 = contract[p](t70, q)"
    )
    graph = parse_graph(text.replace("in u:", "in q: f32[n, p]\nin u:"))
    mugraph = fuse(graph)
    config = CppConfig((("m", 48), ("n", 32), ("k", 512), ("p", 32)), whole=("k",))
    assert "_panels.forget();" in emit(lower_block(mugraph, 0), config).code
    torch.manual_seed(0)
    tensors = {port.name: torch.randn(graph.shape(port)) for port in graph.inputs}
    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        made = CppMuGraph(mugraph, {0: config}, flags=("-O1",))(**tensors)["y"].double()
    finally:
        torch.set_num_threads(before)
    torch.testing.assert_close(made, run_graph(graph, tensors)["y"], rtol=1e-4, atol=1e-3)


def drawn_rows(chance: Random) -> str:
    """Return a program in which rows are made ready, meet columns, and are changed afterwards."""
    m, n = (chance.choice([1, 2, 7, 17, 33, 70, 130]) for _ in range(2))
    k, dtype = chance.choice([7, 33, 64, 256, 300]), chance.choice(["f32", "f32", "f32", "bf16", "f16"])
    batch = chance.choice(["", "", "b, "])
    inputs = [f"in x: {dtype}[{batch}m, k]", f"in v: {dtype}[k]", f"in u: {dtype}[n]"]
    lines = ["one = const[1]()"]

    def step(op: str, *values: str) -> str:
        lines.append(f"t{len(lines)} = {op}({', '.join(values)})")
        return f"t{len(lines) - 1}"

    rows = "x"
    for kind in chance.choices(["scale", "norm", "shift", "tanh", "again"], k=chance.randrange(4)):
        if kind == "norm":
            squares = step("add", step("contract[k]", rows, rows), "one")
            rows = step("mul", rows, step("rsqrt", squares))
        elif kind == "shift":
            rows = step("sub", rows, step("max[k]", rows))
        elif kind == "tanh":
            rows = step("tanh", rows)
        else:
            rows = step("mul", rows, "v" if kind == "scale" else "x")
    made: list[str] = []
    if few := chance.choice([0, 0, 4, 32]):  # columns that all programs along n have in common
        inputs += [f"in a: {dtype}[p, k]", f"in c: {dtype}[n, p]"]
        made.append(step("contract[p]", step("contract[k]", rows, "a"), "c"))
    for at in range(chance.randrange(1, 4)):
        lies = chance.choice(["n, k", "k, n"])
        inputs.append(f"in w{at}: {dtype}[{chance.choice(['', '', batch])}{lies}]")
        made.append(step("contract[k]", chance.choice([rows, rows, "x"]), f"w{at}"))
        if len(made) > 1:
            made.append(step(chance.choice(["add", "mul", "maximum"]), *made[-2:]))
    for kind in chance.choices(["bias", "sum", "relu"], k=chance.randrange(3)):
        if kind == "relu":
            made.append(step("relu", made[-1]))
        else:
            made.append(step("add", made[-1], "u" if kind == "bias" else step("sum[k]", rows)))
    axes = f"axes m={m} k={k} n={n}" + (f" b={chance.choice([1, 2, 3])}" if batch else "")
    axes += f" p={few}" if few else ""
    return "\n".join(["graph drawn", axes, *inputs, *lines, f"out y: {dtype}[{batch}m, n] = {made[-1]}"])


def drawn_tiles(program: KernelProgram, sizes: Mapping[str, int], chance: Random) -> CppConfig:
    """Return a configuration with tiles of any length."""
    found = default_config(program, sizes)
    lengths = (
        (axis, (1, 2, 3, 17, 20, 64, sizes[axis], max(1, sizes[axis] // 2))) for axis, _ in found.tiles
    )
    tiles = tuple((axis, chance.choice(some)) for axis, some in lengths)
    whole = tuple(axis for axis in program.looped if chance.random() < 0.7)
    order = tuple(chance.sample(program.grid, len(program.grid)))
    return CppConfig(tiles, chance.choice(["static", "dynamic"]), whole, order, chance.choice([0, 0, 1]))


def check_rows(seed: int) -> None:
    chance = Random(seed)
    graph = parse_graph(drawn_rows(chance))
    mugraph = fuse(graph)
    programs = [lower_block(mugraph, number) for number in range(len(mugraph.kernels))]
    chosen = {at: drawn_tiles(one, mugraph.graph.sizes, chance) for at, one in enumerate(programs)}
    torch.manual_seed(seed)
    tensors = {
        port.name: (torch.randn(graph.shape(port)) / 2).to(DTYPES[port.dtype]) for port in graph.inputs
    }
    wanted = run_graph(graph, tensors)["y"]
    eager = run_graph(graph, tensors, torch.float32)["y"].double()
    kernels = CppMuGraph(mugraph, chosen, flags=("-O1",))
    step = {"f32": 1e-4, "bf16": 3e-2, "f16": 5e-3}[graph.outputs[0].port.dtype]
    for _ in range(2):  # nothing stays from one call to the next
        got = kernels(**tensors)["y"].double()
        bound = 8 * (eager - wanted).abs() + step * wanted.abs().max() + 1e-6
        assert ((got - wanted).abs() <= bound).all(), (seed, chosen)


@pytest.mark.parametrize("seed", few(range(8), 0, 1, 2))
def test_drawn_rows(seed: int) -> None:
    check_rows(seed)


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(8, 208))
def test_many_drawn_rows(seed: int) -> None:
    check_rows(seed)
