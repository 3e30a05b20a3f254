"""Shifts that run inside loops and axes split in parts, against float64 and against eager."""

import re
from collections.abc import Callable
from dataclasses import replace
from functools import cache

import pytest
import torch
from quick import SIZES, few
from torch import Tensor

from superopt.codegen.cpp import CppConfig, CppMuGraph, default_config
from superopt.codegen.statements import lower_block
from superopt.cost import device_of
from superopt.driver import search
from superopt.ir import Graph, MuGraph, fuse, release_shifts, split_axis, stabilize
from superopt.schedule import rank
from superopt.trace import trace
from superopt.workloads import WORKLOADS

ONLINE = [
    "softmax",
    "mha",
    "gqa",
    "mqa",
    "mha-decode",
    "gqa-decode",
    "mqa-decode",
    "qknorm-attention",
    "mla",
    "linear-cross-entropy",
]
SPLIT = {  # the size whose axis is split
    "mha-decode": "T",
    "gqa-decode": "T",
    "mqa-decode": "T",
    "mla": "T",
    "linear-cross-entropy": "V",
    "rmsnorm-linear": "K",
    "gated-mlp": "K",
    "matmul": "K",
    "lora": "K",
}
DTYPES = {"f32": torch.float32, "bf16": torch.bfloat16, "f16": torch.float16}
FAST = ("-O1",)


@cache
def graphs(name: str, kind: str, dtype: str) -> Graph:
    workload = WORKLOADS[name]
    inputs = workload.inputs(dtype=dtype, **SIZES[name])
    if kind == "traced":
        return release_shifts(trace(workload.function, *inputs, name=name).graph)
    return search(workload.function, *inputs, name=name).regions[0].found[0].graph


def split_at(graph: Graph, size: int) -> str:
    """Return the axis of this extent that an input has and no output."""
    out = {axis for output in graph.outputs for axis in output.port.axes}
    read = [axis for port in graph.inputs for axis in port.axes]
    return next(axis for axis in read if axis not in out and graph.sizes[axis] == size)


def looped(mugraph: MuGraph) -> CppMuGraph:
    """Return kernels whose loops take several turns, no axis being whole in a tile."""
    chosen: dict[int, CppConfig] = {}
    for number in range(len(mugraph.kernels)):
        program = lower_block(mugraph, number)
        first = default_config(program, mugraph.graph.sizes)
        walked = program.looped
        tiles = tuple((axis, min(tile, 16) if axis in walked else tile) for axis, tile in first.tiles)
        chosen[number] = replace(first, tiles=tiles, whole=())
    return CppMuGraph(mugraph, chosen, flags=FAST)


@cache
def programs(name: str, kind: str, dtype: str, parts: int) -> CppMuGraph:
    graph = graphs(name, kind, dtype)
    if not parts:
        return looped(fuse(stabilize(graph), online=True))
    graph, split = split_axis(graph, split_at(graph, SIZES[name][SPLIT[name]]), parts)
    mugraph = fuse(stabilize(graph, (split.outer,)), splits=(split,), online=True)
    assert any(split.outer in kernel.grid for kernel in mugraph.kernels if hasattr(kernel, "grid"))
    return looped(mugraph)


def agree(run: CppMuGraph, function: Callable[..., Tensor], inputs: tuple[Tensor, ...]) -> None:
    """Require results no worse than eager's, and NaN where eager has it."""
    tensors = {port.name: tensor for port, tensor in zip(run.graph.inputs, inputs, strict=True)}
    (got,) = run(**tensors).values()
    eager = function(*inputs)
    wanted = function(*(x.double() if x.is_floating_point() else x for x in inputs))
    assert got.shape == eager.shape
    assert got.dtype == eager.dtype
    if not got.numel():
        return
    assert torch.equal(got.isnan(), eager.isnan())
    known = ~(eager.isnan() | eager.isinf() | (wanted.abs() > torch.finfo(got.dtype).max))
    got, eager, wanted = got[known].double(), eager[known].double(), wanted[known]
    if got.numel():
        size, eps = wanted.abs().max(), torch.finfo(run_dtype(inputs)).eps
        bound = 2 * (eager - wanted).abs().max() + (4 * torch.finfo(torch.float32).eps + eps / 2) * size
        assert (got - wanted).abs().max() <= bound


def run_dtype(inputs: tuple[Tensor, ...]) -> torch.dtype:
    return next(tensor.dtype for tensor in inputs if tensor.is_floating_point())


def check(name: str, kind: str, dtype: str, parts: int, sizes: dict[str, int], scale: float = 1.0) -> None:
    if name == "linear-cross-entropy" and sizes.get("V") == 1:
        sizes = {"V": 2}  # of one class the loss is exactly 0, and rounding of two logits is all there is
    torch.manual_seed(1)
    inputs = WORKLOADS[name].inputs(dtype=dtype, device="cpu", **{**SIZES[name], **sizes})
    inputs = (inputs[0] * scale, *inputs[1:])
    agree(programs(name, kind, dtype, parts), WORKLOADS[name].function, inputs)


def test_shifts_run() -> None:
    for name in ("softmax", "mha", "gqa", "qknorm-attention"):
        assert "running" in str(programs(name, "found", "f32", 0).mugraph)
    assert any("if (" in code and "rescale(" in code for code in programs("gqa", "found", "f32", 0).sources)


def test_whole_rows_need_no_second_pass() -> None:
    mugraph = programs("softmax", "found", "f32", 0).mugraph
    whole = CppMuGraph(mugraph, flags=FAST)
    computed = r"const \w+ \w+ = exp\("
    assert len(re.findall(computed, whole.sources[0])) == 1
    assert "_base" not in whole.sources[0]
    assert len(re.findall(computed, programs("softmax", "found", "f32", 0).sources[0])) == 3  # one rescales
    for size in (0, 1, 17, 4097):
        inputs = WORKLOADS["softmax"].inputs(dtype="f32", device="cpu", M=3, N=size)
        agree(whole, WORKLOADS["softmax"].function, inputs)


@pytest.mark.parametrize("online", [False, True])
@pytest.mark.parametrize("name", ["softmax", "log_softmax", "logsumexp"])
def test_rows_of_the_least_numbers(name: str, online: bool) -> None:
    """`masked_fill` leaves such rows where all of them is masked, and -inf leaves rows of NaN."""
    lowest, rows = torch.finfo(torch.float32).min, torch.randn(7, 40)
    rows[0], rows[1, :20], rows[2], rows[3] = lowest, lowest, lowest / 4, -torch.inf
    rows[4, 0], rows[4, 1:], rows[5, 1:] = -torch.inf, lowest, -torch.inf
    function = lambda x: getattr(torch, name)(x, -1)  # noqa: E731
    mugraph = fuse(stabilize(trace(function, rows).graph), online=online)
    agree(looped(mugraph) if online else CppMuGraph(mugraph, flags=FAST), function, (rows,))


@pytest.mark.parametrize("name", few(ONLINE, "softmax", "gqa", "gqa-decode", "mla", "linear-cross-entropy"))
def test_online(name: str) -> None:
    check(name, "found", "f32", 0, {})
    check(name, "found", "f32", 0, {}, scale=1e4)


@pytest.mark.parametrize("name", few(SPLIT, "gqa-decode", "mla", "linear-cross-entropy", "rmsnorm-linear"))
@pytest.mark.parametrize("size", [1, 7, 17, 129, 4097])
def test_parts(name: str, size: int) -> None:
    check(name, "found", "f32", 4, {SPLIT[name]: size})


@pytest.mark.parametrize("name", ["gqa-decode", "mla", "linear-cross-entropy"])
def test_parts_of_large_scores(name: str) -> None:
    for scale in (1e4, -1e4):
        check(name, "found", "f32", 4, {}, scale=scale)


@pytest.mark.parametrize("size", [0, 1, 7, 17, 129, 4097])
def test_sizes(size: int) -> None:
    check("softmax", "found", "f32", 0, {"N": size})
    if size:
        check("gqa-decode", "found", "f32", 0, {"T": size})
    if size < 4097:
        check("softmax", "found", "f32", 0, {"M": size})
        check("mha", "found", "f32", 0, {"S": size})
        check("rmsnorm-linear", "found", "f32", 4, {"M": size})
        check("rmsnorm-linear", "found", "f32", 4, {"N": size})


HALF = [("softmax", 0), ("gqa", 0), ("gqa-decode", 4), ("gated-mlp", 4)]


@pytest.mark.parametrize("dtype", ["bf16", "f16"])
@pytest.mark.parametrize(("name", "parts"), few(HALF, ("softmax", 0), ("gqa-decode", 4)))
def test_half(name: str, dtype: str, parts: int) -> None:
    check(name, "found", dtype, parts, {})
    check(name, "found", dtype, parts, {}, scale=100.0)


@pytest.mark.slow
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("kind", ["traced", "found"])
@pytest.mark.parametrize("parts", [0, 4])
def test_everything(dtype: str, kind: str, parts: int) -> None:
    for name in SPLIT if parts else ONLINE:
        axis = SPLIT.get(name, "S" if "S" in SIZES[name] else "M")
        for size in (1, 7, 17, 129):
            check(name, kind, dtype, parts, {axis: size})


def attention(q: Tensor, k: Tensor, v: Tensor, mask: Tensor) -> Tensor:
    return (q @ k.mT).masked_fill(~mask, float("-inf")).softmax(-1) @ v


@cache
def masked(parts: int) -> CppMuGraph:
    inputs = (torch.ones(5, 8), torch.ones(37, 8), torch.ones(37, 9), torch.ones(5, 37, dtype=torch.bool))
    graph = search(attention, *inputs, name="masked").regions[0].found[0].graph
    if not parts:
        return looped(fuse(stabilize(graph), online=True))
    graph, split = split_axis(graph, split_at(graph, 37), parts)
    return looped(fuse(stabilize(graph, (split.outer,)), splits=(split,), online=True))


@pytest.mark.parametrize("parts", [0, 4])
def test_masked_rows(parts: int) -> None:
    torch.manual_seed(0)
    mask = torch.rand(5, 37) < 0.5
    mask[1] = False  # sees nothing
    mask[2, :36] = False  # sees one key, in the last part
    mask[3, 8:] = False
    inputs = (torch.randn(5, 8), torch.randn(37, 8), torch.randn(37, 9), mask)
    assert attention(*inputs)[1].isnan().all()
    agree(masked(parts), attention, inputs)


@pytest.mark.parametrize("parts", [0, 4])
@pytest.mark.parametrize("at", [0, 20, 36])
def test_one_key_dominates(parts: int, at: int) -> None:
    torch.manual_seed(0)
    q, k = torch.rand(5, 8), torch.randn(37, 8)
    k[at] = 1e4
    agree(masked(parts), attention, (q, k, torch.randn(37, 9), torch.ones(5, 37, dtype=torch.bool)))


def test_strides() -> None:
    torch.manual_seed(0)
    q, k, v = torch.randn(8, 5).t(), torch.randn(37 * 2, 8)[::2], torch.randn(9, 37).t()
    agree(masked(0), attention, (q, k, v, (torch.rand(37, 5) < 0.8).t()))
    agree(masked(4), attention, (q, k, v, (torch.rand(37, 5) < 0.8).t()))


@pytest.mark.parametrize("name", ["softmax", "gqa-decode"])
def test_cores_agree(name: str) -> None:
    before, results = torch.get_num_threads(), []
    inputs = WORKLOADS[name].inputs(dtype="f32", device="cpu", **SIZES[name])
    run = programs(name, "found", "f32", 4 if name in SPLIT else 0)
    try:
        for threads in (1, 3):
            torch.set_num_threads(threads)
            results += run(**{p.name: t for p, t in zip(run.graph.inputs, inputs, strict=True)}).values()
    finally:
        torch.set_num_threads(before)
    assert torch.equal(*results)


HALVED = {"gqa-decode": "T", "mla": "T", "matmul-rowsum": "K", "lora": "K", "linear-cross-entropy": "V"}


@cache
def halved(name: str) -> tuple[CppMuGraph, Graph]:
    """Return the best schedule of graphs of which the search split an axis, and what they are equal to."""
    workload = WORKLOADS[name]
    goal = release_shifts(trace(workload.function, *workload.inputs(dtype="f32"), name=name).graph)
    split = [one for one in search(goal).regions[0].found if one.splits]
    mugraph = rank(split, device_of("h200"), library=False, keep=1).kept[0].mugraph
    assert mugraph.splits
    return CppMuGraph(mugraph, flags=FAST), goal


@pytest.mark.parametrize("size", [1, 7, 17, 129, 4097])
@pytest.mark.parametrize(
    "name", [name if name in ("gqa-decode", "lora") else pytest.param(name, marks=pytest.mark.slow)
             for name in HALVED]
)  # fmt: skip
def test_what_the_search_split_runs_at_any_size(name: str, size: int) -> None:
    kernel, goal = halved(name)
    workload = WORKLOADS[name]
    torch.manual_seed(0)
    short = {"B": 1, "M": 3, "N": 20, HALVED[name]: size}
    sizes = {axis: value for axis, value in short.items() if axis in workload.sizes}
    inputs = workload.inputs(dtype="f32", device="cpu", **sizes)
    inputs = tuple(tensor if at == 0 else tensor * 0.3 for at, tensor in enumerate(inputs))
    (got,) = kernel(**{port.name: one for port, one in zip(goal.inputs, inputs, strict=True)}).values()
    exact = workload.function(*(tensor.double() for tensor in inputs))
    eager = workload.function(*inputs)
    bound = 2 * (eager - exact).abs().max() + 4 * torch.finfo(torch.float32).eps * exact.abs().max()
    assert (got - exact).abs().max() <= bound
