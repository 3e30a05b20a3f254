"""Regions that won alone race inside their graph: what loses there goes, and what is decided is kept."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import fx
from torch.utils._pytree import tree_leaves

from superopt.backend.checks import whole
from superopt.backend.checks.whole import Taken, WholeRace, border_us
from superopt.backend.decision import Decision, Ledger
from superopt.backend.options import BackendOptions
from superopt.backend.pieces import pieces_of
from superopt.backend.region import Region, region_of
from superopt.backend.subgraph import subgraph_of
from superopt.rivals.kinds import Kind, kinds_of
from superopt.targets import pick_target
from superopt.tune import Measurement
from superopt.tune.measure import HeadToHead

from .test_pieces import functional, ones

TARGET = pick_target("cpu")


def two_norms(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    return x.softmax(-1).cumprod(0).softmax(0) + w


def parts(sizes: Sequence[int] = (6, 10)) -> tuple[fx.Graph, dict[fx.Node, Kind], list[Region]]:
    """Return a graph with two regions, around an operator that is no algebra."""
    graph = functional(two_norms, ones(*sizes), ones(*sizes))
    kinds = kinds_of(graph, "cpu")
    ledger = Ledger(BackendOptions())
    made = [subgraph_of(piece, kinds) for piece in pieces_of(graph, kinds) if piece.heavy > 1]
    return graph, kinds, [region_of(one, TARGET, ledger) for one in made]


def taken(regions: Sequence[Region], *gains: float) -> Taken:
    return [
        (region, Decision("", "", True, "alone", before_us=gain * 100.0, after_us=100.0, plan=f"plan {gain}"))
        for region, gain in zip(regions, gains, strict=True)
    ]


def raced(speed: float, *, sure: bool = True) -> HeadToHead:
    """Return a race in which a graph has some speed with its regions."""
    winner, loser = ("with", "without") if speed > 1 else ("without", "with")
    times = dict.fromkeys(("with", "without"), Measurement(1.0, 1.0, 1.0, 100))
    return HeadToHead(winner, loser, max(speed, 1 / speed), 1.0, sure, times)


@pytest.fixture
def race(monkeypatch: pytest.MonkeyPatch) -> Callable[..., tuple[WholeRace, list[int]]]:
    """Return what makes a race of a graph whose speeds are told: by how many regions it has."""

    def made(
        graph: fx.Graph, speeds: dict[int, HeadToHead], *, budget_s: float = 60.0, node_s: float = 1e-6
    ) -> tuple[WholeRace, list[int]]:
        compiled: list[int] = []

        def compile_it(self: WholeRace, some: Taken) -> Callable[..., Any]:
            compiled.append(len(some))
            return lambda *inputs: None

        monkeypatch.setattr(WholeRace, "_compiled", compile_it)
        monkeypatch.setattr(whole, "confirm", lambda *given, **named: speeds[compiled[-1]])
        ledger = Ledger(BackendOptions(budget_s=budget_s))
        ledger.node_s = node_s
        return WholeRace(graph, TARGET, ledger, lambda *given: None), compiled

    return made


def test_there_are_two_regions() -> None:
    assert len(parts()[2]) == 2


@pytest.mark.parametrize(
    ("speeds", "stays"),
    [
        ({2: raced(1.2)}, 2),
        ({2: raced(1.01, sure=False)}, 2),
        ({2: raced(0.99, sure=False)}, 2),  # noise
        ({2: raced(0.99)}, 0),
        ({2: raced(0.9, sure=False), 1: raced(0.8)}, 0),
        ({2: raced(0.9), 1: raced(1.1)}, 1),
    ],
)
def test_what_loses_in_the_whole_graph_goes(speeds: dict[int, HeadToHead], stays: int, race: Any) -> None:
    graph, _, regions = parts()
    if stays == 0:
        speeds = {1: raced(0.9), **speeds}
    one, _ = race(graph, speeds)
    kept, lost = one.kept(taken(regions, 2.0, 1.2))
    assert len(kept) == stays
    assert len(lost) == 2 - stays
    if stays == 1:  # the region that gained least went
        assert kept[0][0] is regions[0]
        assert lost[regions[1].key.digest] == "the whole graph has 0.90 times the speed with it"


def test_what_a_graph_decided_is_recalled(race: Any) -> None:
    graph, _, regions = parts()
    first, compiled = race(graph, {2: raced(0.9), 1: raced(1.1)})
    found = first.kept(taken(regions, 2.0, 1.2))
    assert compiled == [0, 2, 1]
    again, compiled = race(graph, {})
    assert again.kept(taken(regions, 2.0, 1.2))[1] == found[1]
    assert compiled == []
    other, compiled = race(graph, {2: raced(1.1)})
    assert other.kept(taken(regions, 2.0, 1.3))[1] == {}  # another plan is raced anew
    assert compiled == [0, 2]


def test_a_graph_of_other_sizes_is_raced_by_itself(race: Any) -> None:
    for sizes in ((6, 10), (8, 10)):
        graph, _, regions = parts(sizes)
        one, compiled = race(graph, {2: raced(1.1)})
        one.kept(taken(regions, 2.0, 2.0))
        assert compiled == [0, 2]


@pytest.mark.parametrize("settings", [{"budget_s": 0.3}, {"node_s": 1.0}, {"node_s": 0.0}])
def test_without_time_a_region_must_gain_more_than_its_border(settings: dict[str, float], race: Any) -> None:
    graph, kinds, regions = parts()
    one, compiled = race(graph, {}, **settings)
    found = taken(regions, 2.0, 1.2)
    assert one.kept(found)[1] == {}
    assert compiled == []
    small = [(region, replace(decision, before_us=100.0 + 1e-9)) for region, decision in found]
    lost = one.kept(small)[1]
    dear = {region.key.digest for region in regions if border_us(region, kinds, TARGET) > 1e-9}
    assert set(lost) == dear
    assert all("where it is cut out" in why for why in lost.values())


def test_a_budget_of_nothing_leaves_what_is_known(race: Any) -> None:
    graph, _, regions = parts()
    one, compiled = race(graph, {}, budget_s=0.0)
    assert one.kept(taken(regions, 2.0, 1.2))[1] == {}
    assert compiled == []


def test_what_libraries_compute_costs_no_border() -> None:
    def cut(function: Callable[..., Any]) -> float:
        graph = functional(function, ones(64, 64), ones(64, 64))
        kinds = kinds_of(graph, "cpu")
        piece = next(one for one in pieces_of(graph, kinds) if one.heavy > 1)
        norm = [node for node in piece.nodes if "mm" not in str(node.target)]
        only = replace(piece, nodes=tuple(node for node in norm if "relu" not in str(node.target)))
        inner = {node: kinds[node] for node in graph.nodes}
        region = region_of(subgraph_of(only, inner), TARGET, Ledger(BackendOptions()))
        return border_us(region, inner, TARGET)

    assert cut(lambda x, w: (x @ w).softmax(-1)) == 0.0
    assert cut(lambda x, w: torch.relu(x @ w).softmax(-1)) > 0.0


@pytest.mark.slow
@pytest.mark.parametrize("slower", [False, True])
def test_a_graph_is_compiled_and_raced_both_ways(slower: bool) -> None:
    graph, _, regions = parts((64, 64))
    ledger = Ledger(BackendOptions(budget_s=600.0, cache=False))
    ledger.node_s = 1e-6

    def put_in(copy: fx.Graph, some: Taken) -> None:
        """Let the graph take longer, by many products of which it returns the last, or leave it as it is."""
        if not slower:
            return
        output = next(node for node in copy.nodes if node.op == "output")
        x = made = next(node for node in copy.nodes if node.op == "placeholder")
        with copy.inserting_before(output):
            for _ in range(300):
                made = copy.call_function(torch.ops.aten.mm.default, (made, x))
        output.args = ((*tree_leaves(output.args[0]), made),)

    kept, lost = WholeRace(graph, TARGET, ledger, put_in).kept(taken(regions, 2.0, 1.5))
    assert bool(lost) == slower
    assert len(kept) + len(lost) == 2
