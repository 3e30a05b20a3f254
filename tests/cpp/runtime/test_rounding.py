"""Where vectors round: quotients by one number, and products that are added to something.

Quotients are products with the reciprocal, corrected where no half type hides the error. What is multiplied
and then added is rounded twice, as in PyTorch, so that equal products cancel to exactly 0.
"""

import math

import pytest
import torch

from superopt.codegen.cpp import CppMuGraph
from superopt.ir import fuse, parse_graph

QUOTIENT = """
graph quotient
axes m={m} n=37
in x: {read}[m, n]
in d: {read}[m]
t2 = div(x, d)
out y: {made}[m, n] = t2
"""
COMPARED = """
graph compared
axes m={m} n=37
in x: bf16[m, n]
in d: bf16[m]
t2 = div(x, d)
t3 = const[1]()
t4 = ge(t2, t3)
out y: bf16[m, n] = t4
"""
BOTH = """
graph both
axes m=6 n=37
in x: bf16[m, n]
in d: bf16[m]
t2 = div(x, d)
t3 = mul(x, d)
out y: bf16[m, n] = t2
out z: bf16[m, n] = t3
"""
SIZES = (
    0.0,
    1.0,
    3.0,
    49.0,
    1e-3,
    2.0**-133,
    2.0**-127,
    2.0**-126,
    2.0**126,
    2.0**127,
    3e38,
    math.inf,
    math.nan,
)
DTYPES = {"bf16": torch.bfloat16, "f16": torch.float16, "f32": torch.float32}


def divisors() -> torch.Tensor:
    return torch.tensor([sign * size for size in SIZES for sign in (1, -1)])


def numerators(rows: int) -> torch.Tensor:
    torch.manual_seed(0)
    special = torch.tensor([*SIZES, -0.0, 98.0, 147.0])
    scales = 10.0 ** torch.linspace(-38, 38, 37 - len(special))
    return torch.cat([special.expand(rows, -1), torch.randn(rows, len(scales)) * scales], 1)


@pytest.mark.parametrize(("read", "made"), [("bf16", "bf16"), ("f16", "f16"), ("f32", "bf16")])
def test_quotients_are_those_of_pytorch(read: str, made: str) -> None:
    d = divisors().to(DTYPES[read])
    x = numerators(len(d)).to(DTYPES[read])
    kernel = CppMuGraph(fuse(parse_graph(QUOTIENT.format(m=len(d), read=read, made=made))))
    assert "const Divisor d_divisor(d)" in kernel.sources[0]
    found = kernel(x=x, d=d)["y"]
    # A reciprocal is off by half a unit of fp32, which tips a tie of the half type at most.
    exact = (x.float() / d.float()[:, None]).to(DTYPES[made])
    assert torch.equal(found.isnan(), exact.isnan())
    one, other = (result.float().nan_to_num(nan=0.0) for result in (found, exact))
    above, below = (
        torch.nextafter(exact, torch.tensor(end, dtype=exact.dtype)).float() for end in (math.inf, -math.inf)
    )
    near = (one == other) | (one == above) | (one == below)
    assert near.all()
    assert (one == other).float().mean() > 0.99


def test_quotients_that_are_used_further_are_exact() -> None:
    d = torch.arange(1, 257).float()  # 49 times the reciprocal of 49 is less than 1
    x = d[:, None].expand(-1, 37).contiguous()
    kernel = CppMuGraph(fuse(parse_graph(COMPARED.format(m=len(d)))))
    assert "t2 = x / d_divisor" in kernel.sources[0]
    assert (kernel(x=x.bfloat16(), d=d.bfloat16())["y"] == 1).all()


def test_a_divisor_may_be_read_by_other_steps() -> None:
    """Before: such a kernel did not compile."""
    kernel = CppMuGraph(fuse(parse_graph(BOTH)))
    assert "const Divisor d_divisor(d)" in kernel.sources[0]
    torch.manual_seed(0)
    x, d = torch.randn(6, 37).bfloat16(), torch.arange(1, 7).bfloat16()
    found = kernel(x=x, d=d)
    assert torch.equal(found["z"], x * d[:, None])
    assert torch.allclose(found["y"].float(), (x / d[:, None]).float(), rtol=2**-7)


def test_quotients_in_fp32_are_those_of_a_division() -> None:
    d = torch.cat([divisors(), torch.rand(40) * 2.0 ** torch.arange(-20, 20)])
    x = torch.cat([numerators(len(d)), torch.randn(len(d), 4096) * d[:, None]], 1)
    text = QUOTIENT.format(m=len(d), read="f32", made="f32").replace("n=37", f"n={x.shape[1]}")
    kernel = CppMuGraph(fuse(parse_graph(text)))
    assert "t2 = x / d_divisor" in kernel.sources[0]
    found, exact = kernel(x=x, d=d)["y"], x / d[:, None]
    assert torch.equal(found.isnan(), exact.isnan())
    same = (found == exact) & (found.signbit() == exact.signbit()) | exact.isnan()
    # Of tiny quotients what is left over may be lost.
    tiny = exact.abs() < 2.0**-40
    assert same[~tiny].all()
    assert torch.allclose(found[tiny], exact[tiny], rtol=2.0**-22, atol=2.0**-149)


PRODUCTS = """
graph products
axes n={n}
in a: f32[n]
in b: f32[n]
in c: f32[n]
in d: f32[n]
p = mul(a, d)
q = mul(b, c)
"""

DETERMINANT = f"""{PRODUCTS}s = sub(p, q)
r = sqrt(s)
out y: f32[n] = s
out z: f32[n] = r
"""

OPPOSITE = f"""{PRODUCTS}m = neg(q)
s = add(m, p)
g = silu(a)
h = silu(b)
r = sub(g, h)
out y: f32[n] = s
out z: f32[n] = r
"""

NUMBERS = """
graph numbers
axes n={n}
in a: f32[]
in b: f32[]
in c: f32[]
in d: f32[]
p = mul(a, d)
q = mul(b, c)
s = sub(p, q)
i = index[n]()
t = mul(s, i)
out y: f32[n] = t
out z: f32[n] = t
"""


@pytest.mark.parametrize("n", [1, 7, 4097])
@pytest.mark.parametrize("text", [DETERMINANT, OPPOSITE, NUMBERS])
def test_equal_products_cancel(text: str, n: int) -> None:
    torch.manual_seed(0)
    graph = parse_graph(text.format(n=n))
    made = CppMuGraph(fuse(graph))
    for _ in range(20):
        shape = graph.shape(graph.inputs[0])
        x, y = torch.rand(shape) + 0.1, torch.rand(shape) + 0.1
        found = made(a=x, b=x.clone(), c=y.clone(), d=y)
        assert int(found["y"].count_nonzero()) == 0
        assert int(found["z"].count_nonzero()) == 0
