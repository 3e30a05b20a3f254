"""Small programs drawn at random: C++ agrees with float64."""

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from superopt.codegen.cpp import CppMuGraph
from superopt.ir import Axis, Graph, Output, Port, Step, fuse, value_axes
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


def check(graph: Graph, flags: tuple[str, ...]) -> None:
    torch.manual_seed(0)
    dtypes = {"f32": torch.float32, "bf16": torch.bfloat16, "f16": torch.float16}
    tensors = {
        port.name: (torch.randn(graph.shape(port)) / 2).to(dtypes[port.dtype]) for port in graph.inputs
    }
    mugraph = fuse(graph)
    tensors = {port.name: tensors[port.name] for port in mugraph.graph.inputs}
    wanted = run_graph(mugraph.graph, tensors)["y"]
    eager = run_graph(mugraph.graph, tensors, torch.float32)["y"]
    got = CppMuGraph(mugraph, flags=flags)(**tensors)["y"].double()
    out = graph.outputs[0].port.dtype
    rounded = wanted.to(dtypes[out]).double()
    size = wanted.abs().nan_to_num(posinf=0.0).max() if wanted.numel() else 0.0
    bound = 4 * (eager.double() - wanted).abs().nan_to_num(posinf=0.0) + (rounded - wanted).abs().nan_to_num()
    off = (got - rounded).abs() > 2 * bound + 1e-4 * size + 1e-30
    assert not off[wanted.isfinite() & rounded.isfinite() & eager.isfinite()].any()


@settings(max_examples=15, deadline=None, derandomize=True, suppress_health_check=list(HealthCheck))
@given(graphs())
def test_drawn_programs(graph: Graph) -> None:
    check(graph, ("-O0",))


@pytest.mark.slow
@settings(max_examples=300, deadline=None, suppress_health_check=list(HealthCheck))
@given(graphs())
def test_many_drawn_programs(graph: Graph) -> None:
    check(graph, ("-O1",))
