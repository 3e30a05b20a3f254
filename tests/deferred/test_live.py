"""A running program takes up what was found between two calls, and only then, and only what is right."""

import random
import time
import weakref
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest
import torch
from backend.conftest import plan_of
from torch import Tensor

from superopt.backend import graphpass
from superopt.backend.cache import keep
from superopt.backend.deferred import live
from superopt.backend.deferred.queue import defer, pending_items, remove
from superopt.backend.region import Region, draft_of
from superopt.cache import Cache
from superopt.targets import pick_target

from .conftest import Regions, ledger

OPTIONS = {"budget_s": 0, "tune": "background"}


@pytest.fixture(autouse=True)
def no_thread(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[live.Waiting]]:
    """Look when the test says so; no helper is started."""
    graphs: list[live.Waiting] = []
    monkeypatch.setenv("SUPEROPT_TUNE", "background")
    monkeypatch.setattr(live._Watch, "add", lambda self, graph: graphs.append(graph))
    with torch._inductor.config.patch(fx_graph_cache=False):  # of other tests
        yield graphs


@pytest.fixture
def passes(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Collect how many regions were replaced in each graph that came by."""
    found: list[int] = []
    plain = graphpass.RegionPass._run

    def run(self: Any, graph: torch.fx.Graph, warm_up: Any) -> None:
        plain(self, graph, warm_up)
        found.append(sum(node.target is graphpass.REGION for node in graph.nodes))

    monkeypatch.setattr(graphpass.RegionPass, "_run", run)
    return found


class Model(torch.nn.Module):
    """A network with one region."""

    def __init__(self, width: int = 16) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.up, self.down = torch.nn.Linear(8, width), torch.nn.Linear(width, 8)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.down(torch.nn.functional.silu(self.up(x)))


def looked(graphs: list[live.Waiting]) -> None:
    with Cache.open() as cache:
        for graph in graphs:
            graph.look(cache)


def find(region: Region, plan: str, **changes: Any) -> None:
    """Put a plan in the cache, as a tuner does."""
    found = replace(draft_of(region), taken=True, plan=plan, why="a test", final=True, **changes)
    keep(found, region, ledger())
    for item in pending_items():
        remove(item)


@pytest.fixture
def model() -> Model:
    return Model()


@pytest.fixture
def region(regions: Regions, model: Model) -> Region:
    [found] = regions(model, torch.ones(4, 8))
    torch._dynamo.reset()
    return found


def test_what_is_found_is_taken_up_between_two_calls(
    model: Model, region: Region, passes: list[int], no_thread: list[live.Waiting]
) -> None:
    compiled = torch.compile(model, backend="superopt", options=OPTIONS)
    x = torch.randn(4, 8)
    with torch.no_grad():
        expected = model(x)
        torch.testing.assert_close(compiled(x), expected)
        assert passes == [0]
        [graph] = no_thread
        looked(no_thread)
        assert not graph.stale
        compiled(x)
        find(region, plan_of(region, pick_target("cpu")))
        looked(no_thread)
        assert graph.stale
        torch.testing.assert_close(compiled(x), expected)  # as it was compiled; then it is forgotten
        assert passes == [0]
        for _ in range(3):
            torch.testing.assert_close(compiled(x), expected)
        assert passes == [0, 1]
        assert not graph.stale
        with torch.no_grad():
            model.up.weight.mul_(2.0)  # weights stay alive
        torch.testing.assert_close(compiled(x), model(x))


def with_better_kernels(
    model: Model, region: Region, waiting: list[live.Waiting], *, of: Region | None = None
) -> tuple[Model, Tensor, Tensor]:
    """Return a compiled model for which better kernels were found since, with an input and its result.

    The kernels are the region's own, or those of another one.
    """
    compiled = torch.compile(model, backend="superopt", options=OPTIONS)
    x = torch.randn(4, 8)
    with torch.no_grad():
        expected = model(x)
        compiled(x)
        find(region, plan_of(of or region, pick_target("cpu")))
        looked(waiting)
    return compiled, x, expected


def test_a_wrong_plan_is_never_taken_up(
    model: Model, region: Region, regions: Regions, passes: list[int], no_thread: list[live.Waiting]
) -> None:
    """What stands in the cache is proven again: here it is a plan for another function of the same shape."""

    class Other(Model):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.down(torch.tanh(self.up(x)))

    [other] = regions(Other(), torch.ones(4, 8))
    torch._dynamo.reset()
    passes.clear()
    compiled, x, expected = with_better_kernels(model, region, no_thread, of=other)
    with torch.no_grad():
        for _ in range(3):
            torch.testing.assert_close(compiled(x), expected)
            looked(no_thread)
    assert passes == [0, 0]  # looked at once, and left to Inductor for good


def test_some_are_taken_up_before_the_rest_after_a_while(
    model: Model, region: Region, regions: Regions, no_thread: list[live.Waiting]
) -> None:
    [other] = regions(model, torch.ones(5, 8))
    torch._dynamo.reset()
    compiled = torch.compile(model, backend="superopt", options=OPTIONS)
    with torch.no_grad():
        compiled(torch.randn(4, 8))
    [graph] = no_thread
    find(region, plan_of(region, pick_target("cpu")))
    assert defer(other, 1.0, ledger())
    graph.add({other.key.digest: other.key})
    looked(no_thread)
    assert (graph.stale, graph.settled) == (False, False)
    graph.since -= 1000.0
    looked(no_thread)
    assert (graph.stale, graph.settled) == (True, True)


@pytest.mark.parametrize("why", ["deterministic", "stance", "limit", "error", "version"])
def test_a_program_that_must_stay_as_it_is_does(
    why: str,
    model: Model,
    region: Region,
    passes: list[int],
    no_thread: list[live.Waiting],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    compiled, x, expected = with_better_kernels(model, region, no_thread)
    with torch.no_grad():
        if why == "deterministic":
            monkeypatch.setattr(live, "stays_as_it_is", lambda: True)
        if why == "stance":
            monkeypatch.setattr(torch._dynamo.eval_frame, "_stance", replace_stance("fail_on_recompile"))
        if why == "version":
            monkeypatch.setattr(torch._dynamo.eval_frame, "_debug_get_cache_entry_list", None)
        limits = {"limit": {"recompile_limit": 2}, "error": {"error_on_recompile": True}}
        with torch._dynamo.config.patch(limits.get(why, {})):
            for _ in range(3):
                torch.testing.assert_close(compiled(x), expected)
    assert passes == [0]


def test_what_a_stance_forbids_is_taken_up_when_it_has_ended(
    model: Model,
    region: Region,
    passes: list[int],
    no_thread: list[live.Waiting],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Before: it was taken up at the next start of the program at the earliest."""
    compiled, x, expected = with_better_kernels(model, region, no_thread)
    with torch.no_grad():
        for stance, taken in (("fail_on_recompile", [0]), ("default", [0, 1])):
            monkeypatch.setattr(torch._dynamo.eval_frame, "_stance", replace_stance(stance))
            for _ in range(3):
                torch.testing.assert_close(compiled(x), expected)
            assert passes == taken


def replace_stance(name: str) -> Any:
    return replace(torch._dynamo.eval_frame._stance, stance=name)


@pytest.mark.slow
def test_other_shapes_and_gradients_go_on(
    model: Model, region: Region, passes: list[int], no_thread: list[live.Waiting]
) -> None:
    compiled = torch.compile(model, backend="superopt", options=OPTIONS)
    x = torch.randn(4, 8)
    with torch.no_grad():
        compiled(x)
    find(region, plan_of(region, pick_target("cpu")))
    looked(no_thread)
    with torch.no_grad():
        compiled(x)
        torch.testing.assert_close(compiled(torch.randn(6, 8)).shape, model(torch.randn(6, 8)).shape)
        torch.testing.assert_close(compiled(x), model(x))
    compiled(x).sum().backward()
    found = [one.grad.clone() for one in model.parameters() if one.grad is not None]
    model.zero_grad()
    model(x).sum().backward()
    for one, parameter in zip(found, model.parameters(), strict=True):
        torch.testing.assert_close(one, parameter.grad)


@pytest.mark.slow
def test_backward_graphs_wait_too(model: Model, no_thread: list[live.Waiting]) -> None:
    compiled = torch.compile(model, backend="superopt", options=OPTIONS)
    x = torch.randn(4, 8)
    compiled(x).sum().backward()
    assert no_thread
    assert set().union(*(graph.keys for graph in no_thread)) >= {
        key.digest for graph in no_thread for key in graph.ledger.pending.values()
    }


@pytest.mark.slow
def test_a_graph_that_inductor_keeps_still_waits(
    regions: Regions, passes: list[int], no_thread: list[live.Waiting]
) -> None:
    model, x = Model(random.randrange(20, 4000)), torch.randn(4, 8)  # a graph that no test has made before
    [region] = regions(model, x)
    torch._dynamo.reset()
    passes.clear()
    with torch.no_grad(), torch._inductor.config.patch(fx_graph_cache=True):
        torch.compile(model, backend="superopt", options=OPTIONS)(x)
        torch._dynamo.reset()
        compiled = torch.compile(model, backend="superopt", options=OPTIONS)
        compiled(x)
        assert passes == [0]
        assert len(no_thread) == 2
        find(region, plan_of(region, pick_target("cpu")))
        looked(no_thread)
        compiled(x)
        torch.testing.assert_close(compiled(x), model(x))
    assert passes == [0, 1]


def test_a_call_costs_next_to_nothing(no_thread: list[live.Waiting]) -> None:
    plain = lambda *given: given  # noqa: E731
    waiting = live.Waiting(live.Place(weakref.ref(plain.__code__), None), ledger())
    wrapped = live.with_take_up(plain, waiting)
    start = time.process_time()
    for _ in range(10_000):
        wrapped(1, 2)
    assert time.process_time() - start < 0.2  # 20 µs each at the very most
    assert wrapped(1, 2) == (1, 2)
