"""Tensors of eight bits: every number is read as PyTorch reads it, and multiplied exactly."""

import pytest
import torch

from superopt.codegen.cpp import CppMuGraph
from superopt.codegen.errors import UnsupportedError
from superopt.ir import fuse, is_matmul, parse_graph

FP8 = {"f8e4m3": torch.float8_e4m3fn, "f8e5m2": torch.float8_e5m2}
DTYPES = FP8 | {"f32": torch.float32, "f16": torch.float16, "bf16": torch.bfloat16}


@pytest.mark.parametrize("dtype", FP8)
def test_all_numbers(dtype):
    text = f"graph g\naxes m=4 k=64\nin x: {dtype}[m, k]\nt1 = neg(x)\nout o: f32[m, k] = t1\n"
    built = CppMuGraph(fuse(parse_graph(text)))
    x = torch.arange(256, dtype=torch.uint8).view(FP8[dtype]).view(4, 64)
    for lies in (x, x.t().contiguous().t()):  # read as vectors, and one by one
        assert torch.equal(
            built(x=lies)["o"].nan_to_num(1e9, 2e9, -2e9), (-x.float()).nan_to_num(1e9, 2e9, -2e9)
        )


@pytest.mark.parametrize("library", [False, True])
@pytest.mark.parametrize(
    ("x", "w"),
    [
        ("f8e4m3", "f8e5m2"),
        ("f8e5m2", "bf16"),
        pytest.param("f8e4m3", "f8e4m3", marks=pytest.mark.slow),
        pytest.param("f16", "f8e4m3", marks=pytest.mark.slow),
    ],
)
def test_products(x, w, library):
    text = (
        f"graph g\naxes m=19 k=130 n=35\nin x: {x}[m, k]\nin w: {w}[k, n]\n"
        "t2 = contract[k](x, w)\nout o: f32[m, n] = t2\n"
    )
    graph = parse_graph(text)
    built = CppMuGraph(fuse(graph, library=is_matmul) if library else fuse(graph))
    torch.manual_seed(0)
    tensors = {"x": torch.randn(19, 130).to(DTYPES[x]), "w": torch.randn(130, 35).to(DTYPES[w])}
    exact = tensors["x"].double() @ tensors["w"].double()
    assert torch.allclose(built(**tensors)["o"].double(), exact, atol=0.1 if library else 1e-4)


def test_results_of_eight_bits_are_refused():
    text = "graph g\naxes m=4\nin x: f8e4m3[m]\nt1 = neg(x)\nout o: f8e4m3[m] = t1\n"
    with pytest.raises(UnsupportedError, match="no C\\+\\+ for 'o' of dtype f8e4m3; known: bf16, f16, f32"):
        CppMuGraph(fuse(parse_graph(text)))(x=torch.zeros(4).to(FP8["f8e4m3"]))
