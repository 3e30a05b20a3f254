"""Ranges: no value of a graph lies outside the range that is claimed for it."""

from math import inf

import pytest
import torch

from superopt.ir import Step, parse_graph
from superopt.ops import OPS
from superopt.trace.run import run_graph
from superopt.verify.floats.ranges import ANYTHING, range_of_step
from superopt.verify.ranges import Range

EDGES = torch.tensor([-40.0, -3.0, -1.0, -0.75, -1e-3, 0.0, 1e-3, 0.5, 1.0, 2.0, 30.0], dtype=torch.float64)


def inside(value: torch.Tensor, found: Range) -> bool:
    known = value[~value.isnan()]
    return bool(((known >= found.low - 1e-9) & (known <= found.high + 1e-9)).all())


@pytest.mark.parametrize("op", OPS)
@pytest.mark.parametrize(
    "ends", [(-inf, inf), (0.0, inf), (-inf, 0.0), (-1.0, 2.0), (0.5, 30.0), (-3.0, -0.75)]
)
def test_results_lie_in_their_range(op: str, ends: tuple[float, float]) -> None:
    arity = OPS[op].arity
    masks = {"where": 1, "guard": 1, "and": 2, "or": 2, "not": 1}.get(op, 0)
    names = "abc"[:arity]
    inside_ends = EDGES[(ends[0] <= EDGES) & (ends[1] >= EDGES)]
    ports = [f"in {name}: {'bool' if at < masks else 'f64'}[{'ijk'[at]}]" for at, name in enumerate(names)]
    sizes = [2 if at < masks else len(inside_ends) for at in range(arity)]
    axes = " ".join(f"{'ijk'[at]}={size}" for at, size in enumerate(sizes))
    dims = ", ".join("ijk"[:arity])
    text = "\n".join(
        ["graph g", f"axes {axes}", *ports, f"y = {op}({', '.join(names)})", f"out o: f64[{dims}] = y"]
    )
    graph = parse_graph(text)
    given = {
        name: torch.tensor([False, True]) if at < masks else inside_ends for at, name in enumerate(names)
    }
    ranges = [Range(0, 1) if at < masks else Range(*ends) for at in range(arity)]
    found = range_of_step(graph, Step(op, tuple(range(arity))), ranges)
    assert inside(run_graph(graph, given)["o"], found), found


@pytest.mark.parametrize(
    ("a", "b", "outcomes"),
    [
        (ANYTHING, ANYTHING, {-1, 0, 1}),
        (Range(0, inf), Range(0, 0), {0, 1}),
        (Range(0, inf, low_open=True), Range(0, 0), {1}),
        (Range(0, 1), Range(2, 3), {-1}),
        (Range(1, 1), Range(1, 1), {0}),
        (Range(0, 1, high_open=True), Range(1, 1), {-1}),
    ],
)
def test_how_two_ranges_may_compare(a: Range, b: Range, outcomes: set[int]) -> None:
    assert a.outcomes(b) == outcomes
    assert b.outcomes(a) == {-one for one in outcomes}
