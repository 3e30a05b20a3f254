"""A whole graph races as deferred work: by data of it, with the kernels that there are by then, once."""

import json
import weakref
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch
from backend.conftest import Host, plan_of
from backend.race.test_pieces import functional
from torch import Tensor, fx

from superopt.backend import graphpass
from superopt.backend.cache import epoch, keep
from superopt.backend.checks import elimination
from superopt.backend.checks.verdict import known_verdict
from superopt.backend.checks.whole import WholeRace
from superopt.backend.cut import Cut
from superopt.backend.deferred import live, work
from superopt.backend.deferred.graph_data import data_of_graph, digest_of, graph_from
from superopt.backend.deferred.portable import Unportable
from superopt.backend.deferred.queue import Pending, pending_items, pending_key, put_back
from superopt.backend.deferred.work import give_up, work_through
from superopt.backend.region import Region, draft_of
from superopt.cache import Cache
from superopt.errors import CheckpointError
from superopt.targets import pick_target
from superopt.tune import Measurement
from superopt.tune.measure import HeadToHead

from .conftest import ledger
from .test_work import fresh

__all__ = ["fresh"]

TARGET = pick_target("cpu")
X, W = torch.ones(6, 10), torch.ones(6, 10)


def two_norms(x: Tensor, w: Tensor) -> Tensor:
    return x.softmax(-1).cumprod(0).softmax(0) + w


def looked_up(table: Tensor, at: Tensor, x: Tensor) -> tuple[Tensor, Tensor]:
    """Return what has operators that are no algebra, of several results, and what is written to an input."""
    rows = torch.nn.functional.embedding(at, table)
    values, places = (rows + x).sort(-1)
    x.copy_(values)
    return values.softmax(-1), places


def pooled(x: Tensor, w: Tensor) -> Tensor:
    """Return what has an operator of Inductor's own."""
    made, _ = torch.ops.prims._low_memory_max_pool_with_offsets(
        x[None], [2, 2], [2, 2], [0, 0], [1, 1], False
    )
    return made[0].softmax(-1)


CASES = [
    (two_norms, (X, W)),
    (pooled, (X, W)),
    (looked_up, (torch.ones(9, 10), torch.zeros(6, dtype=torch.int64), X)),
]


@pytest.mark.parametrize(("function", "inputs"), CASES, ids=[one.__name__ for one, _ in CASES])
@pytest.mark.parametrize("dynamic", [False, True])
def test_what_is_read_is_the_same_graph_with_the_same_regions(
    function: Callable[..., Any], inputs: tuple[Tensor, ...], dynamic: bool
) -> None:
    seen: list[tuple[str, list[str], dict[str, Any]]] = []

    class Seen(Host):
        def __call__(self, module: fx.GraphModule, given: list[Any], **unused: Any) -> Callable[..., Any]:
            plain = graphpass.RegionPass._run

            def run(own: Any, graph: fx.Graph, warm_up: Any) -> None:
                weights = set(graph.find_nodes(op="placeholder")[:1])
                keys = [one.key.digest for one in Cut(graph, TARGET, ledger(), weights).regions()]
                seen.append((digest_of(graph, weights), keys, data_of_graph(graph, weights)))
                plain(own, graph, warm_up)

            with pytest.MonkeyPatch.context() as patch:
                patch.setattr(graphpass.RegionPass, "_run", run)
                return super().__call__(module, given)

    with torch.no_grad():
        torch.compile(function, backend=Seen(budget_s=0.0), dynamic=dynamic)(*map(torch.clone, inputs))
    [(digest, keys, data)] = seen
    assert keys
    again, weights = graph_from(json.loads(json.dumps(data)), "cpu")
    assert digest_of(again, weights) == digest
    assert [one.key.digest for one in Cut(again, TARGET, ledger(), weights).regions()] == keys


DAMAGE: list[tuple[tuple[Any, ...], Any]] = [
    (("steps", 0, "call"), "aten.from_file.default"),
    (("steps", 0, "call"), "aten.add_.Tensor"),
    (("steps", 0, "call"), "inductor._alloc_from_pool.default"),
    (("steps", 0, "call"), "aten.amax.__class__"),
    (("steps", 0, "args"), [{"node": 99}, [-1], True]),
    (("steps", 0, "args"), [{"code": "print()"}]),
    (("steps", -1), {"call": "aten.copy_.default", "args": [{"node": 3}, {"node": 3}], "kwargs": {}}),
    (("steps",), [{}] * 50_000),
    (("inputs", 0), None),
    (("inputs", 0), {"size": "s0"}),
    (("results",), [{"node": -1}]),
]


@pytest.mark.parametrize(("path", "value"), DAMAGE)
def test_damaged_data_are_refused(path: tuple[Any, ...], value: Any) -> None:
    data = data_of_graph(functional(two_norms, X, W))
    inside: Any = data
    for step in path[:-1]:
        inside = inside[step]
    inside[path[-1]] = value
    with pytest.raises(CheckpointError):
        graph_from(data, "cpu")


def test_a_graph_of_a_users_operator_is_not_queued() -> None:
    graph = functional(two_norms, X, W)
    node = next(one for one in graph.nodes if "cumprod" in str(one.target))
    node.target = len
    with pytest.raises(Unportable):
        data_of_graph(graph)
    assert digest_of(graph) != digest_of(functional(two_norms, X, W))


# -- the work


class Told:
    """A race of whole graphs, whose time is told by how many regions are in it."""

    def __init__(self, patch: pytest.MonkeyPatch) -> None:
        self.times: dict[int, float] = {}
        self.races = 0

        def compile_it(race: WholeRace, some: Any, inputs: Any) -> Callable[..., int]:
            return lambda *given: len(some)

        def confirm(pair: dict[str, Callable[[], int]], *given: Any, **named: Any) -> HeadToHead:
            self.races += 1
            ours, other = (self.times[pair[name]()] for name in ("with", "without"))
            winner, loser = ("with", "without") if ours < other else ("without", "with")
            measured = dict.fromkeys(pair, Measurement(1.0, 1.0, 1.0, 100))
            return HeadToHead(winner, loser, max(ours, other) / min(ours, other), 1.0, True, measured)

        patch.setattr(WholeRace, "_compiled", compile_it)
        patch.setattr(elimination, "confirm", confirm)


@pytest.fixture
def told(monkeypatch: pytest.MonkeyPatch) -> Told:
    return Told(monkeypatch)


def started(function: Callable[..., Any] = two_norms) -> int:
    """Compile a function as a program does at its start; return how many regions are calls of plans."""
    graph = functional(function, X, W)
    graphpass.RegionPass(ledger(budget_s=0.0))(graph)
    return sum(node.target is graphpass.REGION for node in graph.nodes)


def with_kernels(*numbers: int) -> list[Region]:
    """Keep plans of some regions, as if these had won alone."""
    found = list(Cut(functional(two_norms, X, W), TARGET, ledger()).regions())
    for at in numbers:
        plan, draft = plan_of(found[at], TARGET), draft_of(found[at])
        won = replace(draft, taken=True, plan=plan, why="alone", before_us=2000.0, after_us=1000.0)
        keep(replace(won, final=True), found[at], ledger())
    return found


@pytest.mark.parametrize(("together", "stay"), [(90.0, 2), (110.0, 0)])
def test_a_program_queues_the_race_and_obeys_its_verdict(together: float, stay: int, told: Told) -> None:
    with_kernels(0, 1)
    assert started() == 2  # alone they won
    [item] = pending_items()
    assert (item.whole, item.after) == (True, ())
    before = epoch()
    told.times = {0: 100.0, 1: 120.0, 2: together}
    [attempt] = work_through()
    assert attempt.done
    assert attempt.faster == (stay == 0)
    assert epoch() == before + (stay == 0)  # what Inductor keeps of the graph is void
    assert pending_items() == []
    assert started() == stay
    assert pending_items() == []  # nothing is left to do
    assert started(lambda x, w: two_norms(x, w).cumprod(1)) == 2  # another graph with the same regions
    assert len(pending_items()) == 1


def test_a_graph_waits_for_its_regions(told: Told, monkeypatch: pytest.MonkeyPatch) -> None:
    [_, second] = with_kernels(0)
    keep(replace(draft_of(second), why="no time", open=True, budget_s=0.0), second, ledger())
    assert started() == 1
    items = pending_items()
    assert {one.whole for one in items} == {True, False}
    graph = next(one for one in items if one.whole)
    assert graph.after == (pending_key(second.key).digest,)
    order: list[bool] = []

    def decided(item: Pending, seconds: float) -> work.Attempt:
        order.append(item.whole)
        with_kernels(1)
        work.remove(item)
        return work.Attempt("", "", True, True, "")

    plain = work._graph_raced
    monkeypatch.setattr(work, "_worked_off", decided)
    monkeypatch.setattr(work, "_graph_raced", lambda *given: (order.append(True), plain(*given))[1])
    told.times = {0: 100.0, 1: 120.0, 2: 90.0}
    work_through()
    assert order == [False, True]
    assert told.races == 3  # with both regions, and without each
    assert started() == 2


@pytest.mark.parametrize("together", [90.0, 110.0])
def test_a_running_program_takes_up_what_changes(
    together: float, told: Told, monkeypatch: pytest.MonkeyPatch
) -> None:
    with_kernels(0, 1)
    started()
    [item] = pending_items()
    key = work.decided_key(item)
    monkeypatch.setattr(live._Watch, "add", lambda self, graph: None)
    waiting = live.Waiting(live.Place(weakref.ref(two_norms.__code__), None), ledger())
    waiting.add({key.digest: key})
    with Cache.open() as cache:
        waiting.look(cache)
        assert (waiting.stale, waiting.settled) == (False, False)
        told.times = {0: 100.0, 1: 120.0, 2: together}
        work_through()
        waiting.look(cache)
    assert waiting.stale == (together > 100.0)
    assert waiting.settled


@pytest.mark.parametrize("error", [KeyboardInterrupt, RuntimeError])
def test_a_race_that_ends_in_the_middle(
    error: type[BaseException], told: Told, monkeypatch: pytest.MonkeyPatch
) -> None:
    with_kernels(0, 1)
    started()
    [item] = pending_items()

    def broken(*given: Any, **named: Any) -> Any:
        assert [one.begun for one in pending_items()] == [1]
        raise error("gone")

    monkeypatch.setattr(elimination, "confirm", broken)
    if error is KeyboardInterrupt:
        with pytest.raises(KeyboardInterrupt):
            work_through()
        assert pending_items() == [item]
        return
    [attempt] = work_through()
    assert attempt.why == "given up: RuntimeError: gone"
    assert started() == 2
    assert pending_items() == []  # it would fail again


def test_what_a_dying_process_says_of_a_graph_is_void(told: Told, monkeypatch: pytest.MonkeyPatch) -> None:
    with_kernels(0, 1)
    started()
    [item] = pending_items()
    monkeypatch.setattr(elimination, "confirm", lambda *given, **named: give_up())
    with pytest.raises(KeyboardInterrupt):
        work_through()
    assert pending_items() == [item]
    with Cache.open() as cache:
        verdict = known_verdict(cache, work.decided_key(item))
    assert verdict is not None
    assert not verdict.raced


def test_data_of_another_graph_decide_nothing(told: Told) -> None:
    with_kernels(0, 1)
    started()
    [item] = pending_items()
    other = data_of_graph(functional(lambda x, w: two_norms(x, w).cumprod(1), X, W))
    put_back(replace(item, data=other))
    told.times = {0: 100.0, 1: 120.0, 2: 110.0}
    [attempt] = work_through()
    assert attempt.why == "given up: it is another graph here"
    assert told.races == 0
    assert started() == 2


def test_no_race_is_begun_without_the_time_for_it(told: Told) -> None:
    with_kernels(0, 1)
    started()
    [item] = pending_items()
    put_back(replace(item, least_s=50.0))
    assert work_through(seconds=40.0) == []
    assert len(pending_items()) == 1


def test_without_a_cache_or_the_mode_nothing_is_queued(monkeypatch: pytest.MonkeyPatch) -> None:
    with_kernels(0, 1)
    monkeypatch.setenv("SUPEROPT_TUNE", "off")
    started()
    assert pending_items() == []


@pytest.mark.slow
def test_a_real_race_of_a_read_graph() -> None:
    """The regions are taken though their default kernels are slow beside a library's; the graph decides."""
    with_kernels(0, 1)
    assert started() == 2
    [attempt] = work_through()
    assert attempt.done
    assert "given up" not in attempt.why
