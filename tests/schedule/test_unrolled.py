"""Short axes taken apart: equal graphs that ask for no position, and axes that must stay."""

from dataclasses import replace

import pytest
import torch

from superopt.candidates.schedules import schedules
from superopt.driver import Found
from superopt.errors import InputError
from superopt.ir import Graph, extents, parse_graph
from superopt.schedule.unrolled import unrolled
from superopt.targets import pick_target
from superopt.trace.run import run_graph
from superopt.verify.graphs.equality import equal_graphs

BYTES = """
graph bytes
axes m=3 k=20 d=2 n=7
in x: f32[m, (k d)]
in w: f32[n, k]
in v: f32[n, k]
in s: f32[d]
t4 = const[0]()
t5 = index[d]()
t6 = const[1]()
t7 = eq(t5, t4)
t8 = mul(t7, w)
t9 = eq(t5, t6)
t10 = mul(t9, v)
t11 = add(t8, t10)
t12 = mul(t11, s)
t13 = contract[k, d](x, t12)
out y: f32[m, n] = t13
"""
ALONE = BYTES.replace("contract[k, d](x, t12)", "sum[d](t12)").replace("out y: f32[m, n]", "out y: f32[n, k]")
OTHERS = {
    "sums": BYTES,
    "a sum of it alone": ALONE,
    "the largest": ALONE.replace("sum[d]", "max[d]"),
    "two steps": BYTES.replace("contract[k, d](x, t12)", "contract[k](x, t12)\nt14 = sum[d](t13)").replace(
        "= t13\n", "= t14\n"
    ),
    "its size": BYTES.replace(
        "t13 = contract", "t13 = size[d]()\nt14 = mul(t12, t13)\nt15 = contract"
    ).replace("(x, t12)\nout y: f32[m, n] = t13", "(x, t14)\nout y: f32[m, n] = t15"),
    "its position as a number": BYTES.replace("mul(t11, s)", "mul(t11, t5)"),
    "four": BYTES.replace("d=2", "d=4"),
}


def numbers(graph: Graph) -> dict[str, torch.Tensor]:
    torch.manual_seed(0)
    return {port.name: torch.randn(graph.shape(port)).double() for port in graph.inputs}


@pytest.mark.parametrize("text", OTHERS.values(), ids=list(OTHERS))
def test_the_graph_is_equal_and_asks_for_no_position(text: str) -> None:
    graph = parse_graph(text)
    made = unrolled(graph)
    assert made is not None
    assert not any(step.op == "index" for step in made.steps)
    assert equal_graphs(graph, made).equal
    known = numbers(graph)
    wanted, found = (run_graph(one, known, torch.float64)["y"] for one in (graph, made))
    torch.testing.assert_close(found, wanted)


STAYING = {
    "it leaves": BYTES.replace("contract[k, d](x, t12)", "contract[k](x, t12)").replace(
        "[m, n]", "[m, n, d]"
    ),
    "it is long": BYTES.replace("d=2", "d=5"),
    "nobody asks for it": BYTES.replace("t5 = index[d]()", "t5 = const[1]()"),
    "another one stands for it": BYTES.replace("d=2", "d=2 e=2")
    .replace(
        "t13 = contract", "t13 = rename[d->e](s)\nt14 = sum[e](t13)\nt15 = mul(t12, t14)\nt16 = contract"
    )
    .replace("(x, t12)\nout y: f32[m, n] = t13", "(x, t15)\nout y: f32[m, n] = t16"),
}


@pytest.mark.parametrize("text", STAYING.values(), ids=list(STAYING))
def test_axes_that_must_stay(text: str) -> None:
    assert unrolled(parse_graph(text)) is None


def test_a_wrong_one_is_not_equal() -> None:
    graph = parse_graph(BYTES)
    made = unrolled(graph)
    assert made is not None
    places = [at for at, step in enumerate(made.steps) if step.op == "select"]
    assert len(places) == 4
    for at in places:
        [(axis, position)] = made.steps[at].mapping
        moved = replace(made.steps[at], mapping=((axis, 1 - int(position)),))
        wrong = replace(made, steps=(*made.steps[:at], moved, *made.steps[at + 1 :]))
        assert not equal_graphs(graph, wrong).equal


def test_it_serves_no_other_size_of_the_axis() -> None:
    """The graph is equal at one size; at another one it would leave positions out."""
    graph = parse_graph(BYTES)
    made = unrolled(graph)
    assert made is not None
    same, longer = ([(3, 20 * d), (7, 20), (7, 20), (d,)] for d in (2, 3))
    assert extents(graph, longer)["d"] == 3
    assert extents(made, same)["d"] == 2
    with pytest.raises(InputError, match="positions along axis 'd' are read apart"):
        extents(made, longer)


FIRST = """
graph first
axes m=3 d=2
in x: f32[m, d]
t1 = index[d]()
t2 = const[0]()
t3 = eq(t1, t2)
t4 = mul(t3, x)
t5 = sum[d](t4)
out y: f32[m] = t5
"""


def test_an_axis_of_which_some_position_is_never_read_stays() -> None:
    """Nothing would say that its size is fixed."""
    assert unrolled(parse_graph(FIRST)) is None
    assert unrolled(parse_graph(FIRST.replace("mul(t3, x)", "add(t3, x)"))) is not None


def test_schedules_try_it() -> None:
    graph = parse_graph(BYTES.replace("k=20", "k=512").replace("n=7", "n=512"))
    found = Found(graph, None, equal_graphs(graph, graph), is_original=True)
    best = schedules(graph, [found], pick_target("cpu"), graphs=4).candidates[0]
    assert not any(step.op == "index" for step in best.graph.steps)
    assert best.verdict.equal
