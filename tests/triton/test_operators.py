"""Every scalar operator, and every shape of step, through the interpreter."""

from fractions import Fraction

import pytest

from superopt.codegen.triton.expression import TritonText, apply, atom
from superopt.ops import OPS

POSITIVE = {
    "log": [0.1, 9],
    "log2": [0.1, 9],
    "sqrt": [0, 9],
    "rsqrt": [0.1, 9],
    "log1p": [-1e-3, 1e-3],
    "expm1": [-1e-3, 1e-3],
}
DOMAINS = {**POSITIVE, "reciprocal": [0.2, 3], "div": [0.2, 3], "pow": [0.1, 3]}


@pytest.mark.parametrize("op", OPS)
def test_operator(agrees, op):
    agrees("operator", op=op, domain=DOMAINS.get(op, [-4, 4]))


GRAPHS = {
    "product of a tensor with itself": """graph g
axes m=17 n=17 k=20
in x: f32[m, k]
t1 = rename[m->n](x)
t2 = contract[k](x, t1)
out o: f32[m, n] = t2
""",
    "one position": """graph g
axes m=17 h=2 d=5
in x: f32[m, (h d)]
t1 = select[h=1](x)
t2 = select[h=0](x)
t3 = sub(t1, t2)
out o: f32[m, d] = t3
""",
    "maximum": """graph g
axes m=7 k=37
in x: f32[m, k]
t1 = max[k](x)
t2 = sub(x, t1)
t3 = exp(t2)
t4 = sum[k](t3)
t5 = div(t3, t4)
out o: f32[m, k] = t5
""",
    "a batch of products": """graph g
axes b=3 m=9 n=10 k=11
in x: f32[b, m, k]
in y: f32[k, b, n]
t2 = contract[k](x, y)
out o: f32[n, b, m] = t2
""",
    "several inner axes": """graph g
axes b=3 m=9 n=10 k=11
in x: f32[b, m, k]
in y: f32[(k b), n]
t2 = contract[b, k](x, y)
out o: f32[n, m] = t2
""",
    "lanes that divide by zero": """graph g
axes m=5 k=37
in x: f32[m, k]
in y: f32[k]
t2 = div(x, y)
t3 = sum[k](t2)
out o: f32[m] = t3
""",
    "a matrix that is divided by zero beyond its end": """graph g
axes m=5 k=37 n=6
in x: f32[m, k]
in y: f32[k]
in w: f32[k, n]
t3 = div(x, y)
t4 = contract[k](t3, w)
out o: f32[m, n] = t4
""",
    "everything into one number": """graph g
axes m=5 k=37
in x: f32[m, k]
t1 = sum[m, k](x)
out o: f32[] = t1
""",
    "positions and extents": """graph g
axes m=5 k=37
in x: f32[m, k]
t1 = index[k]()
t2 = size[k]()
t3 = const[0.5]()
t4 = mul(t2, t3)
t5 = lt(t1, t4)
t6 = index[m]()
t7 = add(t1, t6)
t8 = mul(x, t7)
t9 = mul(t5, t8)
out o: f32[m, k] = t9
""",
    "a result that is repeated": """graph g
axes m=5 k=37
in x: f32[m, k]
t1 = sum[k](x)
out o: f32[m, k] = t1
""",
    "a result without a step": """graph g
axes m=5 k=37
in x: f32[m, k]
out o: f32[k, m] = x
""",
    "masks and numbers from outside": """graph g
axes m=5 k=37
in x: f32[m, k]
in allowed: bool[m, k]
in length: i64[m]
t3 = mul(allowed, x)
t4 = index[k]()
t5 = lt(t4, length)
t6 = mul(t5, t3)
t7 = sum[k](t6)
out o: f32[m] = t7
""",
    "a window of positions": """graph g
axes s=150 t=150 e=5
in x: f32[s, t]
in v: f32[t, e]
t2 = index[s]()
t3 = index[t]()
t4 = ge(t2, t3)
t5 = sub(t2, t3)
t6 = const[40]()
t7 = lt(t5, t6)
t8 = exp(x)
t9 = mul(t4, t8)
t10 = mul(t7, t9)
t11 = contract[t](t10, v)
out o: f32[s, e] = t11
""",
    "a library's product between kernels": """graph g
axes m=5 k=37 n=6
in x: f32[m, k]
in w: f32[k, n]
kernel grid[m]
  loop[k]
    t2 = exp(x)
kernel call
  t3 = contract[k](t2, w)
kernel grid[m, n]
  t4 = silu(t3)
out o: f32[m, n] = t4
""",
}


@pytest.mark.parametrize("text", GRAPHS.values(), ids=GRAPHS.keys())
def test_graph(agrees, text):
    agrees("text", text=text, domain=[0.5, 2.0])


KERNELS = {
    "two norms and a product": """graph g
axes m=19 k=37 n=21
in x: f32[m, k]
in g: f32[k]
in w: f32[k, n]
kernel grid[m, n]
  t6 = size[k]()
  loop[k]
    t3 = mul(x, g)
    t4 += contract[k](t3, w)
    t5 += contract[k](x, x)
  t7 = div(t5, t6)
  t8 = sqrt(t7)
  t9 = div(t4, t8)
out out: f32[m, n] = t9
""",
    "grouped attention of several tokens": """graph g
axes b=2 h=2 g=3 q=5 d=20 s=37 e=12
in x: f32[b, (h g), q, d]
in k: f32[b, h, s, d]
in v: f32[b, h, s, e]
kernel grid[b, h, g, q]
  t3 = index[q]()
  loop[s]
    t4 = index[s]()
    t5 = contract[d](x, k)
    t6 = exp(t5)
    t7 = ge(t3, t4)
    t8 = mul(t7, t6)
    t9 += contract[s](t8, v)
    t10 += sum[s](t8)
  t11 = div(t9, t10)
out out: f32[b, (h g), q, e] = t11
""",
    "products in two batches": """graph g
axes b=2 c=2 m=3 n=4 k=11
in x: f32[b, m, c, k]
in y: f32[k, b, c, n]
kernel grid[b, c, m, n]
  loop[k]
    t2 += contract[k](x, y)
out out: f32[c, b, n, m] = t2
""",
    "a sum that only the first programs store": """graph g
axes m=9 p=3 k=13 n=17
in x: f32[m, p, k]
in w: f32[p, k, n]
kernel grid[m, p, n]
  loop[k]
    t2 += contract[k](x, w)
    t3 += contract[k](x, x)
  t4 = exp(t3)
kernel grid[m, n]
  t5 = sum[p](t2)
  t6 = sum[p](t4)
  t7 = div(t5, t6)
out out: f32[m, n] = t7
""",
    "two passes": """graph g
axes m=5 k=37
in x: f32[m, k]
kernel grid[m]
  loop[k]
    t1 max= max[k](x)
  loop[k]
    t2 = sub(x, t1)
    t3 = exp(t2)
    t4 += sum[k](t3)
  loop[k]
    again t2 = sub(x, t1)
    again t3 = exp(t2)
    t5 = div(t3, t4)
out out: f32[m, k] = t5
""",
    "a loop inside a loop": """graph g
axes m=9 k=37 n=21
in x: f32[m, k]
in w: f32[k, n]
kernel grid[m]
  loop[n]
    loop[k]
      t2 += contract[k](x, w)
    t3 = tanh(t2)
    t4 += sum[n](t3)
out out: f32[m] = t4
""",
}


# For them the interpreter takes long in tiles of all kinds.
LONG = {
    "two norms and a product",
    "grouped attention of several tokens",
    "a sum that only the first programs store",
    "a loop inside a loop",
}
CASES = [
    pytest.param(text, configs, id=f"{name}-{configs}", marks=pytest.mark.slow if late else ())
    for name, text in KERNELS.items()
    for configs in ("wide", "tuner", "random")
    for late in [configs == "wide" or (configs == "random" and name in LONG)]
]


@pytest.mark.parametrize(("text", "configs"), CASES)
def test_configurations_agree(agrees, text, configs):
    agrees("text", text=text, domain=[-0.5, 0.5], configs=configs)


def test_the_opposite_of_a_comparison_is_taken_of_integers_alone() -> None:
    number, place, zero = atom("x"), atom("m", "int"), TritonText().const(Fraction(0))
    written = {
        (op, one.text): apply("not", (apply(op, (one, zero)),)).text
        for op in ("lt", "eq")
        for one in (number, place)
    }
    assert written == {
        ("lt", "x"): "~(x < 0.0)",  # true of NaN, as x >= 0 is not
        ("lt", "m"): "m >= 0",
        ("eq", "x"): "x != 0.0",
        ("eq", "m"): "m != 0",
    }


LARGEST = {
    "relu": "t1 = relu(x)",
    "the larger of two": "t1 = const[0.5]()\nt2 = maximum(t1, x)",
    "the smaller of two": "t1 = const[0.5]()\nt2 = minimum(x, t1)",
    "a maximum": "t1 = max[k](x)",
    "a maximum of both": "t1 = max[m, k](x)",
    "a softmax": "t1 = max[k](x)\nt2 = sub(x, t1)\nt3 = exp(t2)\nt4 = sum[k](t3)\nt5 = div(t3, t4)",
    "distances from a maximum": "t1 = max[k](x)\nt2 = sub(x, t1)",
}


@pytest.mark.parametrize("configs", ["default", "tuner"])
@pytest.mark.parametrize("steps", LARGEST.values(), ids=LARGEST.keys())
def test_maxima_keep_nan(agrees, steps, configs):
    last = steps.rsplit("\n", 1)[-1]
    dims = {"max[m, k]": "", "max[k]": "m"}.get(last.partition("(")[0].partition("= ")[2], "m, k")
    text = f"graph g\naxes m=5 k=37\nin x: f32[m, k]\n{steps}\nout o: f32[{dims}] = {last.split()[0]}\n"
    agrees("text", text=text, domain=[-2.0, 2.0], layout="NaN on a diagonal", configs=configs)
