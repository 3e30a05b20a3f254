"""Small programs drawn at random: C++ agrees with float64."""

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from superopt.codegen.cpp import CppConfig, CppMuGraph, configs
from superopt.codegen.statements import lower_block
from superopt.ir import (
    Axis,
    Graph,
    MuGraph,
    Output,
    Port,
    Step,
    fuse,
    split_axis,
    stabilize,
    tensorless_values,
    value_axes,
)
from superopt.trace import run_graph

UNARY = ("neg", "square", "sigmoid", "tanh", "relu", "abs", "exp", "gelu")
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
    dtypes = {"f32": torch.float32, "bf16": torch.bfloat16, "f16": torch.float16}
    tensors = {
        port.name: (torch.randn(graph.shape(port)) / 2).to(dtypes[port.dtype]) for port in graph.inputs
    }
    mugraph = scheduled(graph, number)
    tensors = {port.name: tensors[port.name] for port in mugraph.graph.inputs}
    wanted = run_graph(graph, tensors)["y"]
    eager = run_graph(graph, tensors, torch.float32)["y"]
    got = CppMuGraph(mugraph, chosen(mugraph, number // 3), flags=flags)(**tensors)["y"].double()
    out = graph.outputs[0].port.dtype
    rounded = wanted.to(dtypes[out]).double()
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
