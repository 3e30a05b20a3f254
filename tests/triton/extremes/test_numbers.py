"""Numbers at the ends of what a dtype holds: kernels make of them what float64 does."""

from fractions import Fraction
from math import inf, nan

import pytest
import torch

from superopt.codegen.triton import TritonMuGraph
from superopt.codegen.triton.expression import TritonText, apply, atom
from superopt.ir import fuse, parse_graph

WHOLE = {
    "u8": [0, 1, 100, 128, 255],
    "i8": [-128, -100, 0, 100, 127],
    "i16": [-32768, -200, 0, 200, 32767],
    "i32": [-(2**31), -(2**31), 0, 50000, 2**31 - 1],
    "i64": [-(2**31) - 1, -50000, 0, 50000, 2**30],
    "bool": [False, True, True, False, True],
}
ARITHMETIC = {
    "a square": ["t = mul(x, x)"],
    "a square by its name": ["t = square(x)"],
    "the opposite": ["t = neg(x)"],
    "a sum": ["t = add(x, x)"],
    "a sum with a number": ["c = const[1]()", "t = add(x, c)"],
    "what a zero point leaves": ["c = const[128]()", "t = sub(x, c)"],
    "times a whole number": ["c = const[300]()", "t = mul(x, c)"],
    "a negative number minus it": ["c = const[-5]()", "t = sub(c, x)"],
    "less than a negative number": ["c = const[-5]()", "t = lt(x, c)"],
    "a distance": ["c = const[200]()", "s = sub(x, c)", "t = abs(s)"],
    "the larger": ["c = const[-300]()", "t = maximum(x, c)"],
    "the positive": ["t = relu(x)"],
    "all": ["t = sum[n](x)"],
    "the largest": ["t = max[n](x)"],
    "all squares": ["t = contract[n](x, x)"],
}


@pytest.mark.parametrize("dtype", WHOLE)
@pytest.mark.parametrize("steps", ARITHMETIC.values(), ids=ARITHMETIC.keys())
def test_arithmetic_on_stored_integers_does_not_wrap_around(given, steps, dtype):
    made = "" if "[n]" in steps[-1] else "n"
    given(steps, {"x": (dtype, "n", WHOLE[dtype])}, axes="n=5", made=made)


def test_a_product_of_stored_integers_and_halves(given):
    generator = torch.Generator().manual_seed(0)
    x = torch.randn((3, 20), generator=generator).half().tolist()
    w = torch.randint(-128, 128, (20, 17), generator=generator).tolist()
    inputs = {"x": ("f16", "m, k", x), "w": ("i8", "k, n", w)}
    given(["t = contract[k](x, w)"], inputs, axes="m=3 k=20 n=17", made="m, n", rtol=1e-4)


EVERY = [0.0, -0.0, 1e-45, 1e-38, -1e-6, 1e-6, 1e-3, -0.3, 0.624, 0.625, 0.626, 1.0, -1.0, 2.0, -2.5, 3.0]
EVERY += [-3.0, 8.0, -9.5, 30.0, 88.0, -88.0, 89.0, 200.0, 1e30, -3e38, inf, -inf, nan]
FUNCTIONS = ("tanh", "log1p", "expm1", "floor", "sqrt", "erf", "abs", "relu", "exp", "exp2", "log", "log2")


@pytest.mark.parametrize("op", FUNCTIONS)
def test_functions_of_every_size(given, op):
    given([f"t = {op}(x)"], {"x": ("f32", "n", EVERY)}, axes=f"n={len(EVERY)}", made="n", rtol=1e-5)


@pytest.mark.parametrize("op", ["minimum", "maximum", "pow"])
def test_functions_of_two_numbers_of_every_size(given, op):
    x, y = ([one for one in EVERY if not 0 < abs(one) < 1e-5] for _ in "xy")
    inputs = {"x": ("f32", "m", x), "y": ("f32", "n", y)}
    given([f"t = {op}(x, y)"], inputs, axes=f"m={len(x)} n={len(y)}", made="m, n", rtol=1e-4)


@pytest.mark.parametrize(
    ("y", "powers"),
    [
        (3.0, [-0.0, 0.0, -inf, inf]),
        (1.0, [-0.0, 0.0, -inf, inf]),
        (-3.0, [-inf, inf, -0.0, 0.0]),
        (2.0, [0.0, 0.0, inf, inf]),
        (0.5, [0.0, 0.0, inf, inf]),
        (-0.5, [inf, inf, 0.0, 0.0]),
        (inf, [0.0, 0.0, inf, inf]),
        (-inf, [inf, inf, 0.0, 0.0]),
    ],
)
def test_odd_powers_keep_the_signs_of_zeros_and_infinities(given, y, powers):
    inputs = {"x": ("f32", "n", [-0.0, 0.0, -inf, inf]), "y": ("f32", "", y)}
    found = given(["t = pow(x, y)"], inputs, axes="n=4", made="n")
    assert found.tolist() == powers
    assert found.signbit().tolist() == torch.tensor(powers).signbit().tolist()


SMALLEST = {
    "by its name": ["t = neg(x)"],
    "of a larger one": ["z = neg(x)", "c = const[-1]()", "t = maximum(z, c)"],
    "of a root": ["r = sqrt(x)", "t = neg(r)"],
}


@pytest.mark.parametrize("steps", SMALLEST.values(), ids=SMALLEST.keys())
def test_the_opposite_of_zero_is_the_other_zero(given, steps):
    """Before: 1 / -x was infinity, not minus infinity, where x is 0."""
    found = given([*steps, "i = reciprocal(t)"], {"x": ("f32", "n", [0.0, 4.0])}, axes="n=2", made="n")
    assert found[0] == -inf


@pytest.mark.parametrize("op", ["expm1", "log1p", "tanh"])
def test_functions_keep_the_sign_of_zero(given, op):
    """Before: expm1 of -0.0 was 0.0."""
    found = given([f"t = {op}(x)"], {"x": ("f32", "n", [-0.0, 0.0])}, axes="n=2", made="n")
    assert found.signbit().tolist() == [True, False]


def test_exponents_are_written_as_a_person_would():
    assert apply("silu", (atom("x"),)).text == "x / (1.0 + tl.exp(-x))"


LONG = 1 << 16
PRODUCTS = {
    "of two extents": [
        "a = sum[m](x)",
        "b = sum[n](y)",
        "c = size[m]()",
        "d = size[n]()",
        "e = add(a, b)",
        "f = mul(c, d)",
        "t = div(e, f)",
    ],
    "of two positions": ["i = index[m]()", "j = mul(i, i)", "p = mul(j, x)", "t = max[m](p)"],
    "of a position and a number": [
        "i = index[m]()",
        "c = const[40000]()",
        "j = mul(i, c)",
        "p = mul(j, x)",
        "t = max[m](p)",
    ],
}


@pytest.mark.parametrize("steps", PRODUCTS.values(), ids=PRODUCTS.keys())
def test_products_of_extents_and_positions_may_exceed_32_bits(given, steps):
    numbers = [1.0] * LONG
    inputs = {"x": ("f32", "m", numbers), "y": ("f32", "n", numbers)}
    found = given(steps, inputs, axes=f"m={LONG} n={LONG}", made="")
    assert found > 0


def test_products_with_at_most_one_position_stay_in_32_bits():
    i, one, zero = atom("i", "int"), TritonText().const(Fraction(1)), TritonText().const(Fraction(0))
    assert apply("mul", (i, one)).text == "i * 1"
    assert apply("mul", (zero, i)).text == "0 * i"
    assert apply("mul", (i, atom("x"))).text == "i * x"
    assert apply("mul", (i, i)).text == "tl.cast(i, tl.int64) * i"


def test_names_of_functions_are_no_names_of_tensors(given):
    inputs = {"larger": ("f32", "m, k", [[1.0, 2.0, nan]]), "tanh": ("f32", "m", [0.5])}
    given(["a = max[k](larger)", "b = tanh(tanh)", "t = mul(a, b)"], inputs, axes="m=1 k=3", made="m")


QUOTIENTS = {
    "compared": ["q = div(x, d)", "t = ge(q, c)"],
    "rounded down": ["q = div(x, d)", "t = floor(q)"],
    "moved before": ["q = div(x, d)", "l = sub(c, q)", "a = abs(l)", "t = eq(a, z)"],
    "an inverse": ["q = reciprocal(d)", "p = reciprocal(x)", "t = eq(q, p)"],
}


@pytest.mark.parametrize("steps", QUOTIENTS.values(), ids=QUOTIENTS.keys())
def test_the_last_digit_of_a_quotient_is_right_where_it_decides(given, steps):
    """Before: 41 / 41 was 41 times 1 / 41, which is less than 1."""
    counted = ["i = index[n]()", "c = const[1]()", "z = const[0]()", "d = add(i, c)"]
    x = [float(one) for one in range(1, 65)]
    found = given([*counted, *steps], {"x": ("f32", "n", x)}, axes="n=64", made="n")
    assert found.tolist() == [1.0] * 64


def test_other_quotients_are_as_fast_as_before():
    steps = "t1 = exp(x)\nt2 = sum[n](t1)\nt3 = div(t1, t2)\nt4 = reciprocal(t3)\nt5 = gt(x, t2)"
    text = f"graph fast\naxes n=64\nin x: f32[n]\n{steps}\nout o: f32[n] = t4\nout p: bool[n] = t5\n"
    built = TritonMuGraph(fuse(parse_graph(text)))
    assert "div_rn" not in built.source(0, built.graph.sizes).text
