"""What a search must not find: plausible mistakes, each refuted with a place where it differs."""

import pytest

from superopt.driver import SearchOptions, search
from superopt.frontier.tensors.graphs import canonical
from superopt.ir import Graph, parse_graph
from superopt.verify.graphs.equality import equal_graphs

ATTENTION = """graph attention
axes b=8 d=64 s=4096 e=64
in q: f16[b, d]
in k: f16[s, d]
in v: f16[s, e]
t3 = contract[d](q, k)
t4 = exp(t3)
t5 = contract[s](t4, v)
t6 = sum[s](t4)
t7 = div(t5, t6)
out y: f16[b, e] = t7
"""
NORM = """graph norm
axes m=64 k=64 n=96
in x: f16[m, k]
in g: f16[k]
in w: f16[k, n]
t3 = mul(x, g)
t4 = contract[k](t3, w)
t5 = contract[k](x, x)
t6 = size[k]()
t7 = div(t5, t6)
t8 = const[1e-06]()
t9 = add(t7, t8)
t10 = sqrt(t9)
t11 = div(t4, t10)
out y: f16[m, n] = t11
"""
CLAMP = """graph clamp
axes m=16 n=32
in x: f16[m, n]
t1 = const[-1]()
t2 = maximum(x, t1)
t3 = const[1]()
t4 = minimum(t2, t3)
t5 = sum[n](t4)
out y: f16[m] = t5
"""
SQUARE = """graph square
axes i=64 j=64
in x: f16[i, j]
in u: f16[i]
t2 = mul(x, u)
t3 = sum[i](t2)
t4 = exp(t3)
out y: f16[j] = t4
"""
GRAM = """graph gram
axes i=16 j=16 k=32
in x: f16[i, k]
in u: f16[i]
t2 = rename[i->j](x)
t3 = contract[k](x, t2)
t4 = mul(t3, u)
out y: f16[i, j] = t4
"""
COLUMNS = """graph columns
axes m=64 k=64
in x: f16[m, k]
t1 = exp(x)
t2 = sum[k](t1)
t3 = div(t1, t2)
out y: f16[m, k] = t3
"""
CAUSAL = """graph causal
axes m=32 n=32 e=8
in c: f16[m, n]
in v: f16[n, e]
t2 = index[m]()
t3 = index[n]()
t4 = ge(t2, t3)
t5 = exp(c)
t6 = mul(t5, t4)
t7 = contract[n](t6, v)
t8 = sum[n](t6)
t9 = div(t7, t8)
out y: f16[m, e] = t9
"""

# name: (right, [what is changed])
WRONG: dict[str, tuple[str, list[tuple[str, str]]]] = {
    "division by the sum of the scores": (ATTENTION, [("sum[s](t4)", "sum[s](t3)")]),
    "division by the sum over the queries": (ATTENTION, [("sum[s](t4)", "sum[b, s](t4)")]),
    "division by the sum of the numerator": (ATTENTION, [("sum[s](t4)", "sum[e](t5)")]),
    "no division": (ATTENTION, [("div(t5, t6)", "mul(t5, t6)")]),
    "scaling on the wrong axis": (
        NORM, [("t3 = mul(x, g)", "t12 = rename[k->m](g)\nt3 = mul(x, t12)")]
    ),
    "normalized along the columns": (COLUMNS, [("sum[k]", "sum[m]")]),
    "a dropped 1/n": (NORM, [("add(t7, t8)", "add(t5, t8)")]),
    "1/n of the other axis": (NORM, [("size[k]", "size[n]")]),
    "a dropped epsilon": (NORM, [("sqrt(t9)", "sqrt(t7)")]),
    "another epsilon": (NORM, [("1e-06", "1e-05")]),
    "a dropped root": (NORM, [("div(t4, t10)", "div(t4, t9)")]),
    "the gain applied twice": (
        NORM, [("contract[k](t3, w)", "contract[k](t12, w)"), ("t4 =", "t12 = mul(t3, g)\nt4 =")]
    ),
    "the gain left out": (NORM, [("contract[k](t3, w)", "contract[k](x, w)")]),
    "a dropped lower bound": (CLAMP, [("minimum(t2, t3)", "minimum(x, t3)")]),
    "a dropped upper bound": (CLAMP, [("sum[n](t4)", "sum[n](t2)")]),
    "the clamp after the sum": (
        CLAMP,
        [
            ("t2 = maximum(x, t1)", "t6 = sum[n](x)\nt2 = maximum(t6, t1)"),
            ("t5 = sum[n](t4)\n", ""),
            ("= t5", "= t4"),
        ],
    ),
    "swapped operands of div": (ATTENTION, [("div(t5, t6)", "div(t6, t5)")]),
    "swapped operands of sub": (
        CLAMP.replace("minimum(t2, t3)", "sub(t2, t3)"), [("sub(t2, t3)", "sub(t3, t2)")]
    ),
    "the sum over the other axis of equal size": (SQUARE, [("sum[i]", "sum[j]"), ("y: f16[j]", "y: f16[i]")]),
    "an input read transposed": (SQUARE, [("x: f16[i, j]", "x: f16[j, i]")]),
    "an output written transposed": (GRAM, [("y: f16[i, j]", "y: f16[j, i]")]),
    "the other of two renamed axes": (
        GRAM, [("mul(t3, u)", "mul(t3, t5)"), ("t4 =", "t5 = rename[i->j](u)\nt4 =")]
    ),
    "keys of the future": (CAUSAL, [("ge(t2, t3)", "le(t2, t3)")]),
    "without the diagonal": (
        CAUSAL,
        [("contract[n](t6", "contract[n](t11"), ("t7 =", "t10 = gt(t2, t3)\nt11 = mul(t5, t10)\nt7 =")],
    ),
    "the mask on the numerator only": (CAUSAL, [("sum[n](t6)", "sum[n](t5)")]),
    "the mask on the denominator only": (CAUSAL, [("contract[n](t6, v)", "contract[n](t5, v)")]),
}  # fmt: skip


def right_and_wrong(name: str) -> tuple[Graph, Graph]:
    text, changes = WRONG[name]
    wrong = text
    for old, new in changes:
        assert wrong.count(old) == 1, old
        wrong = wrong.replace(old, new)
    return parse_graph(text), parse_graph(wrong)


@pytest.mark.parametrize("name", WRONG)
def test_wrong_variants_are_refuted_with_a_witness(name: str) -> None:
    right, wrong = right_and_wrong(name)
    verdict = equal_graphs(right, wrong)
    assert not verdict.equal
    assert verdict.witness is not None
    assert verdict.witness.left != verdict.witness.right
    assert verdict.witness.output == "y"
    assert equal_graphs(right, right).equal


@pytest.mark.parametrize("name", WRONG)
def test_wrong_variants_are_not_found(name: str) -> None:
    right, wrong = right_and_wrong(name)
    (region,) = search(right, options=SearchOptions(split=False)).regions
    found = [one.graph for one in region.found]
    assert canonical(right) in found
    assert canonical(wrong) not in found
