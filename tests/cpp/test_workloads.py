"""Every named workload as C++, traced and found, against float64 and against eager."""

from functools import cache

import pytest
import torch
from quick import SIZES, few

from superopt.codegen.cpp import CppMuGraph
from superopt.driver import search
from superopt.ir import Graph, fuse
from superopt.trace import run_graph, trace
from superopt.workloads import WORKLOADS

FAST = ("-O1",)  # compiles in half the time; the slow tests use what users get
DRAWS = 4  # of so few numbers, one draw may be lucky for PyTorch
SCALE = {"llama-layer": 0.2}  # its scores would overflow exp


@cache
def graphs(name: str, dtype: str, kind: str) -> tuple[Graph, ...]:
    workload = WORKLOADS[name]
    inputs = workload.inputs(dtype=dtype, **SIZES[name])
    if kind == "traced":
        return (trace(workload.function, *inputs, name=name).graph,)
    return tuple(region.found[0].graph for region in search(workload.function, *inputs, name=name).regions)


def check(name: str, dtype: str, kind: str, flags: tuple[str, ...]) -> None:
    workload = WORKLOADS[name]
    (graph,) = graphs(name, dtype, kind)
    mugraph = fuse(graph)
    kernel = CppMuGraph(mugraph, flags=flags)
    errors, bounds = [], []
    for seed in range(DRAWS):
        torch.manual_seed(seed)
        inputs = workload.inputs(dtype=dtype, device="cpu", **SIZES[name])
        inputs = tuple(tensor * SCALE.get(name, 1.0) for tensor in inputs)
        tensors = {port.name: tensor for port, tensor in zip(mugraph.graph.inputs, inputs, strict=True)}
        (got,) = kernel(**tensors).values()
        (wanted,) = run_graph(graph, tensors).values()
        eager = workload.function(*inputs)
        assert got.shape == eager.shape
        assert got.dtype == eager.dtype
        size = wanted.abs().max()
        errors.append((got.double() - wanted).abs().max())
        bounds.append(2 * (eager.double() - wanted).abs().max() + 4 * torch.finfo(torch.float32).eps * size)
    assert max(errors) <= max(bounds)


def test_all_workloads_have_sizes() -> None:
    assert set(SIZES) == set(WORKLOADS)


TRACED = ["rmsnorm", "gated-mlp", "mqa", "llama-layer"]


@pytest.mark.parametrize("name", few(TRACED, "rmsnorm", "llama-layer"))
def test_traced(name: str) -> None:
    check(name, "f32", "traced", FAST)


FOUND = ["rmsnorm-linear", "layernorm-linear-gelu", "gqa", "mla", "lora", "linear-cross-entropy"]


@pytest.mark.parametrize("name", few(FOUND, "layernorm-linear-gelu", "mla", "lora"))
def test_found(name: str) -> None:
    check(name, "f32", "found", FAST)


@pytest.mark.parametrize("dtype", ["bf16", "f16"])
@pytest.mark.parametrize("name", few(["rmsnorm-linear", "gqa-decode", "softmax"], "rmsnorm-linear"))
def test_half(name: str, dtype: str) -> None:
    check(name, dtype, "found", FAST)


@pytest.mark.slow
@pytest.mark.parametrize("dtype", ["f32", "bf16", "f16"])
@pytest.mark.parametrize("kind", ["traced", "found"])
@pytest.mark.parametrize("name", list(SIZES))
def test_everything(name: str, kind: str, dtype: str) -> None:
    if name == "llama-layer" and kind == "found":
        pytest.skip("a search of a whole layer takes minutes")
    check(name, dtype, kind, ())
