"""What a mask hides is 0: even where a zero was divided by 0 or multiplied by infinity before."""

from math import inf, nan

import pytest

from superopt.codegen.triton import TritonMuGraph
from superopt.ir import fuse, parse_graph, parse_mugraph

_X, _Y = [1.0, -2.0, 3.0, 4.0, 5.0], [2.0, 0.0, nan, inf, -inf]
HIDDEN = {
    "a quotient": ["t1 = mul(m, x)", "t2 = div(t1, y)", "t3 = mul(m, t2)"],
    "a product": ["t1 = mul(m, x)", "t2 = mul(t1, y)", "t3 = mul(m, t2)"],
    "a product of the other": ["t1 = mul(m, x)", "t2 = mul(y, t1)", "t3 = mul(t2, m)"],
    "a sum": ["t1 = mul(m, x)", "t2 = div(t1, y)", "t4 = add(t2, t1)", "t3 = mul(m, t4)"],
    "a chosen product": ["z = const[0]()", "t1 = where(m, x, z)", "t2 = mul(t1, y)", "t3 = mul(m, t2)"],
}


@pytest.mark.parametrize("steps", HIDDEN.values(), ids=HIDDEN.keys())
def test_a_mask_hides_what_is_no_number(given, steps):
    """The mask is y > 1 here, and holds at the first place and at infinity."""
    inputs = {"x": ("f32", "n", _X), "y": ("f32", "n", _Y)}
    found = given(["c = const[1]()", "m = gt(y, c)", *steps], inputs, axes="n=5", made="n")
    assert found[[0, 1, 2, 4]].isfinite().all()


@pytest.mark.parametrize("v", [inf, nan, 2.0])
def test_a_mask_of_rows_hides_what_their_sums_are_not(given, v):
    steps = [
        *("s = index[n]()", "c = const[1]()", "m = ge(s, c)", "p = mul(m, x)"),
        *("o = contract[k](p, v)", "t = mul(m, o)"),
    ]
    inputs = {"x": ("f32", "n, k", [[1.0, 2.0], [3.0, 0.0]]), "v": ("f32", "k", [1.0, v])}
    found = given(steps, inputs, axes="n=2 k=2", made="n")
    assert found[0] == 0.0


_FLOWS = {
    "an exponential": ("t1 = where(m, x, l); e = exp(t1); t = mul(m, e)", 1),
    "a shifted exponential": ("t1 = where(m, x, l); d = sub(t1, c); e = exp(d); t = mul(m, e)", 1),
    "a scaled product": ("t1 = mul(m, x); t2 = mul(t1, c); t = mul(m, t2)", 1),
    "a product with an extent": ("t1 = mul(m, x); n = size[n](); t2 = mul(n, t1); t = mul(m, t2)", 1),
    "a function": ("t1 = mul(m, x); t2 = relu(t1); t = mul(m, t2)", 1),
    "a sum of two": ("t1 = mul(m, x); t2 = mul(m, y); t3 = add(t1, t2); t = mul(m, t3)", 2),
    "a product of two": ("t1 = mul(m, x); t2 = mul(m, y); t3 = mul(t1, t2); t = mul(m, t3)", 2),
    "a mask again": ("t1 = mul(m, x); u = lt(x, c); t2 = mul(u, t1); t = mul(m, t2)", 2),
    "a quotient by a number": ("t1 = mul(m, x); t2 = div(t1, c); t = mul(m, t2)", 1),
    "a quotient by data": ("t1 = mul(m, x); t2 = div(t1, y); t = mul(m, t2)", 2),
    "a product with data": ("t1 = mul(m, x); t2 = mul(t1, y); t = mul(m, t2)", 2),
    "the sum of one": ("t1 = mul(m, x); t2 = add(t1, y); t = mul(m, t2)", 2),
}


_REDUCED = {
    "less its sum": "t1 = mul(m, x); r = sum[k](t1); t2 = sub(t1, r); t = mul(m, t2)",
    "its sum at other places": "t1 = mul(m, x); r = sum[k](t1); u = lt(x, y); t2 = mul(u, r); t = mul(m, t2)",
    "a sum of products": "r = contract[k](m, x); t1 = mul(m, y); t2 = sub(t1, r); t = mul(m, t2)",
    "less its maximum": "t1 = mul(m, x); r = max[k](t1); t2 = sub(t1, r); t = mul(m, t2)",
    "the power of a maximum": "d = where(m, x, l); r = max[k](d); e = exp(r); t1 = mul(m, y); "
    "t2 = add(t1, e); t = mul(m, t2)",
}


@pytest.mark.parametrize("steps", _REDUCED.values(), ids=_REDUCED.keys())
def test_a_mask_along_a_reduced_axis_hides_the_reduction(given, steps):
    """Before: what is 0 outside a mask was so after a sum, too, so that the last mask was dropped."""
    x, y = [[-1.0, 2.0, 4.0], [3.0, -5.0, 1.0]], [[5.0, 1.0, 2.0], [-2.0, 1.0, 3.0]]
    before = ["c = const[0]()", "m = gt(x, c)", "i = infinity()", "l = neg(i)"]
    inputs = {"x": ("f32", "n, k", x), "y": ("f32", "n, k", y)}
    found = given([*before, *steps.split("; ")], inputs, axes="n=2 k=3", made="n, k")
    assert found[0, 0] == 0.0
    assert found[1, 1] == 0.0
    assert (found[0, 1], found[1, 2]) != (0.0, 0.0)


@pytest.mark.parametrize(("steps", "selections"), _FLOWS.values(), ids=_FLOWS.keys())
def test_only_masks_that_hide_nothing_are_dropped(steps, selections):
    text = f"""graph dropped
axes n=64
in x: f32[n]
in y: f32[n]
c = const[3]()
i = infinity()
l = neg(i)
k = index[n]()
m = ge(c, k)
{steps.replace("; ", chr(10))}
out o: f32[n] = t
"""
    graph = parse_graph(text)
    source = TritonMuGraph(fuse(graph)).source(0, graph.sizes).text
    assert source.count("tl.where(") == selections


@pytest.mark.parametrize(
    "kernel", ["  t2 = gt(x, c)\n  t3 = max[n](t2)", "  loop[n]\n    t2 = gt(x, c)\n    t3 max= max[n](t2)"]
)
def test_among_no_masks_none_is_true(kernel):
    """Before: a maximum of none was minus infinity, which counts as true."""
    steps = f"kernel grid[m]\n  c = const[0]()\n{kernel}\n  t4 = not(t3)"
    text = f"graph none\naxes m=3 n=5\nin x: f32[m, n]\n{steps}\nout o: bool[m] = t4\n"
    mugraph = parse_mugraph(text)
    assert "inf" not in TritonMuGraph(mugraph).source(0, mugraph.graph.sizes).text
