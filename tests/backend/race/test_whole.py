"""Regions that won alone race inside their graph: what loses there goes, and what is decided is kept."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import fx
from torch.utils._pytree import tree_leaves

from superopt.backend.cache import epoch
from superopt.backend.checks import elimination, whole
from superopt.backend.checks.border import border_us
from superopt.backend.checks.verdict import Taken, keep_verdict
from superopt.backend.checks.whole import WholeRace
from superopt.backend.decision import Decision, Ledger
from superopt.backend.options import BackendOptions
from superopt.backend.pieces import pieces_of
from superopt.backend.region import Region, region_of
from superopt.backend.subgraph import subgraph_of
from superopt.errors import SuperoptError
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
    return graph, kinds_of(graph, "cpu"), regions_of(graph)


def regions_of(graph: fx.Graph) -> list[Region]:
    kinds = kinds_of(graph, "cpu")
    made = [subgraph_of(piece, kinds) for piece in pieces_of(graph, kinds) if piece.heavy > 1]
    return [region_of(one, TARGET, Ledger(BackendOptions())) for one in made]


def taken(regions: Sequence[Region], *gains: float) -> Taken:
    return [
        (region, Decision("", "", True, "alone", before_us=gain * 100.0, after_us=100.0, plan=f"plan {gain}"))
        for region, gain in zip(regions, gains, strict=True)
    ]


def near(offered: Taken, *names: str) -> Taken:
    """Return regions of which some have kernels that won no race alone."""
    return [
        (region, replace(decision, taken=name not in names))
        for (region, decision), name in zip(offered, "AB", strict=True)
    ]


def raced(speed: float, *, sure: bool = True) -> HeadToHead:
    """Return a race in which a graph has some speed with its regions, or with one more of them."""
    winner, loser = ("with", "without") if speed > 1 else ("without", "with")
    times = dict.fromkeys(("with", "without"), Measurement(1.0, 1.0, 1.0, 100))
    return HeadToHead(winner, loser, max(speed, 1 / speed), 1.0, sure, times)


Races = list[tuple[str, str]]


@pytest.fixture
def race(monkeypatch: pytest.MonkeyPatch) -> Callable[..., tuple[WholeRace, Races]]:
    """Return what makes a race of a graph with the regions A and B, of which each form has a told time."""

    def made(
        graph: fx.Graph, times: dict[str, float], *, budget_s: float = 60.0, node_s: float = 1e-6
    ) -> tuple[WholeRace, Races]:
        races: Races = []
        names = dict(zip((one.key.digest for one in regions_of(graph)), "AB", strict=True))

        def compile_it(self: WholeRace, some: Taken, inputs: Any) -> Callable[..., Any]:
            form = "".join(sorted(names[region.key.digest] for region, _ in some))
            return lambda *inputs: form

        def confirm(pair: dict[str, Callable[[], str]], *given: Any, **named: Any) -> HeadToHead:
            ours, other = pair["with"](), pair["without"]()
            races.append((ours, other))
            return raced(times[other] / times[ours], sure=abs(times[ours] - times[other]) > 0.5)

        monkeypatch.setattr(WholeRace, "_compiled", compile_it)
        monkeypatch.setattr(elimination, "confirm", confirm)
        ledger = Ledger(BackendOptions(budget_s=budget_s))
        ledger.node_s = node_s
        return WholeRace(graph, TARGET, ledger, lambda *given: None), races

    return made


def test_there_are_two_regions() -> None:
    assert len(parts()[2]) == 2


@pytest.mark.parametrize(
    ("times", "stays"),
    [
        ({"": 100, "AB": 80, "A": 90, "B": 90}, "AB"),
        ({"": 100, "AB": 99.6, "A": 100, "B": 100}, "AB"),
        ({"": 100, "AB": 100.4, "A": 100.2, "B": 100.2}, "AB"),  # noise
        ({"": 100, "AB": 102, "A": 104, "B": 104}, ""),  # each hides what the other loses
        ({"": 100, "AB": 110, "A": 90, "B": 120}, "A"),  # B wins alone and loses in the graph
        ({"": 100, "AB": 90, "A": 80, "B": 110}, "A"),  # the graph gains, and B loses in it all the same
        ({"": 100, "AB": 90, "A": 110, "B": 80}, "B"),
        ({"": 100, "AB": 130, "A": 101, "B": 120}, ""),
    ],
)
def test_the_whole_graph_has_the_last_word(times: dict[str, float], stays: str, race: Any) -> None:
    graph, _, regions = parts()
    one, _ = race(graph, times)
    stay = one.kept(taken(regions, 2.0, 1.2))
    names = {region.key.digest: name for region, name in zip(regions, "AB", strict=True)}
    assert "".join(names[region.key.digest] for region, _ in stay.taken) == stays
    assert {names[one] for one in stay.lost} == set("AB") - set(stays)
    assert all("with it, the whole graph runs at" in why for why in stay.lost.values())
    assert stay.raced


@pytest.mark.parametrize(
    ("names", "times", "stays"),
    [
        ("B", {"": 100, "AB": 80, "A": 90, "B": 95}, "AB"),
        ("B", {"": 100, "AB": 89.8, "A": 90, "B": 95}, "A"),  # noise joins nothing
        ("B", {"": 100, "AB": 95, "A": 90, "B": 95}, "A"),
        ("B", {"": 100, "AB": 90, "A": 105, "B": 101}, "AB"),  # each loses, and both gain
        ("B", {"": 100, "AB": 90, "A": 99, "B": 85}, "B"),
        ("B", {"": 100, "AB": 130, "A": 105, "B": 130}, ""),
        ("B", {"": 94.2, "AB": 95, "A": 99, "B": 94}, ""),  # B gains beside A only, and A goes
        ("AB", {"": 100, "AB": 95, "A": 99, "B": 99}, "AB"),
        ("AB", {"": 100, "AB": 95, "A": 90, "B": 97}, "A"),
        ("AB", {"": 100, "AB": 99.8, "A": 100, "B": 100}, ""),
    ],
)
def test_what_came_near_joins_where_the_graph_is_surely_faster(
    names: str, times: dict[str, float], stays: str, race: Any
) -> None:
    graph, _, regions = parts()
    offered = near(taken(regions, 1.5, 0.99), *names)
    stay = race(graph, times)[0].kept(offered)
    labels = {region.key.digest: name for region, name in zip(regions, "AB", strict=True)}
    assert "".join(labels[region.key.digest] for region, _ in stay.taken) == stays
    assert all(decision.taken for _, decision in stay.taken)
    assert stay.raced
    before = epoch()
    again, races = race(graph, {}, budget_s=0.0)
    assert again.kept(offered) == stay
    assert (races, epoch()) == ([], before)


def test_nothing_joins_without_a_race(race: Any) -> None:
    graph, _, regions = parts()
    offered = near(taken(regions, 1.5, 0.99), "B")
    one, races = race(graph, {}, budget_s=0.0)
    assert [region for region, _ in one.kept(offered).taken] == regions[:1]
    assert races == []
    both = near(offered, "A", "B")
    assert one.kept(both).taken == []
    assert not one.kept(both).raced
    before = epoch()
    late, _ = race(graph, {"": 100, "AB": 80, "A": 90, "B": 95})
    keep_verdict(late.key, late.last_word(offered, 60.0), late=True)
    assert epoch() == before + 1  # what Inductor has kept lacks B
    assert len(one.kept(offered).taken) == 2
    changed = [(region, replace(decision, plan="another")) for region, decision in offered]
    assert [region for region, _ in one.kept(changed).taken] == regions[:1]


def test_what_joins_a_graph_that_had_no_verdict_is_news(race: Any) -> None:
    graph, _, regions = parts()
    offered = near(taken(regions, 1.5, 0.99), "A", "B")
    one, _ = race(graph, {"": 100, "AB": 80, "A": 90, "B": 95})
    before = epoch()
    keep_verdict(one.key, one.last_word(offered, 60.0), late=True)
    assert epoch() == before + 1
    keep_verdict(one.key, one.last_word(offered, 60.0), late=True)
    assert epoch() == before + 1


def test_what_does_not_join_is_no_news(race: Any) -> None:
    graph, _, regions = parts()
    offered = near(taken(regions, 1.5, 0.99), "B")
    one, _ = race(graph, {"": 100, "AB": 90, "A": 90, "B": 95})
    before = epoch()
    assert len(one.kept(offered[:1]).taken) == 1  # without B's kernels, which are found later
    keep_verdict(one.key, one.last_word(offered, 60.0), late=True)
    assert epoch() == before


def test_a_plan_that_has_won_alone_by_now_races_anew(race: Any) -> None:
    graph, _, regions = parts()
    both = taken(regions, 1.5, 1.2)
    times = {"": 100, "AB": 90, "A": 90, "B": 95}
    assert len(race(graph, times)[0].kept(near(both, "B")).taken) == 1
    one, races = race(graph, times)
    assert (len(one.kept(both).taken), len(races)) == (2, 3)
    one, races = race(graph, times)
    assert (len(one.kept(near(both, "B")).taken), len(races)) == (1, 3)


def test_a_race_that_was_won_holds_until_there_is_time_for_another(
    race: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    graph, _, regions = parts()
    offered = taken(regions, 1.0001, 0.99)
    assert len(race(graph, {"": 100, "A": 90})[0].kept(offered[:1]).taken) == 1
    monkeypatch.setattr(whole, "border_us", lambda *given: 5.0)
    one, races = race(graph, {}, budget_s=0.3)
    assert len(one.kept(near(offered, "B")).taken) == 1
    assert races == []


def test_one_region_that_is_all_of_a_graph_joins_nothing(race: Any) -> None:
    graph = functional(lambda x, w: (x @ w).softmax(-1), ones(6, 10), ones(10, 8))
    (region,) = regions_of(graph)
    one = WholeRace(graph, TARGET, Ledger(BackendOptions()), lambda *given: None)
    stay = one.kept([(region, Decision("", "", False, "0.95", plan="a plan"))])
    assert (stay.taken, stay.lost, stay.raced) == ([], {}, True)


def test_what_a_graph_decided_is_recalled(race: Any) -> None:
    graph, _, regions = parts()
    times = {"": 100, "AB": 110, "A": 90, "B": 120}
    first, races = race(graph, times)
    found = first.kept(taken(regions, 2.0, 1.2))
    assert races == [("AB", ""), ("AB", "A"), ("A", "")]
    again, races = race(parts()[0], {}, budget_s=0.0)
    assert again.kept(taken(regions, 2.0, 1.2)).lost == found.lost
    before = epoch()
    assert again.kept(taken(regions, 2.0, 1.2)[:1]).lost == {}  # another region is left to Inductor by now
    assert again.kept(taken(regions, 2.0, 1.2)).lost == found.lost
    assert epoch() == before  # graphs that Inductor keeps stay good
    assert races == []
    other, races = race(graph, {**times, "AB": 80})
    assert other.kept(taken(regions, 2.0, 1.3)).lost == {}  # another plan is raced anew
    assert len(races) == 3


def test_a_plan_that_lost_is_left_out_until_the_graph_races_anew(race: Any) -> None:
    graph, _, regions = parts()
    first, _ = race(graph, {"": 100, "AB": 110, "A": 90, "B": 120})
    lost = first.kept(taken(regions, 2.0, 1.2)).lost
    later, races = race(graph, {}, budget_s=0.1)
    stay = later.kept(taken(regions, 2.5, 1.2))  # A has a better plan by now
    assert (stay.lost, stay.raced, races) == (lost, False, [])


@pytest.mark.parametrize("change", ["graph", "weights", "machine", "options"])
def test_a_verdict_is_of_one_graph_on_one_machine(
    change: str, race: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    graph, _, regions = parts()
    lost = race(graph, {"": 100, "AB": 110, "A": 90, "B": 120})[0].kept(taken(regions, 2.0, 1.2)).lost
    assert lost
    if change == "graph":  # the same regions in it, and one more operator
        output = next(node for node in graph.nodes if node.op == "output")
        with graph.inserting_before(output):
            made = graph.call_function(torch.ops.aten.relu.default, (output.args[0],))
            made.meta["val"] = output.args[0].meta["val"]
        output.args = (made,)
    elif change == "machine":
        parts_here = TARGET.key_parts()
        monkeypatch.setattr(type(TARGET), "key_parts", lambda self: {**parts_here, "device": "another"})
    one, _ = race(graph, {"": 100, "AB": 80, "A": 90, "B": 90})
    if change == "weights":
        one = replace(one, weights={next(iter(graph.nodes))})
    elif change == "options":
        one.ledger.options = replace(one.ledger.options, weights="live")
    assert one.kept(taken(regions, 2.0, 1.7)).lost == {}


def test_names_do_not_matter_to_a_verdict(race: Any) -> None:
    graph, other = parts()[0], parts()[0]
    for node in other.nodes:
        node.name = f"{node.name}_of_another_trace"
    assert race(graph, {})[0].key == race(other, {})[0].key


@pytest.mark.parametrize("settings", [{"budget_s": 0.3}, {"node_s": 1.0}, {"node_s": 0.0}])
def test_without_time_a_region_must_gain_more_than_its_border(
    settings: dict[str, float], race: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    graph, kinds, regions = parts()
    one, races = race(graph, {}, **settings)
    monkeypatch.setattr(whole, "_COLD_US", 0.0)
    found = taken(regions, 2.0, 1.2)
    stay = one.kept(found)
    assert (stay.lost, stay.raced) == ({}, False)
    assert races == []
    small = [(region, replace(decision, before_us=100.0 + 1e-9)) for region, decision in found]
    lost = one.kept(small).lost
    dear = {region.key.digest for region in regions if border_us(region, kinds, TARGET) > 1e-9}
    assert set(lost) == dear
    assert all("where it is cut out" in why for why in lost.values())


def test_without_time_kernels_must_gain_more_than_what_cold_caches_cost(
    race: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Before: a layer of a network that won by 11% alone was slower by 40% in it."""
    graph, _, regions = parts()
    monkeypatch.setattr(whole, "border_us", lambda *given: 1.0)
    for gains, plans, lost in (
        ((1.6, 1.6), ("one", "other"), 0),
        ((1.3, 1.3), ("one", "other"), 2),
        ((1.3, 1.3), ("one", "one"), 0),  # layers that have the same kernels
        ((1.6, 1.3), ("one", "other"), 1),
    ):
        offered = [
            (region, replace(decision, plan=plan))
            for (region, decision), plan in zip(taken(regions, *gains), plans, strict=True)
        ]
        one, races = race(graph, {}, budget_s=0.3)
        one.ledger.options = replace(one.ledger.options, cache=False)
        assert (len(one.kept(offered).lost), races) == (lost, [])


def test_a_budget_of_nothing_leaves_what_is_known(race: Any) -> None:
    graph, _, regions = parts()
    one, races = race(graph, {}, budget_s=0.0)
    stay = one.kept(taken(regions, 2.0, 1.2))
    assert (stay.lost, stay.raced) == ({}, False)
    assert races == []


def test_a_race_waits_for_memory(race: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    graph, _, regions = parts()
    monkeypatch.setattr(whole, "_free_bytes", lambda target: 100)
    one, races = race(graph, {})
    assert not one.kept(taken(regions, 2.0, 1.2)).raced
    with pytest.raises(SuperoptError, match="too much memory"):
        one.last_word(taken(regions, 2.0, 1.2), 60.0)
    assert races == []


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

    stay = WholeRace(graph, TARGET, ledger, put_in).kept(taken(regions, 2.0, 1.5))
    assert bool(stay.lost) == slower
    assert len(stay.taken) + len(stay.lost) == 2


def test_a_graph_that_may_not_be_called_is_not_raced(race: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(whole, "runs_on_anything", lambda graph: False)
    graph, _, regions = parts()
    one, races = race(graph, {"": 1.0, "A": 0.5, "B": 0.5, "AB": 0.2})
    offered = taken(regions, 2.0, 1.5)
    one.kept(offered)
    assert not races
    with pytest.raises(SuperoptError, match="may not call"):
        one.last_word(offered, 1.0)
