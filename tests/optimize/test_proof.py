"""Candidates of files: what is proven of them, and what is not."""

from dataclasses import replace

import pytest
from programs import CENTERED, MEAN

from superopt.candidates.candidate import Candidate
from superopt.candidates.proof import SizeProofs, prove, prove_by_graph
from superopt.candidates.sizes import resized
from superopt.cost import device_of
from superopt.ir import Graph, MuGraph, fuse, live_graph, parse_graph, parse_mugraph
from superopt.schedule import schedules
from superopt.schedule.recipe import Recipe, followed, prepared
from superopt.trace import trace
from superopt.verify.graphs.equality import equal_graphs
from superopt.verify.verdict import Verdict
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
        assert prove_by_graph(goal, goal, mugraph).equal


def test_a_shift_that_passes_a_logarithm_is_proven() -> None:
    goal, mugraphs = scheduled("linear-cross-entropy")
    assert all(prove(goal, mugraph).equal for mugraph in mugraphs)


def test_a_mugraph_that_does_not_follow_is_not_proven() -> None:
    goal, mugraphs = scheduled("linear-cross-entropy")
    for mugraph in mugraphs:
        at = next(i for i, step in enumerate(mugraph.graph.steps) if step.op == "log")
        steps = list(mugraph.graph.steps)
        steps[at] = replace(steps[at], op="exp")
        wrong = replace(mugraph, graph=replace(mugraph.graph, steps=tuple(steps)))
        assert prove_by_graph(goal, goal, wrong) is None


def test_another_graph_proves_nothing() -> None:
    goal, mugraphs = scheduled("linear-cross-entropy")
    at = next(i for i, step in enumerate(goal.steps) if step.op == "exp")
    steps = list(goal.steps)
    steps[at] = replace(steps[at], op="square")
    other = replace(goal, steps=tuple(steps))
    assert prove_by_graph(goal, other, replace(mugraphs[0], graph=other)) is None


# -- other sizes

SUM = ("= e\n", "= a\n")
OTHERS = {  # a goal, what computes it at its own sizes alone, and at all sizes; an axis, and another size
    "a number": (MEAN, SUM, ("d = const[2]()\ne = mul(c, d)", "e = add(c, c)"), "k", 3),
    "another axis": (
        CENTERED,
        ("b = size[m]()", "b = size[k]()"),
        ("g = sub(x, c)\nh = sub(g, f)", "g = add(c, f)\nh = sub(x, g)"),
        "m",
        5,
    ),
}


def changed(text: str, old: str = "", new: str = "") -> Graph:
    assert old in text
    return live_graph(parse_graph(text.replace(old, new) if old else text))


def candidate(graph: Graph, mugraph: MuGraph | None = None) -> Candidate:
    return Candidate("1", graph, mugraph or fuse(graph))


@pytest.mark.parametrize("name", OTHERS)
def test_what_is_equal_at_its_own_sizes_alone_is_refuted_at_others(name: str) -> None:
    text, for_wrong, for_right, axis, size = OTHERS[name]
    goal, proofs = parse_graph(text), SizeProofs()
    wrong, right = changed(text, *for_wrong), changed(text, *for_right)
    assert prove_by_graph(goal, wrong, fuse(wrong)).equal
    for there in (resized(goal, {axis: size}), resized(goal, {axis: 0})):
        assert proofs.verdict(goal, candidate(wrong), there).witness
        assert proofs.verdict(goal, candidate(right), there).equal


def test_an_axis_in_parts_is_not_compared_at_the_length_it_was_built_with() -> None:
    text = MEAN.replace("k=2", "k=8").replace("const[2]", "const[8]")
    goal = parse_graph(text)
    wrong, right = changed(text, *SUM), changed(text)
    there = resized(goal, {"k": 7})  # two parts of four positions hold eight
    for graph, equal in ((wrong, False), (right, True)):
        mugraph = followed(prepared(graph, (("k", 2),)), Recipe(splits=(("k", 2),)))
        assert prove_by_graph(goal, graph, mugraph).equal
        assert SizeProofs().verdict(goal, candidate(graph, mugraph), there).equal == equal


def test_regions_that_are_alike_are_proven_once(monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[Graph] = []

    def counted(a: Graph, b: Graph, **options: float) -> Verdict:
        calls.append(a)
        return equal_graphs(a, b, **options)

    monkeypatch.setattr("superopt.verify.graphs.equality.equal_graphs", counted)
    proofs = SizeProofs()
    for layer in range(3):
        text = MEAN.replace("graph mean", f"graph layer.{layer}").replace("in x", f"in x{layer}")
        text = text.replace("(x)", f"(x{layer})").replace("axes m=6 k=2", f"axes m{layer}=6 k=2")
        text = text.replace("[m", f"[m{layer}")
        goal = parse_graph(text)
        graph = changed(text, *OTHERS["a number"][2])
        assert proofs.verdict(goal, candidate(graph), resized(goal, {"k": 3})).equal
    assert len(calls) == 1


def test_a_schedule_is_proven_at_other_sizes() -> None:
    goal, mugraphs = scheduled("softmax")
    there = resized(goal, {axis: size + 1 for axis, size in goal.sizes.items()})
    proofs = SizeProofs()
    assert all(proofs.verdict(goal, candidate(goal, one), there).equal for one in mugraphs)
