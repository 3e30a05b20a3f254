"""Integers that nothing compares: proofs are of all numbers, and what compares them is proven as before."""

import pytest

from superopt.ir import parse_graph
from superopt.verify.evaluation.integers import plain_integers
from superopt.verify.graphs.equality import equal_graphs

HEAD = """
graph gated
axes m=8 k=64 n=32
in x: f32[m, k]
in a: i8[n, k]
in b: i8[n, k]
in s: f32[n]
"""
GATED = """t4 = contract[k](x, a)
t5 = mul(t4, s)
t6 = silu(t5)
t7 = contract[k](x, b)
t8 = mul(t6, t7)
out y: f32[m, n] = t8
"""
SCALED_FIRST = """t4 = mul(a, s)
t5 = contract[k](x, t4)
t6 = silu(t5)
t7 = contract[k](x, b)
t8 = mul(t6, t7)
out y: f32[m, n] = t8
"""


def test_functions_of_integers_are_proven() -> None:
    verdict = equal_graphs(parse_graph(HEAD + GATED), parse_graph(HEAD + SCALED_FIRST))
    assert verdict.equal
    assert verdict.error_bound < 2.0**-40


WRONG = {
    "the scale of another factor": (
        SCALED_FIRST.replace("t8 = mul(t6, t7)", "t9 = mul(t7, s)\nt8 = mul(t6, t9)")
    ),
    "another matrix": SCALED_FIRST.replace("(x, b)", "(x, a)"),
    "another function": SCALED_FIRST.replace("silu", "tanh"),
    "no scale": SCALED_FIRST.replace("contract[k](x, t4)", "contract[k](x, a)"),
}


@pytest.mark.parametrize("text", WRONG.values(), ids=list(WRONG))
def test_what_differs_is_not_equal(text: str) -> None:
    wrong = parse_graph(
        HEAD
        + text.replace("t9 = mul(t7, s)\nt8 =", "t8 = mul(t7, s)\nt9 =").replace(
            "mul(t6, t9)\nout y: f32[m, n] = t8", "mul(t6, t8)\nout y: f32[m, n] = t9"
        )
    )
    assert not equal_graphs(parse_graph(HEAD + GATED), wrong).equal


COMPARED = {
    "an index": "t4 = index[n]()\nt5 = eq(a, t4)\nout y: f32[n, k] = t5\n",
    "after arithmetic": "t4 = add(a, a)\nt5 = index[n]()\nt6 = lt(t4, t5)\nout y: f32[n, k] = t6\n",
    "one another": "t4 = le(a, b)\nout y: f32[n, k] = t4\n",
    "in a sum": "t4 = sum[k](a)\nt5 = gt(t4, s)\nout y: f32[n] = t5\n",
}


@pytest.mark.parametrize("text", COMPARED.values(), ids=list(COMPARED))
def test_what_is_compared_is_no_plain_number(text: str) -> None:
    graph = parse_graph(HEAD + text)
    assert "a" not in plain_integers(graph)
    assert "a" not in plain_integers(parse_graph(HEAD + GATED), graph)
    assert plain_integers(parse_graph(HEAD + GATED)) == {"a", "b"}


def test_numbers_that_only_integers_cannot_be_stay_apart() -> None:
    """2 a = 1 holds for no integer, and nobody may take it to hold for none of the numbers either."""
    never = "t4 = add(a, a)\nt5 = const[1]()\nt6 = eq(t4, t5)\nout y: f32[n, k] = t6\n"
    nought = "t4 = const[0]()\nt5 = mul(a, t4)\nout y: f32[n, k] = t5\n"
    assert not equal_graphs(parse_graph(HEAD + never), parse_graph(HEAD + nought)).equal
