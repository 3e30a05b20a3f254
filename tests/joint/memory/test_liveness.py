"""Liveness: what a step is expected to hold at once, and choices that would hold more than Inductor's."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.fx.experimental.proxy_tensor import make_fx

from superopt.backend.joint.limits import changed
from superopt.backend.joint.memory import choice
from superopt.backend.joint.memory.choice import StepChoice, choices_within_time
from superopt.backend.joint.memory.kept import KeepOptions, KeptValues, Passes
from superopt.backend.joint.memory.liveness import Liveness
from superopt.backend.joint.memory.parts import handed_on
from superopt.targets import pick_target

from .test_kept import Seen, attention, layers

KIB = 1 << 10
SQUARE = 4 * 64 * 64  # bytes


@pytest.fixture(autouse=True)
def small(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[None]:
    monkeypatch.setenv("SUPEROPT_CACHE_DIR", str(tmp_path))
    with changed(kept_bytes=1):
        yield


def held(step: Callable[..., Any], *kept: str) -> float:
    """Return the squares that a step of two squares, an input and a gradient, is expected to hold."""
    module = make_fx(step, tracing_mode="fake")(*(torch.empty(64, 64) for _ in range(2)))
    for node, name in zip(
        module.graph.find_nodes(op="placeholder"), ("primals_1", "tangents_1"), strict=True
    ):
        node.name = node.target = name
    options = KeepOptions(Passes(module.graph, 1), pick_target("cpu").cost_device())
    found = options.of_names(kept)
    assert len(found.kept) == len(kept)
    peak = Liveness(options.passes).peak(found.kept, options.remade(found.kept))
    return peak.with_gradients.bytes // SQUARE


def test_what_is_read_no_more_is_dropped() -> None:
    assert held(lambda x, by: ((((x @ x) @ x) @ x).sum(), by.sum())) == 2


def test_what_is_computed_where_it_is_read_takes_no_memory() -> None:
    assert held(lambda x, by: ((x @ x).exp().add(1).square().sum(), by.sum())) == 1
    assert held(lambda x, by: ((x.exp() @ x).sum(), by.sum())) == 2  # read by a library
    assert held(lambda x, by: ((x @ x).exp().gather(1, torch.arange(64)[:, None]).sum(), by.sum())) == 1


def test_a_result_takes_the_place_of_what_is_read_for_the_last_time() -> None:
    assert held(lambda x, by: (((x @ x).exp() @ x).sum(), by.sum())) == 2
    assert held(lambda x, by: ((a := x @ x).exp() @ x + a, by.sum())) == 3


def test_what_the_backward_pass_reads_is_held_until_then() -> None:
    def step(x: Tensor, by: Tensor, last: Callable[..., Any]) -> Any:
        first, second = x @ x, x @ x
        return (first @ second).sum(), *last(first, second, by)

    def gives(last: Callable[..., Any]) -> Callable[..., Any]:
        return lambda x, by: step(x, by, last)

    kept = ("mm", "mm_1")
    both = gives(lambda a, b, by: (torch.addmm(a, b, by), torch.addmm(b, a, by)))
    assert held(both, *kept) == 4  # two that are read to the end, and two gradients
    assert held(gives(lambda a, b, by: (torch.addmm(a, b, by) @ by,)), *kept) == 3
    assert held(gives(lambda a, b, by: (((a @ by) @ b) @ by,)), *kept) == 3
    assert held(gives(lambda a, b, by: ((a @ by) @ b.t(),)), "mm", "t") == 3


def test_what_is_made_again_lies_there_from_its_first_reader_on() -> None:
    def step(x: Tensor, by: Tensor) -> Any:
        first = x @ x
        second = first @ x
        return (second @ x).sum(), (by @ second).sum(), (by @ first).sum()

    assert held(step, "mm", "mm_1") == 3
    assert held(step, "mm_1") == 2  # the first is made when the second has been read
    assert held(step) == 3  # both are made before what the second is read for


def test_what_reads_the_same_is_made_in_one_loop() -> None:
    def step(x: Tensor, by: Tensor) -> Any:
        first = x @ x
        return sum((one(first) @ x).sum() for one in (torch.exp, torch.sin, torch.cos)), by.sum()

    assert held(step) == 4  # one by one they would take three


def test_what_a_later_reader_needs_is_made_before() -> None:
    def step(x: Tensor, by: Tensor) -> Any:
        first = x @ x
        return (torch.sin(first) * (torch.exp(first) @ x)) @ x, by.sum()

    assert held(step) == 3


def test_views_take_nothing() -> None:
    assert held(lambda x, by: ((x @ x).t()[:32].reshape(-1).sum(), by.sum())) == 1


def test_results_of_one_operator_are_dropped_one_by_one() -> None:
    def step(x: Tensor, by: Tensor) -> Any:
        values, vectors = torch.linalg.eigh(x)
        return ((vectors @ x) @ x).sum() + values.sum(), by.sum()

    assert held(step) == 2


@pytest.mark.parametrize("loss", [layers, attention])
def test_what_is_left_out_of_the_bytes_that_pass(loss: Callable[..., Tensor]) -> None:
    """What a step leaves counts in all, and not in what passes."""
    given = (torch.randn(64, 4), torch.randn(4, 12))
    seen = Seen(lambda *given: loss(*given).square().sum(), "fast", *given)
    held = Liveness(seen.keep_options.passes).peak((), seen.keep_options.remade(()))
    leaves = 4 * (sum(one.numel() for one in given) + 1)  # the gradients and the loss
    assert held.without_gradients.bytes < held.with_gradients.bytes <= held.without_gradients.bytes + leaves


def test_a_gradient_counts_as_one_before_it_is_whole() -> None:
    """Before: the zeros to which rows are added counted as memory that passes."""
    weight = torch.randn(512, 8)

    def loss(weight: Tensor) -> Tensor:
        return torch.nn.functional.embedding(torch.arange(4), weight).tanh().sum()

    seen = Seen(loss, "fast", weight)
    held = Liveness(seen.keep_options.passes).peak((), seen.keep_options.remade(()))
    assert held.without_gradients.bytes < weight.nbytes / 2
    assert held.with_gradients.bytes >= weight.nbytes


@dataclass(frozen=True, eq=False)
class Told:
    """A choice of so many bytes, which takes longer by shares of a step of one second."""

    bytes: int
    chunks_s: float
    remade_s: float
    chunks: object = None

    is_ours = True

    @property
    def more_s(self) -> float:
        return self.chunks_s + self.remade_s

    @property
    def values(self) -> "Told":
        return self


SURE, DOUBTFUL, PLAIN = Told(60, 0.02, 0.001, "chunks"), Told(45, 0.02, 0.02, "chunks"), Told(90, 0.0, 0.01)


@pytest.mark.parametrize(
    ("choices", "tried", "surely"),
    [
        ([SURE, DOUBTFUL, PLAIN], [DOUBTFUL, SURE, PLAIN], [SURE, PLAIN]),
        ([DOUBTFUL, PLAIN], [DOUBTFUL, PLAIN], [PLAIN]),
        ([SURE, PLAIN], [SURE, PLAIN], [SURE, PLAIN]),
        ([PLAIN], [PLAIN], [PLAIN]),
        ([Told(10, 0.06, 0.0), Told(10, 0.0, 0.06)], [], []),
        ([Told(10, 0.0, 0.04)], [Told(10, 0.0, 0.04)], []),
    ],
    ids=["all", "doubtful", "sure", "plain", "slow", "only doubtful"],
)
def test_the_best_that_surely_costs_little_follows(
    choices: list[Told], tried: list[Told], surely: list[Told]
) -> None:
    """Before: where half of the bytes was in reach at some risk, all other chunks were left out."""
    found: Any = choices_within_time(choices, 100, 1.0)  # type: ignore[arg-type]
    assert [[(one.bytes, one.more_s) for one in several] for several in found] == [
        [(one.bytes, one.more_s) for one in several] for several in (tried, surely)
    ]


def test_layers_are_made_again_one_after_another() -> None:
    """Before: what a layer hands on was made again as well, so that all layers lay in memory at once."""
    rows, width, count = 512, 8, 12
    seen = Seen(layers, "fast", torch.randn(rows, width), *(torch.randn(width, 64) for _ in range(count)))
    options, liveness = seen.keep_options, Liveness(seen.keep_options.passes)

    def passing(one: KeptValues) -> int:
        return liveness.peak(one.kept, options.remade(one.kept)).without_gradients.bytes

    inner = 4 * rows * 64
    fewest = min(options.cheapest(), key=lambda one: one.bytes)
    assert passing(fewest) > count * inner
    assert min(map(passing, options.cheapest())) < 4 * inner


def test_what_is_handed_on() -> None:
    seen = Seen(layers, "fast", torch.randn(64, 8), *(torch.randn(8, 64) for _ in range(4)))
    options = seen.keep_options
    order = [node for node in options.passes.early if node in options.passes.required]
    assert handed_on(order, options.bytes, options.seconds, 1) == frozenset()
    found = handed_on(order, options.bytes, options.seconds, 4)
    assert [node.name for node in order if node in found] == ["add", "add_1", "add_2"]


def test_what_is_cheap_to_make_of_inputs_is_not_handed_on() -> None:
    def masked(x: Tensor, *weights: Tensor) -> Tensor:
        mask = torch.arange(x.shape[0])[:, None] > 3
        for one in weights:
            x = x + torch.where(mask, torch.tanh(x @ one) @ one.t(), 0.0)
        return x.square().sum()

    seen = Seen(masked, "fast", torch.randn(64, 8), *(torch.randn(8, 64) for _ in range(4)))
    options = seen.keep_options
    order = [node for node in options.passes.early if node in options.passes.required]
    found = handed_on(order, options.bytes, options.seconds, 4)
    assert {str(node.target) for node in found} == {"aten.add.Tensor"}


@pytest.mark.parametrize(("ours", "taken"), [(99, True), (100, True), (101, False)])
def test_without_time_a_choice_is_dropped_that_would_hold_more(
    ours: int, taken: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Before: only where a step was compiled both ways was its peak compared."""
    monkeypatch.setattr(StepChoice, "whole_bytes", property(lambda one: ours if one.is_ours else 100))
    monkeypatch.setattr(choice, "MORE_TIME", 10.0)
    for memory in ("balanced", SQUARE // 2):
        seen = Seen(attention, memory, torch.randn(64, 4), torch.randn(4, 12))
        assert any(one.taken for one in seen.ledger.decisions) == taken
