"""Contractions with masks of one place: elements are picked, and bounds follow them."""

import numpy as np
import pytest

from superopt.ir import parse_graph
from superopt.verify.bounds.bound import error_bound
from superopt.verify.evaluation.interpret import interpret
from superopt.verify.evaluation.tiny import tiny_sizes

SHIFTED = """
graph shifted
axes k=5 l=3 o=4
in x: f32[k, l]
in y: f32[l]
i = index[k]()
j = index[o]()
m = index[l]()
one = const[1]()
up = add(j, one)
hot = eq(i, up)
across = eq(i, m)
{}
"""

BODIES = {
    "shifted": "p = contract[k](x, hot)\nout z: f32[o, l] = p",
    "the mask first": "p = contract[k](hot, x)\nout z: f32[o, l] = p",
    "a diagonal": "p = contract[k](x, across)\nout z: f32[l] = p",
    "two axes": ("n = eq(j, m)\na = contract[k](x, hot)\np = contract[o, l](a, n)\nout z: f32[] = p"),
    "a value that lacks the axis": "p = contract[k](y, hot)\nout z: f32[o, l] = p",
    "quotients": "q = div(one, x)\nr = sqrt(q)\np = contract[k](r, hot)\nout z: f32[o, l] = p",
    "no mask of one place": "b = gt(i, j)\np = contract[k](x, b)\nout z: f32[o, l] = p",
}


@pytest.mark.parametrize("body", BODIES.values(), ids=BODIES.keys())
def test_elements_picked_are_the_sums_of_products(body: str, monkeypatch: pytest.MonkeyPatch) -> None:
    graph = parse_graph(SHIFTED.format(body))
    tiny = tiny_sizes(graph)
    field = tiny.field(7, trials=20, levels=2)
    picked = interpret(graph, field, tiny.sizes)[-1]
    monkeypatch.setattr("superopt.verify.evaluation.interpret._Run._picked", lambda *args: None)
    summed = interpret(graph, tiny.field(7, trials=20, levels=2), tiny.sizes)[-1]
    assert np.array_equal(np.broadcast_to(picked, summed.shape), summed)


@pytest.mark.parametrize(
    ("body", "bits", "terms"),
    [
        ("r = relu(x)\np = contract[k](r, hot)\nout z: f32[o, l] = p", 1, 1),
        (
            "r = relu(x)\nsame = eq(i, j)\np = contract[k](r, hot)\ns = contract[k](r, same)\n"
            "t = mul(p, s)\nout z: f32[o, l] = t",
            2,
            1,
        ),
        (
            "r = relu(x)\nb = maximum(i, one)\nlow = eq(b, one)\np = contract[k](r, low)\ns = mul(p, p)\n"
            "t = mul(s, p)\nout z: f32[l] = t",
            3,
            1,
        ),
        ("e = exp(x)\np = contract[k](e, hot)\ns = sum[o](p)\nout z: f32[l] = s", 0, 4),
    ],
    ids=["one bit", "two places", "several places", "terms"],
)
def test_bounds_follow_what_is_picked(body: str, bits: int, terms: int) -> None:
    graph = parse_graph(SHIFTED.format(body))
    found = error_bound(graph, graph, {"k": 5, "l": 3, "o": 4})
    assert found.bits == bits
    assert found.terms >= terms
