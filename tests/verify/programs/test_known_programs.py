"""Known programs: pairs that must be found equal, and plausible wrong variants that must not."""

import pytest
from programs import ATTENTION, RMSNORM, edit

from superopt.ir import parse_graph
from superopt.verify.graphs.equality import equal_graphs

RMSNORM_LATE = """
graph rmsnorm_linear_late
axes m=16 k=4096 n=6144
in x: f16[m, k]
in g: f16[k]
in w: f16[k, n]
b = contract[k](x, x)
c = size[k]()
d = div(b, c)
e = const[1e-06]()
f = add(d, e)
r = sqrt(f)
h = mul(g, x)
i = contract[k](h, w)
o = div(i, r)
out y: f16[m, n] = o
"""

ATTENTION_LATE = """
graph attention_late
axes h=32 m=16 n=4096 d=128 e=128
in q: f16[m, (h d)]
in k: f16[n, (h d)]
in v: f16[n, (h e)]
c = const[11.313708498984761]()
r = div(q, c)
t = contract[d](r, k)
p = exp(t)
z = sum[n](p)
u = contract[n](p, v)
o = div(u, z)
out y: f16[m, (h e)] = o
"""

CLAMP = """
graph clamp
axes m=8
in x: f32[m]
a = const[-1]()
b = const[6]()
c = maximum(x, a)
o = minimum(c, b)
out y: f32[m] = o
"""

CLAMP_OTHER_WAY = """
graph clamp_other_way
axes m=8
in x: f32[m]
a = const[-1]()
b = const[6]()
c = minimum(x, b)
o = maximum(c, a)
out y: f32[m] = o
"""

VARIANCE = """
graph variance
axes m=8 k=64
in x: f32[m, k]
s = sum[k](x)
c = size[k]()
u = div(s, c)
d = sub(x, u)
q = square(d)
t = sum[k](q)
o = div(t, c)
out y: f32[m] = o
"""

VARIANCE_ONE_PASS = """
graph variance_one_pass
axes m=8 k=64
in x: f32[m, k]
n = const[64]()
s = sum[k](x)
u = div(s, n)
q = contract[k](x, x)
v = div(q, n)
w = square(u)
o = sub(v, w)
out y: f32[m] = o
"""

GATED = """
graph gated_mlp
axes m=8 k=64 f=256 n=64
in x: f32[m, k]
in g: f32[k, f]
in u: f32[k, f]
in d: f32[f, n]
a = contract[k](x, g)
b = contract[k](x, u)
s = silu(a)
t = mul(s, b)
o = contract[f](t, d)
out y: f32[m, n] = o
"""

GATED_SPELLED = """
graph gated_mlp_spelled
axes m=8 k=64 f=256 n=64
in x: f32[m, k]
in g: f32[k, f]
in u: f32[k, f]
in d: f32[f, n]
a = contract[k](x, g)
b = contract[k](x, u)
i = neg(a)
j = exp(i)
c = const[1]()
l = add(j, c)
t = mul(a, b)
r = div(t, l)
o = contract[f](r, d)
out y: f32[m, n] = o
"""

SOFTMAX_SILU = """
graph softmax_silu
axes m=4 n=8
in x: f32[m, n]
a = exp(x)
b = sum[n](a)
c = div(a, b)
o = silu(c)
out y: f32[m, n] = o
"""

SOFTMAX_SILU_SHIFTED = """
graph softmax_silu_shifted
axes m=4 n=8
in x: f32[m, n]
s = const[3]()
w = sub(x, s)
a = exp(w)
b = sum[n](a)
c = div(a, b)
g = sigmoid(c)
o = mul(g, c)
out y: f32[m, n] = o
"""

CAUSAL = """
graph causal
axes i=8 j=8 d=16
in s: f32[i, j]
in v: f32[j, d]
a = index[i]()
b = index[j]()
m = ge(a, b)
e = exp(s)
p = mul(m, e)
z = sum[j](p)
w = div(p, z)
o = contract[j](w, v)
out y: f32[i, d] = o
"""

WINDOW = (
    CAUSAL.replace("graph causal", "graph window")
    .replace("i=8 j=8", "i=512 j=512")
    .replace(
        "e = exp(s)",
        "c = const[128]()\nf = sub(a, b)\nl = lt(f, c)\nn = and(m, l)\ne = exp(s)",
    )
    .replace("p = mul(m, e)", "p = mul(n, e)")
)

GRAM = """
graph gram
axes i=16 k=8 j=16
in x: f32[i, k]
t = rename[i->j](x)
o = contract[k](x, t)
out y: f32[i, j] = o
"""

ROOTS = """
graph roots
axes m=8
in a: f32[m]
in b: f32[m]
c = sqrt(a)
d = sqrt(b)
o = mul(c, d)
out y: f32[m] = o
"""

ROOTS_ONE = """
graph roots_one
axes m=8
in a: f32[m]
in b: f32[m]
c = mul(a, b)
o = sqrt(c)
out y: f32[m] = o
"""

SQUARE_PRODUCT = """
graph square_product
axes i=16 k=16 n=16
in x: f32[i, k]
in w: f32[k, n]
o = contract[k](x, w)
out y: f32[i, n] = o
"""


EQUAL = {
    "delayed scaling": (RMSNORM, RMSNORM_LATE),
    "delayed division": (ATTENTION, ATTENTION_LATE),
    "clamp in either order": (CLAMP, CLAMP_OTHER_WAY),
    "variance in one pass": (VARIANCE, VARIANCE_ONE_PASS),
    "silu spelled out": (GATED, GATED_SPELLED),
    "softmax then silu": (SOFTMAX_SILU, SOFTMAX_SILU_SHIFTED),
    "a product of roots": (ROOTS, ROOTS_ONE),
    "a mask the other way round": (CAUSAL, CAUSAL.replace("ge(a, b)", "le(b, a)")),
    "a mask by an offset": (
        CAUSAL,
        CAUSAL.replace("m = ge(a, b)", "c = const[1]()\nl = add(a, c)\nm = gt(l, b)"),
    ),
    "a window by an offset": (
        WINDOW,
        WINDOW.replace("f = sub(a, b)\nl = lt(f, c)", "f = add(b, c)\nl = lt(a, f)"),
    ),
    "a gram matrix transposed": (
        GRAM,
        GRAM.replace("contract[k](x, t)", "contract[k](t, x)")
        .replace("[i, j] = o", "[j, i] = u")
        .replace("out y", "u = rename[i->j, j->i](o)\nout y")
        .replace("[j, i] = u", "[i, j] = u"),
    ),
}
"""What must be found equal."""

WRONG = {
    "division by the wrong sum": (
        ATTENTION,
        edit(ATTENTION_LATE, ("z = sum[n](p)", "a = exp(r)\nz = sum[d](a)")),
    ),
    "division by the sum of another axis": (
        CAUSAL,
        edit(CAUSAL, ("z = sum[j](p)", "z = sum[i](p)")),
    ),
    "scaling on the wrong axis": (
        RMSNORM.replace("k=4096 n=6144", "k=4096 n=4096"),
        edit(
            RMSNORM.replace("k=4096 n=6144", "k=4096 n=4096"),
            (
                "i = mul(h, g)\no = contract[k](i, w)",
                "i = rename[k->n](g)\nj = contract[k](h, w)\no = mul(j, i)",
            ),
        ),
    ),
    "a dropped 1/n": (RMSNORM, edit(RMSNORM, ("d = div(b, c)\n", ""), ("add(d, e)", "add(b, e)"))),
    "a dropped epsilon": (RMSNORM, edit(RMSNORM, ("rsqrt(f)", "rsqrt(d)"))),
    "a dropped clamp bound": (CLAMP, edit(CLAMP, ("o = minimum(c, b)\n", ""), ("= o", "= c"))),
    "the other clamp bound dropped": (CLAMP, edit(CLAMP, ("minimum(c, b)", "minimum(x, b)"))),
    "another clamp bound": (CLAMP, edit(CLAMP, ("const[6]", "const[5]"))),
    "swapped operands of div": (ATTENTION, edit(ATTENTION_LATE, ("div(u, z)", "div(z, u)"))),
    "swapped equal-sized axes": (
        SQUARE_PRODUCT,
        edit(SQUARE_PRODUCT, ("in w: f32[k, n]", "in w: f32[n, k]")),
    ),
    "a swapped output": (SQUARE_PRODUCT, edit(SQUARE_PRODUCT, ("y: f32[i, n]", "y: f32[n, i]"))),
    "a swapped input": (SQUARE_PRODUCT, edit(SQUARE_PRODUCT, ("x: f32[i, k]", "x: f32[k, i]"))),
    "a missing division": (GATED_SPELLED, edit(GATED_SPELLED, ("contract[f](r, d)", "contract[f](t, d)"))),
    "a wrong sign": (GATED_SPELLED, edit(GATED_SPELLED, ("j = exp(i)", "j = exp(a)"))),
    "a variance without its square": (
        VARIANCE,
        edit(VARIANCE_ONE_PASS, ("o = sub(v, w)", "o = sub(v, u)")),
    ),
    "a mask off by one": (CAUSAL, edit(CAUSAL, ("ge(a, b)", "gt(a, b)"), ("z = sum[j](p)", "z = sum[j](e)"))),
    "a window off by one": (WINDOW, edit(WINDOW, ("const[128]", "const[129]"))),
    "a window that includes its end": (WINDOW, edit(WINDOW, ("lt(f, c)", "le(f, c)"))),
    "a root of another sign": (ROOTS_ONE, edit(ROOTS_ONE, ("o = sqrt(c)", "d = sqrt(c)\no = neg(d)"))),
    "a softmax over the wrong axis": (SOFTMAX_SILU, edit(SOFTMAX_SILU, ("sum[n](a)", "sum[m](a)"))),
}
"""What must not: a program and a plausible wrong variant."""


@pytest.mark.parametrize(("a", "b"), EQUAL.values(), ids=EQUAL)
def test_equal(a, b):
    verdict = equal_graphs(parse_graph(a), parse_graph(b))
    assert verdict.equal, verdict
    assert verdict.witness is None
    assert str(verdict).startswith("equal: ")


@pytest.mark.parametrize(("right", "wrong"), WRONG.values(), ids=WRONG)
def test_unequal(right, wrong):
    verdict = equal_graphs(parse_graph(right), wrong)
    assert not verdict.equal
    assert verdict.witness is not None
    assert verdict.witness.left != verdict.witness.right
    assert verdict.witness.output == "y"
    assert verdict.error_bound is None
    assert equal_graphs(parse_graph(right), wrong, seed=verdict.seed).witness == verdict.witness


@pytest.mark.parametrize(
    "name", ["delayed scaling", "delayed division", "silu spelled out", "a product of roots"]
)
def test_the_bound_is_below_2_to_minus_60(name):
    a, b = map(parse_graph, EQUAL[name])
    verdict = equal_graphs(a, b)
    assert verdict.error_bound is not None
    assert verdict.error_bound < 2.0**-60
    fewer = equal_graphs(a, b, trials=2)
    assert fewer.error_bound is None or fewer.error_bound > verdict.error_bound
