"""Every schedule computes what its graph does: run tile by tile on few positions, ragged parts included."""

from collections.abc import Mapping
from dataclasses import replace
from functools import cache

import pytest
import torch
from interpreter import execute
from quick import few
from torch import Tensor

from superopt.cost import DEVICES
from superopt.driver import search
from superopt.ir import Graph, MuGraph, check_mugraph, release_shifts
from superopt.schedule import rank, schedules
from superopt.trace import trace
from superopt.trace.run import run_graph
from superopt.verify.graphs.equality import equal_graphs
from superopt.workloads import WORKLOADS

ALL = 10_000
SHORT = (3, 5, 2, 4)
SLOW = {"llama-layer", "qknorm-attention"}
ALIKE = {"mha", "mqa", "mqa-decode"}  # which the quick ones of gqa and gqa-decode are much like
NAMES = [pytest.param(name, marks=[pytest.mark.slow] * (name in SLOW | ALIKE)) for name in WORKLOADS]
FEW = ("softmax", "rmsnorm-linear", "gated-mlp", "lora", "gqa-decode")
MEANT = few(WORKLOADS, *FEW)
# The field has no theory of logarithms.
IN_FIELD = few([name for name in WORKLOADS if name not in SLOW | {"linear-cross-entropy"}], *FEW, "mla")


@cache
def graphs_of(name: str) -> tuple[Graph, ...]:
    """Return the best graph of each region of a workload, and the one that it was."""
    workload = WORKLOADS[name]
    goal = release_shifts(trace(workload.function, *workload.inputs(), name="w").graph)
    found = []
    for region in search(goal).regions:
        found += [region.found[0].graph, next(one.graph for one in region.found if one.is_original)]
    return tuple(dict.fromkeys(found))


def short_sizes(graph: Graph, lengths: tuple[int, ...] = SHORT) -> dict[str, int]:
    """Return small sizes for all axes; renamed axes stay equal, and selected places stay inside."""
    leader = {axis: axis for axis in graph.sizes}

    def find(axis: str) -> str:
        while leader[axis] != axis:
            axis = leader[axis]
        return axis

    least: dict[str, int] = {}
    for step in graph.steps:
        for old, new in step.mapping:
            if isinstance(new, str):
                leader[find(old)] = find(new)
            else:
                least[old] = max(least.get(old, 0), new + 1)
    groups = list(dict.fromkeys(find(axis) for axis in leader))
    chosen = {group: lengths[at % len(lengths)] for at, group in enumerate(groups)}
    for axis, size in least.items():
        chosen[find(axis)] = max(chosen[find(axis)], size)
    return {axis: min(chosen[find(axis)], size) for axis, size in graph.sizes.items()}


def shortened(graph: Graph, sizes: Mapping[str, int]) -> Graph:
    """Return the graph with other extents of its axes."""
    return replace(graph, axes=tuple(replace(axis, size=sizes[axis.name]) for axis in graph.axes))


def in_parts(mugraph: MuGraph, sizes: Mapping[str, int], parts: int) -> MuGraph:
    """Return the muGraph with these extents; a split axis has so many parts, the last ones shorter."""
    known = dict(sizes)
    for split in mugraph.splits:
        known[split.outer] = parts
        known[split.inner] = -(-known[split.axis] // parts)
    return check_mugraph(replace(mugraph, graph=shortened(mugraph.graph, known)))


def tensors_for(graph: Graph) -> dict[str, Tensor]:
    torch.manual_seed(0)
    return {port.name: torch.randn(graph.shape(port), dtype=torch.float64) for port in graph.inputs}


def assert_meaning(graph: Graph, mugraphs: Mapping[str, MuGraph], tile: int, parts: int) -> None:
    sizes = short_sizes(graph)
    small = shortened(graph, sizes)
    tensors = tensors_for(small)
    expected = run_graph(small, tensors)
    for name, mugraph in mugraphs.items():
        got = execute(in_parts(mugraph, sizes, parts), tensors, tile)
        for output, tensor in expected.items():
            torch.testing.assert_close(got[output], tensor, rtol=1e-9, atol=1e-11, msg=name)


@pytest.mark.parametrize("name", MEANT)
def test_every_schedule_computes_its_graph(name: str) -> None:
    for graph in graphs_of(name):
        found = {one.name: one.mugraph for one in schedules(graph, DEVICES["H200"], keep=ALL).kept}
        assert found
        assert_meaning(graph, found, tile=2, parts=3)


@pytest.mark.parametrize(("tile", "parts"), few([(1, 2), (3, 4), (2, 5), (8, 7)], (3, 4)))
@pytest.mark.parametrize("name", ["mha-decode", "linear-cross-entropy", "rmsnorm-linear"])
def test_parts_may_end_early_or_be_empty(name: str, tile: int, parts: int) -> None:
    graph = graphs_of(name)[0]
    kept = schedules(graph, DEVICES["H200"], keep=ALL).kept
    split = {one.name: one.mugraph for one in kept if one.mugraph.splits}
    assert split or name == "rmsnorm-linear"
    assert_meaning(graph, split, tile, parts)


@cache
def split_by_the_search(name: str) -> tuple[Graph, list[tuple[str, MuGraph]]]:
    """Return a workload, and schedules of graphs equal to it of which the search split an axis."""
    workload = WORKLOADS[name]
    goal = release_shifts(trace(workload.function, *workload.inputs(), name="w").graph)
    (region,) = search(goal).regions
    split = [one for one in region.found if one.splits]
    kept = rank(split[:6], DEVICES["H200"], keep=4, library=False).kept
    assert kept
    for one in kept:
        assert {half.axis for half in split[one.number - 1].splits} <= {
            half.axis for half in one.mugraph.splits
        }
    return region.goal, [(one.name, one.mugraph) for one in kept]


SPLIT = ["gqa-decode", "mla", "matmul-rowsum", "lora", "rmsnorm-linear", "linear-cross-entropy", "mha"]


@pytest.mark.parametrize(("length", "parts"), [(1, 1), (1, 3), (7, 3), (17, 4), (129, 16)])
@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=[] if name in SPLIT[:3] else pytest.mark.slow) for name in SPLIT]
)
def test_what_the_search_split_runs_at_any_size(name: str, length: int, parts: int) -> None:
    goal, mugraphs = split_by_the_search(name)
    halved = {split.axis for _, mugraph in mugraphs for split in mugraph.splits}
    sizes = {axis: length if axis in halved else min(size, 3) for axis, size in goal.sizes.items()}
    tensors = tensors_for(shortened(goal, sizes))
    expected = run_graph(shortened(goal, sizes), tensors)
    for made, mugraph in mugraphs:
        got = execute(in_parts(mugraph, sizes, parts), tensors, 16)
        for output, tensor in expected.items():
            torch.testing.assert_close(got[output], tensor, rtol=1e-9, atol=1e-11, msg=made)


@pytest.mark.parametrize("name", IN_FIELD)
def test_what_was_split_and_shifted_is_proven_over_the_field(name: str) -> None:
    for graph in graphs_of(name):
        proven = set()
        for one in schedules(graph, DEVICES["H200"], keep=ALL).kept:
            sizes = {axis: 6 if axis in {split.axis for split in one.mugraph.splits} else size
                     for axis, size in short_sizes(graph).items()}  # fmt: skip
            made = in_parts(one.mugraph, sizes, 3).graph
            if made not in proven:
                proven.add(made)
                assert equal_graphs(shortened(graph, sizes), made).equal, one.name


def test_a_wrong_schedule_shows() -> None:
    graph = graphs_of("mha-decode")[0]
    one = next(one for one in schedules(graph, DEVICES["H200"], keep=ALL).kept if one.mugraph.splits)
    steps = one.mugraph.graph.steps
    at = next(i for i, step in enumerate(steps) if step.op == "sub")
    wrong = replace(steps[at], inputs=steps[at].inputs[::-1])
    broken = replace(
        one.mugraph, graph=replace(one.mugraph.graph, steps=(*steps[:at], wrong, *steps[at + 1 :]))
    )
    with pytest.raises(AssertionError):
        assert_meaning(graph, {"broken": broken}, tile=2, parts=3)
