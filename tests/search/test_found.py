"""What a search must find, and what its pruning must admit on the way: known programs as tables."""

from functools import cache

import pytest

from superopt.driver import RegionSearch, SearchOptions, search
from superopt.frontier.tensors.bound import graph_bound
from superopt.frontier.tensors.graphs import canonical
from superopt.frontier.tensors.split import merge_halves, split_reductions
from superopt.ir import Graph, Loop, parse_graph, print_step, value_names

ATTENTION = """graph attention
axes b=8 h=32 d=64 s=4096 e=64
in q: f16[b, h, d]
in k: f16[b, h, s, d]
in v: f16[b, h, s, e]
t3 = contract[d](q, k)
t4 = const[0.125]()
t5 = mul(t3, t4)
t6 = exp(t5)
t7 = sum[s](t6)
t8 = div(t6, t7)
t9 = contract[s](t8, v)
out out: f16[b, h, e] = t9
"""
GOALS = {
    "attention": ATTENTION,
    "gqa": ATTENTION.replace("h=32", "h=8 g=4").replace("[b, h, d]", "[b, (h g), d]").replace(
        "out: f16[b, h, e]", "out: f16[b, (h g), e]"
    ),
    "causal gqa": """graph causal
axes b=1 h=8 g=4 m=2048 n=2048 d=64 e=64
in q: f16[b, (h g), m, d]
in k: f16[b, h, n, d]
in v: f16[b, h, n, e]
t3 = index[m]()
t4 = index[n]()
t5 = ge(t3, t4)
t6 = contract[d](q, k)
t7 = exp(t6)
t8 = mul(t7, t5)
t9 = sum[n](t8)
t10 = div(t8, t9)
t11 = contract[n](t10, v)
out out: f16[b, (h g), m, e] = t11
""",
    "mla": """graph mla
axes b=8 m=128 k=512 d=128 n=4096
in q: f16[b, m, k]
in qr: f16[b, m, d]
in c: f16[b, n, k]
in kr: f16[b, n, d]
t4 = contract[k](q, c)
t5 = contract[d](qr, kr)
t6 = add(t4, t5)
t7 = const[0.0625]()
t8 = mul(t6, t7)
t9 = exp(t8)
t10 = sum[n](t9)
t11 = div(t9, t10)
t12 = contract[n](t11, c)
out out: f16[b, m, k] = t12
""",
    "rmsnorm-linear": """graph rmsnorm_linear
axes m=16 k=4096 n=6144
in x: f16[m, k]
in g: f16[k]
in w: f16[k, n]
t3 = square(x)
t4 = sum[k](t3)
t5 = size[k]()
t6 = div(t4, t5)
t7 = const[1e-06]()
t8 = add(t6, t7)
t9 = rsqrt(t8)
t10 = mul(x, t9)
t11 = mul(t10, g)
t12 = contract[k](t11, w)
out out: f16[m, n] = t12
""",
    "layernorm-linear": """graph layernorm_linear
axes m=16 k=4096 n=4096
in x: f16[m, k]
in w: f16[k, n]
t2 = sum[k](x)
t3 = size[k]()
t4 = div(t2, t3)
t5 = sub(x, t4)
t6 = contract[k](t5, t5)
t7 = div(t6, t3)
t8 = sqrt(t7)
t9 = div(t5, t8)
t10 = contract[k](t9, w)
out out: f16[m, n] = t10
""",
    "lora": """graph lora
axes m=16 k=4096 n=4096 r=16
in x: f16[m, k]
in w: f16[k, n]
in a: f16[k, r]
in b: f16[r, n]
t4 = contract[k](x, w)
t5 = contract[k](x, a)
t6 = contract[r](t5, b)
t7 = add(t4, t6)
out out: f16[m, n] = t7
""",
    "adapted weights": """graph adapted
axes m=16 k=4096 n=4096 r=16
in x: f16[m, k]
in w: f16[k, n]
in a: f16[k, r]
in b: f16[r, n]
t4 = contract[r](a, b)
t5 = add(w, t4)
t6 = contract[k](x, t5)
out out: f16[m, n] = t6
""",
    "matmul": """graph matmul
axes m=16 k=4096 n=4096
in x: f16[m, k]
in w: f16[k, n]
t2 = contract[k](x, w)
out out: f16[m, n] = t2
""",
    "left": """graph left
axes m=16 k=512 n=1024 r=256
in x: f16[m, k]
in w: f16[k, n]
in v: f16[n, r]
t3 = contract[k](x, w)
t4 = contract[n](t3, v)
out out: f16[m, r] = t4
""",
    "right": """graph right
axes m=16 k=512 n=1024 r=256
in x: f16[m, k]
in w: f16[k, n]
in v: f16[n, r]
t3 = contract[n](w, v)
t4 = contract[k](x, t3)
out out: f16[m, r] = t4
""",
}  # fmt: skip

# (goal, what to find: its steps, by any names; axes that are split; passes beyond the first)
EXPECTED: dict[str, tuple[str, str, tuple[str, ...], tuple[tuple[str, int], ...]]] = {
    "attention: division delayed": (
        "attention",
        """p = const[0.125]()
        qs = mul(q, p)
        e = exp(contract[d](qs, k))
        num = contract[s](e, v)
        den = sum[s](e)
        y = div(num, den)""",
        (), (),
    ),
    "attention: keys split, numerator and denominator": (
        "attention",
        """p = const[0.125]()
        qs = mul(q, p)
        e = exp(contract[d](qs, k))
        num = sum[s_outer](contract[s_inner](e, v))
        den = sum[s_outer](sum[s_inner](e))
        y = div(num, den)""",
        ("s",), (),
    ),
    "attention: as it was": (
        "attention",
        """c = contract[d](q, k)
        p = const[0.125]()
        e = exp(mul(c, p))
        den = sum[s](e)
        y = contract[s](div(e, den), v)""",
        (), (("s", 2),),
    ),
    "gqa: division delayed": (
        "gqa",
        """c = contract[d](q, k)
        p = const[0.125]()
        e = exp(mul(c, p))
        num = contract[s](e, v)
        den = sum[s](e)
        y = div(num, den)""",
        (), (),
    ),
    "gqa: keys split": (
        "gqa",
        """p = const[0.125]()
        qs = mul(q, p)
        e = exp(contract[d](qs, k))
        num = sum[s_outer](contract[s_inner](e, v))
        den = sum[s_outer](sum[s_inner](e))
        y = div(num, den)""",
        ("s",), (),
    ),
    "causal gqa: division delayed": (
        "causal gqa",
        """i = index[m]()
        j = index[n]()
        past = ge(i, j)
        e = exp(contract[d](q, k))
        kept = mul(past, e)
        num = contract[n](kept, v)
        den = sum[n](kept)
        y = div(num, den)""",
        (), (),
    ),
    "mla: two products, division delayed": (
        "mla",
        """c1 = contract[d](qr, kr)
        c2 = contract[k](q, c)
        both = add(c1, c2)
        p = const[0.0625]()
        e = exp(mul(both, p))
        num = contract[n](e, c)
        den = sum[n](e)
        y = div(num, den)""",
        (), (),
    ),
    "mla: keys split": (
        "mla",
        """c1 = contract[d](qr, kr)
        c2 = contract[k](q, c)
        both = add(c1, c2)
        p = const[0.0625]()
        e = exp(mul(both, p))
        num = sum[n_outer](contract[n_inner](e, c))
        den = sum[n_outer](sum[n_inner](e))
        y = div(num, den)""",
        ("n",), (),
    ),
    "rmsnorm-linear: scaling delayed": (
        "rmsnorm-linear",
        """xg = mul(x, g)
        y0 = contract[k](xg, w)
        ss = contract[k](x, x)
        n_ = size[k]()
        eps = const[1e-06]()
        r = sqrt(add(div(ss, n_), eps))
        y = div(y0, r)""",
        (), (),
    ),
    "rmsnorm-linear: reduction split": (
        "rmsnorm-linear",
        """xg = mul(x, g)
        y0 = sum[k_outer](contract[k_inner](xg, w))
        ss = sum[k_outer](contract[k_inner](x, x))
        n1 = size[k_outer]()
        n2 = size[k_inner]()
        n_ = mul(n1, n2)
        eps = const[1e-06]()
        r = sqrt(add(div(ss, n_), eps))
        y = div(y0, r)""",
        ("k",), (),
    ),
    "lora: two accumulations": (
        "lora",
        """xa = contract[k](x, a)
        xab = contract[r](xa, b)
        xw = contract[k](x, w)
        y = add(xab, xw)""",
        (), (),
    ),
    "lora: one accumulation": (
        "lora",
        """ab = contract[r](a, b)
        y = contract[k](add(ab, w), x)""",
        (), (),
    ),
    "adapted weights: two accumulations": (
        "adapted weights",
        """xa = contract[k](x, a)
        xab = contract[r](xa, b)
        xw = contract[k](x, w)
        y = add(xab, xw)""",
        (), (),
    ),
    "matmul: split": (
        "matmul",
        "y = sum[k_outer](contract[k_inner](x, w))",
        ("k",), (),
    ),
    "left: associated to the right": (
        "left",
        """wv = contract[n](w, v)
        y = contract[k](wv, x)""",
        (), (),
    ),
    "right: associated to the left": (
        "right",
        """xw = contract[k](x, w)
        y = contract[n](xw, v)""",
        (), (),
    ),
}  # fmt: skip


@cache
def searched(goal: str) -> RegionSearch:
    result = search(parse_graph(GOALS[goal]), options=SearchOptions(max_graphs=24))
    assert result.complete
    (region,) = result.regions
    return region


def expected_graph(name: str) -> Graph:
    """The graph whose steps the table lists, nested calls flattened, on the goal's axes and ports."""
    goal, steps, split, _ = EXPECTED[name]
    graph = parse_graph(GOALS[goal])
    if split:
        refined, halves = split_reductions(graph)
        for axis in split:
            assert axis in halves
        graph, _ = merge_halves(refined, {axis: pair for axis, pair in halves.items() if axis not in split})
    lines = str(graph).splitlines()
    head = [line for line in lines if line.startswith(("graph ", "axes ", "in "))]
    body: list[str] = []
    for line in filter(None, map(str.strip, steps.splitlines())):
        target, _, term = line.partition(" = ")
        body.append(f"{target} = {_flatten(term, body)}")
    tail = lines[-1].rpartition(" = ")[0] + " = y"
    return canonical(parse_graph("\n".join([*head, *body, tail])))


def _flatten(term: str, body: list[str]) -> str:
    """Return a call whose arguments are names, with a line for each inner call."""
    op, _, rest = term.partition("(")
    args, depth, start = [], 0, 0
    inside = rest[:-1]
    for i, char in enumerate(inside + ","):
        depth += (char in "([") - (char in ")]")
        if char == "," and not depth:
            args.append(inside[start:i].strip())
            start = i + 1
    names = []
    for arg in filter(None, args):
        if "(" in arg:
            inner = _flatten(arg, body)
            body.append(f"u{len(body)} = {inner}")
            arg = body[-1].partition(" = ")[0]
        names.append(arg)
    return f"{op}({', '.join(names)})"


@pytest.mark.parametrize("name", EXPECTED)
def test_found(name: str) -> None:
    goal, _, split, passes = EXPECTED[name]
    expected = expected_graph(name)
    found = [one for one in searched(goal).found if one.graph == expected]
    assert len(found) == 1, f"not found:\n{expected}"
    assert found[0].split_axes == split
    assert found[0].bound == graph_bound(expected)
    assert found[0].bound.passes == passes
    assert found[0].verdict.equal


@pytest.mark.parametrize(
    ("goal", "best"),
    [
        ("attention", "attention: division delayed"),
        ("mla", "mla: two products, division delayed"),
        ("rmsnorm-linear", "rmsnorm-linear: scaling delayed"),
        ("adapted weights", "adapted weights: two accumulations"),
        ("left", "right: associated to the left"),
        ("right", "right: associated to the left"),
    ],
)  # fmt: skip
def test_the_best_comes_first(goal: str, best: str) -> None:
    assert searched(goal).found[0].graph.steps == expected_graph(best).steps


def test_attention_is_one_kernel_with_one_pass_over_the_keys() -> None:
    (kernel,) = searched("attention").found[0].mugraph.kernels
    assert [item.axis for item in kernel.body if isinstance(item, Loop)] == ["s"]


def test_layernorm_linear_in_one_pass() -> None:
    """Mean and scaling delayed, the variance from sums over x and x * x: nobody wrote either."""
    region = searched("layernorm-linear")
    (original,) = [one for one in region.found if one.is_original]
    assert original.bound.passes == (("k", 3),)
    best = region.found[0]
    assert best.bound.passes == ()
    names = value_names(best.graph)
    reductions = {print_step(step, names) for step in best.graph.steps if step.axes and step.inputs}
    assert reductions == {"contract[k](x, w)", "contract[k](x, x)", "sum[k](w)", "sum[k](x)"}
    (kernel,) = best.mugraph.kernels
    assert [item.axis for item in kernel.body if isinstance(item, Loop)] == ["k"]


# -- completeness of the pruning: every prefix of what must be found is in the saturated table
