"""PyTorch's own operators as what a region becomes: put together again, proven, kept as data, and raced."""

import json
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch
from quick import few
from torch import Tensor, fx
from torch.nn import functional as F

from superopt.backend import region_race
from superopt.backend.decision import Ledger
from superopt.backend.deferred.portable import data_of, region_from
from superopt.backend.operators import eager_module, operators_of, slides
from superopt.backend.options import BackendOptions
from superopt.backend.pieces import pieces_of, why_no_search
from superopt.backend.region import Region, region_of
from superopt.backend.region_plan import RegionPlan
from superopt.backend.region_race import RegionRace
from superopt.backend.subgraph import subgraph_of
from superopt.errors import InputError
from superopt.rivals.aten import operator_name
from superopt.rivals.composites import COMPOSITE, recompose
from superopt.rivals.kinds import kinds_of
from superopt.rivals.rivals import INDUCTOR
from superopt.targets import pick_target
from superopt.tune import Measurement
from superopt.tune.measure import HeadToHead


def graph_of(function: Callable[..., Any], *inputs: Tensor) -> fx.Graph:
    """Return the graph that Inductor's passes see, whose nodes say what they are parts of."""
    from torch._dynamo.backends.common import aot_autograd
    from torch._inductor.decomposition import select_decomp_table

    seen: list[fx.Graph] = []

    def compile_graph(module: fx.GraphModule, example: list[Any]) -> Any:
        seen.append(module.graph)
        return module.forward

    backend = aot_autograd(fw_compiler=compile_graph, decompositions=select_decomp_table())
    with torch.no_grad():
        torch.compile(function, backend=backend)(*inputs)
    return seen[0]


def region(function: Callable[..., Any], *inputs: Tensor) -> Region:
    graph = graph_of(function, *inputs)
    kinds = kinds_of(graph, "cpu")
    piece = max(pieces_of(graph, kinds), key=lambda one: len(one.nodes))
    assert why_no_search(piece) is None
    return region_of(subgraph_of(piece, kinds), pick_target("cpu"), Ledger(BackendOptions()))


X = (6, 10)
WHOLE: dict[str, tuple[Callable[..., Any], str]] = {
    "softmax": (lambda x: x.softmax(-1), "_softmax"),
    "masked by positions": (
        lambda x: x.masked_fill(torch.arange(10) > torch.arange(6)[:, None], -1e4).softmax(-1),
        "_softmax",
    ),
    "of columns": (lambda x: torch.relu(x).softmax(0) * 2, "_softmax"),
    "log-softmax": (lambda x: x.log_softmax(-1), "_log_softmax"),
    "layer norm": (lambda x: F.layer_norm(x, (10,)), "native_layer_norm"),
    "of two axes": (lambda x: F.layer_norm(x.view(2, 3, 10), (3, 10)), "native_layer_norm"),
    "scaled": (lambda x: F.layer_norm(x, (10,), x[0] + 1, x[1]), "native_layer_norm"),
    "norm": (lambda x: F.normalize(x, dim=-1), "linalg_vector_norm"),
}


@pytest.mark.parametrize("dtype", few([torch.float32, torch.bfloat16], torch.bfloat16))
@pytest.mark.parametrize("name", WHOLE)
def test_composite_operators_are_put_together_again(name: str, dtype: torch.dtype) -> None:
    function, operator = WHOLE[name]
    x = torch.randn(X).to(dtype)
    found = region(function, x)
    whole, fused = eager_module(found)
    assert fused
    assert operator in [operator_name(node) for node in whole.graph.nodes]
    given = [torch.randn(one.shape).to(one.dtype) for one in found.subgraph.example()]
    for made, expected in zip(whole(*given), found.subgraph.module(*given), strict=True):
        torch.testing.assert_close(made, expected)


POINTWISE: dict[str, tuple[Callable[[Tensor], Tensor], str]] = {
    "gelu": (F.gelu, "gelu"),
    "gelu by tanh": (lambda x: F.gelu(x, approximate="tanh"), "gelu"),
    "silu": (F.silu, "silu"),
    "hardswish": (F.hardswish, "hardswish"),
    "hardsigmoid": (F.hardsigmoid, "hardsigmoid"),
}


@pytest.mark.parametrize("name", POINTWISE)
def test_pointwise_operators_are_put_together_again_and_promise_nothing(name: str) -> None:
    function, operator = POINTWISE[name]
    found = region(lambda x: F.avg_pool2d(function(x), 3), torch.randn(1, 2, 9, 9))
    whole, fused = eager_module(found)
    assert not fused
    assert slides(found)
    assert [operator_name(node) for node in whole.graph.nodes if node.op == "call_function"] == [
        operator,
        "avg_pool2d",
    ]
    given = [3 * torch.randn(one.shape) for one in found.subgraph.example()]
    for made, expected in zip(whole(*given), found.subgraph.module(*given), strict=True):
        torch.testing.assert_close(made, expected)


def test_what_no_operator_says_stays_as_it_is() -> None:
    def by_hand(x: Tensor) -> Tensor:
        grown = (x - x.amax(-1, keepdim=True)).exp()
        return grown / grown.sum(-1, keepdim=True)

    found = region(by_hand, torch.randn(X))
    assert eager_module(found) == (found.subgraph.module, False)


def test_a_plain_reduction_is_left_to_inductor() -> None:
    graph = graph_of(lambda x: x.mean(-1) * 2, torch.randn(X))
    [piece] = pieces_of(graph, kinds_of(graph, "cpu"))
    assert why_no_search(piece) is not None


def shifted(x: Tensor) -> Tensor:
    return (x - x.amax(-1, keepdim=True)).exp()


def read_inside(x: Tensor) -> tuple[Tensor, Tensor]:
    grown = shifted(x)
    return grown / grown.sum(-1, keepdim=True), grown.sum(0)


@pytest.mark.parametrize(
    "other",
    [
        lambda x: 2 * shifted(x) / shifted(x).sum(-1, keepdim=True),  # a factor
        lambda x: shifted(x) / shifted(x).sum(0, keepdim=True),  # a sum of another dimension
        read_inside,
    ],
)
def test_parts_that_are_not_the_operator_are_not_believed(other: Callable[..., Any]) -> None:
    found = region(other, torch.randn(6, 6))
    for node in found.subgraph.module.graph.nodes:
        if node.op == "call_function":
            node.meta[COMPOSITE] = ("_softmax", "planted")
    assert recompose(found.subgraph.module, found.subgraph.example()) is None


def planned(found: Region) -> RegionPlan:
    operators = operators_of(found, eager_module(found)[0])
    assert operators is not None
    return RegionPlan.of_operators(found.goal, "cpu", operators)


@pytest.mark.parametrize("name", WHOLE)
def test_operators_are_a_plan_that_another_process_reads(name: str) -> None:
    found = region(WHOLE[name][0], torch.randn(X))
    text = planned(found).text
    read = RegionPlan.read(text)
    read.prove()
    assert read.text == text
    given = [torch.randn(one.shape) for one in found.subgraph.example()]
    made = read(found.in_order(read.inputs, given))
    expected = dict(zip(found.names, found.subgraph.module(*given), strict=True))
    for output, tensor in zip(read.outputs, made, strict=True):
        assert tensor.is_contiguous()
        torch.testing.assert_close(tensor, expected[output])


def test_a_plan_that_was_tampered_with_is_refused() -> None:
    data = json.loads(planned(region(WHOLE["softmax"][0], torch.randn(6, 6))).text)
    steps = data["operators"]["calls"]["steps"]
    [softmax] = [one for one in steps if "_softmax" in one["call"]]
    softmax["args"][1] = 0
    with pytest.raises(InputError, match="something else"):
        RegionPlan.read(json.dumps(data)).prove()
    data["operators"]["inputs"] = "x"
    with pytest.raises(InputError, match="damaged"):
        RegionPlan.read(json.dumps(data))


def test_no_result_shares_memory_with_an_input_or_another_result() -> None:
    found = region(lambda x: (x.softmax(-1), x.softmax(-1).t().contiguous()), torch.randn(X))
    plan = planned(found)
    given = [torch.randn(one.shape) for one in found.subgraph.example()]
    made = plan(found.in_order(plan.inputs, given))
    places = [one.untyped_storage().data_ptr() for one in (*given, *made)]
    assert len(set(places)) == len(places)


def test_a_region_that_waits_remembers_its_operators() -> None:
    found = region(WHOLE["softmax"][0], torch.randn(X))
    data = json.loads(json.dumps(data_of(found.subgraph)))
    again = region_from(data, pick_target("cpu"), Ledger(BackendOptions()))
    assert again.key == found.key
    assert eager_module(again)[1]


class Timed:
    """Opponents of which eager's time and Inductor's are known."""

    has_library = False
    made = True  # whether Inductor's code is compiled
    copies: tuple[tuple[Tensor, ...], ...] = ()

    def __init__(self, eager_us: float, drawn: tuple[Tensor, ...]) -> None:
        self.most_us, self.least_us, self.copies = eager_us, 0.0, (drawn, drawn)

    def has_made(self, rival: object) -> bool:
        return self.made and rival is INDUCTOR

    def give_up_copies(self) -> None:
        """Do nothing."""


def against(inductor_us: float, ours_us: float, *, sure: bool = True) -> HeadToHead:
    times = {
        name: Measurement(us, us, us, 100) for name, us in (("inductor", inductor_us), ("superopt", ours_us))
    }
    winner, loser = sorted(times, key=lambda name: times[name].median_us)
    speedup = times[loser].median_us / times[winner].median_us
    return HeadToHead(winner, loser, speedup, 1.0, sure, times)


@pytest.mark.parametrize(
    ("inductor_us", "operators_us", "sure", "taken"),
    [
        (200.0, 100.0, True, True),
        (102.0, 100.0, True, False),
        (104.0, 100.0, True, False),  # no more than what Inductor's code by itself takes to be called
        (100.0, 200.0, True, False),
        (200.0, 100.0, False, False),
    ],
)
def test_operators_are_taken_only_where_they_beat_inductor(
    inductor_us: float, operators_us: float, sure: bool, taken: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = region(WHOLE["softmax"][0], torch.randn(X))
    monkeypatch.setattr(
        region_race, "Opponents", lambda *unused, **named: Timed(operators_us, (torch.randn(X),))
    )
    monkeypatch.setattr(RegionRace, "_run_funnel", lambda self, search: replace(self.draft, why="no kernels"))
    monkeypatch.setattr(RegionRace, "_race", lambda *unused: against(inductor_us, operators_us, sure=sure))
    race = RegionRace(found, pick_target("cpu"), Ledger(BackendOptions(budget_s=60.0, cache=False)))
    decision = race.try_kernels(30.0, None, search=False)
    assert decision.taken == taken
    if taken:
        assert decision.why == "1.97 times Inductor's speed, by PyTorch's own operators"
        RegionPlan.read(str(decision.plan)).prove()
    else:
        assert decision.plan is None
        assert decision.why == "no kernels"
    assert race.operators_raced == sure  # what is undecided may race again


@pytest.mark.parametrize("search", [False, True])
@pytest.mark.parametrize("windows", [False, True])
def test_inductors_code_is_made_for_operators_where_windows_were_searched(
    search: bool, windows: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    x = torch.randn(1, 2, 9, 9)
    found = region(lambda x: F.avg_pool2d(F.gelu(x), 3) if windows else (x @ x).sum(-1) * x[..., 0], x)
    timed = Timed(100.0, tuple(torch.randn(one.shape) for one in found.subgraph.example()))
    timed.made = False
    monkeypatch.setattr(region_race, "Opponents", lambda *unused, **named: timed)
    monkeypatch.setattr(RegionRace, "_run_funnel", lambda self, search: replace(self.draft, why="no kernels"))
    monkeypatch.setattr(RegionRace, "_race", lambda *unused: against(200.0, 100.0))
    race = RegionRace(found, pick_target("cpu"), Ledger(BackendOptions(budget_s=60.0, cache=False)))
    assert race.try_kernels(30.0, None, search=search).taken == (search and windows)
