"""Graphs that lose large or small numbers, which the program as written takes, are not tried."""

import pytest

from superopt.candidates.magnitudes import out_of_range
from superopt.candidates.schedules import schedules
from superopt.driver import Found
from superopt.frontier.tensors.bound import graph_bound
from superopt.ir import parse_graph
from superopt.targets import pick_target

NORM = """
graph norm
axes m=64 k=256
in x: f32[m, k]
a = abs(x)
b = max[k](a)
c = div(x, b)
d = contract[k](c, c)
e = sqrt(d)
f = mul(b, e)
out y: f32[m] = f
"""
PLAIN_NORM = """
graph norm
axes m=64 k=256
in x: f32[m, k]
a = contract[k](x, x)
b = sqrt(a)
out y: f32[m] = b
"""
HALVES = """
graph norm
axes m=64 k0=16 k1=16
in x: f32[m, (k0 k1)]
a0 = contract[k1](x, x)
a = sum[k0](a0)
b = sqrt(a)
out y: f32[m] = b
"""
LINEAR = """
graph linear
axes m=64 k=256 n=32
in x: f32[m, k]
in g: f32[k]
in w: f32[k, n]
a = contract[k](x, x)
b = const[0.001]()
c = add(a, b)
d = sqrt(c)
e = div(x, d)
f = mul(e, g)
h = contract[k](f, w)
out y: f32[m, n] = h
"""
DELAYED = LINEAR.replace("e = div(x, d)\nf = mul(e, g)", "f = mul(x, g)").replace(
    "out y: f32[m, n] = h", "i = div(h, d)\nout y: f32[m, n] = i"
)
AT_THIS_SIZE = LINEAR.replace("div(x, d)", "div(z, d)").replace(
    "d = sqrt(c)", "d = sqrt(c)\nn1 = size[k]()\nn2 = const[256]()\nn3 = div(n1, n2)\nz = mul(x, n3)"
)


GRAPHS = {
    "norm": NORM,
    "plain norm": PLAIN_NORM,
    "in halves": HALVES,
    "linear": LINEAR,
    "delayed": DELAYED,
    "at this size": AT_THIS_SIZE,
}


@pytest.mark.parametrize("dtype", ["f32", "bf16"])
@pytest.mark.parametrize(("goal", "graph", "refused"), [
    ("norm", "plain norm", True), ("norm", "in halves", True), ("norm", "norm", False),
    ("plain norm", "norm", False),  # the graph takes more numbers
    ("linear", "delayed", False), ("delayed", "linear", False), ("linear", "at this size", False),
])  # fmt: skip
def test_what_leaves_the_range_that_the_goal_keeps_to(
    goal: str, graph: str, refused: bool, dtype: str
) -> None:
    first, second = (parse_graph(GRAPHS[name].replace("f32", dtype)) for name in (goal, graph))
    found = out_of_range(first, [second], ("x", "g", "w"), seed=0)
    assert found.keys() == ({second} if refused else set())
    assert all("leaves the range of fp32 where x is" in why for why in found.values())


def test_a_norm_that_is_scaled_first_stays_so() -> None:
    goal, plain = parse_graph(NORM), parse_graph(PLAIN_NORM)
    ways = [Found(one, graph_bound(one), None, is_original=one is goal) for one in (plain, goal)]
    found = schedules(goal, ways, pick_target("cuda:90"), graphs=2, entering=("x",))
    assert {one.graph for one in found.candidates} == {goal}
    assert "its algebra leaves the range of fp32" in found.dropped[-1].fate.reason
