"""Lanes beyond the end of an axis: what an operand without that axis makes of the zeros that are there."""

from math import inf, nan

import pytest

from superopt.codegen.triton import TritonMuGraph
from superopt.codegen.triton.plan import Lanes, after_operator
from superopt.ir import fuse, parse_graph

ANY, FINITE, ZERO, USUAL = Lanes.ANY, Lanes.FINITE, Lanes.ZERO, Lanes.USUAL


@pytest.mark.parametrize(
    ("op", "operands", "wanted"),
    [
        ("mul", [ZERO, ANY], ANY),  # 0 * inf
        ("mul", [ZERO, FINITE], ZERO),
        ("mul", [ZERO, USUAL], ZERO),
        ("mul", [USUAL, USUAL], USUAL),
        ("div", [ZERO, ANY], ANY),
        ("div", [ZERO, FINITE], ANY),  # 0 / 0
        ("div", [ZERO, USUAL], ZERO),
        ("sub", [ZERO, ANY], ANY),
        ("sub", [ZERO, USUAL], FINITE),
        ("add", [ZERO, ZERO], ZERO),
        ("lt", [ZERO, ANY], FINITE),
        ("guard", [ZERO, ANY], ZERO),
        ("guard", [FINITE, ANY], ANY),
        ("guard", [ANY, FINITE], FINITE),
        ("where", [ANY, ZERO, ZERO], ZERO),
        ("where", [FINITE, ZERO, ANY], ANY),
        ("exp", [ZERO], FINITE),
        ("exp", [FINITE], ANY),
    ],
)
def test_what_an_operator_leaves(op, operands, wanted):
    assert after_operator(op, operands) == wanted


SUMS = {
    "times a number": ["p = mul(x, s)", "t = sum[n](p)"],
    "a product with a number": ["t = contract[n](x, s)"],
    "a product of a number": ["t = contract[n](s, x)"],
    "divided by a number": ["p = div(x, s)", "t = sum[n](p)"],
    "less a number": ["d = sub(x, s)", "c = const[0]()", "p = minimum(d, c)", "q = exp(p)", "t = sum[n](q)"],
    "the zeros of a difference": ["d = sub(x, s)", "t = contract[n](d, x)"],
    "within a function": ["p = mul(x, s)", "q = tanh(p)", "t = sum[n](q)"],
    "the larger": ["p = maximum(x, s)", "t = contract[n](p, x)"],
}


@pytest.mark.parametrize("s", [inf, -inf, 0.0, nan, 2.0])
@pytest.mark.parametrize("size", [3, 4])
@pytest.mark.parametrize("steps", SUMS.values(), ids=SUMS.keys())
def test_sums_of_a_row_with_a_number_of_any_size(given, steps, size, s):
    inputs = {"x": ("f32", "n", [1.0, 2.0, 3.0, 4.0][:size]), "s": ("f32", "", s)}
    given(steps, inputs, axes=f"n={size}", made="", rtol=1e-5)


@pytest.mark.parametrize("s", [inf, 0.0, 2.0])
def test_sums_of_a_row_that_a_product_leaves(given, s):
    inputs = {"x": ("f32", "m, k", [[s, 1.0], [1.0, 2.0]]), "w": ("f32", "k, n", [[1.0, 2.0, 3.0]] * 2)}
    steps = ["p = contract[k](x, w)", "q = tanh(p)", "t = sum[n](q)"]
    given(steps, inputs, axes="m=2 k=2 n=3", made="m", rtol=1e-5)


KEPT = {
    "times a constant": ["c = const[3]()", "p = mul(x, c)", "t = sum[n](p)"],
    "divided by an extent": ["c = size[n]()", "p = div(x, c)", "t = sum[n](p)"],
    "divided by a product of extents": ["c = size[n]()", "d = mul(c, c)", "p = div(x, d)", "t = sum[n](p)"],
    "times a stored integer": ["p = mul(x, i)", "t = sum[n](p)"],
    "times a stored mask": ["p = mul(x, b)", "t = sum[n](p)"],
    "a square": ["t = contract[n](x, x)"],
}


@pytest.mark.parametrize("steps", KEPT.values(), ids=KEPT.keys())
def test_zeros_that_no_number_spoils_are_not_hidden_again(given, steps):
    inputs = {"x": ("f32", "n", [1.0, -2.0, 3.0]), "i": ("i64", "", 3), "b": ("bool", "", True)}
    given(steps, inputs, axes="n=3", made="", rtol=1e-5)
    ports = ["in x: f32[n]", "in i: i64[]", "in b: bool[]"]
    text = "\n".join(["graph kept", "axes n=3", *ports, *steps, "out o: f32[] = t"])
    mugraph = fuse(parse_graph(text))
    source = TritonMuGraph(mugraph).source(0, mugraph.graph.sizes)
    assert "tl.where(mask_n" not in source.text
