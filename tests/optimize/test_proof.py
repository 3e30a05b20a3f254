"""Candidates of files: what is proven of them, and what is not."""

from dataclasses import replace

import pytest

from superopt.candidates.proof import proven, proven_by_graph
from superopt.cost import device_of
from superopt.ir import Graph, MuGraph, parse_mugraph
from superopt.schedule import schedules
from superopt.trace import trace
from superopt.workloads import WORKLOADS

SIZES = {
    "softmax": {"M": 8, "N": 256},
    "linear-cross-entropy": {"M": 8, "K": 64, "V": 512},
}


def scheduled(name: str) -> tuple[Graph, list[MuGraph]]:
    """Return the graph of a workload, and muGraphs of it."""
    workload = WORKLOADS[name]
    (region,) = trace(workload.function, *workload.inputs(**SIZES[name]), name=name).program.regions
    found = schedules(region.graph, device_of("cuda:90"))
    return region.graph, [parse_mugraph(str(one.mugraph)) for one in found.kept]


@pytest.mark.parametrize("name", sorted(SIZES))
def test_every_schedule_is_proven(name: str) -> None:
    goal, mugraphs = scheduled(name)
    assert mugraphs
    for mugraph in mugraphs:
        assert proven_by_graph(goal, goal, mugraph).equal


def test_a_shift_that_passes_a_logarithm_is_proven() -> None:
    goal, mugraphs = scheduled("linear-cross-entropy")
    assert all(proven(goal, mugraph).equal for mugraph in mugraphs)


def test_a_mugraph_that_does_not_follow_is_not_proven() -> None:
    goal, mugraphs = scheduled("linear-cross-entropy")
    for mugraph in mugraphs:
        at = next(i for i, step in enumerate(mugraph.graph.steps) if step.op == "log")
        steps = list(mugraph.graph.steps)
        steps[at] = replace(steps[at], op="exp")
        wrong = replace(mugraph, graph=replace(mugraph.graph, steps=tuple(steps)))
        assert proven_by_graph(goal, goal, wrong) is None


def test_another_graph_proves_nothing() -> None:
    goal, mugraphs = scheduled("linear-cross-entropy")
    at = next(i for i, step in enumerate(goal.steps) if step.op == "exp")
    steps = list(goal.steps)
    steps[at] = replace(steps[at], op="square")
    other = replace(goal, steps=tuple(steps))
    assert proven_by_graph(goal, other, replace(mugraphs[0], graph=other)) is None
