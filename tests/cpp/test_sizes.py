"""Sizes that do not divide, size 0, and every stride, all with one compiled kernel each."""

from functools import cache
from pathlib import Path

import pytest
import torch
from quick import few
from torch import Tensor

from superopt.codegen.cpp import CppConfig, CppMuGraph, configs, default_config
from superopt.codegen.cpp import compile as cpp_compile
from superopt.codegen.statements import lower_block
from superopt.errors import InputError
from superopt.ir import fuse, parse_graph
from superopt.trace import run_graph

MATMUL = """
graph matmul
axes m=17 k=33 n=40
in x: {0}[m, k]
in w: {0}[k, n]
t2 = contract[k](x, w)
out y: {0}[m, n] = t2
"""
SOFTMAX = """
graph softmax
axes m=17 k=33 n=40
in x: {0}[m, k]
in w: {0}[k, n]
t2 = max[k](x)
t3 = sub(x, t2)
t4 = exp(t3)
t5 = sum[k](t4)
t6 = div(t4, t5)
t7 = contract[k](t6, w)
out y: {0}[m, n] = t7
"""
SUMS = """
graph sums
axes m=17 k=33 n=40
in x: {0}[m, k]
in w: {0}[k, n]
t2 = sum[m](x)
t3 = max[n](w)
t4 = mul(t2, t3)
t5 = sum[k](w)
t6 = contract[k](t4, w)
t7 = add(t5, t6)
out y: {0}[n] = t7
"""
PROGRAMS = {"matmul": MATMUL, "softmax": SOFTMAX, "sums": SUMS}
TOLERANCE = {"f32": 1e-5, "bf16": 1e-2, "f16": 2e-3}
DTYPES = {"f32": torch.float32, "bf16": torch.bfloat16, "f16": torch.float16}


@cache
def compiled(name: str, dtype: str) -> CppMuGraph:
    return CppMuGraph(fuse(parse_graph(PROGRAMS[name].format(dtype))), flags=("-O1",))


def resized(name: str, dtype: str, m: int, k: int, n: int) -> str:
    return PROGRAMS[name].format(dtype).replace("axes m=17 k=33 n=40", f"axes m={m} k={k} n={n}")


def check(name: str, dtype: str, x: Tensor, w: Tensor) -> None:
    graph = parse_graph(resized(name, dtype, *x.shape, w.shape[1]))
    got = compiled(name, dtype)(x=x, w=w)["y"]
    wanted = run_graph(graph, {"x": x, "w": w})["y"]
    # Operands of a product are rounded as tensors of the program are: what cancels keeps that error.
    finite = wanted[wanted.isfinite()].abs()
    largest = max(1.0, float(finite.max()) if finite.numel() else 0.0)
    atol = TOLERANCE[dtype] * largest
    torch.testing.assert_close(got.double(), wanted, rtol=TOLERANCE[dtype], atol=atol, equal_nan=True)


@pytest.mark.parametrize("name", PROGRAMS)
@pytest.mark.parametrize("m", [0, 1, 7, 17, 33])
@pytest.mark.parametrize("k", [0, 1, 8, 129])
@pytest.mark.parametrize("n", [0, 1, 33, 64, 129])
def test_sizes(name: str, m: int, k: int, n: int) -> None:
    torch.manual_seed(0)
    check(name, "f32", torch.randn(m, k) / max(k, 1) ** 0.5, torch.randn(k, n))


@pytest.mark.parametrize("dtype", few(DTYPES, "f32", "bf16"))
@pytest.mark.parametrize("name", PROGRAMS)
def test_strides(name: str, dtype: str) -> None:
    torch.manual_seed(0)
    x, w = torch.randn(17, 33).to(DTYPES[dtype]) / 6, torch.randn(33, 40).to(DTYPES[dtype])
    check(name, dtype, x, w)
    check(name, dtype, x.t().contiguous().t(), w)
    check(name, dtype, x, w.t().contiguous().t())
    check(name, dtype, x.t().contiguous().t(), w.t().contiguous().t())
    check(name, dtype, x.repeat(2, 2)[::2, ::2], w.repeat(3, 3)[::3, ::3])
    check(name, dtype, x[:1].expand(17, 33), w[:, :1].expand(33, 40))
    check(name, dtype, x[:, :1].expand(17, 33), w[:1].expand(33, 40))
    check(name, dtype, x[1:, 3:], w[3:, 5:])


@pytest.mark.parametrize("number", few([1, 4, 7, 10, 13, 16, 19, 22], 1, 7, 13, 19))
def test_other_configurations_mean_the_same(number: int) -> None:
    torch.manual_seed(0)
    graph = parse_graph(resized("softmax", "f32", 19, 129, 65))
    mugraph = fuse(graph)
    chosen: dict[int, CppConfig] = {}
    for kernel in range(len(mugraph.kernels)):
        options = list(configs(lower_block(mugraph, kernel), graph.sizes))
        assert options[0] == default_config(lower_block(mugraph, kernel), graph.sizes)
        assert len(set(options)) == len(options) <= 24
        chosen[kernel] = options[number % len(options)]
    x, w = torch.randn(19, 129), torch.randn(129, 65)
    got = CppMuGraph(mugraph, chosen, flags=("-O1",))(x=x, w=w)["y"]
    torch.testing.assert_close(got.double(), run_graph(graph, {"x": x, "w": w})["y"], rtol=1e-5, atol=1e-5)


def test_configurations_differ_in_every_choice() -> None:
    mugraph = fuse(parse_graph(resized("softmax", "f32", 1024, 256, 1024)))
    options = list(configs(lower_block(mugraph, len(mugraph.kernels) - 1), mugraph.graph.sizes))
    for choice in ("tiles", "schedule", "whole", "threads"):
        assert len({getattr(one, choice) for one in options}) > 1, choice


def test_threads_change_nothing() -> None:
    torch.manual_seed(0)
    x, w = torch.randn(33, 129), torch.randn(129, 65)
    before = torch.get_num_threads()
    results = []
    try:
        for threads in (1, 2, 3):
            torch.set_num_threads(threads)
            results.append(compiled("softmax", "f32")(x=x, w=w)["y"])
    finally:
        torch.set_num_threads(before)
    assert torch.equal(results[0], results[1])
    assert torch.equal(results[0], results[2])


@pytest.mark.parametrize(
    ("tensors", "message"),
    [
        ({"x": torch.ones(2, 3)}, "give the tensor 'w'; it takes x, w"),
        ({"x": torch.ones(2, 3), "w": torch.ones(4, 5)}, "axis 'k' is 3 long, but dimension 0 of 'w' has 4"),
        ({"x": torch.ones(2, 3), "w": torch.ones(3)}, "'w' has 1 dimensions; it was built for 2"),
        ({"x": torch.ones(2, 3), "w": torch.ones(3, 4).double()}, "float64"),
    ],
)
def test_wrong_tensors(tensors: dict[str, Tensor], message: str) -> None:
    with pytest.raises(InputError, match=message):
        compiled("matmul", "f32")(**tensors)


HEADS = """
graph heads
axes b=3 h=4 g=2 e=16 m=24 n=40
in x: f32[b, h, g, e]
in w: f32[m, (h g e)]
in v: f32[n, (h g e)]
t3 = contract[h, g, e](x, w)
t4 = contract[m](t3, w)
t5 = contract[h, g, e](t4, v)
out y: f32[b, m] = t3
out z: f32[b, h, g, e] = t4
out u: f32[b, n] = t5
"""


@pytest.mark.parametrize("order", [(0, 1, 2, 3), (0, 3, 1, 2), (0, 2, 1, 3), (3, 2, 1, 0)])
@pytest.mark.parametrize("tile", [1, 3, 64])
def test_axes_of_a_contraction_join_only_where_they_follow_one_another(
    order: tuple[int, ...], tile: int
) -> None:
    mugraph = fuse(parse_graph(HEADS))
    chosen = {}
    for number in range(len(mugraph.kernels)):
        program = lower_block(mugraph, number)
        plain = default_config(program, mugraph.graph.sizes)
        tiles = tuple((axis, min(tile, length)) for axis, length in plain.tiles)
        chosen[number] = CppConfig(tiles, threads=plain.threads)
    kernel = CppMuGraph(mugraph, chosen, flags=("-O1",))
    assert any("_joins_" in source for source in kernel.sources)
    x = torch.randn([(3, 4, 2, 16)[at] for at in order]).permute([order.index(at) for at in range(4)])
    w, v = torch.randn(24, 128), torch.randn(40, 256)[:, ::2]
    found = kernel(x=x, w=w, v=v)
    y = x.reshape(3, 128) @ w.t()
    torch.testing.assert_close(found["y"], y)
    torch.testing.assert_close(found["z"].reshape(3, 128), y @ w, rtol=1e-4, atol=1e-3)
    torch.testing.assert_close(found["u"], y @ w @ v.t(), rtol=1e-3, atol=1e-2)


@pytest.mark.slow
def test_code_for_other_strides_is_compiled_when_it_is_called_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cpp_compile, "_folder", lambda: tmp_path)
    kernel = CppMuGraph(fuse(parse_graph(PROGRAMS["sums"].format("f32"))), flags=("-O1",))
    x, w = torch.randn(17, 33), torch.randn(33, 40)

    def libraries() -> int:
        return len(list(tmp_path.glob("*.so")))

    first = kernel(x=x, w=w)["y"]
    contiguous = libraries()
    kernel(x=x.clone(), w=w.clone())
    assert libraries() == contiguous
    strided = kernel(x=x.t().contiguous().t(), w=torch.stack([w, w], -1)[..., 0])["y"]
    assert libraries() > contiguous
    torch.testing.assert_close(strided, first, rtol=1e-4, atol=1e-3)


def test_a_kernel_of_little_work_takes_all_threads_for_much_more() -> None:
    """Before: a kernel made at small sizes ran on one thread for good."""
    run = CppMuGraph(fuse(parse_graph(SOFTMAX.format("f32"))), flags=("-O1",))
    [source] = run.sources
    [kernel] = run._kernels
    assert "#pragma omp" not in source
    x, w = torch.randn(17, 33), torch.randn(33, 40)
    for rows, again in ((17, False), (20, False), (2000, True), (2001, True), (17, False)):
        given = torch.randn(rows, 33)
        wanted = torch.softmax(given, -1) @ w
        torch.testing.assert_close(run(x=given, w=w)["y"], wanted, rtol=1e-4, atol=1e-5)
        served = kernel.serving({"m": rows, "k": 33, "n": 40})
        assert (served is not kernel) == again
        assert ("#pragma omp" in served.source.code) == again
    assert kernel.serving({"m": 2000, "k": 33, "n": 40}) is kernel.serving({"m": 2001, "k": 33, "n": 40})
    torch.testing.assert_close(run(x=x, w=w)["y"], torch.softmax(x, -1) @ w, rtol=1e-4, atol=1e-5)


def test_a_kernel_measured_on_one_thread_stays_there_until_it_has_much_more_to_do() -> None:
    graph = parse_graph(MATMUL.format("f32").replace("m=17 k=33 n=40", "m=64 k=64 n=64"))
    config = CppConfig((("m", 16), ("n", 64), ("k", 64)), threads=1)
    [kernel] = CppMuGraph(fuse(graph), {0: config}, flags=("-O1",))._kernels
    assert kernel.serving({"m": 128, "k": 64, "n": 64}) is kernel
    assert kernel.serving({"m": 512, "k": 64, "n": 64}) is not kernel
