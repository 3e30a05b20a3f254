"""Every named workload as C++, traced and found, against float64 and against eager."""

from functools import cache

import pytest
import torch

from superopt.codegen.cpp import CppMuGraph
from superopt.driver import search
from superopt.ir import Graph, fuse
from superopt.trace import run_graph, trace
from superopt.workloads import WORKLOADS

SIZES = {
    "softmax": {"M": 5, "N": 129},
    "rmsnorm": {"M": 7, "K": 33},
    "rmsnorm-linear": {"M": 7, "K": 129, "N": 33},
    "layernorm-linear-gelu": {"M": 7, "K": 65, "N": 33},
    "gated-mlp": {"M": 7, "K": 129, "N": 65},
    "rmsnorm-mlp": {"M": 7, "K": 33, "N": 65},
    "lora": {"M": 17, "K": 129, "N": 33, "R": 5},
    "mha": {"B": 1, "H": 3, "S": 17, "D": 9},
    "gqa": {"B": 1, "H": 4, "G": 2, "S": 17, "D": 9},
    "mqa": {"B": 1, "H": 3, "S": 17, "D": 9},
    "mha-decode": {"B": 2, "H": 3, "S": 1, "T": 129, "D": 17},
    "gqa-decode": {"B": 2, "H": 6, "G": 2, "S": 1, "T": 129, "D": 17},
    "mqa-decode": {"B": 2, "H": 3, "S": 1, "T": 129, "D": 17},
    "qknorm-attention": {"B": 1, "H": 2, "S": 5, "T": 33, "D": 17},
    "mla": {"B": 2, "H": 5, "T": 33, "L": 17, "R": 9},
    "ntrans": {"M": 5, "K": 129},
    "matmul": {"M": 17, "K": 129, "N": 33},
    "matmul-matmul": {"M": 7, "K": 33, "R": 65, "N": 17},
    "matmul-rowsum": {"M": 7, "K": 33, "N": 129},
    "linear-cross-entropy": {"M": 5, "K": 33, "V": 129},
    "llama-layer": {"B": 1, "S": 17, "E": 33, "D": 8, "Q": 32, "P": 16, "N": 65},
}
FAST = ("-O1",)  # compiles in half the time; the slow tests use what users get
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
    torch.manual_seed(1)
    inputs = workload.inputs(dtype=dtype, device="cpu", **SIZES[name])
    inputs = tuple(tensor * SCALE.get(name, 1.0) for tensor in inputs)
    (graph,) = graphs(name, dtype, kind)
    mugraph = fuse(graph)
    tensors = {port.name: tensor for port, tensor in zip(mugraph.graph.inputs, inputs, strict=True)}
    (got,) = CppMuGraph(mugraph, flags=flags)(**tensors).values()
    (wanted,) = run_graph(graph, tensors).values()
    eager = workload.function(*inputs)
    assert got.shape == eager.shape
    assert got.dtype == eager.dtype
    size = wanted.abs().max()
    bound = 2 * (eager.double() - wanted).abs().max() + 4 * torch.finfo(torch.float32).eps * size
    assert (got.double() - wanted).abs().max() <= bound


def test_all_workloads_have_sizes() -> None:
    assert set(SIZES) == set(WORKLOADS)


@pytest.mark.parametrize("name", ["rmsnorm", "gated-mlp", "mqa", "llama-layer"])
def test_traced(name: str) -> None:
    check(name, "f32", "traced", FAST)


@pytest.mark.parametrize(
    "name", ["rmsnorm-linear", "layernorm-linear-gelu", "gqa", "mla", "lora", "linear-cross-entropy"]
)
def test_found(name: str) -> None:
    check(name, "f32", "found", FAST)


@pytest.mark.parametrize("dtype", ["bf16", "f16"])
@pytest.mark.parametrize("name", ["rmsnorm-linear", "gqa-decode", "softmax"])
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
