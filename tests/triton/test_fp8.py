"""Tensors of eight bits: read and multiplied exactly, or refused where Triton cannot read them."""

import pytest
import torch
from compiling import compile_ahead

from superopt import OptimizeOptions, optimize
from superopt.codegen.errors import CompileError
from superopt.codegen.triton import TritonMuGraph
from superopt.ir import fuse, is_matmul, parse_graph
from superopt.trace import trace

FP8 = {"f8e4m3": torch.float8_e4m3fn, "f8e5m2": torch.float8_e5m2}

PRODUCT = """
graph g
axes m={m} k={k} n={n}
in x: {x}[m, k]
in w: {w}[k, n]
t2 = contract[k](x, w)
out o: {out}[m, n] = t2
"""


def product(x, w, out="f32", m=17, k=80, n=48):
    return PRODUCT.format(m=m, k=k, n=n, x=x, w=w, out=out)


def source_of(text):
    mugraph = fuse(parse_graph(text))
    return TritonMuGraph(mugraph).source(0, mugraph.graph.sizes)


@pytest.mark.parametrize("configs", ["default", "descriptors"])
@pytest.mark.parametrize(
    ("x", "w"),
    [("f8e4m3", "f8e4m3"), ("f8e4m3", "f8e5m2"), ("f16", "f8e4m3"), ("f8e5m2", "f32"), ("bf16", "f8e4m3")],
)
def test_products(x, w, configs, agrees):
    answer = agrees("text", text=product(x, w), domain=[-2.0, 2.0], configs=configs)
    assert answer["error"] < 1e-3
    assert answer["descriptors"] == (3 if configs == "descriptors" else 0)


@pytest.mark.parametrize(("m", "k"), [(1, 80), (7, 129), (129, 17)])
def test_sizes(m, k, agrees):
    agrees("text", text=product("f8e4m3", "f8e4m3", "f16", m=m, k=k), domain=[-2.0, 2.0])


@pytest.mark.parametrize("dtype", FP8)
@pytest.mark.parametrize("layout", ["contiguous", "columns"])
def test_numbers(dtype, layout, agrees):
    text = f"graph g\naxes m=40 k=33\nin x: {dtype}[m, k]\nt1 = square(x)\nout o: f32[m, k] = t1\n"
    answer = agrees("text", text=text, domain=[-400.0, 400.0], layout=layout)
    assert answer["error"] == 0.0


@pytest.mark.parametrize(
    ("x", "w", "multiplied"),
    [
        ("f8e4m3", "f8e4m3", "tl.dot(x.to(tl.float16), w.to(tl.float16), t2)"),
        ("f8e4m3", "f8e5m2", "tl.dot(x.to(tl.float16), w.to(tl.float16), t2)"),
        ("f16", "f8e4m3", "tl.dot(x, w.to(tl.float16), t2)"),
        ("bf16", "f8e5m2", "tl.dot(x, w.to(tl.bfloat16), t2)"),
        ("f32", "f8e4m3", 'tl.dot(x, w.to(tl.float32), t2, input_precision="ieee")'),
    ],
)
def test_the_least_dtype_that_holds_both_is_multiplied(x, w, multiplied):
    assert multiplied in source_of(product(x, w)).text


@pytest.mark.parametrize(
    ("dtype", "target"), [("f8e4m3", "cuda:90"), ("f8e4m3", "cuda:89"), ("f8e5m2", "cuda:80")]
)
def test_they_compile(dtype, target):
    report = compile_ahead(source_of(product(dtype, dtype, "f16", 64, 128, 64)), target=target)
    assert report.spill_bytes == 0


def test_what_a_device_cannot_read_is_named():
    source = source_of(product("f16", "f8e4m3"))
    said = "w holds float8_e4m3fn, which Triton reads on cuda:89 and later"
    assert source.refusal(80) == said
    assert source.refusal(89) is None
    assert source_of(product("f16", "f8e5m2")).refusal(80) is None
    with pytest.raises(CompileError, match=f"g_0: not for cuda:80: {said}"):
        compile_ahead(source, target="cuda:80")


def linear(x, w, scale):
    return torch.nn.functional.silu(x @ (w.to(x.dtype) * scale))


@pytest.mark.slow
def test_a_program_that_casts_its_weights():
    inputs = [
        torch.empty(shape, dtype=dtype, device="meta")
        for shape, dtype in (((16, 64), torch.float16), ((64, 32), FP8["f8e4m3"]), ((32,), torch.float16))
    ]
    assert [port.dtype for port in trace(linear, *inputs).graph.inputs] == ["f16", "f8e4m3", "f16"]
    [region] = optimize(linear, *inputs, options=OptimizeOptions("cuda:80", cache=False)).regions
    reasons = {one.fate.reason for one in region.candidates if not one.library}
    assert reasons
    assert all("holds float8_e4m3fn, which Triton reads on cuda:89 and later" in one for one in reasons)


@pytest.mark.parametrize(("x", "w"), [("f8e4m3", "f8e5m2"), ("f8e4m3", "f8e4m3"), ("f16", "f8e4m3")])
def test_library_calls(x, w):
    mugraph = fuse(parse_graph(product(x, w)), library=is_matmul)
    torch.manual_seed(0)
    dtypes = FP8 | {"f16": torch.float16}
    tensors = {"x": torch.randn(17, 80).to(dtypes[x]), "w": torch.randn(80, 48).to(dtypes[w])}
    made = TritonMuGraph(mugraph)(**tensors)["o"]
    exact = tensors["x"].double() @ tensors["w"].double()
    assert (made.double() - exact).abs().max() < (0.05 if x == "f16" else 1e-4)
