"""Constants add up, and what cancels is gone: the search finds the simpler graph, and only a right one."""

import pytest
from programs import CENTERED, MEAN

from superopt.candidates.sizes import mugraph_for, resized
from superopt.driver import RegionSearch, search
from superopt.ir import MuGraph, parse_graph
from superopt.verify.graphs.equality import equal_graphs

HEAD = """graph goal
axes m=16 k=48
in x: f32[m, k]
in y: f32[m, k]
"""

SIMPLER = {
    "half more": ("a = const[0.5]()\nb = mul(x, a)\nc = add(b, x)", ("mul",)),
    "half less": ("a = const[0.5]()\nb = mul(x, a)\nc = sub(x, b)", ("mul",)),
    "two halves": ("a = const[2]()\nb = div(x, a)\nc = add(b, b)", ()),
    "constants multiply": ("a = const[2]()\nb = mul(x, a)\nd = const[3]()\nc = mul(b, d)", ("mul",)),
    "constants add": ("a = const[2]()\nb = add(x, a)\nd = const[3]()\nc = add(b, d)", ("add",)),
    "cancelled before": ("a = sub(x, x)\nc = add(a, y)", ()),
    "cancelled apart": ("a = add(x, y)\nb = exp(y)\nd = add(a, b)\nc = sub(d, y)", ("add", "exp")),
    "times nothing": ("a = const[0]()\nb = mul(x, a)\nc = add(b, y)", ()),
    "nothing at all": ("c = sub(x, x)", ()),
    "one": ("a = exp(x)\nc = div(a, a)", ()),
    "quotient apart": ("a = exp(x)\nb = mul(a, y)\nd = mul(b, x)\nc = div(d, a)", ("mul",)),
}
"""The steps of a goal, and the operators of the best graph, its constants apart."""


def searched(steps: str) -> RegionSearch:
    (region,) = search(parse_graph(f"{HEAD}{steps}\nout out: f32[m, k] = c")).regions
    return region


@pytest.mark.parametrize("name", SIMPLER)
def test_the_simpler_graph_is_found(name: str) -> None:
    steps, operators = SIMPLER[name]
    region = searched(steps)
    assert region.truncated == ()
    assert region.reached
    best = region.found[0]
    assert best.verdict.equal
    assert sorted(step.op for step in best.graph.steps if step.op != "const") == sorted(operators)


@pytest.mark.parametrize(
    "steps",
    [
        "a = const[0.5]()\nb = mul(x, a)\nc = add(b, y)",
        "a = sub(x, y)\nb = add(a, x)\nc = mul(b, x)",
        "c = div(x, y)",
    ],
)
def test_what_does_not_cancel_stays(steps: str) -> None:
    region = searched(steps)
    assert region.truncated == ()
    for one in region.found:
        assert {step.op for step in one.graph.steps} - {"const"}


def test_a_softmax_sums_to_one() -> None:
    graph = """graph goal
        axes m=16 k=48
        in x: f32[m, k]
        a = exp(x)
        b = sum[k](a)
        p = div(a, b)
        c = sum[k](p)
        out out: f32[m] = c"""
    (region,) = search(parse_graph(graph)).regions
    (step,) = region.found[0].graph.steps
    assert step.op == "const"
    assert step.value == 1


def test_a_shared_part_stays_where_another_output_needs_it() -> None:
    graph = """graph goal
        axes m=16 k=48
        in x: f32[m, k]
        h = const[0.5]()
        a = mul(x, h)
        b = add(a, a)
        out one: f32[m, k] = a
        out two: f32[m, k] = b"""
    (region,) = search(parse_graph(graph)).regions
    best = region.found[0].graph
    assert [step.op for step in best.steps] == ["const", "mul"]
    assert best.outputs[1].value == 0


LOGARITHMS = {
    "of an exponential": ("a = exp(x)\nb = log(a)\nc = add(b, y)", ("add",)),
    "of a product": ("a = exp(x)\nb = exp(y)\nd = mul(a, b)\nc = log(d)", ("add",)),
    "and back": ("a = exp(x)\nd = exp(y)\ne = add(a, d)\nb = log(e)\nc = exp(b)", ("add", "exp", "exp")),
}


@pytest.mark.parametrize("name", LOGARITHMS)
def test_logarithms_and_exponentials_undo_each_other(name: str) -> None:
    steps, operators = LOGARITHMS[name]
    best = searched(steps).found[0]
    assert best.verdict.equal
    assert sorted(step.op for step in best.graph.steps) == sorted(operators)


def test_the_logarithm_of_any_number_stays() -> None:
    """Of a negative x neither exp(log x) nor log(x) + log(x) is defined, and x and log(x x) are."""
    for steps in ("a = log(x)\nc = exp(a)", "a = mul(x, x)\nc = log(a)"):
        for one in searched(steps).found:
            assert "log" in {step.op for step in one.graph.steps}


SHORT = {  # goals with axes of two positions, and other lengths of these axes
    "twice the mean of two": (MEAN, {"k": 5}),
    "means along two axes of two": (CENTERED, {"m": 5}),
}


@pytest.mark.parametrize("name", SHORT)
def test_nothing_stands_for_the_length_of_a_short_axis(name: str) -> None:
    text, sizes = SHORT[name]
    goal = parse_graph(text)
    (region,) = search(goal).regions
    there = resized(goal, sizes)
    assert len(region.found) > 1
    for one in region.found:
        graph = mugraph_for(MuGraph(one.graph, ()), there).graph
        assert equal_graphs(there, graph).equal, one.graph
