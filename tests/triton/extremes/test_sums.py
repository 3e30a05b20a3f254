"""Sums to which loops add often: what rounding takes from them is kept beside them."""

from math import inf

import pytest

from superopt.codegen.triton import TritonMuGraph, default_config, emit
from superopt.codegen.triton.plan import LONG
from superopt.ir import fuse, parse_graph

TURNS = 9
LENGTH = 1024 * TURNS
# One lane adds 1 again and again to 2^24, beside which fp32 has no 1.
NUMBERS = [2.0**24 if not at else float(at % 1024 == 0) for at in range(LENGTH)]
ONES = [1.0] * LENGTH

RUNNING = """kernel grid[m]
  t2 = const[-1000]()
  loop[k] running t4
    t3 max= max[k](x)
    t4 = maximum(t3, t2)
    t5 = sub(x, t4)
    t6 = exp(t5)
    t7 += contract[k](t6, y)"""
SUMS = {
    "a sum": ["t = sum[k](y)"],
    "a sum of products": ["t = contract[k](x, y)"],
    "a sum of computed numbers": ["a = abs(y)", "t = sum[k](a)"],
    "a sum under a running shift": RUNNING.split("\n"),
}


@pytest.mark.parametrize("steps", SUMS.values(), ids=SUMS.keys())
def test_small_numbers_are_not_lost_beside_a_large_sum(given, steps):
    """Before: the sum was 2^24, however many ones came."""
    inputs = {"x": ("f32", "m, k", [ONES]), "y": ("f32", "m, k", [NUMBERS])}
    found = given(steps, inputs, axes=f"m=1 k={LENGTH}", made="m", rtol=0, long=TURNS - 1)
    assert found.tolist() == [2.0**24 + TURNS - 1]


@pytest.mark.parametrize("number", [inf, -inf])
def test_long_sums_of_infinities_are_infinite(given, number):
    numbers = [number if at % 1024 == 0 else 1.0 for at in range(LENGTH)]
    given(["t = sum[k](x)"], {"x": ("f32", "k", numbers)}, axes=f"k={LENGTH}", made="", long=1)


def test_only_long_sums_keep_what_rounding_takes():
    text = "graph g\naxes m=4 k=64\nin x: f32[m, k]\nt = sum[k](x)\nout o: f32[m] = t\n"
    built = TritonMuGraph(fuse(parse_graph(text)))
    tile = default_config(built.programs[0], {"m": 4, "k": 1 << 24}).tile("k")
    kept = ["long_sum" in built.source(0, {"m": 4, "k": tile * LONG + more}).text for more in (0, 1)]
    assert kept == [False, True]
    assert (
        "long_sum" not in emit(built.programs[0], default_config(built.programs[0], built.graph.sizes)).text
    )
